"""Batches of a prepared dataset for the training loop: pipelines' arrays and tensors behind models' interface."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from data_schemas.cohort import TRAIN, TUNING
from data_schemas.dataset import SEQUENCES_FOLDER
from data_schemas.errors import InputContractError, Violation
from data_schemas.sequence_batch import FutureTargets, SequenceBatch
from models.config import TrainConfig
from pipelines.draw_queries import PlannedBatch, plan_epoch
from pipelines.pad_tensors import TokenTables, future_targets, pad_batch
from pipelines.sequence_files import SequenceShard, read_split

_TUNING_SEED = 7919  # the tuning queries are the same for every model, whatever its own seed


class DatasetBatches:
    """Training batches with queries drawn afresh each epoch, tuning batches with fixed ones."""

    def __init__(self, dataset: Path, vocabulary: pl.DataFrame, config: TrainConfig) -> None:
        """Map the sequences into memory; nothing is read before it is needed.

        Raises:
            InputContractError: the tuning split is empty, so that no epoch could be called the best.
        """
        self._config = config
        self._tables = TokenTables.of(vocabulary)
        self._train = read_split(dataset, TRAIN)
        self._tuning = read_split(dataset, TUNING)
        if not any(len(shard) for shard in self._tuning):
            folder = str(dataset / SEQUENCES_FOLDER / TUNING)
            raise InputContractError([Violation(folder, "", "nobody falls into the tuning split; it stops training")])

    def count(self) -> int:
        """Return the number of training batches of an epoch."""
        return len(self._plan(self._train, (self._config.seed, 0)))

    def training(self, epoch: int, skip: int) -> Iterator[tuple[SequenceBatch, FutureTargets]]:
        """Yield the batches of an epoch, without the first `skip`."""
        plan = self._plan(self._train, (self._config.seed, epoch))
        return (self._load(self._train, planned) for planned in plan[skip:])

    def tuning(self) -> Iterator[tuple[SequenceBatch, FutureTargets]]:
        """Yield the tuning batches, the same at every call."""
        return (self._load(self._tuning, planned) for planned in self._plan(self._tuning, (_TUNING_SEED,)))

    def _plan(self, shards: list[SequenceShard], seed: tuple[int, ...]) -> list[PlannedBatch]:
        config = self._config
        return plan_epoch(
            shards,
            seed,
            config.batch_size,
            config.queries_per_person,
            first_at_entry=config.query_at_entry,
            entry_share=config.entry_query_share,
        )

    def _load(self, shards: list[SequenceShard], planned: PlannedBatch) -> tuple[SequenceBatch, FutureTargets]:
        people = shards[planned.shard].take(planned.rows)
        batch = pad_batch(people, planned.query_ages_days, self._tables, self._config.max_events)
        return batch, future_targets(people, planned.query_ages_days, self._tables, planned.query_weights)
