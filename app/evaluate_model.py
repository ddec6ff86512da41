"""Judge a model on the held-out people of a dataset, beside two references on the very same people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from app.plots import plot_calibration, plot_discrimination
from app.predict_risks import ScoringModel, predict_risks
from app.result_table import HEADLINE_HORIZON_YEARS, headline_rows
from app.terminal import show_progress
from data_schemas.age_units import years_to_days
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
from pipelines.evaluation.evaluate_risks import N_BOOTSTRAP, EvaluationResult, evaluate_risks
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
    macro_outcomes: tuple[str, ...]  # what means and pooled ratios are over, where judged
    method: str  # how the model's risks came about (`Risks.method`)


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
    frames = {
        "metrics": pl.concat([result.metrics for result in results]),
        "calibration": pl.concat([result.calibration for result in results]),
        "outcomes": pl.concat([result.outcomes for result in results]),
    }
    tables, plots = _write(frames, landmarks, out)
    averaged = tuple(known if macro_outcomes is None else macro_outcomes)
    return ModelEvaluation(
        **frames,
        tables=tables,
        plots=plots,
        cox_not_fitted=not_fitted,
        macro_outcomes=averaged,
        method=model.method,
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
    names = wanted.select(
        pl.format("{} {} {} 5y", Metrics.metric.name, Metrics.outcome.name, Metrics.predictor.name)
    ).to_series()
    return dict(zip(names, wanted[Metrics.estimate.name], strict=True))


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
    frames: dict[str, pl.DataFrame], landmarks: Sequence[str], out: Path
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Write tables and plots and return where they are."""
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
            path = out / "plots" / f"{kind}_{landmark.replace('+', '_plus_')}_{HEADLINE_HORIZON_YEARS:g}y.svg"
            draw(frame, horizon_days, landmark, path)
            plots.append(path)
    return tuple(tables.values()), tuple(plots)
