"""Check a dataset in the Medical Event Data Standard (MEDS 0.4): what `meds` validates, and what it does not look at.

`meds` validates columns and types of each file. The standard asks for more, which is checked here: a person's rows lie
in one file, next to each other, in the order of time with those without a time first; `codes.parquet` lists every
code; nobody is in two splits, and everybody with a split has rows.
"""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from flexible_schema import PyArrowSchema, SchemaValidationError, TableValidationError
from meds.schema import (
    CodeMetadataSchema,
    DataSchema,
    DatasetMetadataSchema,
    SubjectSplitSchema,
    code_metadata_filepath,
    data_subdirectory,
    dataset_metadata_filepath,
    subject_splits_filepath,
)

from data_schemas.errors import InputContractError, Violation
from pipelines.import_cohort.row_rules import RowRule, find_violations

_SUBJECT, _TIME, _CODE = DataSchema.subject_id_name, DataSchema.time_name, DataSchema.code_name

_SUBJECT_COLUMN, _TIME_COLUMN = pl.col(_SUBJECT), pl.col(_TIME)
_same_person = _SUBJECT_COLUMN.eq(_SUBJECT_COLUMN.shift(1))
_ROW_RULES = (
    RowRule(
        "not_in_order",
        "must be in the order of time within a person",
        _same_person & _TIME_COLUMN.lt(_TIME_COLUMN.shift(1)),
        _TIME,
    ),
    RowRule(
        "static_behind",
        "rows without a time must come first within a person",
        _same_person & _TIME_COLUMN.is_null() & _TIME_COLUMN.shift(1).is_not_null(),
        _TIME,
    ),
    RowRule(
        "not_contiguous",
        "the rows of a person must lie next to each other",
        ~_same_person.fill_null(value=False) & ~_SUBJECT_COLUMN.is_first_distinct(),
        _SUBJECT,
    ),
)


def check_meds(root: Path) -> None:
    """Check the dataset in the folder `root`.

    Raises:
        InputContractError: it breaks the standard; all broken rules of all files are listed.
    """
    faults = list(find_meds_faults(root))
    if faults:
        raise InputContractError(faults)


def find_meds_faults(root: Path) -> Iterator[Violation]:
    """Yield what is wrong with a dataset."""
    files = sorted((root / data_subdirectory).rglob("*.parquet"))
    if not files:
        yield Violation(str(root / data_subdirectory), "", "holds no parquet file")
        return
    schema_faults = [fault for path in files for fault in _find_schema_faults(path, DataSchema)]
    yield from schema_faults
    if schema_faults:  # the rest reads these columns
        return
    for path in files:
        yield from find_violations(pl.scan_parquet(path, glob=False), _ROW_RULES, str(path))
    yield from _find_people_in_several_files(files)
    yield from _find_missing_codes(root, files)
    yield from _find_split_faults(root, files)
    yield from _find_description_faults(root / dataset_metadata_filepath)


def _find_schema_faults(path: Path, schema: type[PyArrowSchema]) -> Iterator[Violation]:
    """Yield what `meds` finds in one file. Its message names columns and types and no values."""
    try:
        schema.validate(pq.read_table(path, partitioning=None))
    except (SchemaValidationError, TableValidationError) as error:
        yield Violation(str(path), "", f"is not valid as {schema.__name__} of meds: {error}")
    except (OSError, pa.ArrowException):
        yield Violation(str(path), "", "is no parquet file, or only part of one")


def _find_people_in_several_files(files: list[Path]) -> Iterator[Violation]:
    people = pl.concat(pl.scan_parquet(path, glob=False).select(pl.col(_SUBJECT).unique()) for path in files)
    several = people.filter(pl.col(_SUBJECT).is_duplicated()).select(pl.col(_SUBJECT).n_unique()).collect().item()
    if several:
        yield Violation(data_subdirectory, _SUBJECT, f"people must be in one file; {several} are in more than one")


def _find_missing_codes(root: Path, files: list[Path]) -> Iterator[Violation]:
    path = root / code_metadata_filepath
    if not path.is_file():
        yield Violation(str(path), "", "not found: it must list every code")
        return
    faults = list(_find_schema_faults(path, CodeMetadataSchema))
    yield from faults
    if faults:
        return
    used = pl.concat(pl.scan_parquet(file, glob=False).select(pl.col(_CODE).unique()) for file in files).unique()
    missing = used.join(pl.scan_parquet(path, glob=False), on=_CODE, how="anti").select(pl.len()).collect().item()
    if missing:
        yield Violation(str(path), _CODE, f"must list every code of the data; {missing} are missing")


def _find_split_faults(root: Path, files: list[Path]) -> Iterator[Violation]:
    path = root / subject_splits_filepath
    if not path.is_file():  # a dataset need not be split
        return
    faults = list(_find_schema_faults(path, SubjectSplitSchema))
    yield from faults
    if faults:
        return
    splits = pl.scan_parquet(path, glob=False)
    repeats = RowRule("one_split", "people must be in one split, in one row", _SUBJECT_COLUMN.is_duplicated(), _SUBJECT)
    yield from find_violations(splits, [repeats], str(path))
    people = pl.concat(pl.scan_parquet(file, glob=False).select(pl.col(_SUBJECT).unique()) for file in files)
    absent = splits.join(people, on=_SUBJECT, how="anti").select(pl.len()).collect().item()
    if absent:
        yield Violation(str(path), _SUBJECT, "people with a split must have rows in the data", absent)


def _find_description_faults(path: Path) -> Iterator[Violation]:
    """Yield what is wrong with `dataset.json`, all of whose keys are optional."""
    if not path.is_file():
        yield Violation(str(path), "", "not found")
        return
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        created = content.get(DatasetMetadataSchema.created_at_name)
        if created is not None:
            datetime.datetime.fromisoformat(created)
        DatasetMetadataSchema.validate(content)
    except (ValueError, TypeError, AttributeError, SchemaValidationError, TableValidationError) as error:
        yield Violation(str(path), "", f"does not fit DatasetMetadataSchema of meds ({type(error).__name__})")
