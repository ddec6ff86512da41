"""Counts as they may be shown to others: none from 1 to 9, and none that could be found by subtraction."""

from collections.abc import Sequence
from typing import TypeAlias

from data_schemas.results import SMALLEST_SHOWN_COUNT

ShownCount: TypeAlias = int | None  # None: withheld

_BASE = 10  # counts beside a withheld one are rounded to multiples
_BELOW, _ABOVE = 5, 4  # a count that rounds to x lies between x − 5 and x + 4


def withhold_small(count: int) -> ShownCount:
    """Return a count that stands alone, None where it is from 1 to 9."""
    return None if 0 < count < SMALLEST_SHOWN_COUNT else count


def withhold_small_among(counts: Sequence[int]) -> list[ShownCount]:
    """Return counts whose sum is known elsewhere.

    Where one of them is withheld the others are rounded to tens, so that it is not what is missing to the sum. Where
    all errors of rounding would have to point one way, which leaves a single value for what is withheld, the largest
    is rounded the other way.
    """
    shown = [withhold_small(count) for count in counts]
    n_withheld = shown.count(None)
    if not n_withheld or not any(shown):
        return shown
    rounded = [round_to_ten(count) if count else count for count in shown]
    missing = sum(counts) - sum(count for count in rounded if count)
    n_rounded = sum(1 for count in rounded if count)
    largest = max(range(len(rounded)), key=lambda place: rounded[place] or 0)
    least, most = missing - _ABOVE * n_rounded, missing + _BELOW * n_rounded
    if least >= n_withheld * (SMALLEST_SHOWN_COUNT - 1):
        rounded[largest] = (rounded[largest] or 0) + _BASE
    elif most <= n_withheld:
        rounded[largest] = (rounded[largest] or 0) - _BASE
    return rounded


def merge_small(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Join neighbours until each group holds none or at least 10: (first, last, count), empty for under 10 in all.

    Groups grow upwards; what remains at the top joins the last group that holds any.
    """
    groups: list[tuple[int, int, int]] = []
    first, held = 0, 0
    for place, count in enumerate(counts):
        held += count
        if held == 0 or held >= SMALLEST_SHOWN_COUNT:
            groups.append((first, place, held))
            first, held = place + 1, 0
    while held and groups:
        first, _, count = groups.pop()
        held += count
        if held >= SMALLEST_SHOWN_COUNT:
            return [*groups, (first, len(counts) - 1, held)]
    return [] if held else groups


def round_to_ten(count: int) -> int:
    """Round to the nearest ten, halves upwards."""
    return (count + _BELOW) // _BASE * _BASE


def show_count(count: ShownCount) -> str:
    """Write a count for people."""
    return f"under {SMALLEST_SHOWN_COUNT}" if count is None else f"{count:,}"
