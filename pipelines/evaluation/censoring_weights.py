"""Inverse probability of censoring weights: people who were followed stand for those who were not.

The end of follow-up is the same for every outcome, so the censoring curve is estimated once a landmark. On one day an
event comes before a censoring; the probability of still being followed is therefore taken just before an event.

n people, R replicates, U distinct times.
"""

from dataclasses import dataclass

import numpy as np

from data_schemas.results import CENSORED
from pipelines.evaluation.aalen_johansen import distinct_times, sum_per_time, weight_at_risk
from pipelines.evaluation.array_types import (
    BoolArray,
    FloatArray,
    IntArray,
    divide_or_nan,
    person_weights,
    sum_by_label,
)


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


@dataclass(frozen=True)
class Censoring:
    """The censoring curves of a landmark, one a stratum (S), with what each of its rows (N) did to them.

    `times` [U] are the days on which somebody was lost. Made by `fit_censoring`, once for all outcomes.
    """

    times: FloatArray  # [U]
    survival: FloatArray  # [S, U + 1] G before the first of them and after each
    hazard: FloatArray  # [S, U] share lost of those who could be
    could_be_lost: FloatArray  # [S, U]
    stratum: IntArray  # [N]
    place: IntArray  # [N] where a row's own entry stands in the table that `influence` makes

    def days_before(self, time: FloatArray) -> IntArray:
        """Return on how many of the days somebody was lost before each time: [n], the same for all horizons."""
        return np.searchsorted(self.times, time, side="left")

    def weigh(
        self, time: FloatArray, status: IntArray, horizon: float, row: IntArray, days_before: IntArray
    ) -> "CensoringWeights":
        """Weight the rows of one outcome [n] at a horizon as `inverse_censoring_weights` does."""
        followed_beyond = time > horizon
        until_horizon = int(np.searchsorted(self.times, horizon, side="right"))
        n_days = np.where(followed_beyond, until_horizon, days_before)
        place = self.stratum[row] * (self.times.size + 1) + n_days
        inverse = divide_or_nan(1.0, self.survival).ravel()[place]
        weight = np.where(followed_beyond | (status != CENSORED), inverse, 0.0)
        if (self.survival[np.unique(self.stratum[row]), until_horizon] <= 0).any():
            weight = np.full(time.size, np.nan)
        return CensoringWeights(weight, place, inverse)

    def followed_beyond(self, horizon: float, row: IntArray) -> float:
        """Return G(h), the mean over the rows [n] where there are several strata; 1 without rows."""
        at_horizon = self.survival[:, np.searchsorted(self.times, horizon, side="right")]
        return float(at_horizon[self.stratum[row]].mean()) if row.size else 1.0

    def influence(self, by_censoring: FloatArray, place: IntArray) -> FloatArray:
        """Return how each row of the landmark moves an estimate through the censoring curve: [N].

        `by_censoring` [n] is the derivative of the estimate by the log of each censoring weight, `place` [n] from
        `weigh`. A weight is 1 / Π (1 − dC/Y) over the days before its own, so a row j moves it by
        Σ_days (dN_j − at_risk_j dC/Y) / (Y (1 − dC/Y)): with Q(s) = Σ of `by_censoring` over weights that reach
        beyond day s and R = Q / (Y (1 − dC/Y)), by R(own day) where j is lost, minus Σ R dC/Y while j is at risk.
        """
        n_strata, n_days = self.hazard.shape
        reaching = sum_by_label(place, by_censoring, n_strata * (n_days + 1))
        beyond = np.cumsum(reaching.reshape(n_strata, n_days + 1)[:, ::-1], axis=1)[:, ::-1][:, 1:]
        denominator = self.could_be_lost * (1.0 - self.hazard)
        rate = np.divide(beyond, denominator, out=np.zeros_like(beyond), where=denominator > 0)
        table = np.zeros((n_strata, 2, n_days + 1))  # of rows not lost and of rows lost, by days at risk
        table[:, :, 1:] = -np.cumsum(rate * self.hazard, axis=1)[:, None]
        table[:, 1, 1:] += rate
        result: FloatArray = np.take(table.ravel(), self.place)
        return result


@dataclass(frozen=True)
class CensoringWeights:
    """Weights [n] of one outcome at one horizon, NaN throughout where nobody is followed so long."""

    weight: FloatArray  # as `inverse_censoring_weights`
    place: IntArray  # for `Censoring.influence`
    at_own_time: FloatArray  # 1 / G(T−), 1 / G(h) beyond the horizon, for censored rows too


def fit_censoring(followed: FloatArray, is_censored: BoolArray, stratum: IntArray | None = None) -> Censoring:
    """Estimate how long rows [N] are followed, within strata [N] (numbers from 0), as `fit_censoring_curve` does."""
    groups = np.zeros(followed.size, dtype=np.int64) if stratum is None else stratum
    n_strata = int(groups.max(initial=0)) + 1
    times = np.unique(followed[is_censored])
    width = times.size + 1
    # A row can be lost on the days up to its last: a censored row on its own day too, a death the days before it.
    n_days = np.where(
        is_censored, np.searchsorted(times, followed, side="right"), np.searchsorted(times, followed, side="left")
    )
    by_day = np.bincount(groups * width + n_days, minlength=n_strata * width).reshape(n_strata, width)
    could_be_lost = np.cumsum(by_day[:, ::-1], axis=1)[:, ::-1][:, 1:].astype(np.float64)
    own_day = groups[is_censored] * width + n_days[is_censored]
    lost = np.bincount(own_day, minlength=n_strata * width).reshape(n_strata, width)[:, 1:]
    hazard = np.nan_to_num(divide_or_nan(lost, could_be_lost), nan=0.0)
    survival = np.cumprod(np.concatenate([np.ones((n_strata, 1)), 1.0 - hazard], axis=1), axis=1)
    place = (groups * 2 + is_censored) * width + n_days
    return Censoring(times, survival, hazard, could_be_lost, groups, place)
