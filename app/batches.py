"""Batches of a prepared dataset for the training loop: pipelines' arrays and tensors behind models' interface."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.cohort import TRAIN, TUNING
from data_schemas.dataset import SEQUENCES_FOLDER
from data_schemas.errors import InputContractError, Violation
from data_schemas.sequence_batch import SequenceBatch, Targets
from models.config import TrainConfig
from pipelines.augment_histories import HistoryOptions, augment_histories
from pipelines.find_intervals import cut_pieces, find_intervals
from pipelines.pad_tensors import future_targets, pad_batch, pad_pieces
from pipelines.plan_batches import (
    HistorySizes,
    PlannedBatch,
    intervals_per_step,
    measure_histories,
    plan_future_epoch,
    plan_next_epoch,
    split_parts,
)
from pipelines.sequence_files import SequenceShard, read_split
from pipelines.token_tables import TokenTables

_TUNING_SEED = 7919  # the tuning queries are the same for every model, whatever its own seed

Parts = list[tuple[SequenceBatch, Targets]]


def history_options(config: TrainConfig) -> HistoryOptions:
    """Return what a model's settings do to histories, in training and in scoring."""
    return HistoryOptions(
        query_row_at_entry=config.mode == "next_token",
        no_event_rows=config.no_event_rows,
        no_event_interval_years=config.no_event_interval_years,
        shuffle_same_day=config.shuffle_same_day,
        covariate_delay_years=config.covariate_delay_years,
    )


class DatasetBatches:
    """The steps of an epoch, each in parts of people whose histories are of similar length.

    In training, query ages and changes of histories are drawn afresh each epoch; for tuning they are fixed.
    """

    def __init__(self, dataset: Path, vocabulary: pl.DataFrame, config: TrainConfig) -> None:
        """Map the sequences into memory; nothing is read before it is needed.

        Raises:
            InputContractError: the tuning split is empty, so that no epoch could be called the best.
        """
        tables = TokenTables.of(vocabulary, config.mode)
        self._train = _Split(read_split(dataset, TRAIN), tables, config)
        self._tuning = _Split(read_split(dataset, TUNING), tables, config)
        self._seed = config.seed
        if not any(len(shard) for shard in self._tuning.shards):
            folder = str(dataset / SEQUENCES_FOLDER / TUNING)
            raise InputContractError([Violation(folder, "", "nobody falls into the tuning split; it stops training")])

    def count(self) -> int:
        """Return the number of training steps of an epoch."""
        return len(self._train.plan((self._seed, 0)))

    def training(self, epoch: int, skip: int) -> Iterator[Parts]:
        """Yield the parts of each step of an epoch, without the first `skip` steps."""
        seed = (self._seed, epoch)
        plan = self._train.plan(seed)
        for number in range(skip, len(plan)):
            # Counted from 1: numpy takes a seed that ends with 0 for the one without it, which drew the plan.
            yield self._train.load(plan[number], len(plan), np.random.default_rng((*seed, number + 1)))

    def tuning(self) -> Iterator[Parts]:
        """Yield the tuning people, the same at every call."""
        plan = self._tuning.plan((_TUNING_SEED,))
        return (self._tuning.load(planned, len(plan)) for planned in plan)


class _Split:
    """The people of a split as steps of one mode."""

    def __init__(self, shards: list[SequenceShard], tables: TokenTables, config: TrainConfig) -> None:
        self.shards, self._tables, self._config = shards, tables, config
        self._options = history_options(config)
        self._most_cells = config.batch_size * config.max_events

    @cached_property
    def _sizes(self) -> list[HistorySizes]:
        return [measure_histories(shard, self._options, self._tables, self._config.max_events) for shard in self.shards]

    def plan(self, seed: tuple[int, ...]) -> list[PlannedBatch]:
        """Return the steps of one pass."""
        config = self._config
        if config.mode == "next_token":
            return plan_next_epoch(self._sizes, seed, config.batch_size)
        return plan_future_epoch(
            self.shards,
            seed,
            self._options,
            config.batch_size,
            config.queries_per_person,
            first_at_entry=config.query_at_entry,
            entry_share=config.entry_query_share,
        )

    def load(self, planned: PlannedBatch, n_steps: int, rng: np.random.Generator | None = None) -> Parts:
        """Return the parts of one step; histories are changed at random where `rng` is given."""
        people = augment_histories(self.shards[planned.shard].take(planned.rows), self._options, self._tables, rng)
        if self._config.mode == "next_token":
            return self._next_parts(people, intervals_per_step(self._sizes, n_steps))
        return self._future_parts(people, planned)

    def _next_parts(self, people: SequenceShard, divisor: float) -> Parts:
        intervals = find_intervals(people, self._tables)
        pieces = cut_pieces(people, intervals, self._config.max_events)
        return [
            pad_pieces(people, intervals, pieces, part, self._tables, divisor)
            for part in split_parts(pieces.n_rows, self._most_cells)
        ]

    def _future_parts(self, people: SequenceShard, planned: PlannedBatch) -> Parts:
        max_events, tables = self._config.max_events, self._tables
        ages, weights = planned.query_ages_days, planned.query_weights
        lengths = np.minimum(people.count_events_up_to(ages[:, -1]), max_events)
        parts: Parts = []
        for part in split_parts(lengths, self._most_cells):
            members = people.take(part)
            targets = future_targets(members, ages[part], tables, weights[part], divisor=float(ages.size))
            parts.append((pad_batch(members, ages[part], tables, max_events), targets))
        return parts
