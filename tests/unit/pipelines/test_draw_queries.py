"""Query ages and the plan of an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import AGE_STEPS_PER_DAY
from data_schemas.cohort import TRAIN
from pipelines.draw_queries import draw_query_ages, plan_epoch
from pipelines.sequence_files import SequenceShard, read_split

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


@pytest.fixture(scope="module")
def shards(small_dataset):
    return read_split(small_dataset, TRAIN)


def test_the_plan_asks_everybody_once(shards):
    plan = plan_epoch(shards, (0, 3), 16, 3, first_at_entry=True, entry_share=0.3)
    asked = sorted((batch.shard, row) for batch in plan for row in batch.rows.tolist())
    assert asked == [(number, row) for number, shard in enumerate(shards) for row in range(len(shard))]
    assert len(shards) == 2
    for batch in plan:
        assert batch.query_ages_days.shape == (len(batch.rows), 3)
        assert 8 <= len(batch.rows) < 24  # a remainder under half a batch joins its neighbour
        np.testing.assert_array_equal(batch.query_ages_days[:, 0], shards[batch.shard].entry_age_days[batch.rows])


def same_plan(one, other):
    return len(one) == len(other) and all(
        a.shard == b.shard and np.array_equal(a.rows, b.rows) and np.array_equal(a.query_ages_days, b.query_ages_days)
        for a, b in zip(one, other, strict=True)
    )


def test_the_plan_follows_from_the_seed_alone(shards):
    plan = plan_epoch(shards, (5, 1), 16, 3, first_at_entry=False, entry_share=0.3)
    assert same_plan(plan, plan_epoch(shards, (5, 1), 16, 3, first_at_entry=False, entry_share=0.3))
    assert not same_plan(plan, plan_epoch(shards, (5, 2), 16, 3, first_at_entry=False, entry_share=0.3))
    assert not same_plan(plan, plan_epoch(shards, (6, 1), 16, 3, first_at_entry=False, entry_share=0.3))


def shard_of_lengths(lengths):
    """Return a shard of people of whom only the number of events matters, all before entry."""
    n, offsets = len(lengths), np.concatenate([[0], np.cumsum(lengths)])
    return SequenceShard(
        subject_id=None,
        sex=np.zeros(n, np.int8),
        entry_age_days=np.full(n, 20_000.0),
        exit_age_days=np.full(n, 24_000.0),
        offsets=offsets,
        tokens=np.full(offsets[-1], 3, np.int32),
        ages_days=np.full(offsets[-1], 10_000.0),
        values=np.full(offsets[-1], np.nan, np.float32),
        first_offsets=np.zeros(n + 1, np.int64),
        first_tokens=np.zeros(0, np.int32),
        first_ages_days=np.zeros(0),
    )


def padding_share(lengths, batches):
    return 1 - lengths.sum() / sum(lengths[rows].max() * len(rows) for rows in batches)


def test_little_of_a_batch_is_padding_and_short_and_long_batches_come_mixed():
    rng = np.random.default_rng(0)
    lengths = rng.negative_binomial(2, 2 / 42, 6400)  # a mean of 40 events, two in a hundred people over 120
    plan = plan_epoch([shard_of_lengths(lengths)], (0,), 64, 2, first_at_entry=True, entry_share=0.3)
    assert padding_share(lengths, [batch.rows for batch in plan]) < 0.08
    sizes = [lengths[batch.rows].mean() for batch in plan]
    assert np.corrcoef(sizes[:-1], sizes[1:])[0, 1] < 0.3


def test_a_few_very_long_histories_leave_most_of_the_saving():
    rng = np.random.default_rng(0)
    lengths = np.round(rng.lognormal(3, 1, 6400)).astype(np.int64)  # a median of 20 events, the longest near a thousand
    plan = plan_epoch([shard_of_lengths(lengths)], (0,), 64, 2, first_at_entry=True, entry_share=0.3)
    unsorted = np.array_split(np.arange(6400), 100)
    assert padding_share(lengths, [batch.rows for batch in plan]) < 0.2
    assert padding_share(lengths, unsorted) > 0.7
