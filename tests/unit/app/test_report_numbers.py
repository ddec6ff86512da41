"""Numbers as text, and counts that give no withheld count away."""

from collections import defaultdict
from itertools import product

import pytest

from app.report.format_numbers import counts_beside, decimals, percent, significant, with_interval, years


@pytest.mark.parametrize(
    ("value", "text"), [(0.7149, "0.71"), (None, "–"), (float("nan"), "–"), (-0.001, "0.00"), (-0.12, "−0.12")]
)
def test_decimals(value, text):
    assert decimals(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04123, "0.0412"), (0.0000412, "0.0000412"), (41.23, "41.2"), (2571.4, "2,571"), (0, "0"), (-0.5, "−0.500")],
)
def test_three_significant_digits_without_exponent(value, text):
    assert significant(value) == text


def test_intervals():
    assert with_interval(0.714, 0.69, 0.734) == "0.71 (0.69–0.73)"
    assert (
        with_interval(0.06, 0.04, 0.08, 3, signed=True) == "+0.060 (+0.040\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+0.080)"
    )
    assert with_interval(-0.01, -0.03, 0.01) == "−0.01 (−0.03\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}0.01)"
    assert with_interval(0.7, None, None) == "0.70"
    assert with_interval(None, None, None) == "–"


def test_shares_and_times_name_their_units():
    assert percent(0.0312) == "3.1\N{NO-BREAK SPACE}%"
    assert (years(1826.25), years(365.25), years(90), years(182.625)) == ("5 years", "1 year", "90 days", "0.5 years")


def shown(counts):
    return [count if count >= 10 else None for count in counts]


@pytest.mark.parametrize(("n_parts", "largest_total"), [(2, 75), (3, 48)])
def test_no_withheld_count_follows_from_those_beside_it(n_parts, largest_total):
    """Whoever knows the total, the counts shown and this very program still has two values to choose from.

    A count of none may be found: nobody is in it. Where every part is withheld and holds 9, only a total that is not
    shown could hide it.
    """
    for total in range(largest_total + 1):
        possible = defaultdict(set)
        for first in product(range(total + 1), repeat=n_parts - 1):
            counts = (*first, total - sum(first))
            if counts[-1] >= 0:
                possible[tuple(counts_beside(shown(counts), total))].add(counts)
        for safe, candidates in possible.items():
            for place in (place for place, count in enumerate(safe) if count is None):
                found = {candidate[place] for candidate in candidates}
                assert len(found) > 1 or found == {0} or total < 10 or total == 9 * n_parts, (total, safe)


def test_counts_stay_exact_where_nothing_is_withheld():
    assert counts_beside([225, 207], 432) == [225, 207]
    assert counts_beside([225, 200, None], 432) == [230, 200, None]
    assert counts_beside([225, None], None) == [225, None]
