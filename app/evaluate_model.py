"""Judge a model on the held-out people of a dataset, beside references on the very same people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from app.plots import plot_calibration, plot_discrimination
from app.predict_risks import ScoringModel, check_request, predict_risks
from app.result_table import headline_horizon_years, headline_rows
from app.terminal import Progress, show_progress
from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.cohort import DEATH_CODE, HELD_OUT, TRAIN, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.results import (
    AGE_SEX,
    AUC,
    CONCORDANCE,
    COX,
    DIFFERENCE_SUFFIX,
    GRADIENT_BOOSTING,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    POOLED,
    TRUTH,
    Metrics,
    Outcomes,
    Risks,
)
from pipelines.evaluation.compare_with_truth import compare_with_truth
from pipelines.evaluation.evaluate_outcomes import EvaluationResult
from pipelines.evaluation.evaluate_risks import N_BOOTSTRAP, evaluate_risks
from pipelines.evaluation.fit_cox_reference import fit_cox_reference, predict_cox_risks
from pipelines.evaluation.gradient_boosting_reference import fit_gradient_boosting, predict_boosted_risks
from pipelines.evaluation.landmark_features import landmark_features
from pipelines.evaluation.risks_after_gap import horizons_with_gap, risks_after_gap
from pipelines.evaluation.subgroups import AGE, PERIOD, SEX, assign_subgroups, fit_subgroups
from pipelines.find_outcomes import count_gap, find_outcomes, landmarks_at, leave_out_gap
from pipelines.fit_reference_rates import reference_risks
from pipelines.outcome_groups import resolve_outcome_names, sex_of_outcomes
from pipelines.prepare_dataset import fingerprint_cohort, read_manifest
from pipelines.read_dataset import (
    read_reference_rates,
    read_split_first_occurrences,
    read_split_subjects,
    read_vocabulary,
    scan_split_events,
)
from pipelines.synthesize.truth_files import read_truth
from pipelines.tables_on_disk import read_subjects, write_parquet
from pipelines.true_risks import N_FUTURES, true_risks

if TYPE_CHECKING:
    from app.tracking import Run

LANDMARKS = ("entry", "entry+5y")
HORIZONS_YEARS = (1.0, 5.0, 10.0)
TRUTH_TABLE, LEFT_OUT_TABLE = "truth", "left_out"
_MOST_OUTCOMES_LOGGED = 20  # as headline numbers of a run; the tables hold all
ALL_OUTCOMES = "all"
_MOST_COX_MODELS = 20  # unless asked for more
_STEPS_A_LANDMARK = 5
_SUBJECT, _LANDMARK = Subjects.subject_id.name, Outcomes.landmark_age_days.name
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER = "landmark_number"  # working column: which landmark of a person


@dataclass(frozen=True)
class ModelEvaluation:
    """What evaluation found (`Metrics`, `CalibrationGroups`, `EvaluatedOutcomes`) and the files it wrote."""

    metrics: pl.DataFrame
    calibration: pl.DataFrame
    outcomes: pl.DataFrame
    tables: tuple[Path, ...]
    plots: tuple[Path, ...]
    cox_not_fitted: dict[str, str]  # outcome at a landmark → why
    macro_outcomes: tuple[str, ...]  # what means and pooled ratios are over, where judged
    method: str  # how the model's risks came about (`Risks.method`)
    boosting_not_fitted: dict[str, str] = field(default_factory=dict)  # outcome at a landmark → why
    left_out: pl.DataFrame | None = None  # `PeopleLeftOut`, with a gap
    truth: pl.DataFrame | None = None  # `TruthComparison`, with a made-up cohort
    outcomes_of_cox: tuple[str, ...] | None = None  # None: all


@dataclass(frozen=True)
class _People:
    """One split: people, their events, and when each outcome first happened."""

    subjects: pl.DataFrame
    events: pl.LazyFrame
    first_occurrences: pl.DataFrame


@dataclass(frozen=True)
class _AtLandmark:
    """The people of a split at one named landmark: with sex and landmark (a row each), and what came after."""

    people: pl.DataFrame
    outcomes: pl.DataFrame  # those at risk beyond the gap
    in_gap: pl.DataFrame  # `PeopleLeftOut`


@dataclass(frozen=True)
class _Evaluation:
    """Everything that judging needs at any landmark."""

    model: ScoringModel
    train: _People
    held_out: _People
    rates: pl.DataFrame
    outcomes: list[str]
    horizons_years: list[float]
    gap_days: float
    subgroups: Sequence[str]
    cox: list[str]
    boosting: list[str]
    truth: Path | None
    n_futures: int
    macro_outcomes: Sequence[str] | None
    n_bootstrap: int

    @property
    def horizons_days(self) -> list[float]:
        """Horizons after the landmark in days."""
        return [years_to_days(years) for years in self.horizons_years]

    @property
    def partial_predictors(self) -> list[str]:
        """References that are fitted for some of the outcomes alone."""
        of_reference = {COX: self.cox, GRADIENT_BOOSTING: self.boosting}
        return [name for name, fitted_for in of_reference.items() if set(fitted_for) != set(self.outcomes)]

    @property
    def with_death(self) -> list[str]:
        """The outcomes, and death."""
        return list(dict.fromkeys([*self.outcomes, DEATH_CODE]))

    @property
    def asked_days(self) -> list[float]:
        """Horizons that a predictor is asked for which knows nothing of the gap: the end of the gap too."""
        return horizons_with_gap(self.horizons_days, self.gap_days)


@dataclass(frozen=True)
class _Judged:
    """What came out at one landmark."""

    result: EvaluationResult
    cox_not_fitted: Mapping[str, str]
    boosting_not_fitted: Mapping[str, str]
    left_out: pl.DataFrame
    truth: pl.DataFrame | None


def evaluate_model(
    model: ScoringModel,
    dataset: Path,
    out: Path,
    *,
    landmarks: Sequence[str] = LANDMARKS,
    horizons_years: Sequence[float] = HORIZONS_YEARS,
    outcomes: Sequence[str] = (),
    gap_days: float = 0.0,
    subgroups: Sequence[str] = (),
    cox: Sequence[str] | None = None,
    boosting: Sequence[str] = (),
    truth: Path | None = None,
    cohort: Path | None = None,
    macro_outcomes: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
    n_futures: int = N_FUTURES,
) -> ModelEvaluation:
    """Evaluate on the held-out split and write tables and plots under `out`.

    The references are fitted on the training split at the same landmark: the age–sex table (Aalen–Johansen on age, by
    sex), a Cox model an outcome, and gradient boosting where it is asked for. All are judged on the people who have a
    risk from each; outcomes that belong to one sex on people of that sex. A landmark that gives a person several rows
    fits and judges all of them together, with the person as the unit of every interval.

    Args:
        model: what is judged.
        dataset: folder of a prepared dataset.
        out: folder of the results.
        landmarks: names that `landmarks_at` knows.
        horizons_years: times after the landmark.
        outcomes: what to judge, `death` and documented groups included; none: all the model predicts.
        gap_days: time after the landmark in which nothing counts (`leave_out_gap`).
        subgroups: sex, age, period, or codes (`fit_subgroups`).
        cox: outcomes that a Cox model is fitted for, `all` for every one; None: of more than 20 the most
            frequent in training.
        boosting: outcomes that gradient boosting is fitted for. References of some outcomes are in no macro mean.
        truth: folder of the made-up cohort that the dataset was prepared from: the true risks are judged as well, as
            the predictor `truth`, and every other is compared with them.
        cohort: folder of the cohort that the dataset was prepared from; landmarks and periods by date need its birth
            dates.
        macro_outcomes: what means are over; None: everything judged.
        n_bootstrap: replicates for intervals.
        n_futures: futures drawn for each true risk.

    Raises:
        InputContractError: the folder holds no dataset, the cohort is another one, or people have no birth date.
        UsageError: a landmark, outcome, horizon, gap or subgroup that is not understood.
    """
    vocabulary, rates = read_vocabulary(dataset), read_reference_rates(dataset)
    known = [outcome for outcome in model.outcomes if outcome in set(rates[Outcomes.outcome.name])]
    chosen = resolve_outcome_names(outcomes, known) or known
    _, horizons = check_request(model, chosen, horizons_years)
    _check_gap(gap_days, horizons)
    source = _source_cohort(dataset, cohort, truth, [*landmarks, *subgroups])
    train, held_out = (_read_people(dataset, split, vocabulary, source) for split in (TRAIN, HELD_OUT))
    evaluation = _Evaluation(
        model=model,
        train=train,
        held_out=held_out,
        rates=rates,
        outcomes=chosen,
        horizons_years=horizons,
        gap_days=gap_days,
        subgroups=subgroups,
        cox=_cox_outcomes(cox, chosen, train),
        boosting=resolve_outcome_names(boosting, chosen),
        truth=truth,
        n_futures=n_futures,
        macro_outcomes=macro_outcomes,
        n_bootstrap=n_bootstrap,
    )
    judged: dict[str, _Judged] = {}
    with show_progress("evaluating", _STEPS_A_LANDMARK * len(landmarks)) as bar:
        for name in landmarks:
            judged[name] = _judge(evaluation, name, bar)
    frames = _join_results([found.result for found in judged.values()])
    if gap_days > 0:
        frames[LEFT_OUT_TABLE] = pl.concat([found.left_out for found in judged.values()])
    compared = [found.truth for found in judged.values() if found.truth is not None]
    if compared:
        frames[TRUTH_TABLE] = pl.concat(compared)
    tables, plots = _write(frames, landmarks, headline_horizon_years(horizons_years), out)
    averaged = tuple(evaluation.outcomes if macro_outcomes is None else macro_outcomes)
    return ModelEvaluation(
        metrics=frames["metrics"],
        calibration=frames["calibration"],
        outcomes=frames["outcomes"],
        tables=tables,
        plots=plots,
        cox_not_fitted=_at_landmarks({name: found.cox_not_fitted for name, found in judged.items()}),
        macro_outcomes=averaged,
        method=model.method,
        boosting_not_fitted=_at_landmarks({name: found.boosting_not_fitted for name, found in judged.items()}),
        left_out=frames.get(LEFT_OUT_TABLE),
        truth=frames.get(TRUTH_TABLE),
        outcomes_of_cox=tuple(evaluation.cox) if COX in evaluation.partial_predictors else None,
    )


def log_evaluation(run: "Run", found: ModelEvaluation) -> None:
    """Store headline numbers, tables and plots in a run, over which outcomes its means are, and how risks were made."""
    run.log_metrics(headline_metrics(found.metrics))
    run.set_tags({"macro_outcomes": ", ".join(found.macro_outcomes), "method": found.method})
    for table in found.tables:
        run.log_table(table)
    for plot in found.plots:
        run.log_files(plot, "plots")


def headline_metrics(metrics: pl.DataFrame) -> dict[str, float]:
    """Return the numbers a run is compared by: macro means, pooled calibration, and the outcomes with most cases."""
    rows = headline_rows(metrics)
    single = rows.filter(
        Metrics.predictor.col == MODEL, Metrics.metric.col == CONCORDANCE, Metrics.outcome.col != MACRO_MEAN
    )
    largest = single.sort(Metrics.n_events.name, descending=True).head(_MOST_OUTCOMES_LOGGED)[Metrics.outcome.name]
    wanted = rows.filter(
        Metrics.metric.col.is_in([CONCORDANCE, AUC, OBSERVED_EXPECTED, CONCORDANCE + DIFFERENCE_SUFFIX]),
        Metrics.outcome.col.is_in([MACRO_MEAN, POOLED])
        | ((Metrics.predictor.col == MODEL) & Metrics.outcome.col.is_in(largest.to_list())),
    )
    years = (Metrics.horizon_days.col / DAYS_PER_YEAR).map_elements("{:g}".format, return_dtype=pl.String)
    names = wanted.select(
        pl.format("{} {} {} {}y", Metrics.metric.name, Metrics.outcome.name, Metrics.predictor.name, years)
    ).to_series()
    return dict(zip(names, wanted[Metrics.estimate.name], strict=True))


def _check_gap(gap_days: float, horizons_years: Sequence[float]) -> None:
    if not 0 <= gap_days < years_to_days(horizons_years[0]):
        raise UsageError(f"a gap of {gap_days:g} days must be at least 0 and end before the first horizon")


def _cox_outcomes(asked: Sequence[str] | None, outcomes: list[str], train: _People) -> list[str]:
    """Return what Cox models are fitted for; of many outcomes those that most training people ever have.

    A Cox model of each of a thousand outcomes takes hours.
    """
    if asked is not None:
        return outcomes if ALL_OUTCOMES in asked else resolve_outcome_names(asked, outcomes)
    name = Outcomes.outcome.name
    people = train.first_occurrences.filter(Outcomes.outcome.col.is_in(outcomes)).group_by(name).len()
    first = set(people.sort("len", name, descending=[True, False]).head(_MOST_COX_MODELS)[name])
    return [outcome for outcome in outcomes if outcome in first or len(outcomes) <= _MOST_COX_MODELS]


def _source_cohort(dataset: Path, cohort: Path | None, truth: Path | None, names: Sequence[str]) -> Path | None:
    """Return the cohort the dataset was prepared from, if it is given; it is needed where a name is about dates."""
    for folder in (cohort, truth):
        if folder is not None and read_manifest(dataset)["source"] != fingerprint_cohort(folder):
            rule = f"is not the cohort that {dataset} was prepared from (sha256 of its tables)"
            raise InputContractError([Violation(str(folder), "", rule)])
    source = cohort or truth
    if source is None and any(name == PERIOD or _DATE.fullmatch(name) for name in names):
        raise UsageError("dates need birth dates: name the cohort that the dataset was prepared from with --cohort")
    return source


def _read_people(dataset: Path, split: str, vocabulary: pl.DataFrame, source: Path | None) -> _People:
    """Read a split, with birth dates where the cohort is there."""
    subjects = read_split_subjects(dataset, split)
    if source is not None:
        dates = read_subjects(source).select(_SUBJECT, Subjects.birth_date.name)
        subjects = subjects.join(dates, on=_SUBJECT, how="left", maintain_order="left")
    return _People(
        subjects,
        scan_split_events(dataset, split, vocabulary),
        read_split_first_occurrences(dataset, split, vocabulary),
    )


def _judge(evaluation: _Evaluation, name: str, bar: Progress) -> _Judged:
    """Judge every predictor at one landmark."""
    train = _at_landmark(evaluation, evaluation.train, name)
    judged = _at_landmark(evaluation, evaluation.held_out, name)
    risks = {MODEL: _model_risks(evaluation, judged.people)}
    bar.advance(1, f"{name}: model")
    of_cox, no_cox = _cox_risks(evaluation, train, judged)
    risks |= of_cox
    bar.advance(1, f"{name}: Cox")
    risks[AGE_SEX] = _without_gap(evaluation, _age_sex_risks(evaluation, judged.people))
    boosted, no_boosting = _boosted_risks(evaluation, train, judged)
    risks |= boosted
    bar.advance(1, f"{name}: other references")
    if evaluation.truth is not None:
        risks[TRUTH] = _true_risks(evaluation, evaluation.truth, judged.people)
    asked = judged.outcomes.filter(Outcomes.outcome.col.is_in(evaluation.outcomes))
    groups = _subgroups(evaluation, evaluation.subgroups, train.people, judged.people)
    compared = _compare_with_truth(evaluation, name, train, judged, risks)
    bar.advance(1, f"{name}: true risks" if evaluation.truth else name)
    result = evaluate_risks(
        asked,
        risks,
        name,
        evaluation.horizons_days,
        macro_outcomes=evaluation.macro_outcomes,
        partial_predictors=evaluation.partial_predictors,
        n_bootstrap=evaluation.n_bootstrap,
        subgroups=groups,
    )
    bar.advance(1, f"{name}: metrics")
    return _Judged(result, no_cox, no_boosting, judged.in_gap, compared)


def _at_landmark(evaluation: _Evaluation, people: _People, name: str) -> _AtLandmark:
    """Return the people and what came after; death is always among it, because references need it."""
    landmarks = landmarks_at(people.subjects, name, people.first_occurrences)
    wanted = evaluation.with_death
    found = find_outcomes(
        people.subjects, people.first_occurrences, landmarks, wanted, sex_of_outcome=sex_of_outcomes(wanted)
    )
    asked = found.filter(Outcomes.outcome.col.is_in(evaluation.outcomes))
    return _AtLandmark(
        landmarks.join(people.subjects, on=_SUBJECT, maintain_order="left"),
        leave_out_gap(found, evaluation.gap_days),
        count_gap(asked, name, evaluation.gap_days),
    )


def _model_risks(evaluation: _Evaluation, people: pl.DataFrame) -> pl.DataFrame:
    """Return the risks of the model after the gap; people with several landmarks are scored in turns."""
    asked = evaluation.with_death if evaluation.gap_days > 0 else evaluation.outcomes
    gap_years = [evaluation.gap_days / years_to_days(1.0)] if evaluation.gap_days > 0 else []
    parts = [
        predict_risks(
            evaluation.model,
            turn.drop(_LANDMARK),
            evaluation.held_out.events,
            turn.select(_SUBJECT, _LANDMARK),
            asked,
            [*gap_years, *evaluation.horizons_years],
        )
        for turn in _turns(people)
    ]
    return _without_gap(evaluation, pl.concat(parts))


def _turns(people: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the people so that each is there at most once at a time; once nobody, where there is nobody."""
    numbered = people.with_columns(pl.int_range(pl.len()).over(_SUBJECT).alias(_NUMBER))
    most = numbered[_NUMBER].max()
    for number in range(int(str(most or 0)) + 1):
        yield numbered.filter(pl.col(_NUMBER) == number).drop(_NUMBER)


