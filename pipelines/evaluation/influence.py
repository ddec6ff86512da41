"""How far an estimate moves with each person: standard errors and intervals without resampling.

The influence of a row is the derivative of the estimate with respect to the weight of that row (the infinitesimal
jackknife). Its sum of squares, people with several rows summed first, is the variance of the estimate. Estimates that
weigh by inverse probability of censoring depend on a row in two ways: `direct`, with the censoring weights held, and
through the censoring curve, which every row of the landmark helped to estimate.

n rows of one outcome, N rows of the landmark, M estimates.

Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, ch. 6; Huber 1981, Robust Statistics, §2.5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    BRIER,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    ICI,
    INTEGRATED_BRIER,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    PRECISION_AT,
    PREDICTED_RISK,
    RECALL_AT,
)
from pipelines.evaluation.array_types import FloatArray, IntArray, sum_by_label

NORMAL_QUANTILE = 1.959963984540054  # 97.5 % of the standard normal distribution

Transform: TypeAlias = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Term:
    """One estimate and what moves it: `direct` [n], `by_censoring` [n] per unit of log censoring weight (None: none).

    Rows are in the order of whoever made it. A value without a standard error has `direct` None.
    """

    value: float
    direct: FloatArray | None = None
    by_censoring: FloatArray | None = None


@dataclass(frozen=True)
class Scale:
    """The scale on which an estimate is taken as normal: there and back, and the derivative there."""

    forward: Transform
    backward: Transform
    derivative: Transform


def _identity(value: FloatArray) -> FloatArray:
    return value


def _expit(value: FloatArray) -> FloatArray:
    result: FloatArray = 1.0 / (1.0 + np.exp(-value))
    return result


IDENTITY = Scale(_identity, _identity, np.ones_like)
LOG = Scale(np.log, np.exp, lambda value: 1.0 / value)
LOGIT = Scale(lambda value: np.log(value / (1 - value)), _expit, lambda value: 1.0 / (value * (1 - value)))
CLOGLOG = Scale(
    lambda value: np.log(-np.log1p(-value)),
    lambda value: -np.expm1(-np.exp(value)),
    lambda value: -1.0 / ((1 - value) * np.log1p(-value)),
)
# Everything that is not here, and all differences, is taken as normal as it is.
SCALES = {
    **dict.fromkeys([CONCORDANCE, CONCORDANCE_IPCW, AUC, AVERAGE_PRECISION], LOGIT),
    **dict.fromkeys([*RECALL_AT.values(), *PRECISION_AT.values()], LOGIT),
    **dict.fromkeys([OBSERVED_RISK, PREDICTED_RISK], CLOGLOG),
    **dict.fromkeys([OBSERVED_EXPECTED, BRIER, NULL_BRIER, INTEGRATED_BRIER, ICI], LOG),
}


def standard_error(influence: FloatArray, cluster: IntArray | None) -> FloatArray:
    """Return √ Σ_clusters (Σ influence)² of influences [..., N]: [...]. `cluster` [N] says whose a row is.

    None: one row a person. Rows of one person are summed before they are squared (Liang, Zeger 1986, Biometrika
    73:13–22).
    """
    if cluster is not None:
        flat = influence.reshape(-1, influence.shape[-1])
        n_clusters = int(cluster.max(initial=-1)) + 1
        summed = [sum_by_label(cluster, row, n_clusters) for row in flat]
        influence = np.array(summed).reshape(*influence.shape[:-1], n_clusters)
    result: FloatArray = np.sqrt(np.einsum("...n,...n->...", influence, influence))
    return result


def influence_interval(estimate: FloatArray, error: FloatArray, scale: Scale) -> tuple[FloatArray, FloatArray]:
    """Return 95 % limits of estimates [...] with standard errors [...], normal on a scale; NaN where there is no scale.

    An AUC of exactly 1 or a ratio of 0 has no value on its scale and no interval.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        centre = scale.forward(estimate)
        half = NORMAL_QUANTILE * error * np.abs(scale.derivative(estimate))
        lower, upper = scale.backward(centre - half), scale.backward(centre + half)
    is_usable = np.isfinite(centre) & np.isfinite(half)
    return np.where(is_usable, lower, np.nan), np.where(is_usable, upper, np.nan)
