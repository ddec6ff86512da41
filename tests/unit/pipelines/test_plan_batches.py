"""The plan of an epoch, and the parts of a step."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import TRAIN
from pipelines import plan_batches
from pipelines.augment_histories import HistoryOptions, augment_histories
from pipelines.find_intervals import cut_pieces, find_intervals
from pipelines.plan_batches import (
    HistorySizes,
    intervals_per_step,
    measure_histories,
    plan_future_epoch,
    plan_next_epoch,
    split_parts,
)
from pipelines.read_dataset import read_vocabulary
from pipelines.sequence_files import SequenceShard, read_split
from pipelines.token_tables import TokenTables

NO_CAP = 10**9
NO_CHANGES = HistoryOptions()
LARGEST_PADDING = 0.05  # of all cells of an epoch


@pytest.fixture(scope="module")
def shards(small_dataset):
    return read_split(small_dataset, TRAIN)


@pytest.fixture(scope="module")
def tables(small_dataset):
    return TokenTables.of(read_vocabulary(small_dataset), "next_token")


def plan(shards, seed=(0, 3), batch_size=16, n_queries=3, *, first_at_entry=True, options=NO_CHANGES):
    return plan_future_epoch(
        shards, seed, options, batch_size, n_queries, first_at_entry=first_at_entry, entry_share=0.3
    )


def test_the_plan_asks_everybody_once(shards):
    planned = plan(shards)
    asked = sorted((batch.shard, row) for batch in planned for row in batch.rows.tolist())
    assert asked == [(number, row) for number, shard in enumerate(shards) for row in range(len(shard))]
    assert len(shards) == 2
    for batch in planned:
        assert batch.query_ages_days.shape == (len(batch.rows), 3)
        assert 8 <= len(batch.rows) < 24  # a remainder under half a batch joins its neighbour
        np.testing.assert_array_equal(batch.query_ages_days[:, 0], shards[batch.shard].entry_age_days[batch.rows])


def same_plan(one, other):
    return len(one) == len(other) and all(
        a.shard == b.shard and np.array_equal(a.rows, b.rows) and np.array_equal(a.query_ages_days, b.query_ages_days)
        for a, b in zip(one, other, strict=True)
    )


def test_the_plan_follows_from_the_seed_alone(shards):
    planned = plan(shards, (5, 1), first_at_entry=False)
    assert same_plan(planned, plan(shards, (5, 1), first_at_entry=False))
    assert not same_plan(planned, plan(shards, (5, 2), first_at_entry=False))
    assert not same_plan(planned, plan(shards, (6, 1), first_at_entry=False))


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


LENGTHS = {
    "moderate": lambda rng: rng.negative_binomial(2, 2 / 42, 6400),  # a mean of 40, two in a hundred over 120
    "heavy tail": lambda rng: np.round(rng.lognormal(3, 1, 6400)),  # a median of 20, the longest near a thousand
    "heavier tail": lambda rng: np.minimum(np.round(rng.lognormal(3, 1.5, 6400)), 512),
    "short": lambda rng: rng.poisson(6, 6400),
}


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("batch_size", [32, 128, 256])
def test_less_than_five_percent_of_an_epoch_is_padding_in_few_parts(kind, batch_size):
    lengths = np.maximum(LENGTHS[kind](np.random.default_rng(0)).astype(np.int64), 1)
    planned = plan([shard_of_lengths(lengths)], batch_size=batch_size, n_queries=2)
    parts = [batch.rows[part] for batch in planned for part in split_parts(lengths[batch.rows], NO_CAP)]
    assert sorted(np.concatenate(parts)) == list(range(6400))
    assert padding_share(lengths, parts) < LARGEST_PADDING
    assert len(parts) < 2.6 * len(planned)
    unsorted = np.array_split(np.arange(6400), len(planned))
    assert padding_share(lengths, unsorted) > 0.4


def test_short_and_long_batches_come_mixed():
    lengths = LENGTHS["moderate"](np.random.default_rng(0))
    planned = plan([shard_of_lengths(lengths)], batch_size=64, n_queries=2)
    means = [lengths[batch.rows].mean() for batch in planned]
    assert np.corrcoef(means[:-1], means[1:])[0, 1] < 0.3


def test_no_event_rows_count_as_length():
    rng = np.random.default_rng(0)
    shard = shard_of_lengths(np.full(640, 5))
    shard.exit_age_days[:] += rng.uniform(0, 8000, 640)
    options = HistoryOptions(no_event_rows="regular", no_event_interval_years=100 / DAYS_PER_YEAR)
    planned = plan([shard], batch_size=32, n_queries=2, options=options)
    spread = [np.ptp(batch.query_ages_days[:, -1]) for batch in planned]
    assert np.mean(spread) < np.ptp(np.concatenate([batch.query_ages_days[:, -1] for batch in planned])) / 4


def cost_of(lengths, parts, part_cost):
    return sum(len(part) * max(lengths[i] for i in part) + part_cost for part in parts)


def runs_of(order):
    """Yield every way to cut a list into consecutive runs."""
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        starts = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(order)]
        yield [order[start:end] for start, end in itertools.pairwise(starts)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    most_cells=st.sampled_from([NO_CAP, 100, 1]),
    share=st.sampled_from([0.02, 0.1, 0.3]),
)
def test_parts_are_the_cheapest_of_all_ways_to_cut(lengths, most_cells, share):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_batches, "_PART_COST", share)
        parts = split_parts(np.array(lengths), most_cells)
    read = [max(length, 1) for length in lengths]  # an empty history is one padded cell
    part_cost = share * sum(read)
    order = sorted(range(len(lengths)), key=read.__getitem__)
    allowed = [
        runs
        for runs in runs_of(order)
        if all(len(run) == 1 or len(run) * max(read[i] for i in run) <= most_cells for run in runs)
    ]
    cheapest = min(cost_of(read, runs, part_cost) for runs in allowed)
    assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
    assert cost_of(read, parts, part_cost) == pytest.approx(cheapest)
    assert all(len(part) == 1 or len(part) * max(read[i] for i in part) <= most_cells for part in parts)


def test_nobody_has_no_parts():
    assert split_parts(np.zeros(0, np.int64), NO_CAP) == []


OPTIONS = [
    HistoryOptions(query_row_at_entry=True),
    HistoryOptions(query_row_at_entry=True, no_event_rows="regular", no_event_interval_years=2.0),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_sizes_are_those_of_the_pieces(shards, tables, options, monkeypatch):
    monkeypatch.setattr(plan_batches, "_PEOPLE_MEASURED_TOGETHER", 7)
    for shard in shards:
        sizes = measure_histories(shard, options, tables, max_events=6)
        for row in range(len(shard)):
            people = augment_histories(shard.take(np.array([row])), options, tables)
            intervals = find_intervals(people, tables)
            pieces = cut_pieces(people, intervals, 6)
            assert sizes.n_intervals[row] == len(intervals)
            assert sizes.n_pieces[row] == len(pieces.person)
            assert sizes.n_rows[row] == pieces.n_rows.max(initial=0)
        assert (sizes.n_pieces > 1).any()


@st.composite
def drawn_sizes(draw):
    n_pieces = draw(st.lists(st.integers(0, 9), max_size=30))
    numbers = np.array(n_pieces, dtype=np.int64)
    return HistorySizes(10 * numbers, numbers, 30 * numbers)


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(drawn_sizes(), min_size=1, max_size=3), batch_size=st.integers(1, 6))
def test_steps_hold_everybody_observed_once_and_are_as_many_in_every_epoch(sizes, batch_size):
    plans = [plan_next_epoch(sizes, (seed,), batch_size) for seed in range(4)]
    expected = [(shard, row) for shard, size in enumerate(sizes) for row in np.flatnonzero(size.n_pieces)]
    for planned in plans:
        assert sorted((batch.shard, row) for batch in planned for row in batch.rows.tolist()) == expected
        assert all(len(batch.rows) for batch in planned)
        assert all(batch.query_ages_days.shape == (len(batch.rows), 0) for batch in planned)
        assert len(planned) == len(plans[0])


def test_steps_have_about_as_many_pieces_as_asked_for():
    rng = np.random.default_rng(0)
    n_pieces = 1 + rng.poisson(0.3, 2000) * rng.integers(1, 9, 2000)
    size = HistorySizes(np.minimum(n_pieces, 2) * 100, n_pieces, n_pieces * 30)
    planned = plan_next_epoch([size], (0,), 32)
    pieces = np.array([n_pieces[batch.rows].sum() for batch in planned])
    assert len(planned) == round(n_pieces.sum() / 32)
    assert np.median(pieces) == 32
    assert abs(pieces - 32).max() <= n_pieces.max()  # nobody is divided among steps
    assert intervals_per_step([size], len(planned)) == pytest.approx(32 * 30, rel=0.02)
