"""Read the filled cells of an export of UK Biobank: few of its millions of cells are filled, fewer are used.

Text is read once, front to back, by the streaming engine; parquet by groups of columns. Neither is ever held whole.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from data_schemas.cohort import Subjects
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import Note
from pipelines.import_cohort.row_rules import FIRST_ROWS_SHOWN
from pipelines.import_cohort.source_tables import SourceTable, open_table, read_text, read_whole_number
from pipelines.import_cohort.ukb_fields import FIELD, FieldColumn, find_eid, is_death_entity

INSTANCE, ARRAY, VALUE = "instance", "array", "value"  # columns of the table of cells, with subject_id and field
_ROW, _COLUMN = "row", "column"
_COLUMNS_AT_ONCE = 64  # of parquet, which is stored by column
_ENDINGS = (".csv", ".csv.gz", ".tab", ".tab.gz", ".tsv", ".tsv.gz", ".parquet")


def open_export(source: Path) -> tuple[list[SourceTable], list[Note]]:
    """Open the export: one file, or each file and each folder of shards in a folder that has a column `eid`."""
    places = [source]
    if source.is_dir():
        entries = [path for path in sorted(source.iterdir()) if not path.name.startswith((".", "__MACOSX"))]
        places = [path for path in entries if path.is_dir() or path.name.lower().endswith(_ENDINGS)]
    tables = [open_table(place, look_for_headers=False) for place in places]
    exports = [table for table in tables if find_eid(table.types.names())]
    if not exports:
        raise InputContractError([Violation(str(source), "eid", "no table has this column")])
    others = [Note("table_unused", f"{table.name} has no column eid and is not used") for table in tables]
    return exports, [note for note, table in zip(others, tables, strict=True) if table not in exports]


def read_cells(table: SourceTable, columns: Sequence[FieldColumn]) -> pl.DataFrame:
    """Read the filled cells of some columns: subject_id, field, instance, array, value (text).

    Each person has at least one row: the `eid` itself, as field 0.

    Raises:
        InputContractError: an eid is missing, is no whole number or stands in two rows.
    """
    eid = find_eid(table.types.names())
    assert eid is not None
    cells = _melt(table, eid, [column.column for column in columns])
    is_eid = pl.col(_COLUMN) == eid
    whole_number = read_whole_number(pl.col(VALUE), pl.String())
    people = cells.filter(is_eid).select(_ROW, whole_number.alias(Subjects.subject_id.name))
    may_repeat = any(is_death_entity(column.column) for column in columns)
    _refuse_bad_ids(people[Subjects.subject_id.name], table.name, eid, may_repeat=may_repeat)
    places = pl.DataFrame(
        [(eid, 0, 0, 0), *((column.column, column.field, column.instance, column.array) for column in columns)],
        schema={_COLUMN: pl.String, FIELD: pl.Int32, INSTANCE: pl.Int32, ARRAY: pl.Int32},
        orient="row",
    )
    return (
        cells.lazy()
        .join(places.lazy(), on=_COLUMN, how="left", maintain_order="left")
        .join(people.lazy(), on=_ROW, how="left", maintain_order="left")
        .select(Subjects.subject_id.name, FIELD, INSTANCE, ARRAY, VALUE)
        .collect()
    )


def _melt(table: SourceTable, eid: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return row, column and value of the eid and of all cells that are not empty.

    The streaming engine never holds the empty ones; blanks are taken off only what is left.
    """
    names = [eid, *columns]
    by_column = any(file.name.lower().endswith(".parquet") for file in table.files)
    step = _COLUMNS_AT_ONCE if by_column else len(names)
    parts = []
    for start in range(0, len(names), step):
        group = names[start : start + step]
        as_text = (pl.col(name) if table.types[name] == pl.String else table.text(name) for name in group)
        parts.append(
            table.frame.select(as_text)
            .with_row_index(_ROW)
            .unpivot(on=group, index=_ROW, variable_name=_COLUMN, value_name=VALUE)
            .filter(pl.col(VALUE).is_not_null() | (pl.col(_COLUMN) == eid))
            .with_columns(read_text(pl.col(VALUE), pl.String()).alias(VALUE))
            .filter(pl.col(VALUE).is_not_null() | (pl.col(_COLUMN) == eid))
            .collect(engine="streaming")
        )
    return pl.concat(parts)


def _refuse_bad_ids(ids: pl.Series, table: str, eid: str, *, may_repeat: bool) -> None:
    repeats = ids.is_duplicated() & ids.is_not_null() & (not may_repeat)
    checks = (("must be a whole number", ids.is_null()), ("must not repeat: one row for each participant", repeats))
    faults = [
        Violation(table, eid, rule, int(broken.sum()), tuple(broken.arg_true().head(FIRST_ROWS_SHOWN)))
        for rule, broken in checks
        if broken.any()
    ]
    if faults:
        raise InputContractError(faults)
