"""Small counts are withheld, and cannot be found by subtraction."""

import itertools

import pytest

from pipelines.small_counts import merge_small, round_to_ten, show_count, withhold_small, withhold_small_among


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1, None), (9, None), (10, 10), (12345, 12345)])
def test_counts_from_1_to_9_are_withheld(count, shown):
    assert withhold_small(count) == shown


def test_others_stay_exact_unless_one_is_withheld():
    assert withhold_small_among([0, 104, 27]) == [0, 104, 27]
    assert withhold_small_among([0, 104, 27, 3]) == [0, 100, 30, None]


@pytest.mark.parametrize("n_others", [1, 2])
def test_a_withheld_count_cannot_be_found_by_subtraction_from_the_sum(n_others):
    """Whoever knows the sum and this very program is left with several values from 1 to 9."""
    possible: dict[tuple, set[int]] = {}
    for *others, small in itertools.product(*[range(10, 60)] * n_others, range(1, 10)):
        shown = (sum(others) + small, *withhold_small_among([*others, small]))
        possible.setdefault(shown, set()).add(small)
    inside = {key: found for key, found in possible.items() if all(20 < count < 50 for count in key[1:-1])}
    assert len(inside) > 15
    assert min(len(found) for found in inside.values()) > 1


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([12, 30, 10], [(0, 0, 12), (1, 1, 30), (2, 2, 10)]),
        ([3, 4, 30, 0, 10], [(0, 2, 37), (3, 3, 0), (4, 4, 10)]),
        ([0, 0, 15, 0, 3], [(0, 0, 0), (1, 1, 0), (2, 4, 18)]),
        ([20, 1, 0, 0], [(0, 3, 21)]),
        ([0, 0], [(0, 0, 0), (1, 1, 0)]),
        ([0, 4, 5], []),
        ([], []),
    ],
)
def test_neighbours_are_joined_until_they_hold_ten(counts, groups):
    assert merge_small(counts) == groups


def test_rounding_and_text():
    assert [round_to_ten(count) for count in (0, 4, 5, 14, 15)] == [0, 0, 10, 10, 20]
    assert show_count(None) == "under 10"
    assert show_count(12345) == "12,345"
