"""Judge a model on the held-out people of a dataset, beside two references on the very same people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from app.plots import plot_calibration, plot_discrimination
from app.predict_risks import ScoringModel, predict_risks
from app.terminal import show_progress
from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.cohort import DEATH_CODE, HELD_OUT, TRAIN, Subjects
from data_schemas.results import (
    AGE_SEX,
    AUC,
    CONCORDANCE,
    COX,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    POOLED,
    Metrics,
    Outcomes,
)
from pipelines.evaluation.evaluate_risks import MIN_CASES, N_BOOTSTRAP, EvaluationResult, evaluate_risks
from pipelines.evaluation.fit_cox_reference import fit_cox_reference, predict_cox_risks
from pipelines.evaluation.landmark_features import landmark_features
from pipelines.find_outcomes import find_outcomes, landmarks_at
from pipelines.fit_reference_rates import reference_risks
from pipelines.read_dataset import (
    read_reference_rates,
    read_split_first_occurrences,
    read_split_subjects,
    read_vocabulary,
    scan_split_events,
)
from pipelines.tables_on_disk import write_parquet

if TYPE_CHECKING:
    from app.tracking import Run

LANDMARKS = ("entry", "entry+5y")
HORIZONS_YEARS = (1.0, 5.0, 10.0)
HEADLINE_HORIZON_YEARS = 5.0
_MOST_OUTCOMES_LOGGED = 20  # as headline numbers of a run; the tables hold all
_STEPS_A_LANDMARK = 4


@dataclass(frozen=True)
class ModelEvaluation:
    """What evaluation found (`Metrics`, `CalibrationGroups`, `EvaluatedOutcomes`) and the files it wrote."""

    metrics: pl.DataFrame
    calibration: pl.DataFrame
    outcomes: pl.DataFrame
    tables: tuple[Path, ...]
    plots: tuple[Path, ...]
    cox_not_fitted: dict[str, str]  # outcome at a landmark → why


@dataclass(frozen=True)
class _People:
    """One split: people, their events, and when each outcome first happened."""

    subjects: pl.DataFrame
    events: pl.LazyFrame
    first_occurrences: pl.DataFrame


def evaluate_model(
    model: ScoringModel,
    dataset: Path,
    out: Path,
    *,
    landmarks: Sequence[str] = LANDMARKS,
    horizons_years: Sequence[float] = HORIZONS_YEARS,
    macro_outcomes: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
) -> ModelEvaluation:
    """Evaluate on the held-out split and write tables and plots under `out`.

    The references are fitted on the training split: the age–sex table (Aalen–Johansen on age, by sex) and a Cox model
    an outcome at the same landmark. All three are judged on the people who have a risk from each.

    Raises:
        InputContractError: the folder holds no dataset.
        UsageError: a landmark that is not understood.
    """
    vocabulary = read_vocabulary(dataset)
    train, held_out = (_read_people(dataset, split, vocabulary) for split in (TRAIN, HELD_OUT))
    rates = read_reference_rates(dataset)
    horizons_days = [years_to_days(years) for years in horizons_years]
    known = [outcome for outcome in model.outcomes if outcome in set(rates[Outcomes.outcome.name])]
    results: list[EvaluationResult] = []
    not_fitted: dict[str, str] = {}
    with show_progress("evaluating", _STEPS_A_LANDMARK * len(landmarks)) as bar:
        for name in landmarks:
            people = landmarks_at(held_out.subjects, name)
            outcomes = find_outcomes(held_out.subjects, held_out.first_occurrences, people, known)
            subjects = held_out.subjects.join(people, on=Subjects.subject_id.name, maintain_order="left")
            model_risks = predict_risks(model, subjects, held_out.events, people, known, horizons_years)
            bar.advance(1, f"{name}: model")
            age_sex_risks = reference_risks(rates, subjects, known, horizons_days)
            bar.advance(1, f"{name}: age and sex")
            cox_risks, failures = _cox_risks(train, subjects, held_out.events, name, known, horizons_days)
            not_fitted |= {f"{outcome} at {name}": reason for outcome, reason in failures.items()}
            bar.advance(1, f"{name}: Cox")
            results.append(
                evaluate_risks(
                    outcomes,
                    {MODEL: model_risks, COX: cox_risks, AGE_SEX: age_sex_risks},
                    name,
                    horizons_days,
                    macro_outcomes=macro_outcomes,
                    n_bootstrap=n_bootstrap,
                )
            )
            bar.advance(1, f"{name}: metrics")
    return _write(results, not_fitted, landmarks, out)


def log_evaluation(run: "Run", found: ModelEvaluation) -> None:
    """Store headline numbers, tables and plots in a run."""
    run.log_metrics(headline_metrics(found.metrics))
    for table in found.tables:
        run.log_table(table)
    for plot in found.plots:
        run.log_files(plot, "plots")


def headline_metrics(metrics: pl.DataFrame, landmark: str = LANDMARKS[0]) -> dict[str, float]:
    """Return the numbers a run is compared by: macro means, pooled calibration, and the outcomes with most cases."""
    at_horizon = metrics.filter(
        Metrics.landmark.col == landmark, Metrics.horizon_days.col == years_to_days(HEADLINE_HORIZON_YEARS)
    )
    single = at_horizon.filter(
        Metrics.predictor.col == MODEL, Metrics.metric.col == CONCORDANCE, Metrics.outcome.col != MACRO_MEAN
    )
    largest = single.sort(Metrics.n_events.name, descending=True).head(_MOST_OUTCOMES_LOGGED)[Metrics.outcome.name]
    wanted = at_horizon.filter(
        Metrics.estimate.col.is_not_null(),
        Metrics.metric.col.is_in([CONCORDANCE, AUC, OBSERVED_EXPECTED, CONCORDANCE + DIFFERENCE_SUFFIX]),
        Metrics.outcome.col.is_in([MACRO_MEAN, POOLED])
        | ((Metrics.predictor.col == MODEL) & Metrics.outcome.col.is_in(largest.to_list())),
    )
    return {
        f"{row[Metrics.metric.name]} {row[Metrics.outcome.name]} {row[Metrics.predictor.name]} 5y": row[
            Metrics.estimate.name
        ]
        for row in wanted.iter_rows(named=True)
    }


def result_table(metrics: pl.DataFrame, landmark: str = LANDMARKS[0]) -> pl.DataFrame:
    """Return one row an outcome: cases, concordance of model, Cox and age–sex, observed/expected, at 5 years."""
    at_horizon = metrics.filter(
        Metrics.landmark.col == landmark, Metrics.horizon_days.col == years_to_days(HEADLINE_HORIZON_YEARS)
    )

    def pick(metric: str, predictor: str, column: str) -> pl.DataFrame:
        chosen = (Metrics.metric.col == metric) & (Metrics.predictor.col == predictor)
        return at_horizon.filter(chosen).select(Metrics.outcome.col, Metrics.estimate.col.alias(column))

    model_rows = at_horizon.filter(Metrics.metric.col == CONCORDANCE, Metrics.predictor.col == MODEL)
    table = model_rows.select(
        Metrics.outcome.col, Metrics.n_events.col.alias("n_cases"), Metrics.estimate.col.alias("c_index_model")
    ).sort("n_cases", descending=True)
    for column, predictor in (("c_index_cox", COX), ("c_index_age_sex", AGE_SEX)):
        table = table.join(
            pick(CONCORDANCE, predictor, column), on=Metrics.outcome.name, how="left", maintain_order="left"
        )
    ratio = pick(OBSERVED_EXPECTED, MODEL, "observed_expected_5y")
    pooled = ratio.with_columns(Metrics.outcome.col.replace(POOLED, MACRO_MEAN))  # one last line for all outcomes
    return (
        table.join(pooled, on=Metrics.outcome.name, how="left", maintain_order="left")
        .sort(Metrics.outcome.col == MACRO_MEAN, maintain_order=True)
    )  # fmt: skip


def format_table(table: pl.DataFrame) -> list[str]:
    """Lay the result table out as lines of text; a number that is not there is a dash.

    Without a row it says why: an outcome with few cases is not judged.
    """
    if table.is_empty():
        return [f"nothing could be judged: every outcome has fewer than {MIN_CASES} cases among the people judged"]
    headings = ["outcome", "cases", "C model", "C Cox", "C age-sex", "O/E 5y"]
    rows = [[_as_text(cell) for cell in row] for row in table.iter_rows()]
    widths = [max(len(line[i]) for line in [headings, *rows]) for i in range(len(headings))]
    align: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(headings) - 1)]
    return [
        "  ".join(put(cell, width) for put, cell, width in zip(align, line, widths, strict=True))
        for line in [headings, *rows]
    ]


def _as_text(cell: object) -> str:
    if cell is None:
        return "-"
    return (
        f"{cell:.3f}"
        if isinstance(cell, float)
        else f"{cell:,}"
        if isinstance(cell, int)
        else str(cell).replace("_", " ")
    )


def _read_people(dataset: Path, split: str, vocabulary: pl.DataFrame) -> _People:
    return _People(
        read_split_subjects(dataset, split),
        scan_split_events(dataset, split, vocabulary),
        read_split_first_occurrences(dataset, split, vocabulary),
    )


def _cox_risks(
    train: _People,
    subjects: pl.DataFrame,
    events: pl.LazyFrame,
    landmark: str,
    outcomes: list[str],
    horizons_days: Sequence[float],
) -> tuple[pl.DataFrame, dict[str, str]]:
    """Fit the Cox models on the training people at this landmark and predict for the people judged."""
    people = landmarks_at(train.subjects, landmark)
    followed = find_outcomes(train.subjects, train.first_occurrences, people, list({*outcomes, DEATH_CODE}))
    train_people = train.subjects.join(people, on=Subjects.subject_id.name, maintain_order="left")
    fitted = fit_cox_reference(train_people, train.events, followed, outcomes)
    features = landmark_features(subjects, events, fitted.features)
    return predict_cox_risks(fitted, features, horizons_days), dict(fitted.not_fitted)


def _write(
    results: Sequence[EvaluationResult], not_fitted: dict[str, str], landmarks: Sequence[str], out: Path
) -> ModelEvaluation:
    frames = {
        "metrics": pl.concat([result.metrics for result in results]),
        "calibration": pl.concat([result.calibration for result in results]),
        "outcomes": pl.concat([result.outcomes for result in results]),
    }
    tables = {name: out / f"{name}.parquet" for name in frames}
    for name, frame in frames.items():
        write_parquet(frame, tables[name])
    horizon_days = years_to_days(HEADLINE_HORIZON_YEARS)
    plots = []
    for landmark in landmarks:
        for kind, draw, frame in (
            ("discrimination", plot_discrimination, frames["metrics"]),
            ("calibration", plot_calibration, frames["calibration"]),
        ):
            path = out / "plots" / f"{kind}_{landmark.replace('+', '_plus_')}_{horizon_days / DAYS_PER_YEAR:g}y.svg"
            draw(frame, horizon_days, landmark, path)
            plots.append(path)
    return ModelEvaluation(**frames, tables=tuple(tables.values()), plots=tuple(plots), cox_not_fitted=not_fitted)
