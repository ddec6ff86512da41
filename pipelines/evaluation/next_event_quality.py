"""How well a model says what happens next and when, in nats per event, and whether its waiting times are right.

A point process says two things of an event of kind k after a stretch Δ without one: that it comes now, and which it is.
With h the sum of the hazards of all causes at risk and H its integral over the stretch,

    log h_k(Δ) − H(Δ) = log(h_k(Δ) / h(Δ)) + (log h(Δ) − H(Δ)),      what + when.

A stretch that ends without an event adds −H to `when` alone. Hazards are per year, so that `when` depends on the unit
of time and only differences between models mean something.

Daley, Vere-Jones 2003, An Introduction to the Theory of Point Processes I, chapter 7; Shmatko et al. 2025, Nature 647.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.evaluation_tables import WHAT, WHEN, IntervalEvents, Intervals, NextEventQuality, WaitingTimes
from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.evaluation.aalen_johansen import distinct_times, sum_per_time, weight_at_risk
from pipelines.evaluation.array_types import FloatArray, divide_or_nan

TOTAL = "total"
PROBABILITIES = tuple(round(0.05 * step, 2) for step in range(1, 20))
_NORMAL_QUANTILE = 1.959963984540054  # of a 95 % interval
_SUBJECT, _N_EVENTS = Intervals.subject_id.name, "n_events"


@dataclass(frozen=True)
class NextEvents:
    """What one predictor says of the intervals of some people: `Intervals` and `IntervalEvents`."""

    intervals: pl.DataFrame
    events: pl.DataFrame


def next_event_quality(by_predictor: Mapping[str, NextEvents]) -> pl.DataFrame:
    """Return log-likelihood per event of each predictor, and of the first minus each other (`NextEventQuality`).

    The estimate is Σ_i L_i / Σ_i n_i over people i with L_i the log-likelihood of a person and n_i the events; its
    variance Σ_i (L_i − estimate · n_i)² / (Σ_i n_i)², that of a ratio with people as the independent units (Cochran
    1977, Sampling Techniques, chapter 6). All predictors must be about the same intervals and events. With under 10
    events there are no numbers; an event that a predictor thought impossible makes its number minus infinity, shown
    as null.

    Raises ValueError where predictors are about different people or numbers of events.
    """
    people = {name: _sum_by_person(found) for name, found in by_predictor.items()}
    first_name = next(iter(people))
    keys = people[first_name].select(_SUBJECT, _N_EVENTS)
    for name, table in people.items():
        if not table.select(_SUBJECT, _N_EVENTS).equals(keys):
            raise ValueError(f"'{name}' and '{first_name}' are not about the same people and events")
    n_events = keys[_N_EVENTS].to_numpy().astype(np.float64)
    rows = []
    for part in (TOTAL, WHAT, WHEN):
        values = {name: table[part].to_numpy() for name, table in people.items()}
        compared = {
            f"{first_name}-{name}": values[first_name] - other for name, other in values.items() if name != first_name
        }
        rows += [(name, part, *_per_event(sums, n_events)) for name, sums in (values | compared).items()]
    return pl.DataFrame(rows, schema=NextEventQuality.create_empty().schema, orient="row")


def _sum_by_person(found: NextEvents) -> pl.DataFrame:
    """Return subject, number of events, and the parts of the log-likelihood of each person, sorted."""
    ratio = IntervalEvents.log_hazard.col - IntervalEvents.log_total_hazard.col
    events = found.events.group_by(_SUBJECT).agg(
        pl.len().alias(_N_EVENTS), ratio.sum().alias(WHAT), IntervalEvents.log_total_hazard.col.sum().alias(WHEN)
    )
    lived = found.intervals.group_by(_SUBJECT).agg(Intervals.total_hazard.col.sum())
    joined = lived.join(events, on=_SUBJECT, how="left").with_columns(pl.col(_N_EVENTS, WHAT, WHEN).fill_null(0))
    when = pl.col(WHEN) - Intervals.total_hazard.col
    return joined.select(
        _SUBJECT, pl.col(_N_EVENTS).cast(pl.Int64), (pl.col(WHAT) + when).alias(TOTAL), WHAT, when.alias(WHEN)
    ).sort(_SUBJECT)


def _per_event(
    sums: FloatArray, n_events: FloatArray
) -> tuple[float | None, float | None, float | None, int | None, int | None]:
    """Return estimate, limits, people and events."""
    n = int(n_events.sum())
    shown = tuple(count if count >= SMALLEST_SHOWN_COUNT else None for count in (sums.size, n))
    if n < SMALLEST_SHOWN_COUNT or not np.isfinite(sums).all():
        return None, None, None, shown[0], shown[1]
    estimate = float(sums.sum() / n)
    half = _NORMAL_QUANTILE * float(np.sqrt(((sums - estimate * n_events) ** 2).sum())) / n
    return estimate, estimate - half, estimate + half, shown[0], shown[1]


def waiting_time_calibration(
    by_predictor: Mapping[str, NextEvents], probabilities: Sequence[float] = PROBABILITIES
) -> pl.DataFrame:
    """Compare predicted with observed waiting times of each predictor (schema `WaitingTimes`).

    Where the hazard is right, H(T) of the waiting time T to the next event is exponential with mean one, and
    U = 1 − exp(−H(T)) uniform: the probability integral transform. Stretches that end without an event are censored at
    their own U, so the distribution of U is estimated by Kaplan–Meier; `observed` at u is 1 − KM(−log(1 − u)), which
    should be u. Limits by Greenwood's formula on the scale of log(−log KM). Beyond the reach of 10 intervals there
    are no numbers.

    Rosenblatt 1952, Ann Math Stat 23:470–472; Cox, Snell 1968, J R Stat Soc B 30:248–275 (residuals −log S(T));
    Kalbfleisch, Prentice 2002, The Statistical Analysis of Failure Time Data, §1.4 (limits).
    """
    at = np.array(probabilities, dtype=np.float64)
    rows: list[tuple[str | float | None, ...]] = []
    for name, found in by_predictor.items():
        transformed = found.intervals[Intervals.total_hazard.name].to_numpy()
        is_event = found.intervals[Intervals.is_event.name].to_numpy()
        observed, lower, upper = _distribution(transformed, is_event, -np.log1p(-at))
        n_at_risk = transformed.size - np.searchsorted(np.sort(transformed), -np.log1p(-at), side="left")
        for place, probability in enumerate(at):
            if n_at_risk[place] < SMALLEST_SHOWN_COUNT:
                rows.append((name, float(probability), None, None, None, None))
                continue
            limits = (float(value) if np.isfinite(value) else None for value in (lower[place], upper[place]))
            rows.append((name, float(probability), float(observed[place]), *limits, int(n_at_risk[place])))
    return pl.DataFrame(rows, schema=WaitingTimes.create_empty().schema, orient="row")


def _distribution(
    time: FloatArray, is_event: np.ndarray[tuple[int], np.dtype[np.bool_]], at: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return 1 − Kaplan–Meier at some times, and its 95 % limits (NaN where nothing has happened)."""
    if time.size == 0:
        nothing = np.full(at.size, np.nan)
        return nothing, nothing, nothing
    order = np.argsort(time, kind="stable")
    time, is_event = time[order], is_event[order]
    first = distinct_times(time)
    n_events = sum_per_time(is_event.astype(np.float64), first)
    n_at_risk = weight_at_risk(np.ones(time.size), first)
    survival = np.concatenate([[1.0], np.cumprod(1.0 - n_events / n_at_risk)])
    terms = divide_or_nan(n_events, n_at_risk * (n_at_risk - n_events))
    greenwood = np.concatenate([[0.0], np.cumsum(np.nan_to_num(terms))])
    place = np.searchsorted(time[first], at, side="right")
    survived, variance = survival[place], greenwood[place]
    is_inside = (survived > 0) & (survived < 1)
    log_survived = np.log(np.where(is_inside, survived, 0.5))
    half = _NORMAL_QUANTILE * np.sqrt(variance) / np.abs(log_survived)
    lower, upper = (np.where(is_inside, 1.0 - np.exp(log_survived * np.exp(sign * half)), np.nan) for sign in (-1, 1))
    return 1.0 - survived, lower, upper
