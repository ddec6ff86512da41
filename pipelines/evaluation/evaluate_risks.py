"""Judge predictors of risk on the same people at one landmark: tables in, tables out.

K outcomes, P predictors, H horizons, n people of one outcome, R replicates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.errors import InputContractError, Violation
from data_schemas.results import (
    CENSORED,
    OVERALL,
    SMALLEST_SHOWN_COUNT,
    CalibrationGroups,
    EvaluatedOutcomes,
    Outcomes,
    Risks,
)
from pipelines.evaluation.array_types import FloatArray
from pipelines.evaluation.bootstrap import draw_person_weights
from pipelines.evaluation.censoring_weights import CensoringCurve, fit_censoring_curve
from pipelines.evaluation.estimate_metrics import METRICS, OutcomeSample, calibration_groups, estimate_metrics
from pipelines.evaluation.metrics_table import MetricsTable, suppress_small

MIN_CASES = 20
N_BOOTSTRAP = 200
BOOTSTRAP_SEED = 20240229

_KEYS = (Outcomes.subject_id.name, Outcomes.landmark_age_days.name, Outcomes.outcome.name)
_PERSON = "person"  # column of the weight matrix that belongs to the subject


@dataclass(frozen=True)
class EvaluationResult:
    """What came out: `metrics` (`Metrics`), `calibration` (`CalibrationGroups`), `outcomes` (`EvaluatedOutcomes`)."""

    metrics: pl.DataFrame
    calibration: pl.DataFrame
    outcomes: pl.DataFrame


def evaluate_risks(
    outcomes: pl.DataFrame,
    risks_by_predictor: Mapping[str, pl.DataFrame],
    landmark_name: str,
    horizons_days: Sequence[float],
    *,
    macro_outcomes: Sequence[str] | None = None,
    min_cases: int = MIN_CASES,
    n_bootstrap: int = N_BOOTSTRAP,
    seed: int = BOOTSTRAP_SEED,
) -> EvaluationResult:
    """Judge every predictor on exactly the same people, at one landmark and several horizons.

    `outcomes` (schema `Outcomes`) are the people at risk, `risks_by_predictor` (schema `Risks`) what each predictor
    said; people without a risk from any predictor that knows the outcome are left out of it and counted. Outcomes with
    fewer than `min_cases` cases up to the largest horizon are left out and listed; where one has fewer than 10 cases
    up to a smaller horizon its estimates there are null. Concordance is lifelines' number with the risk at the
    horizon as score. Intervals are 95 % percentiles over people, one weight matrix for everything, so that
    differences (`model-cox`, `model-age_sex`) and means over outcomes are paired. The macro mean is over
    `macro_outcomes` (default: all that are judged) that have an estimate at the horizon, and so is the pooled
    observed/expected ratio Σ_k n_k AJ_k(h) / Σ_k Σ_i risk_ki(h).

    Raises InputContractError where a predictor has two risks for one person, outcome and horizon, or none at all for
    these people and landmarks.
    """
    predictors = tuple(risks_by_predictor)
    horizons = np.array(sorted(horizons_days), dtype=np.float64)
    subjects = outcomes.select(Outcomes.subject_id.name).unique(maintain_order=True).with_row_index(_PERSON)
    people = outcomes.join(subjects, on=Outcomes.subject_id.name, how="left", maintain_order="left")
    weights = draw_person_weights(subjects.height, n_bootstrap, seed)
    censoring = _fit_censoring(people, weights)

    samples = list(_join_samples(people, risks_by_predictor, horizons))
    least = max(min_cases, SMALLEST_SHOWN_COUNT)
    judged = [sample for sample in samples if sample.count_cases(horizons[-1]) >= least]
    shape = (len(judged), len(predictors), horizons.size, len(weights))
    estimates = {metric: np.full(shape, np.nan) for metric in METRICS}
    for k, sample in enumerate(judged):
        for metric, values in estimate_metrics(sample, horizons, censoring, weights[:, sample.person]).items():
            estimates[metric][k] = values
    is_in_macro = [macro_outcomes is None or sample.outcome in macro_outcomes for sample in judged]
    table = MetricsTable(judged, predictors, landmark_name, horizons, weights)
    return EvaluationResult(
        metrics=table.build(estimates, np.array(is_in_macro, dtype=np.bool_)),
        calibration=_tabulate_calibration(judged, predictors, landmark_name, horizons, weights),
        outcomes=_list_outcomes(samples, landmark_name, horizons[-1], least),
    )


def _fit_censoring(people: pl.DataFrame, weights: FloatArray) -> CensoringCurve:
    """Estimate once how long people are followed, from each person's longest row: exit is the same for all outcomes.

    The row of death runs to exit or death, and so does that of any outcome the person did not get.
    """
    longest = people.sort(Outcomes.time_days.name, Outcomes.status.name, descending=[True, False]).unique(
        [Outcomes.subject_id.name, Outcomes.landmark_age_days.name], keep="first", maintain_order=True
    )
    return fit_censoring_curve(
        longest[Outcomes.time_days.name].to_numpy(),
        (longest[Outcomes.status.name] == CENSORED).to_numpy(),
        weights[:, longest[_PERSON].to_numpy()],
    )


def _join_samples(
    people: pl.DataFrame, risks_by_predictor: Mapping[str, pl.DataFrame], horizons: FloatArray
) -> Iterator[OutcomeSample]:
    """Yield the people of each outcome who have a risk from every predictor at every horizon, outcomes by name."""
    joined = people
    columns: dict[str, list[str]] = {}
    for predictor, risks in risks_by_predictor.items():
        wanted = risks.select(*_KEYS, Risks.horizon_days.name, Risks.risk.col.fill_nan(None)).join(
            people.select(_KEYS), on=_KEYS, how="semi"
        )
        _check_risks(wanted, predictor, is_needed=not people.is_empty())
        for horizon in horizons:
            column = f"{predictor} {horizon}"
            columns.setdefault(predictor, []).append(column)
            at_horizon = wanted.filter(Risks.horizon_days.col == horizon).select(*_KEYS, Risks.risk.col.alias(column))
            joined = joined.join(at_horizon, on=_KEYS, how="left", maintain_order="left")
    for key, rows in joined.sort(Outcomes.outcome.name, maintain_order=True).group_by(
        Outcomes.outcome.name, maintain_order=True
    ):
        known = [name for names in columns.values() if _is_any_known(rows.select(names)) for name in names]
        complete = rows.drop_nulls(known) if known else rows.clear()
        every = [name for names in columns.values() for name in names]
        risks_array = np.ascontiguousarray(complete.select(pl.col(every).fill_null(np.nan)).to_numpy().T)
        yield OutcomeSample(
            outcome=str(key[0]),
            person=complete[_PERSON].to_numpy().astype(np.int64),
            time=complete[Outcomes.time_days.name].to_numpy(),
            status=complete[Outcomes.status.name].to_numpy().astype(np.int64),
            risks=risks_array.reshape(len(risks_by_predictor), horizons.size, complete.height),
            n_without_risk=rows.height - complete.height,
        )


def _is_any_known(risks: pl.DataFrame) -> bool:
    return risks.null_count().sum_horizontal().sum() < risks.width * risks.height


def _check_risks(risks: pl.DataFrame, predictor: str, *, is_needed: bool) -> None:
    """Raise where a risk is given twice, or where nothing fits the outcomes: both are errors of who made the table."""
    table = f"risks of '{predictor}'"
    if is_needed and risks.is_empty():
        rule = "no risk is for a person, landmark and outcome that is evaluated"
        raise InputContractError([Violation(table, Risks.landmark_age_days.name, rule)])
    is_repeated = risks.select(*_KEYS, Risks.horizon_days.name).is_duplicated()
    if is_repeated.any():
        rule = "more than one risk for a person, landmark, outcome and horizon"
        raise InputContractError([Violation(table, Risks.risk.name, rule, int(is_repeated.sum()))])


def _tabulate_calibration(
    samples: Sequence[OutcomeSample],
    predictors: Sequence[str],
    landmark: str,
    horizons: FloatArray,
    weights: FloatArray,
) -> pl.DataFrame:
    """Return the rows of `CalibrationGroups` of all judged outcomes."""
    found = [
        (sample.outcome, group)
        for sample in samples
        for group in calibration_groups(sample, horizons, weights[:, sample.person])
    ]
    return pl.DataFrame(
        {
            CalibrationGroups.predictor.name: [predictors[group.predictor] for _, group in found],
            CalibrationGroups.outcome.name: [outcome for outcome, _ in found],
            CalibrationGroups.landmark.name: [landmark] * len(found),
            CalibrationGroups.horizon_days.name: [float(horizons[group.horizon]) for _, group in found],
            CalibrationGroups.subgroup.name: [OVERALL] * len(found),
            CalibrationGroups.group.name: [group.group + 1 for _, group in found],
            CalibrationGroups.n.name: [group.n for _, group in found],
            CalibrationGroups.n_events.name: [group.n_cases for _, group in found],
            CalibrationGroups.predicted.name: [group.predicted for _, group in found],
            CalibrationGroups.observed.name: [group.observed for _, group in found],
            CalibrationGroups.lower.name: [group.lower for _, group in found],
            CalibrationGroups.upper.name: [group.upper for _, group in found],
        },
        schema=CalibrationGroups.create_empty().schema,
    ).with_columns(pl.selectors.float().fill_nan(None))


def _list_outcomes(
    samples: Sequence[OutcomeSample], landmark: str, largest_horizon: float, least_cases: int
) -> pl.DataFrame:
    """Return the rows of `EvaluatedOutcomes`."""
    n_without_risk = np.array([sample.n_without_risk for sample in samples], dtype=np.int64)
    n_cases = np.array([sample.count_cases(largest_horizon) for sample in samples], dtype=np.int64)
    shown = zip(n_without_risk, suppress_small(n_without_risk), strict=True)
    return pl.DataFrame(
        {
            EvaluatedOutcomes.outcome.name: [sample.outcome for sample in samples],
            EvaluatedOutcomes.landmark.name: [landmark] * len(samples),
            EvaluatedOutcomes.n.name: suppress_small(np.array([sample.person.size for sample in samples])),
            EvaluatedOutcomes.n_without_risk.name: [0 if exact == 0 else count for exact, count in shown],
            EvaluatedOutcomes.n_events.name: suppress_small(n_cases),
            EvaluatedOutcomes.is_judged.name: (n_cases >= least_cases).tolist(),
        },
        schema=EvaluatedOutcomes.create_empty().schema,
    )
