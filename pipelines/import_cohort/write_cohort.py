"""Write the tables of a cohort: people, events in files by person, codes and the import report."""

from collections.abc import Collection, Iterable
from pathlib import Path

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
from pipelines.tables_on_disk import write_json, write_parquet, write_parquet_parts
from pipelines.whole_folders import FolderKind

COHORT_FOLDER = FolderKind(
    "cohort",
    marks=(SUBJECTS_FILE, IMPORT_REPORT_FILE),
    contents=(SUBJECTS_FILE, EVENTS_FOLDER, CODES_FILE, IMPORT_REPORT_FILE),
)
ROWS_PER_FILE = 500_000  # about so many events are in a file, and in memory at a time
_COVARIATE_FIRST, _DISEASE_NEXT, _DEATH_LAST = 0, 1, 2
_RANK = "rank"  # working column


def write_subjects(parts: Iterable[pl.DataFrame], cohort: Path) -> None:
    """Write `subjects.parquet` from its parts, in their order."""
    checked = (Subjects.validate(part.select(Subjects.column_names())) for part in parts)
    write_parquet_parts(checked, cohort / SUBJECTS_FILE)


def write_events(
    events: pl.DataFrame, codes: pl.DataFrame, with_value: Collection[str], cohort: Path, file: int
) -> None:
    """Write `events/NNNN.parquet`, in the order of `sort_events`; a file that is there is whole and stays."""
    path = cohort / EVENTS_FOLDER / f"{file:04d}.parquet"
    if not path.exists():
        write_parquet(sort_events(Events.validate(events), codes, with_value), path)


def write_codes(codes: pl.DataFrame, cohort: Path) -> None:
    """Write `codes.parquet`, if anything is known about any code."""
    if codes.height:
        write_parquet(Codes.validate(codes).sort(Codes.code.name), cohort / CODES_FILE)


def write_report(report: ImportReport, cohort: Path) -> None:
    """Write `import_report.json`."""
    write_json(report_to_json(report), cohort / IMPORT_REPORT_FILE)


def sort_events(events: pl.DataFrame, codes: pl.DataFrame, with_value: Collection[str] | None = None) -> pl.DataFrame:
    """Sort by person and age; within one age measurements come first, then diseases, death last, each by code.

    A code that `codes` does not list counts as a measurement where any of its rows carries a value: `with_value` names
    these codes, where not all events are here.
    """
    if with_value is None:
        with_value = events.filter(Events.numeric_value.col.is_not_null())[Events.code.name].unique().to_list()
    rank = (
        pl.when(Events.code.col == DEATH_CODE).then(_DEATH_LAST)
        .when(Codes.kind.col == COVARIATE).then(_COVARIATE_FIRST)
        .when(Codes.kind.col == DISEASE).then(_DISEASE_NEXT)
        .when(Events.code.col.is_in(list(with_value))).then(_COVARIATE_FIRST)
        .otherwise(_DISEASE_NEXT)
    )  # fmt: skip
    ranks = (
        events.select(Events.code.col.unique())
        .join(codes.select(Codes.code.name, Codes.kind.name), on=Events.code.name, how="left")
        .select(Events.code.name, rank.cast(pl.Int8).alias(_RANK))
    )
    return (
        events.join(ranks, on=Events.code.name, how="left", maintain_order="left")
        .sort(Events.subject_id.name, Events.age_days.name, _RANK, Events.code.name, Events.numeric_value.name)
        .select(Events.column_names())
    )