def _without_gap(evaluation: _Evaluation, risks: pl.DataFrame) -> pl.DataFrame:
    """Make risks conditional on nothing in the gap, and leave out what was asked for that alone."""
    after = risks_after_gap(risks, evaluation.gap_days)
    return after.filter(Risks.outcome.col.is_in(evaluation.outcomes))


def _age_sex_risks(evaluation: _Evaluation, people: pl.DataFrame) -> pl.DataFrame:
    return reference_risks(evaluation.rates, people, evaluation.with_death, evaluation.asked_days)


def _cox_risks(
    evaluation: _Evaluation, train: _AtLandmark, judged: _AtLandmark
) -> tuple[dict[str, pl.DataFrame], Mapping[str, str]]:
    """Fit the Cox models asked for on the training people at this landmark and predict for the people judged.

    With a gap both are people who are at risk beyond it, so the baseline hazard begins there. Where no outcome can be
    fitted the predictor is not there.
    """
    if not evaluation.cox:
        return {}, {}
    fitted = fit_cox_reference(train.people, evaluation.train.events, train.outcomes, evaluation.cox)
    if not fitted.outcomes:
        return {}, dict(fitted.not_fitted)
    features = landmark_features(judged.people, evaluation.held_out.events, fitted.features)
    return {COX: predict_cox_risks(fitted, features, evaluation.horizons_days)}, dict(fitted.not_fitted)


