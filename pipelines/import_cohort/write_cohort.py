"""Write a cohort: people, events in files by person, codes and the import report. It appears whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.cohort import (
    CODES_FILE,
    COVARIATE,
    DEATH_CODE,
    DISEASE,
    EVENTS_FOLDER,
    IMPORT_REPORT_FILE,
    SUBJECTS_FILE,
    Codes,
    Events,
    Subjects,
)
from data_schemas.import_report import ImportReport, report_to_json
from pipelines.tables_on_disk import write_json, write_parquet
from pipelines.whole_folders import FolderKind, replace_folder_when_done

COHORT_FOLDER = FolderKind(
    "cohort",
    marks=(SUBJECTS_FILE, IMPORT_REPORT_FILE),
    contents=(SUBJECTS_FILE, EVENTS_FOLDER, CODES_FILE, IMPORT_REPORT_FILE),
)
ROWS_PER_FILE = 2_000_000
_COVARIATE_FIRST, _DISEASE_NEXT, _DEATH_LAST = 0, 1, 2
_RANK = "rank"  # working columns
_SHARD = "shard"
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def write_cohort(
    subjects: pl.DataFrame, events: pl.DataFrame, codes: pl.DataFrame, report: ImportReport, out: Path
) -> None:
    """Write `subjects.parquet`, `events/NNNN.parquet`, `codes.parquet` (if there are any) and `import_report.json`.

    A cohort that was there is replaced at the end, in one rename.

    Raises:
        UsageError: `out` is a file, a folder with something other than a cohort in it, or cannot be written.
    """
    with replace_folder_when_done(out, COHORT_FOLDER) as folder:
        write_parquet(Subjects.validate(subjects.select(Subjects.column_names())), folder / SUBJECTS_FILE)
        (folder / EVENTS_FOLDER).mkdir()
        for number, shard in enumerate(split_into_files(sort_events(Events.validate(events), codes))):
            write_parquet(shard, folder / EVENTS_FOLDER / f"{number:04d}.parquet")
        if codes.height:
            write_parquet(Codes.validate(codes).sort(Codes.code.name), folder / CODES_FILE)
        write_json(report_to_json(report), folder / IMPORT_REPORT_FILE)


def sort_events(events: pl.DataFrame, codes: pl.DataFrame) -> pl.DataFrame:
    """Sort by person and age; within one age measurements come first, then diseases, death last, each by code.

    A code that `codes` does not list counts as a measurement where any of its rows carries a value.
    """
    carries_value = Events.numeric_value.col.is_not_null().any()
    rank = (
        pl.when(Events.code.col == DEATH_CODE).then(_DEATH_LAST)
        .when(Codes.kind.col == COVARIATE).then(_COVARIATE_FIRST)
        .when(Codes.kind.col == DISEASE).then(_DISEASE_NEXT)
        .when(carries_value.over(Events.code.name)).then(_COVARIATE_FIRST)
        .otherwise(_DISEASE_NEXT)
    )  # fmt: skip
    return (
        events.join(codes.select(Codes.code.name, Codes.kind.name), on=Events.code.name, how="left")
        .with_columns(rank.cast(pl.Int8).alias(_RANK))
        .sort(Events.subject_id.name, Events.age_days.name, _RANK, Events.code.name, Events.numeric_value.name)
        .select(Events.column_names())
    )


def split_into_files(events: pl.DataFrame, rows_per_file: int = ROWS_PER_FILE) -> Iterator[pl.DataFrame]:
    """Yield the events in about equal parts, all rows of a person in one; the order of rows is kept.

    Which part a person is in follows from their id and the number of parts alone.
    """
    n_files = max(1, -(-events.height // rows_per_file))
    if n_files == 1:
        yield events
        return
    people = events.select(pl.col(Events.subject_id.name).unique())
    shards = people.with_columns(pl.Series(_SHARD, hash_ids(people[Events.subject_id.name]) % np.uint64(n_files)))
    placed = events.join(shards, on=Events.subject_id.name, how="left", maintain_order="left")
    for number in range(n_files):
        yield placed.filter(pl.col(_SHARD) == number).select(Events.column_names())


def hash_ids(ids: pl.Series) -> np.ndarray:
    """Hash ids to uint64 [n]: FNV-1a over the UTF-8 bytes of the id as text, then the finaliser of splitmix64.

    Written out because the hashes of polars and Python differ between versions and runs. FNV-1a: Fowler, Noll, Vo
    (IETF draft-eastlake-fnv); splitmix64: Steele, Lea, Flood 2014.
    """
    as_bytes = np.array(ids.cast(pl.String).cast(pl.Binary).to_list(), dtype=bytes)
    letters = as_bytes.view(np.uint8).reshape(len(as_bytes), as_bytes.dtype.itemsize)
    hashes = np.full(len(as_bytes), _FNV_OFFSET)
    for position in range(letters.shape[1]):
        letter = letters[:, position]
        hashes = np.where(letter > 0, (hashes ^ letter) * _FNV_PRIME, hashes)  # shorter ids are padded with zeros
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(hashes ^ (hashes >> np.uint64(31)))
