"""Import anyone's tables that are already in our own layout.

The source is a folder with `subjects.parquet`, `events/*.parquet` or `events.parquet`, and `codes.parquet` if there is
one, with the columns of `data_schemas.cohort`. Conventions:

- Columns `birth_date`, `cluster_id`, `split`, `numeric_value`, `description`, `chapter` may be missing; columns that
  the layout does not know are left behind and named in the report.
- `subject_id` is whole numbers (kept as int64) or text, the same in all tables.
- Sex may be spelled in full or by its first letter in any case (female, f, woman, male, m, man, unknown, u, unk); null
  and empty text are unknown. Any other word is an error: nobody's sex is guessed.
- A `cluster_id` of numbers becomes text.
- Ages are days since birth, rounded to 1/256 day.
"""

from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict

from data_schemas.cohort import (
    CODES_FILE,
    DEATH,
    DEATH_CODE,
    EVENTS_FOLDER,
    FEMALE,
    MALE,
    SUBJECTS_FILE,
    UNKNOWN,
    Codes,
    DeliveredEvents,
    Subjects,
)
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import ImportReport, Note
from pipelines.import_cohort.check_contract import (
    CheckedTable,
    check_file,
    key_type_faults,
)
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.import_cohort.row_rules import RowRule

KIND = "parquet"
_EVENTS_FILE = f"{EVENTS_FOLDER}.parquet"
_SEX_SPELLINGS = {
    **dict.fromkeys(("female", "f", "woman"), FEMALE),
    **dict.fromkeys(("male", "m", "man"), MALE),
    **dict.fromkeys(("unknown", "u", "unk", ""), UNKNOWN),
}
_DEATH_KIND_RULE = RowRule(
    "death_kind",
    f"kind '{DEATH}' belongs to the code {DEATH_CODE} and to no other",
    (Codes.code.col == DEATH_CODE) != (Codes.kind.col == DEATH),
    Codes.kind.name,
    fixed=True,
)


class ParquetOptions(BaseModel):
    """The importer `parquet` has no settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def import_parquet(source: Path, out: Path, *, strict: bool = True) -> ImportReport:
    """Import tables in our own layout from the folder `source` into the cohort `out`, by the default rules.

    Raises:
        InputContractError: the tables break their contract; all faults of all files are listed.
        UsageError: `out` holds something else or cannot be written.
    """
    return finish_import(deliver_parquet(source, ParquetOptions()), out, strict=strict)


def deliver_parquet(source: Path, options: ParquetOptions) -> DeliveredCohort:
    """Check the tables of a folder and hand them on as they are.

    Raises:
        InputContractError: a table cannot be used as a whole; rows that break their contract are handed on as
            `row_faults`.
    """
    del options  # there are none
    if not source.is_dir():
        raise InputContractError([Violation(str(source), "", "no such folder")])
    subjects = check_file(source / SUBJECTS_FILE, Subjects, prepare=_unify_spellings)
    paths, place_faults = _find_events(source)
    events = [check_file(path, DeliveredEvents, may_be_empty=len(paths) > 1) for path in paths]
    codes = _check_codes(source / CODES_FILE)
    tables = [subjects, *events, *([codes] if codes else [])]
    row_faults = [fault for table in tables for fault in table.row_faults]
    structure_faults = [
        *place_faults,
        *(fault for table in tables for fault in table.structure_faults),
        *key_type_faults([subjects, *events]),
        *_all_empty(source / EVENTS_FOLDER, events),
    ]
    if structure_faults:
        raise InputContractError([*structure_faults, *row_faults])
    return DeliveredCohort(
        kind=KIND,
        subjects_table=_name(subjects, source),
        subjects=subjects.frame,
        events={_name(table, source): table.frame for table in events},
        codes=codes.frame if codes else Codes.create_empty().lazy(),
        codes_table=_name(codes, source) if codes else None,
        subject_rules=subjects.rules,
        event_rules=events[0].rules,
        code_rules=codes.rules if codes else (),
        notes=[*_spelling_notes(source / SUBJECTS_FILE), *_extra_column_notes(tables, source)],
        row_faults=row_faults,
    )


def _find_events(source: Path) -> tuple[list[Path], list[Violation]]:
    """Return the event files in name order, or what is wrong with the place where they should be."""
    folder, file = source / EVENTS_FOLDER, source / _EVENTS_FILE
    if folder.is_dir() and file.exists():
        return [], [Violation(str(file), "", f"there is a folder {EVENTS_FOLDER}/ as well; keep one of the two")]
    if not folder.is_dir():
        return [file], []
    paths = sorted(folder.glob("*.parquet"))
    return paths, [] if paths else [Violation(str(folder), "", "holds no parquet file")]


def _all_empty(folder: Path, events: list[CheckedTable]) -> list[Violation]:
    """One empty file among several is no fault; if all are, there is nothing to import."""
    readable = all(not table.structure_faults for table in events)
    empty = len(events) > 1 and readable and not sum(table.n_rows for table in events)
    return [Violation(str(folder), "", "holds no rows in any file")] if empty else []


def _check_codes(path: Path) -> CheckedTable | None:
    if not path.exists():
        return None
    return check_file(path, Codes, may_be_empty=True, more_rules=[_DEATH_KIND_RULE])


def _unify_spellings(subjects: pl.LazyFrame) -> pl.LazyFrame:
    """Bring spellings of sex to our three words, other words stay to be reported; numeric clusters become text."""
    types = subjects.collect_schema()
    sex, cluster = Subjects.sex.col, Subjects.cluster_id.col
    if _has_text(types, Subjects.sex.name):
        subjects = subjects.with_columns(_unified_sex(sex))
    if (cluster_type := types.get(Subjects.cluster_id.name)) is not None and cluster_type.is_integer():
        subjects = subjects.with_columns(cluster.cast(pl.String))
    return subjects


def _unified_sex(sex: pl.Expr) -> pl.Expr:
    word = sex.cast(pl.String).fill_null("")
    plain = word.str.strip_chars().str.to_lowercase()
    return plain.replace_strict(_SEX_SPELLINGS, default=word, return_dtype=pl.String).alias(Subjects.sex.name)


def _has_text(types: pl.Schema, name: str) -> bool:
    return types.get(name) in (pl.String, pl.Categorical, pl.Enum, pl.Null)


def _spelling_notes(path: Path) -> list[Note]:
    """Count what `_unify_spellings` changed."""
    subjects = pl.scan_parquet(path, glob=False)
    types = subjects.collect_schema()
    sex = Subjects.sex.col.cast(pl.String)
    respelled, unknown = (
        subjects.select((sex != _unified_sex(sex)).sum(), sex.is_null().sum().alias(UNKNOWN)).collect().row(0)
    )
    notes = []
    if respelled:
        notes.append(Note("sex_respelled", f"sex written otherwise, read as {FEMALE}, {MALE} or {UNKNOWN}", respelled))
    if unknown:
        notes.append(Note("sex_null", f"sex is null, kept as {UNKNOWN}", unknown))
    if (cluster := types.get(Subjects.cluster_id.name)) is not None and cluster.is_integer():
        notes.append(Note("cluster_id_to_text", f"{Subjects.cluster_id.name} came as numbers and was kept as text"))
    return notes


def _extra_column_notes(tables: list[CheckedTable], source: Path) -> list[Note]:
    return [
        Note("extra_columns", f"{_name(table, source)}: columns not used: {', '.join(table.extra_columns)}")
        for table in tables
        if table.extra_columns
    ]


def _name(table: CheckedTable, source: Path) -> str:
    return Path(table.file).relative_to(source).as_posix()
