"""The names of UK Biobank: which column is which field, and which field is the first occurrence of which ICD-10 code.

A column is a field number, an instance (visit) and a place in an array. The four spellings met in the wild, all read
in lower case:

- ukbconv csv: `eid`, `31-0.0`, `40006-3.0`
- ukbconv r (tab separated): `f.eid`, `f.31.0.0`
- a csv read and written again by R: `X31.0.0`
- Research Analysis Platform: `eid`, `p31`, `p53_i0`, `p41270_a0`, `p40006_i2_a1`, each perhaps behind `participant.`;
  the entity `death` has the column `date_of_death`, perhaps behind `death.`
"""

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from data_schemas.cohort import Codes
from data_schemas.errors import InputContractError, Violation

ASSESSMENT_DATE_FIELD, DEATH_DATE_FIELD = 53, 40000
FIRST_OCCURRENCE_FIELDS = range(130000, 132606)  # even: date of the first report; the odd one behind it: its source
FIELD = "field"
_OWN_ROWS = -1  # stands for the instance in the entity death, which has a row where others have an instance

_EID = re.compile(r"(?:f\.|participant\.|death\.)?eid")
_CONVERTED = re.compile(r"(?:f\.|x)?(\d+)[-.](\d+)\.(\d+)")
_PLATFORM = re.compile(r"(?:participant\.)?p(\d+)(?:_i(\d+))?(?:_a(\d+))?")
_DEATH_ENTITY = re.compile(r"(?:death\.)?date_of_death")

_DATE_TITLE = r"^Date ([A-Z]\d{2}) first reported\s*(?:\((.*)\))?\s*$"
_SOURCE_TITLE = r"^Source of report of ([A-Z]\d{2})\s*(?:\((.*)\))?\s*$"
_TITLE_COLUMNS = {"fieldid": "field", "field_id": "title", "name": "title"}  # id column -> title column


@dataclass(frozen=True)
class FieldColumn:
    """One column of an export: what it is called there (in lower case) and what it holds."""

    column: str
    field: int
    instance: int
    array: int


def parse_column(name: str) -> FieldColumn | None:
    """Read the name of a column (in lower case); None for one that is no field, like `eid`."""
    if _DEATH_ENTITY.fullmatch(name):
        return FieldColumn(name, DEATH_DATE_FIELD, _OWN_ROWS, 0)
    if found := _CONVERTED.fullmatch(name) or _PLATFORM.fullmatch(name):
        field, instance, array = (int(number or 0) for number in found.groups())
        return FieldColumn(name, field, instance, array)
    return None


def find_eid(names: list[str]) -> str | None:
    """Return the column (in lower case) that names the person; None where a table has none."""
    return next((name for name in names if _EID.fullmatch(name)), None)


def is_death_entity(name: str) -> bool:
    """Whether a column is that of the entity `death`, which may have several rows a person."""
    return bool(_DEATH_ENTITY.fullmatch(name))


def read_dictionary(path: Path) -> pl.DataFrame:
    """Read which field is the first occurrence of which code: columns `field`, `code`, `description`.

    The file is the data dictionary of the Showcase (`FieldID`, `Field`), that of the platform (`name`, `title`), or two
    columns without a header (field or column name, title); separated by commas or tabs. Titles read `Date A00 first
    reported (cholera)`. Where no title does, `Source of report of A00 (cholera)` of an even field counts: that field
    is the date and the title is that of its neighbour.

    Raises:
        InputContractError: it cannot be read, names no first occurrence, or names a field twice with different codes.
    """
    titled = _read_titles(path)
    dates, sources = (
        titled.select(
            FIELD,
            pl.col("title").str.extract(pattern, 1).alias(Codes.code.name),
            pl.col("title").str.extract(pattern, 2).alias(Codes.description.name),
        ).drop_nulls([FIELD, Codes.code.name])
        for pattern in (_DATE_TITLE, _SOURCE_TITLE)
    )
    found = dates if dates.height else sources.filter(pl.col(FIELD) % 2 == 0)
    found = found.unique([FIELD, Codes.code.name], keep="first", maintain_order=True)
    if not found.height:
        rule = "names no first occurrence: no title like 'Date A00 first reported (cholera)' beside a field number"
        raise InputContractError([Violation(str(path), "", rule)])
    if twice := found.filter(pl.col(FIELD).is_duplicated()).height:
        raise InputContractError([Violation(str(path), "", "gives one field different codes", twice)])
    return found


def _read_titles(path: Path) -> pl.DataFrame:
    """Return the columns `field` (null where there is none) and `title` of a dictionary of any of the three kinds."""
    if not path.is_file():
        raise InputContractError([Violation(str(path), "", "not found")])
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as handle:
            tabs = "\t" in handle.readline()
        rows = pl.read_csv(
            path,
            has_header=False,
            separator="\t" if tabs else ",",
            quote_char=None if tabs else '"',
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputContractError([Violation(str(path), "", "cannot be read as a table of text")]) from error
    header = [str(cell or "").strip('\ufeff" \t').lower() for cell in rows.row(0)]
    pair = next(((a, b) for a, b in _TITLE_COLUMNS.items() if a in header and b in header), None)
    places = (header.index(pair[0]), header.index(pair[1])) if pair else (0, 1)
    if rows.width <= max(places):
        raise InputContractError([Violation(str(path), "", "must have a column of fields and one of titles")])
    cells, titles = (rows.to_series(place).str.strip_chars('" \t') for place in places)
    fields = {cell: _field_number(cell) for cell in cells.drop_nulls().unique()}
    return pl.DataFrame({FIELD: cells.replace_strict(fields, return_dtype=pl.Int64), "title": titles})


def _field_number(cell: str) -> int | None:
    if cell.isdecimal():
        return int(cell)
    column = parse_column(cell.lower())
    return column.field if column else None
