"""Headline metrics of one outcome under resampled people: arrays that keep the replicates.

P predictors, H horizons, n rows of one outcome, R replicates. The last axis of an estimate is 1 + R: entry 0 is the
estimate itself.
"""

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
    PREDICTED_RISK,
    SCALED_BRIER,
    SMALLEST_SHOWN_COUNT,
)
from pipelines.evaluation.aalen_johansen import aalen_johansen
from pipelines.evaluation.array_types import FloatArray
from pipelines.evaluation.brier import brier_score, scaled_brier
from pipelines.evaluation.calibration import (
    calibration_intercept,
    calibration_slope,
    mean_predicted,
    observed_expected_ratio,
)
from pipelines.evaluation.censoring_weights import CensoringCurve, fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.concordance import concordance_by_lifelines, recode_for_concordance, weighted_concordance
from pipelines.evaluation.outcome_sample import LandmarkPeople, OutcomeSample
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc

BOOTSTRAPPED_METRICS = (
    CONCORDANCE, AUC, BRIER, NULL_BRIER, SCALED_BRIER, OBSERVED_RISK, PREDICTED_RISK, OBSERVED_EXPECTED,
    CALIBRATION_INTERCEPT, CALIBRATION_SLOPE,
)  # fmt: skip


def replicate_metrics(
    sample: OutcomeSample, horizons: FloatArray, people: LandmarkPeople, weights: FloatArray
) -> dict[str, FloatArray]:
    """Return every bootstrapped metric as [P, H, 1 + R], NaN at horizons with under 10 cases.

    `weights` [1 + R, N], row 0 all one, count the rows of the landmark; the censoring curves are estimated anew in each
    replicate. The estimate of concordance is lifelines' own.
    """
    n_predictors = len(sample.risks)
    own = weights[:, sample.row]
    shape = (n_predictors, horizons.size, len(weights))
    estimates = {metric: np.full(shape, np.nan) for metric in BOOTSTRAPPED_METRICS}
    observed = aalen_johansen(sample.time, sample.status, horizons, own)
    curves = _fit_curves(people, weights)
    for h, horizon in enumerate(horizons):
        if sample.count_cases(horizon) < SMALLEST_SHOWN_COUNT:
            continue
        known = _known_weights(sample, horizon, people, curves, own)
        for p in filter(sample.has_risks, range(n_predictors)):
            values = {
                **_discrimination(sample, sample.risks[p, h], horizon, known, own),
                **_accuracy(sample, sample.risks[p, h], horizon, known, own, observed=observed[:, h]),
            }
            for metric, value in values.items():
                estimates[metric][p, h] = value
    return estimates


def _fit_curves(people: LandmarkPeople, weights: FloatArray) -> list[CensoringCurve]:
    stratum = np.zeros(people.n_rows, dtype=np.int64) if people.stratum is None else people.stratum
    return [
        fit_censoring_curve(people.followed_days[inside], people.is_censored[inside], weights[:, inside])
        for inside in (stratum == number for number in range(int(stratum.max(initial=0)) + 1))
    ]


def _known_weights(
    sample: OutcomeSample, horizon: float, people: LandmarkPeople, curves: list[CensoringCurve], own: FloatArray
) -> FloatArray:
    """Weight the rows of the sample [1 + R, n] by the censoring curve of their stratum."""
    if people.stratum is None:
        return inverse_censoring_weights(sample.time, sample.status, horizon, curves[0], own)
    known = np.zeros_like(own)
    for number, curve in enumerate(curves):
        inside = people.stratum[sample.row] == number
        known[:, inside] = inverse_censoring_weights(
            sample.time[inside], sample.status[inside], horizon, curve, own[:, inside]
        )
    return np.where(np.isnan(known).any(axis=1, keepdims=True), np.nan, known)


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
