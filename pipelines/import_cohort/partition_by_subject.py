"""Share out delivered tables by a hash of the person, so that people are worked on in shards that fit into memory.

A table is read once, in batches, and each batch is written to disk in the order of its people's buckets. A shard is a
range of buckets: how many shards there are is decided when all tables are known, and no row moves again.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from data_schemas.cohort import Subjects
from data_schemas.errors import InputContractError, Violation
from pipelines.import_cohort.clean_events import SOURCE_ROW
from pipelines.tables_on_disk import read_ipc, read_json, write_ipc, write_json

BATCH_ROWS = 2_000_000  # rows in memory at a time while a table is shared out
_BUCKET = "bucket"
_N_BUCKETS = 2**16
_DONE_FILE = "done.json"
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def partition_table(frame: pl.LazyFrame, folder: Path, table: str) -> int:
    """Write a table with a column `subject_id` to `folder`, and return its rows; done once, it is not done again.

    A column `source_row` numbers the rows as they came (from 0); within a person they stay in that order.

    Raises:
        InputContractError: the table cannot be read to its end.
    """
    done = folder / _DONE_FILE
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        n_rows = 0
        for number, batch in enumerate(_read_batches(frame.with_row_index(SOURCE_ROW), table)):
            write_ipc(_in_buckets(batch), folder / f"{number:06d}.arrow")
            n_rows += batch.height
        write_json({"rows": n_rows}, done)
    return int(read_json(done)["rows"])


def read_shard(folder: Path, shard: int, n_shards: int) -> pl.DataFrame:
    """Read the rows of the people of one shard of a table that `partition_table` has written."""
    first, last = np.uint16(_N_BUCKETS * shard // n_shards), np.uint16(_N_BUCKETS * (shard + 1) // n_shards - 1)
    parts = []
    for path in _batch_files(folder):
        batch = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        buckets = batch[_BUCKET].to_numpy()
        start, stop = np.searchsorted(buckets, first, "left"), np.searchsorted(buckets, last, "right")
        rows = batch.drop_columns(_BUCKET).slice(start, stop - start)  # polars would copy what is not cut off before
        parts.append(pl.DataFrame(pl.from_arrow(rows)))
    return pl.concat(parts, rechunk=True)


def read_batches(folder: Path) -> Iterator[pl.DataFrame]:
    """Yield all rows of a table in the order in which they came, batch by batch."""
    for path in _batch_files(folder):
        yield read_ipc(path).drop(_BUCKET).sort(SOURCE_ROW)


def _batch_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))


def hash_ids(ids: pl.Series) -> np.ndarray:
    """Hash ids to uint64 [n]: FNV-1a over the UTF-8 bytes of the id as text, then the finaliser of splitmix64.

    Written out because the hashes of polars and Python differ between versions and runs. FNV-1a: Fowler, Noll, Vo
    (IETF draft-eastlake-fnv); splitmix64: Steele, Lea, Flood 2014.
    """
    texts = ids.cast(pl.String).fill_null("").to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offset_buffer, letter_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(letter_buffer or b"", dtype=np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.full(len(texts), _FNV_OFFSET)
    for position in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > position)
        hashes[rows] = (hashes[rows] ^ letters[starts[rows] + position]) * _FNV_PRIME
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(hashes ^ (hashes >> np.uint64(31)))


def _read_batches(frame: pl.LazyFrame, table: str) -> Iterator[pl.DataFrame]:
    """Yield the rows in batches, in their order; at least one batch, so that the columns of an empty table are kept."""
    try:
        yield frame.clear().collect()
        yield from frame.collect_batches(chunk_size=BATCH_ROWS)
    except (pl.exceptions.ComputeError, OSError) as error:
        raise InputContractError([Violation(table, "", "is damaged: its rows cannot be read")]) from error


def _in_buckets(batch: pl.DataFrame) -> pl.DataFrame:
    """Return the rows by bucket of their person; within a bucket they keep their order."""
    ids = batch[Subjects.subject_id.name]
    runs = ids.rle_id()  # rows of a person often follow each other: hash each run once
    first_of_runs = ids.filter(runs.ne_missing(runs.shift(1)))
    bucket = (hash_ids(first_of_runs) >> np.uint64(48)).astype(np.uint16)[runs.to_numpy()]
    return batch.with_columns(pl.Series(_BUCKET, bucket))[np.argsort(bucket, kind="stable")]
