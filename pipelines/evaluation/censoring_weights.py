"""Inverse probability of censoring weights: people who were followed stand for those who were not.

The end of follow-up is the same for every outcome, so the censoring curve is estimated once a landmark. On one day an
event comes before a censoring; the probability of still being followed is therefore taken just before an event.

n people, R replicates, U distinct times.
"""

from dataclasses import dataclass

import numpy as np

from data_schemas.results import CENSORED
from pipelines.evaluation.aalen_johansen import distinct_times, sum_per_time, weight_at_risk
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan, person_weights


@dataclass(frozen=True)
class CensoringCurve:
    """G(t), the probability of being followed beyond t: a step function with right-continuous steps."""

    times: FloatArray  # [U] increasing
    survival: FloatArray  # [..., U + 1], before the first time and after each

    def just_before(self, time: FloatArray) -> FloatArray:
        """Return G(t−) for each time [n]: [..., n]."""
        return self.survival[..., np.searchsorted(self.times, time, side="left")]

    def at(self, time: float) -> FloatArray:
        """Return G(t) for one time: [...]."""
        value: FloatArray = self.survival[..., np.searchsorted(self.times, time, side="right")]
        return value


def fit_censoring_curve(time: FloatArray, is_censored: BoolArray, weights: FloatArray | None = None) -> CensoringCurve:
    """Estimate by Kaplan–Meier how long people are followed.

    G(t) = Π_{s ≤ t} (1 − dC(s) / (Y(s) − dN(s))): who has an event on day s is no longer there to be censored on it.
    `time` [n] to censoring or to the event that ended follow-up; one row a person.
    """
    weights = person_weights(weights, time.size)
    if time.size == 0:
        return CensoringCurve(np.empty(0), np.ones((*weights.shape[:-1], 1)))
    order = np.argsort(time, kind="stable")
    time, is_censored, weights = time[order], is_censored[order], weights[..., order]
    first = distinct_times(time)
    lost = sum_per_time(weights * is_censored, first)
    could_be_lost = weight_at_risk(weights, first) - sum_per_time(weights * ~is_censored, first)
    survival = np.cumprod(1.0 - np.nan_to_num(divide_or_nan(lost, could_be_lost), nan=0.0), axis=-1)
    return CensoringCurve(time[first], np.concatenate([np.ones_like(survival[..., :1]), survival], axis=-1))


def inverse_censoring_weights(
    time: FloatArray,
    status: IntArray,
    horizon: float,
    censoring: CensoringCurve,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Weight people so that those whose state at the horizon is known stand for everyone: [..., n].

    Event (outcome or competing death) at T ≤ h: w / G(T−). Still followed and event-free after h: w / G(h).
    Censored at or before h: 0. A replicate in which nobody is followed beyond h (G(h) = 0) has NaN throughout: what
    happens until h is not known there.

    Graf, Schmoor, Sauerbrei, Schumacher 1999, Stat Med 18:2529–2545; Blanche, Dartigues, Jacqmin-Gadda 2013, Stat
    Med 32:5381–5397 (competing events).
    """
    weights = person_weights(weights, time.size)
    followed_beyond = time > horizon
    probability = np.where(followed_beyond, censoring.at(horizon)[..., None], censoring.just_before(time))
    is_known = followed_beyond | (status != CENSORED)
    inverse = np.where(is_known, divide_or_nan(weights, probability), 0.0)
    result: FloatArray = np.where(censoring.at(horizon)[..., None] > 0, inverse, np.nan)
    return result
