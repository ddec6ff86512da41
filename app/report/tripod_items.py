"""TRIPOD+AI: what a report of a prediction model should say, filled in as far as software knows it.

Collins et al. 2024, BMJ 385:e078378: 27 items, 52 with their parts. What an item asks is put in our own words; read
the statement for its full text. An item is `given`, `partly` (something stays to be completed) or `to be completed`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from app.report.answers import TO_BE_COMPLETED, refuse_unknown
from app.report.format_numbers import years
from app.report.measures import MEASURES
from app.report.model_facts import ModelFacts
from app.report.read_evaluation import PREDICTORS, Evaluation
from data_schemas.dataset import COVARIATE, DISEASE, Vocabulary
from data_schemas.results import OVERALL, Metrics
from pipelines.small_counts import show_count

GIVEN, PARTLY = "given", "partly"
_MOST_LISTED = 60
_TUNED = (
    "model_size", "n_reasoning_rounds", "n_layer", "d_model", "mlp_dropout", "token_dropout", "learning_rate",
    "weight_decay", "batch_size", "max_epochs", "patience_epochs", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class TripodItem:
    """One item: number, section, what it asks, the answer, and whether that is all."""

    number: str
    section: str
    asks: str
    answer: str
    state: str


@dataclass(frozen=True)
class _Known:
    """What answers are written from."""

    evaluation: Evaluation
    facts: ModelFacts
    limits: Sequence[str]


_Writer: TypeAlias = Callable[[_Known], str]


def fill_tripod(
    evaluation: Evaluation, facts: ModelFacts, limits: Sequence[str], answers: Mapping[str, str]
) -> list[TripodItem]:
    """Return all 52 items in order; `answers` by number replace what is written here.

    Raises:
        UsageError: an answer to an item that does not exist.
    """
    refuse_unknown(answers, [number for number, *_ in _ITEMS], "tripod")
    known = _Known(evaluation, facts, limits)
    items = []
    for number, section, asks, writer, is_whole in _ITEMS:
        text = answers[number] if number in answers else writer(known) if callable(writer) else writer or ""
        is_given = number in answers or (is_whole and bool(text))
        state = GIVEN if is_given else PARTLY if text else TO_BE_COMPLETED.lower()
        items.append(TripodItem(number, section, asks, text, state))
    return items


def tripod_as_json(items: Sequence[TripodItem]) -> dict[str, Any]:
    """Return the items for a file beside the page."""
    return {"checklist": "TRIPOD+AI 2024, doi:10.1136/bmj-2023-078378", "items": [asdict(item) for item in items]}


def _title(known: _Known) -> str:
    kind = "development and evaluation on held-out people"
    return f"Risks of {len(known.facts.outcomes)} outcomes by {known.facts.name}: {kind}."


def _source(known: _Known) -> str:
    cohort = known.facts.cohort
    dataset = known.facts.tags.get("dataset", "unnamed")
    imported = f"Cohort imported as {cohort.kind}; dataset" if cohort else "Dataset"
    return f"{imported} {dataset} (sha256 {known.facts.tags.get('dataset_sha256', 'unknown')[:16]})."


def _dates(known: _Known) -> str:
    if known.facts.cohort is None or known.facts.cohort.follow_up.median_years is None:
        return ""
    return f"Median follow-up {known.facts.cohort.follow_up.median_years:.1f} years (reverse Kaplan–Meier)."


def _eligible(known: _Known) -> str:
    landmarks = ", ".join(known.evaluation.landmarks)
    return (
        f"At each landmark ({landmarks}): everyone under observation, alive, and without the outcome at or before it. "
        "Rows that the import left out are listed with the rule that did it."
    )


def _preparation(known: _Known) -> str:
    manifest = known.facts.manifest
    rare = (
        f"Codes of fewer than {manifest['settings']['min_subjects']} training people are left out. " if manifest else ""
    )
    return (
        f"{rare}Values are standardised by the central 99 % of training values and clipped at 5 standard deviations; "
        "everything that is fitted is fitted on the training people alone."
    )


def _outcomes(known: _Known) -> str:
    horizons = ", ".join(years(days) for days in known.evaluation.horizons_days)
    groups = [f"{name} (first of {', '.join(members)})" for name, members in known.facts.groups.items()]
    listed = f" Groups: {'; '.join(groups[:_MOST_LISTED])}." if groups else ""
    return f"First record of a code after the landmark, within {horizons}; death competes.{listed}"


def _predictors(known: _Known) -> str:
    inputs = known.facts.vocabulary.filter(Vocabulary.role.col.is_in([DISEASE, COVARIATE]))[Vocabulary.code.name]
    more = f" and {inputs.len() - _MOST_LISTED} more" if inputs.len() > _MOST_LISTED else ""
    return f"Sex, age, and every record at or before the landmark of: {', '.join(inputs.head(_MOST_LISTED))}{more}."


def _sample(known: _Known) -> str:
    splits = known.facts.people_by_split
    people = ", ".join(f"{show_count(n)} {split.replace('_', ' ')}" for split, n in splits.items())
    return f"{f'People: {people}. ' if people else ''}People and cases of each outcome stand in the table of outcomes."


def _partition(known: _Known) -> str:
    settings = known.facts.manifest["settings"] if known.facts.manifest else None
    shares = (
        f"{settings['train_share']:.0%} training, {settings['tuning_share']:.0%} tuning, the rest held out (seed "
        f"{settings['split_seed']}). "
        if settings
        else ""
    )
    return f"{shares}By a stable hash of the person or of those who belong together; only held-out people are judged."


def _model(known: _Known) -> str:
    settings = ", ".join(f"{key} {known.facts.checkpoint[key]}" for key in _TUNED if key in known.facts.checkpoint)
    return (
        f"{known.facts.name}; weights by maximum likelihood of event times, kept from the epoch with the best "
        f"likelihood of the tuning people. Settings: {settings}."
    )


def _measures(known: _Known) -> str:
    found = set(known.evaluation.metrics[Metrics.metric.name])
    names = [measure.label for name, measure in MEASURES.items() if name in found]
    return f"{'; '.join(names)}; calibration and decision curves where there are enough cases. All with 95 % intervals."


def _calculated(known: _Known) -> str:
    method = known.facts.tags.get("method", "")
    way = f" ({method})" if method else ""
    return f"From the stored checkpoint, by the same code that scores new people{way}."


def _versus_references(known: _Known) -> str:
    names = [PREDICTORS[name] for name in known.evaluation.references]
    return f"Judged on held-out people of the same source, same codes and outcomes; beside {' and '.join(names)}."


def _code(known: _Known) -> str:
    commit = known.facts.tags.get("deephealth.git_commit")
    return f"{known.facts.software}{f', commit {commit}' if commit else ''}; Apache-2.0. Run {known.facts.run_id}."


def _characteristics(known: _Known) -> str:
    cohort = known.facts.cohort
    if cohort is None:
        return ""
    sexes = ", ".join(f"{show_count(n)} {sex}" for sex, n in cohort.sexes.items())
    people, deaths = show_count(cohort.people), show_count(cohort.deaths)
    return f"{people} people ({sexes}), {deaths} deaths; ages and follow-up stand on the page."


def _flow(known: _Known) -> str:
    if known.facts.cohort is None and known.facts.manifest is None:
        return "People and cases at each landmark and horizon: see Follow-up."
    return "See Who was judged, and Follow-up."


def _subgroups(known: _Known) -> str:
    groups = [name for name in known.evaluation.metrics[Metrics.subgroup.name].unique().to_list() if name != OVERALL]
    with_groups = f", and for {len(groups)} subgroups" if groups else ""
    return f"See the tables of this page: every number with its 95 % interval, for each outcome{with_groups}."


def _fairness(known: _Known) -> str:
    groups = [name for name in known.evaluation.metrics[Metrics.subgroup.name].unique().to_list() if name != OVERALL]
    return "No term in training; performance by subgroup is reported." if groups else "No term in training."


def _limitations(known: _Known) -> str:
    return " ".join(known.limits)


# number, section, what it asks, who writes the answer, whether that is all the item asks
_ITEMS: tuple[tuple[str, str, str, _Writer | str | None, bool], ...] = (
    ("1", "Title", "Say that a prediction model is developed or evaluated, for whom and of what", _title, True),
    ("2", "Abstract", "A structured summary", None, False),
    ("3a", "Introduction", "Health problem, reason for the model, earlier models", None, False),
    ("3b", "Introduction", "For whom and by whom it is meant to be used, and where in care", None, False),
    ("3c", "Introduction", "Known health inequalities between groups", None, False),
    ("4", "Introduction", "Objectives: development, evaluation or both", "Development and evaluation.", True),
    ("5a", "Methods: data", "Sources of data, why these, whom they represent", _source, False),
    ("5b", "Methods: data", "Dates of data and of follow-up", _dates, False),
    ("6a", "Methods: participants", "Setting, number and place of centres", None, False),
    ("6b", "Methods: participants", "Who was eligible", _eligible, True),
    ("6c", "Methods: participants", "Treatments, and how they were handled",
     "Treatments are not modelled unless they are among the codes.", False),
    ("7", "Methods: data", "How data were prepared and checked, alike in all groups", _preparation, True),
    ("8a", "Methods: outcome", "What is predicted, and over which time", _outcomes, True),
    ("8b", "Methods: outcome", "Who assessed outcomes that need judgement", None, False),
    ("8c", "Methods: outcome", "Whether assessors knew the predictors", None, False),
    ("9a", "Methods: predictors", "How the first set of predictors was chosen",
     "Every code and measurement of the dataset that is frequent enough; none by its relation to an outcome.", True),
    ("9b", "Methods: predictors", "Definition of all predictors", _predictors, True),
    ("9c", "Methods: predictors", "Who assessed predictors that need judgement", None, False),
    ("10", "Methods: sample size", "How many people and cases, and whether that is enough", _sample, False),
    ("11", "Methods: missing data", "How missing data were handled",
     "Nothing is imputed. What was not measured has no row; a measurement without a value enters as missing; unknown "
     "sex is a category of its own. People without a risk from every predictor are left out and counted.", True),
    ("12a", "Methods: analysis", "How data were split between development and evaluation", _partition, True),
    ("12b", "Methods: analysis", "How predictors enter: form, scale, transformation",
     "Codes as learned vectors with the time since they were recorded; measurements linearly in their standardised "
     "value.", True),
    ("12c", "Methods: analysis", "Type of model, how it was built and tuned", _model, True),
    ("12d", "Methods: analysis", "How differences between clusters were handled",
     "People who belong together are in one split; intervals treat the person as the unit.", False),
    ("12e", "Methods: analysis", "Measures and plots of performance, and why these", _measures, True),
    ("12f", "Methods: analysis", "Whether the model was updated after evaluation",
     "After training it was not updated or recalibrated.", True),
    ("12g", "Methods: analysis", "How predictions were calculated for the evaluation", _calculated, True),
    ("13", "Methods: class imbalance", "Whether and how imbalance was handled",
     "Not handled by resampling or weights: the likelihood of event times keeps risks at their true level.", True),
    ("14", "Methods: fairness", "What was done about fairness", _fairness, False),
    ("15", "Methods: output", "What the model gives, and thresholds if any",
     "A risk from 0 to 1 for each outcome and horizon. No threshold is built in; decision curves show a range.", True),
    ("16", "Methods: development and evaluation", "How the two differ in setting, eligibility, outcome, predictors",
     _versus_references, True),
    ("17", "Methods: ethics", "Approval and consent", None, False),
    ("18a", "Open science", "Funding and the role of funders", None, False),
    ("18b", "Open science", "Conflicts of interest", None, False),
    ("18c", "Open science", "Where the protocol is", None, False),
    ("18d", "Open science", "Registration", None, False),
    ("18e", "Open science", "Whether data can be had",
     "The software shares none: a cohort stays with its owner.", False),
    ("18f", "Open science", "Whether code can be had", _code, True),
    ("19", "Patients and public", "How they were involved, or that they were not", None, False),
    ("20a", "Results: participants", "Flow of people, cases and follow-up", _flow, True),
    ("20b", "Results: participants", "Characteristics of people, overall and by source", _characteristics, False),
    ("20c", "Results: participants", "Comparison of people in development and evaluation",
     "Both are parts of one source, split by a stable hash unless the source itself says how.", True),
    ("21", "Results: development", "People and cases in each analysis",
     "See the table of outcomes and Follow-up.", True),
    ("22", "Results: model", "The full model, so that others can predict with it",
     "The checkpoint of the run: weights, vocabulary and configuration, verified by sha256.", True),
    ("23a", "Results: performance", "Performance with intervals, also in subgroups", _subgroups, True),
    ("23b", "Results: performance", "Differences in performance between clusters", None, False),
    ("24", "Results: updating", "Results of updating the model", "It was not updated.", True),
    ("25", "Discussion", "Interpretation, also of fairness, beside other studies", None, False),
    ("26", "Discussion", "Limitations", _limitations, False),
    ("27a", "Discussion: use", "What is done where input is poor or not there",
     "A history without measurements is scored; codes the model does not know are left out and counted. Whoever is "
     "outside follow-up, dead or already has the outcome gets no risk and a reason.", False),
    ("27b", "Discussion: use", "What users must do and know", None, False),
    ("27c", "Discussion: use", "What should be studied next", None, False),
)  # fmt: skip
