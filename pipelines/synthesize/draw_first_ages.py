"""Exact ages at the first occurrence of every code, and what the hazard adds up to between two ages.

Given the ages at which its causes happened, the hazard of a code is f(age) times a constant that changes at those
ages. Codes come in an order in which each depends on earlier ones alone, so one pass over the codes, with all people
at once, draws everybody's life: an exponential threshold is met by the cumulative hazard, and what is left of it is
rescaled at each cause (the next-reaction method of Gibson, Bruck 2000, J Phys Chem A 104:1876–1889). Death is drawn
last; what would have happened after it did not.

C codes (death last), n people, m causes of one code, S stops. Ages are years.
"""

import numpy as np

from pipelines.evaluation.array_types import FloatArray
from pipelines.synthesize.age_hazards import NEVER
from pipelines.synthesize.world import World


def draw_first_ages(
    world: World, rates: FloatArray, thresholds: FloatArray, start: FloatArray, known: FloatArray
) -> FloatArray:
    """Return the age at which each code first happens after `start`, `NEVER` where it does not: [C, n].

    Args:
        world: the true hazards.
        rates: what multiplies f(age) without past diseases, frailty included [C, n], a year.
        thresholds: unit exponential draws [C, n]; the same draws give the same lives.
        start: age from which on is drawn [n].
        known: ages at which codes happened up to `start`, `NEVER` where they have not [C, n]; they stay.
    """
    ages = known.copy()
    for place, hazard in enumerate(world.hazards):
        begun = hazard.cumulative(start)
        at_risk = rates[place] > 0
        reach = begun + np.divide(thresholds[place], rates[place], out=np.full(start.shape, NEVER), where=at_risk)
        drawn = hazard.inverse(reach)
        causes = ages[world.causes[place]]  # [m, n]
        touched = np.flatnonzero((causes < drawn).any(axis=0) & at_risk)
        if touched.size:
            passed = np.maximum(hazard.cumulative(causes[:, touched]), begun[touched])
            drawn[touched] = hazard.inverse(_rescale_after_causes(reach[touched], passed, world.ratios[place]))
        ages[place] = np.where(ages[place] <= start, ages[place], drawn)
    return ages


def _rescale_after_causes(reach: FloatArray, passed: FloatArray, ratios: FloatArray) -> FloatArray:
    """Bring nearer what is left of the way to `reach` [n] at each cause, in the order in which they happened: [n].

    Everything is on the scale of F, `passed` [m, n] too: from the cause on, F counts `ratio` times.
    """
    order = np.argsort(passed, axis=0)
    for at, factor in zip(np.take_along_axis(passed, order, axis=0), ratios[order], strict=True):
        reach = np.where(at < reach, at + (reach - at) / factor, reach)
    return reach


def cumulative_between(
    world: World, place: int, cause_ages: FloatArray, start: FloatArray, stops: FloatArray
) -> FloatArray:
    """Return ∫ f(a) · Π ratio of the causes that happened before a, from start [n] to each stop [S, n]: [S, n].

    Zero where a stop lies before the start. `cause_ages` [m, n] are those of `world.causes[place]`.
    """
    hazard, ratios = world.hazards[place], world.ratios[place]
    begun = hazard.cumulative(start)
    until = np.maximum(hazard.cumulative(stops), begun)
    is_before = cause_ages <= start
    total: FloatArray = (until - begun) * np.where(is_before, ratios[:, None], 1.0).prod(axis=0)
    between = np.flatnonzero((~is_before & (cause_ages < stops.max(axis=0))).any(axis=0))
    if between.size:
        passed = np.maximum(hazard.cumulative(cause_ages[:, between]), begun[between])
        total[:, between] = _add_up_in_pieces(begun[between], until[:, between], passed, ratios)
    return total


def _add_up_in_pieces(begun: FloatArray, until: FloatArray, passed: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return F from `begun` [n] to `until` [S, n], `ratio` times from each cause (`passed` [m, n]) on: [S, n]."""
    order = np.argsort(passed, axis=0)
    factor = np.cumprod(ratios[order], axis=0)
    total = until - begun
    for at, added in zip(np.take_along_axis(passed, order, axis=0), np.diff(factor, axis=0, prepend=1.0), strict=True):
        total += added * np.maximum(until - at, 0.0)
    return total
