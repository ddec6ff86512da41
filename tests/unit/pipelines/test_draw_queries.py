"""The ages that are asked for in training."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import AGE_STEPS_PER_DAY
from pipelines.draw_queries import draw_query_ages

grid_days = st.integers(0, 43_000 * AGE_STEPS_PER_DAY).map(lambda step: step / AGE_STEPS_PER_DAY)
follow_up_days = st.integers(1, 5_000 * AGE_STEPS_PER_DAY).map(lambda step: step / AGE_STEPS_PER_DAY)


class LargestDraws:
    """A generator whose every draw is the largest below 1."""

    def random(self, shape):
        return np.full(shape, np.nextafter(1.0, 0.0))


@settings(max_examples=100, deadline=None)
@given(
    spans=st.lists(st.tuples(grid_days, follow_up_days), min_size=1, max_size=10),
    n_queries=st.integers(2, 6),
    first_at_entry=st.booleans(),
    rng=st.one_of(st.integers(0, 99).map(np.random.default_rng), st.builds(LargestDraws)),
)
def test_queries_lie_within_observation_on_the_grid_and_ascend(spans, n_queries, first_at_entry, rng):
    entry = np.array([start for start, _ in spans])
    exit_ = entry + np.array([length for _, length in spans])
    ages = draw_query_ages(rng, entry, exit_, n_queries, first_at_entry=first_at_entry)
    assert ages.shape == (len(spans), n_queries)
    assert (ages >= entry[:, None]).all()
    assert (ages < exit_[:, None]).all()
    np.testing.assert_array_equal(ages * AGE_STEPS_PER_DAY, np.round(ages * AGE_STEPS_PER_DAY))
    assert (np.diff(ages, axis=1) >= 0).all()
    np.testing.assert_array_equal(ages.astype(np.float32).astype(np.float64), ages)
    if first_at_entry:
        np.testing.assert_array_equal(ages[:, 0], entry)


def test_there_is_one_query_in_each_equal_part():
    entry, exit_ = np.full(500, 20_000.0), np.full(500, 24_000.0)
    ages = draw_query_ages(np.random.default_rng(0), entry, exit_, 5, first_at_entry=True)
    part = np.floor((ages[:, 1:] - 20_000) / 1000)
    np.testing.assert_array_equal(part, np.tile([0, 1, 2, 3], (500, 1)))
    assert ages[:, 1:].mean() == pytest.approx(22_000, abs=30)
