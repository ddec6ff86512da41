"""Choose the ages at which a model is asked during training, and group people of similar length into batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_schemas.age_units import AGE_STEPS_PER_DAY
from pipelines.sequence_files import SequenceShard

_BATCHES_SORTED_TOGETHER = 50  # lengths are sorted within so many batches: little padding, and still a random mix


@dataclass(frozen=True)
class PlannedBatch:
    """People of one shard and their query ages [B,Q], ascending."""

    shard: int
    rows: NDArray[np.int64]  # [B]
    query_ages_days: NDArray[np.float64]  # [B,Q]


def draw_query_ages(
    rng: np.random.Generator,
    entry_age_days: NDArray[np.float64],
    exit_age_days: NDArray[np.float64],
    n_queries: int,
    *,
    first_at_entry: bool,
) -> NDArray[np.float64]:
    """Draw ages [N,Q] in entry <= age < exit, ascending: one in each of Q equal parts of the follow-up.

    Equal parts (stratified sampling) cover the follow-up better than independent draws. With `first_at_entry` the
    first query is the entry itself, the landmark that is asked for most, and the others lie in Q - 1 equal parts.
    """
    n_drawn = n_queries - 1 if first_at_entry else n_queries
    where = (np.arange(n_drawn) + rng.random((len(entry_age_days), n_drawn))) / max(n_drawn, 1)
    drawn = entry_age_days[:, None] + where * (exit_age_days - entry_age_days)[:, None]
    on_step = np.floor(drawn * AGE_STEPS_PER_DAY) / AGE_STEPS_PER_DAY
    before_exit = np.minimum(on_step, exit_age_days[:, None] - 1 / AGE_STEPS_PER_DAY)  # a draw may round up to exit
    ages = np.maximum(before_exit, entry_age_days[:, None])
    return np.concatenate([entry_age_days[:, None], ages], axis=1) if first_at_entry else ages


def plan_epoch(
    shards: list[SequenceShard], seed: tuple[int, ...], batch_size: int, n_queries: int, *, first_at_entry: bool
) -> list[PlannedBatch]:
    """Plan one pass over everybody: fresh query ages, batches of people whose histories are of similar length.

    The plan follows from the seed alone, so that an interrupted run finds its place again.
    """
    rng = np.random.default_rng(seed)
    plan: list[PlannedBatch] = []
    for number, shard in enumerate(shards):
        ages = draw_query_ages(rng, shard.entry_age_days, shard.exit_age_days, n_queries, first_at_entry=first_at_entry)
        lengths = shard.count_events_up_to(ages[:, -1])
        plan += [PlannedBatch(number, rows, ages[rows]) for rows in _batches_by_length(rng, lengths, batch_size)]
    return [plan[i] for i in rng.permutation(len(plan))]


def _batches_by_length(
    rng: np.random.Generator, lengths: NDArray[np.int64], batch_size: int
) -> Iterator[NDArray[np.int64]]:
    """Yield everybody once: shuffled, sorted by length within a window of batches, cut into batches."""
    order = rng.permutation(len(lengths))
    window = batch_size * _BATCHES_SORTED_TOGETHER
    for start in range(0, len(order), window):
        part = order[start : start + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        yield from (part[at : at + batch_size] for at in range(0, len(part), batch_size))