def _boosted_risks(
    evaluation: _Evaluation, train: _AtLandmark, judged: _AtLandmark
) -> tuple[dict[str, pl.DataFrame], Mapping[str, str]]:
    """Fit gradient boosting for the outcomes it is asked for; where none can be fitted the predictor is not there."""
    if not evaluation.boosting:
        return {}, {}
    fitted = fit_gradient_boosting(
        train.people, evaluation.train.events, train.outcomes, evaluation.boosting, evaluation.horizons_days
    )
    if not fitted.outcomes:
        return {}, fitted.not_fitted
    features = landmark_features(judged.people, evaluation.held_out.events, fitted.features)
    return {GRADIENT_BOOSTING: predict_boosted_risks(fitted, features)}, fitted.not_fitted


def _true_risks(evaluation: _Evaluation, truth: Path, people: pl.DataFrame) -> pl.DataFrame:
    """Return the true risks of the outcomes that the made-up world has; groups have none."""
    landmarks = people.select(_SUBJECT, _LANDMARK)
    has_truth = set(read_truth(truth).codes)
    asked = [outcome for outcome in evaluation.with_death if outcome in has_truth]
    found = true_risks(truth, landmarks, asked, evaluation.asked_days, n_futures=evaluation.n_futures)
    return _without_gap(evaluation, found.select(Risks.column_names()))


