"""The limits of an evaluation, read off its own tables: a reader should meet them beside the numbers, not later."""

from app.report.follow_up_table import unstable_horizons
from app.report.model_facts import ModelFacts
from app.report.read_evaluation import OUTCOMES, OVER_SEVERAL, PREDICTORS, Evaluation
from data_schemas.results import (
    AUC,
    COX,
    MODEL,
    OVERALL,
    SMALLEST_FOLLOWED_PROBABILITY,
    EvaluatedOutcomes,
    Metrics,
)

FEW_CASES = 100  # Collins, Ogundimu, Altman 2016, Stat Med 35:214–226: at least 100 cases to validate a model
_MOST_NAMED = 12


def state_limits(evaluation: Evaluation, facts: ModelFacts) -> list[str]:
    """Return the limits as sentences, those that are about these very numbers first."""
    return [
        *facts.notes,
        *_of_follow_up(evaluation),
        *_of_few_cases(evaluation),
        *_of_outcomes_left_out(evaluation),
        *_of_references(evaluation),
        "All people judged come from the same source as those the model was trained on. That shows how it does there; "
        "how it does elsewhere, only an evaluation elsewhere can show.",
        "Risks are associations in records. They do not say what would happen if something were treated or changed.",
        "An outcome is what was recorded. Who is seen by a doctor more often has more of everything recorded.",
    ]


def _of_follow_up(evaluation: Evaluation) -> list[str]:
    found = unstable_horizons(evaluation)
    if not found:
        return []
    return [
        f"Few people were followed long enough for {_list(found)}: the chance of still being followed is below "
        f"{SMALLEST_FOLLOWED_PROBABILITY:g}, so that few stand for many. Read those numbers with great care."
    ]


def _of_few_cases(evaluation: Evaluation) -> list[str]:
    rows = evaluation.first_rows().filter(
        Metrics.predictor.col == MODEL,
        Metrics.metric.col == AUC,
        ~Metrics.outcome.col.is_in(OVER_SEVERAL),
        Metrics.estimate.col.is_not_null(),
    )
    few = rows.filter(Metrics.n_events.col < FEW_CASES)[Metrics.outcome.name].to_list()
    if not few:
        return []
    return [
        f"{len(few)} of {rows.height} outcomes have fewer than {FEW_CASES} cases here ({_list(few)}): "
        "their intervals are wide, and a single number says little."
    ]


def _of_outcomes_left_out(evaluation: Evaluation) -> list[str]:
    outcomes = evaluation[OUTCOMES]
    if outcomes.is_empty():
        return []
    left_out = outcomes.group_by(EvaluatedOutcomes.outcome.name).agg(EvaluatedOutcomes.is_judged.col.any())
    names = left_out.filter(~EvaluatedOutcomes.is_judged.col)[EvaluatedOutcomes.outcome.name].sort().to_list()
    without_risk = outcomes.filter(
        EvaluatedOutcomes.n_without_risk.col.is_null() | (EvaluatedOutcomes.n_without_risk.col > 0)
    )
    sentences = []
    if names:
        sentences.append(f"Too few cases to be judged at all: {_list(names)}.")
    if without_risk.height:
        several = without_risk[EvaluatedOutcomes.outcome.name].unique().sort().to_list()
        sentences.append(
            f"Some people at risk have no risk from every predictor and were left out of {_list(several)}; "
            "all predictors are judged on the same people."
        )
    return sentences


def _of_references(evaluation: Evaluation) -> list[str]:
    rows = evaluation.metrics.filter(
        Metrics.metric.col == AUC,
        Metrics.subgroup.col == OVERALL,
        ~Metrics.outcome.col.is_in(OVER_SEVERAL),
        Metrics.estimate.col.is_not_null(),
    )
    keys = (Metrics.outcome.name, Metrics.landmark.name)
    judged = rows.filter(Metrics.predictor.col == MODEL).select(keys).unique()
    sentences = []
    for reference in evaluation.references:
        has = rows.filter(Metrics.predictor.col == reference).select(keys)
        lacks = judged.join(has, on=keys, how="anti").sort(keys)
        if lacks.height:
            places = [f"{outcome} at {landmark}" for outcome, landmark in lacks.rows()]
            reason = ": its fit failed or there were too few training cases" if reference == COX else ""
            sentences.append(f"There is no number of {PREDICTORS[reference]} for {_list(places)}{reason}.")
    return sentences


def _list(names: list[str]) -> str:
    """Write names, the first dozen where there are many."""
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
