"""Every metric of one outcome, for all predictors and horizons, as arrays that keep the bootstrap replicates.

P predictors, H horizons, n people of one outcome, R replicates. The last axis of an estimate is 1 + R: entry 0 is the
estimate itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from data_schemas.results import (
    AUC,
    BRIER,
    CALIBRATION_INTERCEPT,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OUTCOME,
    PREDICTED_RISK,
    SCALED_BRIER,
    SMALLEST_SHOWN_COUNT,
)
from pipelines.evaluation.aalen_johansen import aalen_johansen
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.evaluation.bootstrap import percentile_interval
from pipelines.evaluation.brier import brier_score, scaled_brier
from pipelines.evaluation.calibration import (
    calibration_intercept,
    calibration_slope,
    mean_predicted,
    observed_expected_ratio,
    risk_groups,
)
from pipelines.evaluation.censoring_weights import CensoringCurve, inverse_censoring_weights
from pipelines.evaluation.concordance import concordance_by_lifelines, recode_for_concordance, weighted_concordance
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc

METRICS = (
    CONCORDANCE, AUC, BRIER, NULL_BRIER, SCALED_BRIER, OBSERVED_RISK, PREDICTED_RISK, OBSERVED_EXPECTED,
    CALIBRATION_INTERCEPT, CALIBRATION_SLOPE,
)  # fmt: skip


@dataclass(frozen=True)
class OutcomeSample:
    """People at risk of one outcome who have a risk from every predictor that has any; risks of the others are NaN."""

    outcome: str
    person: IntArray  # [n] column of the weight matrix
    time: FloatArray  # [n] days since the landmark
    status: IntArray  # [n]
    risks: FloatArray  # [P, H, n]
    n_without_risk: int

    def is_case(self, horizon: float) -> BoolArray:
        """Say who has the outcome up to a horizon: [n]."""
        cases: BoolArray = (self.status == OUTCOME) & (self.time <= horizon)
        return cases

    def has_risks(self, predictor: int) -> bool:
        """Say whether a predictor knows this outcome."""
        return not np.isnan(self.risks[predictor]).any()

    def count_cases(self, horizon: float) -> int:
        """Return the number of cases up to a horizon."""
        return int(self.is_case(horizon).sum())


@dataclass(frozen=True)
class CalibrationGroup:
    """Observed and predicted risk of one group of one predictor at one horizon."""

    predictor: int
    horizon: int
    group: int  # from 0, lowest predicted risk first
    n: int
    n_cases: int
    predicted: float
    observed: float
    lower: float
    upper: float


def estimate_metrics(
    sample: OutcomeSample, horizons: FloatArray, censoring: CensoringCurve, weights: FloatArray
) -> dict[str, FloatArray]:
    """Return every metric as [P, H, 1 + R], NaN at horizons with under 10 cases.

    `weights` [1 + R, n], row 0 all one; `censoring` estimated under the same replicates.
    """
    n_predictors = len(sample.risks)
    estimates = {metric: np.full((n_predictors, horizons.size, len(weights)), np.nan) for metric in METRICS}
    observed = aalen_johansen(sample.time, sample.status, horizons, weights)
    for h, horizon in enumerate(horizons):
        if sample.count_cases(horizon) < SMALLEST_SHOWN_COUNT:
            continue
        known = inverse_censoring_weights(sample.time, sample.status, horizon, censoring, weights)
        for p in filter(sample.has_risks, range(n_predictors)):
            values = {
                **_discrimination(sample, sample.risks[p, h], horizon, known, weights),
                **_accuracy(sample, sample.risks[p, h], horizon, known, weights, observed=observed[:, h]),
            }
            for metric, value in values.items():
                estimates[metric][p, h] = value
    return estimates


def _discrimination(
    sample: OutcomeSample, risk: FloatArray, horizon: float, known: FloatArray, weights: FloatArray
) -> dict[str, FloatArray]:
    """Return how well a risk tells people apart: [1 + R] each. The estimate of concordance is lifelines' own."""
    time, is_event = recode_for_concordance(sample.time, sample.status, horizon)
    concordance = weighted_concordance(risk, time, is_event, weights)
    concordance[0] = concordance_by_lifelines(risk, time, is_event)
    return {CONCORDANCE: concordance, AUC: cumulative_dynamic_auc(risk, sample.time, sample.status, horizon, known)}


def _accuracy(
    sample: OutcomeSample,
    risk: FloatArray,
    horizon: float,
    known: FloatArray,
    weights: FloatArray,
    *,
    observed: FloatArray,
) -> dict[str, FloatArray]:
    """Return how near a risk is to what happened: [1 + R] each."""
    time, status = sample.time, sample.status
    predicted = mean_predicted(risk, weights)
    brier = brier_score(risk, time, status, horizon, known, weights=weights)
    null_brier = brier_score(observed[:, None], time, status, horizon, known, weights=weights)
    return {
        BRIER: brier,
        NULL_BRIER: null_brier,
        SCALED_BRIER: scaled_brier(brier, null_brier),
        OBSERVED_RISK: observed,
        PREDICTED_RISK: predicted,
        OBSERVED_EXPECTED: observed_expected_ratio(observed, predicted),
        CALIBRATION_INTERCEPT: calibration_intercept(risk, time, status, horizon, known),
        CALIBRATION_SLOPE: calibration_slope(risk, time, status, horizon, known),
    }


def calibration_groups(sample: OutcomeSample, horizons: FloatArray, weights: FloatArray) -> Iterator[CalibrationGroup]:
    """Yield observed against predicted risk by tenths of predicted risk; nothing at horizons with under 10 cases."""
    known = filter(sample.has_risks, range(len(sample.risks)))
    for p, (h, horizon) in product(known, enumerate(horizons)):
        is_case = sample.is_case(horizon)
        if is_case.sum() < SMALLEST_SHOWN_COUNT:
            continue
        risk = sample.risks[p, h]
        group = risk_groups(risk, is_case)
        for number in range(int(group.max()) + 1):
            inside = np.flatnonzero(group == number)
            observed = aalen_johansen(
                sample.time[inside], sample.status[inside], horizons[h : h + 1], weights[:, inside]
            )[:, 0]
            lower, upper = percentile_interval(observed)
            yield CalibrationGroup(
                p, h, number, inside.size, int(is_case[inside].sum()), float(risk[inside].mean()),
                float(observed[0]), float(lower), float(upper),
            )  # fmt: skip
