"""Observed cumulative incidence with death competing: the Aalen–Johansen estimator, for many weightings at once.

n people, R replicates, U distinct times, H horizons.
"""

from dataclasses import dataclass

import numpy as np

from data_schemas.results import CENSORED, OUTCOME
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan, person_weights


def sum_per_time(values: FloatArray, first_positions: IntArray) -> FloatArray:
    """Sum [..., n] over people of one time, given where each distinct time begins among sorted people: [..., U]."""
    summed: FloatArray = np.add.reduceat(values, first_positions, axis=-1)
    return summed


def distinct_times(sorted_time: FloatArray) -> IntArray:
    """Return the position at which each distinct time first stands in a sorted array: [U]."""
    return np.flatnonzero(np.r_[True, np.diff(sorted_time) > 0])


def weight_at_risk(sorted_weights: FloatArray, first_positions: IntArray) -> FloatArray:
    """Return the weight of people whose time is at or after each distinct time: [..., U].

    Summed from the end, so that the last risk sets are exact and never a small negative number.
    """
    later: FloatArray = np.cumsum(sorted_weights[..., ::-1], axis=-1)[..., ::-1]
    return later[..., first_positions]


def aalen_johansen(
    time: FloatArray, status: IntArray, horizons: FloatArray, weights: FloatArray | None = None
) -> FloatArray:
    """Estimate the probability that the outcome happens by each horizon, death competing: [..., H].

    F(h) = Σ_{t ≤ h} S(t−) dN_outcome(t) / Y(t),  S(t−) = Π_{s < t} (1 − dN_any(s) / Y(s)).
    `time` [n] since the landmark and `horizons` [H] in one unit, `status` [n] 0 censored, 1 outcome, 2 competing death;
    who is censored on the day of an event is still at risk of it. NaN at a horizon that nobody was followed to while
    somebody could still have had an event; NaN everywhere without people.

    Aalen, Johansen 1978, Scand J Stat 5:141–150.
    """
    weights = person_weights(weights, time.size)
    if time.size == 0:
        return np.full((*weights.shape[:-1], horizons.size), np.nan)
    order = np.argsort(time, kind="stable")
    time, status, weights = time[order], status[order], weights[..., order]
    first = distinct_times(time)
    at_risk = weight_at_risk(weights, first)
    any_hazard = _hazard(weights, status != CENSORED, first, at_risk)
    hazard = _hazard(weights, status == OUTCOME, first, at_risk)

    event_free = np.cumprod(1.0 - any_hazard, axis=-1)
    event_free_before = np.concatenate([np.ones_like(event_free[..., :1]), event_free], axis=-1)
    incidence = np.cumsum(event_free_before[..., :-1] * hazard, axis=-1)
    incidence = np.concatenate([np.zeros_like(incidence[..., :1]), incidence], axis=-1)

    n_passed = np.searchsorted(time[first], horizons, side="right")  # distinct times at or before each horizon
    beyond = np.concatenate([at_risk, np.zeros_like(at_risk[..., :1])], axis=-1)
    n_before = np.searchsorted(time[first], horizons, side="left")
    is_known = (beyond[..., n_before] > 0) | (event_free_before[..., n_passed] <= 0)
    is_known &= weights.sum(axis=-1, keepdims=True) > 0
    result: FloatArray = np.where(is_known, incidence[..., n_passed], np.nan)
    return result


def _hazard(weights: FloatArray, happened: BoolArray, first: IntArray, at_risk: FloatArray) -> FloatArray:
    """Return dN / Y at each distinct time, 0 where a replicate has nobody at risk."""
    return np.nan_to_num(divide_or_nan(sum_per_time(weights * happened, first), at_risk), nan=0.0)


@dataclass(frozen=True)
class EventDays:
    """Where people [n] stand on the days with an event (U of them): incidence changes on no other day."""

    days: FloatArray  # [U]
    n_at_risk: IntArray  # [n] on how many of them a person is at risk
    time: FloatArray  # [n]
    status: IntArray  # [n]


def find_event_days(time: FloatArray, status: IntArray) -> EventDays:
    """Return the distinct days of outcomes and deaths, and how many of them each person reaches."""
    days = np.unique(time[status != CENSORED])
    return EventDays(days, np.searchsorted(days, time, side="right"), time, status)


def incidence_with_influence(
    at: EventDays, horizon: float, group: IntArray, n_groups: int
) -> tuple[FloatArray, FloatArray]:
    """Return F(h) of `aalen_johansen` within each group of people [Γ] and the influence of each person on it [n].

    dF(h)/dw_i = [outcome of i at t ≤ h] S(t−)/Y(t) − [event of i at t] B(t) − Σ_{t ≤ T_i} (S(t−)/Y dΛ_outcome − B dΛ),
    B(t) = (F(h) − F(t)) / (Y(t) (1 − dΛ(t))), all hazards up to h. `group` [n] from 0 to Γ − 1. NaN for groups that
    `aalen_johansen` has no value for.

    Aalen, Johansen 1978, Scand J Stat 5:141–150; the derivative is that of the product integral, Gill, Johansen 1990,
    Ann Stat 18:1501–1555.
    """
    n_days = int(np.searchsorted(at.days, horizon, side="right"))
    width = n_days + 1
    reached = np.minimum(at.n_at_risk, width)  # the horizon's days, or beyond all of them
    flat = group * (width + 1) + reached
    shape = (n_groups, width + 1)
    counts = np.bincount(flat, minlength=n_groups * (width + 1)).reshape(shape)
    at_risk = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:width].astype(np.float64)
    is_event = (at.status != CENSORED) & (at.n_at_risk <= n_days)
    is_outcome = is_event & (at.status == OUTCOME)
    events = np.bincount(flat[is_event], minlength=n_groups * (width + 1)).reshape(shape)[:, 1:width]
    cases = np.bincount(flat[is_outcome], minlength=n_groups * (width + 1)).reshape(shape)[:, 1:width]
    any_hazard = np.nan_to_num(divide_or_nan(events, at_risk), nan=0.0)
    hazard = np.nan_to_num(divide_or_nan(cases, at_risk), nan=0.0)
    event_free = np.cumprod(np.concatenate([np.ones((n_groups, 1)), 1.0 - any_hazard], axis=1), axis=1)
    before = event_free[:, :-1]
    incidence = np.cumsum(before * hazard, axis=1)
    last = incidence[:, -1:] if n_days else np.zeros((n_groups, 1))

    gain = np.nan_to_num(divide_or_nan(before, at_risk), nan=0.0)
    loss = np.nan_to_num(divide_or_nan(last - incidence, at_risk * (1.0 - any_hazard)), nan=0.0)
    table = np.zeros((n_groups, width + 1))  # entry u: minus what is paid on the first u days
    table[:, 1:width] = -np.cumsum(gain * hazard - loss * any_hazard, axis=1)
    table[:, width] = table[:, width - 1]
    influence = table.ravel()[flat]
    own_day = group * n_days + at.n_at_risk - 1
    influence[is_event] -= loss.ravel()[own_day[is_event]]
    influence[is_outcome] += gain.ravel()[own_day[is_outcome]]
    is_known = np.bincount(group[at.time >= horizon], minlength=n_groups) > 0
    is_known |= (event_free[:, -1] <= 0) & (np.bincount(group, minlength=n_groups) > 0)
    return np.where(is_known, last[:, 0], np.nan), influence
