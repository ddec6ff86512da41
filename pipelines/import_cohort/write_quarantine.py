"""Write the rows that an import has dropped to a folder of their own, for the owner of the data to look at.

It holds records of people: it stays with the owner and is no part of the cohort.
"""

from pathlib import Path

import polars as pl

from pipelines.tables_on_disk import write_parquet
from pipelines.whole_folders import FolderKind, replace_folder_when_done

_SUBJECTS, _EVENTS, _CODES = "dropped_subjects.parquet", "dropped_events.parquet", "dropped_codes.parquet"
QUARANTINE_FOLDER = FolderKind("quarantine", marks=(_SUBJECTS, _EVENTS, _CODES), contents=(_SUBJECTS, _EVENTS, _CODES))


def write_quarantine(out: Path, subjects: pl.LazyFrame, events: pl.LazyFrame, codes: pl.DataFrame) -> None:
    """Write the dropped rows of the three tables; `dropped_by` names the rule, `source_row` the row of the source.

    Raises:
        UsageError: `out` holds something else or cannot be written.
    """
    with replace_folder_when_done(out, QUARANTINE_FOLDER) as folder:
        for table, name in ((subjects, _SUBJECTS), (events, _EVENTS), (codes, _CODES)):
            write_parquet(table, folder / name)