def _subgroups(
    evaluation: _Evaluation, names: Sequence[str], train_people: pl.DataFrame, people: pl.DataFrame
) -> pl.DataFrame | None:
    """Return the subgroups of the people judged; none where none is asked for."""
    if not names:
        return None
    kinds = fit_subgroups(train_people, evaluation.train.events, names)
    return assign_subgroups(people, evaluation.held_out.events, kinds)


def _compare_with_truth(
    evaluation: _Evaluation,
    name: str,
    train: _AtLandmark,
    judged: _AtLandmark,
    risks: Mapping[str, pl.DataFrame],
) -> pl.DataFrame | None:
    """Compare every predictor with the true risks, by sex, by age, and in the subgroups asked for."""
    if TRUTH not in risks:
        return None
    names = list(dict.fromkeys([SEX, AGE, *evaluation.subgroups]))
    groups = _subgroups(evaluation, names, train.people, judged.people)
    others = {predictor: table for predictor, table in risks.items() if predictor != TRUTH}
    return compare_with_truth(others, risks[TRUTH], name, groups, judged.outcomes)


def _at_landmarks(reasons: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {f"{outcome} at {name}": reason for name, found in reasons.items() for outcome, reason in found.items()}


def _join_results(results: Sequence[EvaluationResult]) -> dict[str, pl.DataFrame]:
    """Put the tables of all landmarks under one another, by the names of their files."""
    return {
        entry.name: pl.concat([getattr(result, entry.name) for result in results]) for entry in fields(EvaluationResult)
    }


def _write(
    frames: dict[str, pl.DataFrame], landmarks: Sequence[str], horizon_years: float, out: Path
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Write tables and plots and return where they are."""
    tables = {name: out / f"{name}.parquet" for name in frames}
    for name, frame in frames.items():
        write_parquet(frame, tables[name])
    horizon_days = years_to_days(horizon_years)
    plots = []
    for landmark in landmarks:
        for kind, draw, frame in (
            ("discrimination", plot_discrimination, frames["metrics"]),
            ("calibration", plot_calibration, frames["calibration"]),
        ):
            path = out / "plots" / f"{kind}_{landmark.replace('+', '_plus_')}_{horizon_years:g}y.svg"
            draw(frame, horizon_days, landmark, path)
            plots.append(path)
    return tuple(tables.values()), tuple(plots)
