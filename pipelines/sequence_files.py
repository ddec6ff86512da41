"""Sequences on disk and in memory: Arrow files, memory-mapped, read as flat arrays without copying."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from data_schemas.dataset import SEQUENCES_FOLDER, Sequences
from pipelines.tables_on_disk import replace_when_done, require_file


@dataclass(frozen=True)
class SequenceShard:
    """The people of one file. N people; entries of person i stand from offsets[i] to offsets[i+1]."""

    subject_id: pa.Array
    sex: NDArray[np.int8]  # [N]
    entry_age_days: NDArray[np.float64]  # [N]
    exit_age_days: NDArray[np.float64]  # [N]
    offsets: NDArray[np.int64]  # [N+1]
    tokens: NDArray[np.int32]
    ages_days: NDArray[np.float64]
    values: NDArray[np.float32]  # NaN: none
    first_offsets: NDArray[np.int64]  # [N+1]
    first_tokens: NDArray[np.int32]
    first_ages_days: NDArray[np.float64]

    def __len__(self) -> int:
        """Count the people."""
        return len(self.sex)

    def take(self, rows: NDArray[np.int64]) -> "SequenceShard":
        """Return the people of these rows, in this order, as a small shard of its own."""
        events, offsets = _ragged_rows(self.offsets, rows)
        firsts, first_offsets = _ragged_rows(self.first_offsets, rows)
        return SequenceShard(
            subject_id=self.subject_id.take(pa.array(rows)),
            sex=self.sex[rows],
            entry_age_days=self.entry_age_days[rows],
            exit_age_days=self.exit_age_days[rows],
            offsets=offsets,
            tokens=self.tokens[events],
            ages_days=self.ages_days[events],
            values=self.values[events],
            first_offsets=first_offsets,
            first_tokens=self.first_tokens[firsts],
            first_ages_days=self.first_ages_days[firsts],
        )

    def owner_of_event(self) -> NDArray[np.int64]:
        """Return the person row of each event."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def owner_of_first(self) -> NDArray[np.int64]:
        """Return the person row of each first occurrence."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_offsets))

    def count_events_up_to(self, age_days: NDArray[np.float64]) -> NDArray[np.int64]:
        """Count each person's events at or before an age [N]."""
        seen = self.ages_days <= np.repeat(age_days, np.diff(self.offsets))
        cumulative = np.concatenate([[0], np.cumsum(seen)])
        counts: NDArray[np.int64] = cumulative[self.offsets[1:]] - cumulative[self.offsets[:-1]]
        return counts


def write_sequences(sequences: pl.DataFrame, path: Path) -> None:
    """Write one Arrow IPC file of one record batch, uncompressed so that it can be memory-mapped."""
    with replace_when_done(path) as temporary:
        table = sequences.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=max(1, table.num_rows))


def read_shard(path: Path) -> SequenceShard:
    """Memory-map one file of sequences; only what is touched is read."""
    return shard_of_table(pa.ipc.open_file(pa.memory_map(str(path))).read_all())


def shard_of(sequences: pl.DataFrame) -> SequenceShard:
    """Return a frame of `Sequences` as flat arrays."""
    return shard_of_table(sequences.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks())


def read_split(dataset: Path, split: str) -> list[SequenceShard]:
    """Memory-map all files of a split, in name order."""
    return list(scan_split(dataset, split))


def scan_split(dataset: Path, split: str) -> Iterator[SequenceShard]:
    """Memory-map the files of a split one after another, in name order: memory is given back between them."""
    folder = require_file(dataset / SEQUENCES_FOLDER / split, "not found; make a dataset with `deephealth prepare`")
    return (read_shard(path) for path in sorted(folder.glob("*.arrow")))


def shard_of_table(table: pa.Table) -> SequenceShard:
    """View an Arrow table of `Sequences` as flat arrays; nothing is copied."""
    offsets, tokens = _flat(table, Sequences.tokens.name)
    first_offsets, first_tokens = _flat(table, Sequences.first_tokens.name)
    return SequenceShard(
        subject_id=_column(table, Sequences.subject_id.name),
        sex=_numbers(_column(table, Sequences.sex.name)),
        entry_age_days=_numbers(_column(table, Sequences.entry_age_days.name)),
        exit_age_days=_numbers(_column(table, Sequences.exit_age_days.name)),
        offsets=offsets,
        tokens=tokens,
        ages_days=_flat(table, Sequences.ages_days.name)[1],
        values=_flat(table, Sequences.values.name)[1],
        first_offsets=first_offsets,
        first_tokens=first_tokens,
        first_ages_days=_flat(table, Sequences.first_ages_days.name)[1],
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _numbers(array: pa.Array) -> NDArray:  # type: ignore[type-arg]  # the type follows the column
    numbers: NDArray = array.to_numpy(zero_copy_only=True)  # type: ignore[type-arg]
    return numbers


def _flat(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray]:  # type: ignore[type-arg]
    lists = _column(table, name)
    return lists.offsets.to_numpy().astype(np.int64, copy=False), _numbers(lists.values)


def ragged_positions(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, ... of each stretch, one stretch after another."""
    ends = np.cumsum(lengths)
    positions: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
    return positions


def _ragged_rows(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the flat positions of the chosen rows, one after another, and the offsets of the result."""
    lengths = offsets[rows + 1] - offsets[rows]
    return ragged_positions(offsets[rows], lengths), np.concatenate([[0], np.cumsum(lengths)])
