"""Numbers as a reader of a clinical journal expects them: few digits, intervals in brackets, units named."""

import math
from collections.abc import Sequence

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.small_counts import round_to_ten, show_count, withhold_small

NOTHING = "–"  # a number that is not there
FIXED_SPACE = "\N{NO-BREAK SPACE}"  # an interval stays on one line
_MINUS = "\N{MINUS SIGN}"
_SIGNIFICANT_DIGITS = 3
_BELOW, _ABOVE = 5, 4  # a count that is rounded to x lies between x − 5 and x + 4


def decimals(value: float | None, places: int = 2, *, signed: bool = False) -> str:
    """Write with a fixed number of decimals; a sign in front of differences."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:+.{places}f}" if signed else f"{value:.{places}f}"
    if float(text) == 0:  # no sign before nothing
        text = text.lstrip("+-")
    return text.replace("-", _MINUS)


def significant(value: float | None) -> str:
    """Write with three significant digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    places = max(0, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".replace("-", _MINUS)


def with_interval(
    estimate: float | None, lower: float | None, upper: float | None, places: int = 2, *, signed: bool = False
) -> str:
    """Write `0.71 (0.69–0.73)`; limits of differences are joined by `to`, since they may have a minus sign."""
    text = decimals(estimate, places, signed=signed)
    if estimate is None or lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return text
    between = f"{FIXED_SPACE}to{FIXED_SPACE}" if signed or lower < 0 else "–"
    limits = between.join(decimals(limit, places, signed=signed) for limit in (lower, upper))
    return f"{text} ({limits})"


def percent(share: float | None, places: int = 1) -> str:
    """Write a share as a percentage with its sign."""
    return NOTHING if share is None or not math.isfinite(share) else f"{share * 100:.{places}f}{FIXED_SPACE}%"


def years(days: float) -> str:
    """Write a horizon as a number of years, or of days where it is no round number of years."""
    value = days / DAYS_PER_YEAR
    if abs(value * 2 - round(value * 2)) > 1e-6 and value < 1:
        return f"{days:g} days"
    return f"{value:.3g} year{'' if value == 1 else 's'}"


def count(value: int | None) -> str:
    """Write a count of people; one from 1 to 9, or one that is withheld, as `under 10`."""
    return show_count(None if value is None else withhold_small(value))


def counts_beside(values: Sequence[int | None], total: int | None) -> list[int | None]:
    """Return counts of parts of a total that the reader knows, so that no withheld one follows by subtraction.

    A part of None is withheld (0 to 9). What the parts that are shown leave of the total is what a reader could work
    out: these are rounded to tens, and where even that leaves a single value they are withheld too. Where nobody is in
    the withheld parts there is nobody to protect.
    """
    shown = [None if value is None else withhold_small(value) for value in values]
    n_withheld = shown.count(None)
    known = [value for value in shown if value is not None]
    if total is None or not n_withheld or total == sum(known):
        return shown
    rounded = [round_to_ten(value) for value in known]
    least = max(1, total - sum(value + _ABOVE for value in rounded))
    most = total - sum(max(SMALLEST_SHOWN_COUNT, value - _BELOW) for value in rounded)
    if min(most, n_withheld * (SMALLEST_SHOWN_COUNT - 1)) <= least:
        return [None] * len(shown)
    return [None if value is None else round_to_ten(value) for value in shown]
