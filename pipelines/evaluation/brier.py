"""Squared error of a predicted cumulative incidence under censoring, and its gain over one number for all."""

import numpy as np

from data_schemas.results import OUTCOME
from pipelines.evaluation.array_types import FloatArray, IntArray, divide_or_nan, person_weights
from pipelines.evaluation.influence import Term
from pipelines.evaluation.ranked_people import RankedPeople


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


def brier_terms(people: RankedPeople, observed: Term) -> tuple[Term, Term, Term]:
    """Return the Brier score, that of the Aalen–Johansen risk for everyone, and the scaled one, with influences.

    `observed` is the Aalen–Johansen estimate with its influence in the order of risk.
    """
    brier = _mean_squared_error(people, people.risk)
    null = _mean_squared_error(people, observed.value)
    if brier.direct is None or null.direct is None or observed.direct is None:
        return brier, null, Term(float("nan"))
    slope = -2.0 * float(people.weight @ (people.is_case - observed.value)) / people.n
    null = Term(null.value, null.direct + slope * observed.direct, null.by_censoring)
    return brier, null, _one_minus_ratio(brier, null)


def _mean_squared_error(people: RankedPeople, risk: FloatArray | float) -> Term:
    if people.n == 0 or np.isnan(people.weight).any():
        return Term(float("nan"))
    share = people.weight * np.square(people.is_case - risk) / people.n
    value = float(share.sum())
    return Term(value, share - value / people.n, share)


def _one_minus_ratio(top: Term, bottom: Term) -> Term:
    if not bottom.value > 0:
        return Term(float("nan"))
    ratio = top.value / bottom.value
    assert top.direct is not None
    assert bottom.direct is not None
    assert top.by_censoring is not None
    assert bottom.by_censoring is not None
    return Term(
        1.0 - ratio,
        (ratio * bottom.direct - top.direct) / bottom.value,
        (ratio * bottom.by_censoring - top.by_censoring) / bottom.value,
    )
