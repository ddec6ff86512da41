"""Plan the steps of an epoch: who is read together, and which of them share a padded part.

The plan follows from the seed alone, so that an interrupted run finds its place again, and it has the same number of
steps in every epoch. N people, B people of a step, Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.augment_histories import HistoryOptions, augment_histories, count_no_event_rows
from pipelines.draw_queries import draw_query_ages, weigh_queries
from pipelines.find_intervals import cut_pieces, find_intervals
from pipelines.sequence_files import SequenceShard
from pipelines.token_tables import TokenTables

_BATCHES_SORTED_TOGETHER = 50  # lengths are sorted within so many batches: little padding, and still a random mix
_PART_COST = 0.02  # of the real cells of a step: what one more part must save, since each costs launches of its own
_PEOPLE_MEASURED_TOGETHER = 4096


@dataclass(frozen=True)
class PlannedBatch:
    """People of one shard; in mode all_future their query ages, ascending, and what each query counts (mean 1)."""

    shard: int
    rows: NDArray[np.int64]  # [B]
    query_ages_days: NDArray[np.float64]  # [B,Q], Q = 0 in mode next_token
    query_weights: NDArray[np.float64]  # [B,Q]


@dataclass(frozen=True)
class HistorySizes:
    """How much there is to read of each person of a shard in mode next_token [N]."""

    n_rows: NDArray[np.int64]  # of the longest piece
    n_pieces: NDArray[np.int64]  # 0: never under observation
    n_intervals: NDArray[np.int64]


def plan_future_epoch(
    shards: Sequence[SequenceShard],
    seed: tuple[int, ...],
    options: HistoryOptions,
    batch_size: int,
    n_queries: int,
    *,
    first_at_entry: bool,
    entry_share: float,
) -> list[PlannedBatch]:
    """Plan one pass over everybody: fresh query ages, batches of people whose histories are of similar length."""
    rng = np.random.default_rng(seed)
    plan: list[PlannedBatch] = []
    entry = [shard.entry_age_days for shard in shards]
    exit_ = [shard.exit_age_days for shard in shards]
    weights = weigh_queries(
        np.concatenate(entry), np.concatenate(exit_), n_queries, first_at_entry=first_at_entry, entry_share=entry_share
    )
    weights_of_shard = np.split(weights, np.cumsum([len(shard) for shard in shards])[:-1])
    for number, (shard, weight) in enumerate(zip(shards, weights_of_shard, strict=True)):
        ages = draw_query_ages(rng, entry[number], exit_[number], n_queries, first_at_entry=first_at_entry)
        lengths = shard.count_events_up_to(ages[:, -1]) + count_no_event_rows(options, entry[number], ages[:, -1])
        plan += [
            PlannedBatch(number, rows, ages[rows], weight[rows])
            for rows in _batches_by_length(rng, lengths, np.ones_like(lengths), batch_size)
        ]
    return [plan[i] for i in rng.permutation(len(plan))]


def measure_histories(
    shard: SequenceShard, options: HistoryOptions, tables: TokenTables, max_events: int
) -> HistorySizes:
    """Count rows, pieces and intervals of everybody without drawing anything, a few thousand people at a time."""
    n_rows, n_pieces, n_intervals = (np.zeros(len(shard), dtype=np.int64) for _ in range(3))
    for start in range(0, len(shard), _PEOPLE_MEASURED_TOGETHER):
        rows = np.arange(start, min(start + _PEOPLE_MEASURED_TOGETHER, len(shard)))
        people = augment_histories(shard.take(rows), options, tables)
        intervals = find_intervals(people, tables)
        pieces = cut_pieces(people, intervals, max_events)
        n_intervals[rows] = np.bincount(intervals.person, minlength=len(rows))
        n_pieces[rows] = np.bincount(pieces.person, minlength=len(rows))
        np.maximum.at(n_rows, rows[pieces.person], pieces.n_rows)
    return HistorySizes(n_rows, n_pieces, n_intervals)


def plan_next_epoch(sizes: Sequence[HistorySizes], seed: tuple[int, ...], batch_size: int) -> list[PlannedBatch]:
    """Plan one pass over the whole history of everybody who was ever under observation.

    A step has about `batch_size` pieces. All pieces of a person stand in one step, so that they are cut from the same
    rows, whatever is drawn.
    """
    rng = np.random.default_rng(seed)
    plan: list[PlannedBatch] = []
    for number, size in enumerate(sizes):
        observed = np.flatnonzero(size.n_pieces)
        for rows in _batches_by_length(rng, size.n_rows[observed], size.n_pieces[observed], batch_size):
            nothing_asked = np.zeros((len(rows), 0))
            plan.append(PlannedBatch(number, observed[rows], nothing_asked, nothing_asked))
    return [plan[i] for i in rng.permutation(len(plan))]


def intervals_per_step(sizes: Sequence[HistorySizes], n_steps: int) -> float:
    """Return the intervals of an average step, what every step's log-likelihood is divided by.

    It is one number for all steps: batches of long and of short histories then add up to the likelihood of the whole.
    Divided by its own number of intervals, a batch would weigh a year by how much was recorded in and after it.
    """
    return float(sum(int(size.n_intervals.sum()) for size in sizes)) / max(n_steps, 1)


def split_parts(lengths: NDArray[np.int64], most_cells: int) -> list[NDArray[np.int64]]:
    """Divide the sequences of a step into parts that are padded separately; each part is a list of places [P].

    The parts are consecutive in length and minimise

        Σ_parts (sequences × longest + c),      c = 2 % of the cells that are not padding

    exactly, by dynamic programming over the sorted lengths, with at most `most_cells` cells in a part of two or more:
    a part for each saving in padding that is worth its launches, and never more memory than a step of longest
    histories takes.
    """
    order = np.argsort(lengths, kind="stable")
    sizes = np.maximum(lengths[order], 1)
    part_cost = _PART_COST * sizes.sum()
    cost, start_of_part = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        cells = sizes[end - 1] * np.arange(end, 0, -1)  # of a part from each possible start
        total = cost[:end] + cells + part_cost
        total[:-1][cells[:-1] > most_cells] = np.inf
        start_of_part[end] = np.argmin(total)
        cost[end] = total[start_of_part[end]]
    parts, end = [], len(order)
    while end > 0:
        parts.append(order[start_of_part[end] : end])
        end = start_of_part[end]
    return parts[::-1]


def _batches_by_length(
    rng: np.random.Generator, lengths: NDArray[np.int64], weights: NDArray[np.int64], batch_size: int
) -> list[NDArray[np.int64]]:
    """Return everybody once: shuffled, sorted by length within a window of batches, cut at `batch_size` of weight.

    What is left over joins the batch before where it is less than half a batch. The number of batches follows from the
    weights alone, never from the order; each has somebody in it.
    """
    if not len(lengths):
        return []
    order = rng.permutation(len(lengths))
    window = batch_size * _BATCHES_SORTED_TOGETHER
    for start in range(0, len(order), window):
        part = order[start : start + window]
        order[start : start + window] = part[np.argsort(lengths[part], kind="stable")]
    total = int(weights.sum())
    n_batches = min(max(1, total // batch_size + (total % batch_size >= batch_size / 2)), len(order))
    before = np.cumsum(weights[order]) - weights[order]
    number = np.arange(1, n_batches)
    cuts = np.searchsorted(before, number * batch_size)
    cuts = np.maximum.accumulate(cuts - number) + number  # one person may weigh more than a batch
    return np.split(order, np.minimum(cuts, len(order) - n_batches + number))
