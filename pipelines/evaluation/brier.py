"""Squared error of a predicted cumulative incidence under censoring, and its gain over one number for all."""

import numpy as np

from data_schemas.results import OUTCOME
from pipelines.evaluation.array_types import FloatArray, IntArray, divide_or_nan, person_weights


def brier_score(
    risk: FloatArray,
    time: FloatArray,
    status: IntArray,
    horizon: float,
    known_weights: FloatArray,
    *,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Estimate the mean of (1{outcome by h} − risk)²: [...].

    Σ_i u_i (y_i − p_i)² / Σ_i w_i with y_i = 1 for the outcome at T ≤ h, 0 for competing deaths and the event-free.
    `risk` [n], or [..., 1] for the same number for everyone; `known_weights` u [..., n] from
    `inverse_censoring_weights`, `weights` w [..., n] the person weights they were made of. NaN without people.

    Graf et al. 1999, Stat Med 18:2529–2545; with competing events Schoop, Beyersmann, Schumacher, Binder 2011, Biom J
    53:88–112.
    """
    happened = (time <= horizon) & (status == OUTCOME)
    squared_error = np.square(happened - risk)
    return divide_or_nan((known_weights * squared_error).sum(axis=-1), person_weights(weights, time.size).sum(axis=-1))


def scaled_brier(brier: FloatArray, null_brier: FloatArray) -> FloatArray:
    """Return 1 − brier / null_brier, the index of prediction accuracy: 0 is no better than one number for all.

    The null model gives everyone the Aalen–Johansen estimate. Kattan, Gerds 2018, Diagn Progn Res 2:7.
    """
    return 1.0 - divide_or_nan(brier, null_brier)
