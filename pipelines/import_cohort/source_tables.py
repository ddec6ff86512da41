"""Find the tables of a source by name, scan them lazily, and read their cells without guessing.

A table NAME is a file `NAME.csv`, `.tsv`, `.tab`, `.txt` (each also `.gz`) or `.parquet`, or a folder `NAME` of such
files (shards), with the name in any letter case. Conventions:

- Column names are stripped and in lower case. Shards may differ in their columns: what is missing is null.
- Every cell of a text file is text; an empty cell and the words NA, NULL and \\N are null. The separator is a tab where
  the first line has more tabs than commas, else a comma. With commas a cell may be quoted and then hold commas and line
  breaks; with tabs quotes only surround a cell. Bytes that are no UTF-8 become the replacement character.
- Parquet keeps its types. Where shards differ, whole numbers become int64, times get microseconds, categories become
  text; types that are further apart become text, which is read like that of a text file.
- A first row that repeats the column names, or holds them under column0, column1, ..., is a header and no row. So is
  any later row that repeats them (files put one behind the other); both are counted in a note.
- Names that start with a dot, and `__MACOSX`, are left-overs of archives and not looked at. An empty shard is no fault.

What a cell means is said by the reading functions at the end. What cannot be read becomes null, never another value.
"""

import gzip
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import Note
from pipelines.import_cohort.check_contract import open_parquet

ReadCell = Callable[[pl.Expr, pl.DataType], pl.Expr]  # a column and its type in the file -> what its cells mean

NULL_TEXTS = ("", "NA", "NULL", "\\N")
_TEXT_ENDINGS = (".csv", ".tsv", ".tab", ".txt")
_PARQUET_ENDING = ".parquet"
_ENDINGS = (*_TEXT_ENDINGS, *(f"{ending}.gz" for ending in _TEXT_ENDINGS), _PARQUET_ENDING)
_NAMELESS = re.compile(r"column_?\d+")
_DUPLICATED = re.compile(r"_duplicated_\d+$")  # what polars puts behind the name of a column that comes again
_ARCHIVE_LEFTOVERS = "__MACOSX"
_HEADER_BYTES = 1 << 20  # the header of a file with 20,000 columns is smaller

# A date, perhaps a time, perhaps a zone. The zone is not used: a clock is kept as it was written.
_DATE_AND_TIME = (
    r"^(?<year>\d{4})-?(?<month>\d{2})-?(?<day>\d{2})"
    r"(?:[T ](?<clock>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)\s*(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_FIRST_YEAR = 1000  # 07-01-02 is no day of the year 7
_WHOLE_NUMBER = r"^\s*([+-]?\d+)(?:\.0*)?\s*$"
_PLAIN_WHOLE_NUMBER = r"^(?:0|-?[1-9]\d*)(?:\.0*)?$"


@dataclass(frozen=True)
class SourceTable:
    """One table of a source, not yet read: `frame` has its rows in the order of the files, names in lower case.

    The methods return expressions on `frame` that read a column as something; a column that the table lacks is null
    throughout. The result carries the name of the column.
    """

    name: str  # for reports: the file or folder, seen from the source
    files: tuple[Path, ...]
    frame: pl.LazyFrame
    types: pl.Schema
    notes: tuple[Note, ...] = ()

    def has(self, column: str) -> bool:
        """Whether the table has this column."""
        return column in self.types

    def require(self, columns: Sequence[str]) -> "SourceTable":
        """Return the table itself.

        Raises:
            InputContractError: some of these columns are missing; all of them are listed.
        """
        missing = [Violation(self.name, column, "is missing") for column in columns if column not in self.types]
        if missing:
            raise InputContractError(missing)
        return self

    def text(self, column: str) -> pl.Expr:
        """Read a column as text; blanks around it are removed, and nothing but blanks is null."""
        return self._read(column, read_text, pl.String)

    def number(self, column: str) -> pl.Expr:
        """Read a column as decimal numbers."""
        return self._read(column, read_number, pl.Float64)

    def whole_number(self, column: str) -> pl.Expr:
        """Read a column as whole numbers of 64 bits."""
        return self._read(column, read_whole_number, pl.Int64)

    def datetime(self, column: str) -> pl.Expr:
        """Read a column as times in microseconds, the clock as written; a date alone is its midnight."""
        return self._read(column, read_datetime, pl.Datetime("us"))

    def day(self, column: str) -> pl.Expr:
        """Read a column as calendar days; a time of day is cut off."""
        return self._read(column, read_day, pl.Date)

    def key(self, column: str, key_type: pl.DataType) -> pl.Expr:
        """Read a column of ids in the type that `find_key_type` found for all tables."""
        return self._read(column, read_key if key_type == pl.Int64 else read_text_key, key_type)

    def count_unreadable(self, read: Sequence[pl.Expr]) -> list[Note]:
        """Count the cells that hold something of which `read` (expressions of this table) make nothing."""
        named = {expr.meta.output_name(): expr for expr in read}
        counts = self.frame.select(
            (self.text(name).is_not_null() & expr.is_null()).sum().alias(name)
            for name, expr in named.items()
            if self.has(name)
        ).collect()
        return [
            Note("unreadable", f"{self.name}: cells of '{name}' that could not be read, taken as missing", rows)
            for name, rows in (counts.row(0, named=True) if counts.width else {}).items()
            if rows
        ]

    def _read(self, column: str, read: ReadCell, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
        if column not in self.types:
            return pl.lit(None, dtype=dtype).alias(column)
        return read(pl.col(column), self.types[column]).alias(column)


def scan_table(source: Path, name: str, *, look_for_headers: bool = True) -> SourceTable | None:
    """Find the table `name` in the folder `source`; None where there is none.

    Args:
        source: folder that holds the tables.
        name: name of the table without ending.
        look_for_headers: look for repeated headers behind the first row too, at the price of reading one column.

    Raises:
        InputContractError: there is no such folder, the table is there twice or in parts that do not fit together, or
            it cannot be read.
    """
    if not source.is_dir():
        raise InputContractError([Violation(str(source), "", "no such folder")])
    found = [entry for entry in sorted(source.iterdir()) if _table_name(entry) == name.lower()]
    found = [entry for entry in found if entry.is_file() or find_shards(entry)]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(entry.name for entry in found)
        raise InputContractError([Violation(str(source), "", f"holds table {name} more than once ({names}); keep one")])
    return open_table(found[0], found[0].name, look_for_headers=look_for_headers)


def require_table(
    source: Path, name: str, columns: Sequence[str] = (), *, look_for_headers: bool = True
) -> SourceTable:
    """Find the table `name`, which must be there with these columns (in lower case).

    Raises:
        InputContractError: it is missing, lacks a column or cannot be read.
    """
    table = scan_table(source, name, look_for_headers=look_for_headers)
    if table is None:
        endings = ", ".join((*_TEXT_ENDINGS, _PARQUET_ENDING))
        raise InputContractError([Violation(str(source / name), "", f"not found (with any ending of {endings})")])
    return table.require(columns)


def open_table(path: Path, name: str | None = None, *, look_for_headers: bool = True) -> SourceTable:
    """Scan one file, or a folder of shards, as a table called `name` (default: the path's own name).

    Raises:
        InputContractError: nothing is there, it cannot be read, or its files do not fit together.
    """
    name = name or path.name
    files = find_shards(path) if path.is_dir() else [path]
    if not files or not path.exists():
        raise InputContractError([Violation(str(path), "", "holds no table" if path.exists() else "not found")])
    return open_files(files, name, look_for_headers=look_for_headers)


def open_files(files: Sequence[Path], name: str, *, look_for_headers: bool = True) -> SourceTable:
    """Scan several files, in the order given, as one table.

    Raises:
        InputContractError: a file cannot be read, or all are empty.
    """
    scanned = {path: _scan_file(path) for path in files}
    shards = [shard for shard in scanned.values() if shard is not None]
    if not shards:
        raise InputContractError([Violation(name, "", "is empty: not even a header")])
    frame, left_out = _concat_shards([frame for frame, _ in shards])
    types = frame.collect_schema()
    is_header = _repeats_header(types)
    headers = sum(promoted for _, promoted in shards)
    if is_header is not None and look_for_headers:
        headers += _count(frame, is_header, name)
        frame = frame.filter(~is_header)
    notes = [
        Note("header_rows", f"{name}: rows that repeat the column names, not counted as read", headers),
        Note("empty_files", f"{name}: files without even a header", len(files) - len(shards)),
        *(Note("columns_of_two_kinds", f"{name}: column '{column}' is not used") for column in left_out),
    ]
    return SourceTable(name, tuple(files), frame, types, tuple(note for note in notes if note.rows != 0))


def _table_name(entry: Path) -> str:
    """Return the name of the table a file or folder would hold, in lower case; "" for what is no table."""
    name = entry.name.lower()
    if name.startswith(".") or entry.name == _ARCHIVE_LEFTOVERS:
        return ""
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    return "" if entry.is_file() and not ending else name.removesuffix(ending)


def find_shards(folder: Path) -> list[Path]:
    """Return the table files in a folder, at any depth, in the order of their paths."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name.lower().endswith(_ENDINGS)
        and not any(part.startswith(".") or part == _ARCHIVE_LEFTOVERS for part in path.relative_to(folder).parts)
    ]


def _scan_file(path: Path) -> tuple[pl.LazyFrame, int] | None:
    """Scan one file: its rows under clean column names, and how many header rows were taken off; None if empty."""
    frame = open_parquet(path) if path.name.lower().endswith(_PARQUET_ENDING) else _scan_text(path)
    if frame is None:
        return None
    names = frame.collect_schema().names()
    promoted = 0
    if names and all(_NAMELESS.fullmatch(name.strip().lower()) for name in names):
        first = frame.head(1).collect()
        if first.height and all(isinstance(cell, str) and cell.strip() for cell in first.row(0)):
            names, frame, promoted = (
                list(first.row(0)),
                frame.rename(dict(zip(names, first.row(0), strict=True))).slice(1),
                1,
            )
    return _clean_names(frame, path), promoted


def _scan_text(path: Path) -> pl.LazyFrame | None:
    header = _read_header(path)
    if not header.strip():
        return None
    tabs = header.count(b"\t") > header.count(b",")
    frame = pl.scan_csv(
        path,
        glob=False,  # a folder may have brackets in its name
        separator="\t" if tabs else ",",
        quote_char=None if tabs else '"',  # vocabularies with tabs hold single quotes inside names
        infer_schema=False,
        null_values=list(NULL_TEXTS),
        encoding="utf8-lossy",
    )
    try:
        types = frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise InputContractError([Violation(str(path), "", "is no table of text")]) from error
    return frame.with_columns(_unquoted(pl.col(name)) for name in types) if tabs else frame


def _read_header(path: Path) -> bytes:
    """Return the first line of a text file.

    Raises:
        InputContractError: it cannot be opened, or is not compressed as its name says.
    """
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as handle:
            return handle.readline(_HEADER_BYTES)
    except (OSError, EOFError) as error:
        rule = (
            "is not (or only in part) compressed by gzip"
            if isinstance(error, gzip.BadGzipFile | EOFError)
            else ("cannot be opened (is it there, and are you allowed to?)")
        )
        raise InputContractError([Violation(str(path), "", rule)]) from error


def _unquoted(value: pl.Expr) -> pl.Expr:
    """Take the quotes off a cell that stands in quotes as a whole."""
    inner = value.str.slice(1, value.str.len_chars() - 2).str.replace_all('""', '"', literal=True)
    quoted = (value.str.len_chars() >= 2) & value.str.starts_with('"') & value.str.ends_with('"')
    return pl.when(quoted).then(pl.when(inner != "").then(inner)).otherwise(value)


def _clean_names(frame: pl.LazyFrame, path: Path) -> pl.LazyFrame:
    """Bring column names to lower case without blanks and quotes around them.

    Raises:
        InputContractError: two columns have the same name then.
    """
    names = frame.collect_schema().names()
    clean = [_DUPLICATED.sub("", name).strip('\ufeff" \t').lower() for name in names]
    twice = sorted({name for name in clean if name and clean.count(name) > 1})
    if twice:
        raise InputContractError([Violation(str(path), name, "is there more than once") for name in twice])
    return frame.select(pl.col(old).alias(new) for old, new in zip(names, clean, strict=True) if new)


def _concat_shards(frames: Sequence[pl.LazyFrame]) -> tuple[pl.LazyFrame, list[str]]:
    """Put shards one behind the other in common types; also return the columns that have none."""
    schemas = [frame.collect_schema() for frame in frames]
    common = {
        name: _common_type([schema[name] for schema in schemas if name in schema])
        for name in dict.fromkeys(name for schema in schemas for name in schema)
    }
    types = {name: dtype for name, dtype in common.items() if dtype is not None}
    conformed = [
        frame.select(_cast_cell(name, schema.get(name), dtype) for name, dtype in types.items())
        for frame, schema in zip(frames, schemas, strict=True)
    ]
    return pl.concat(conformed), [name for name, dtype in common.items() if dtype is None]


def _common_type(found: Iterable[pl.DataType]) -> pl.DataType | None:
    """Return a type that holds all values of these types without loss; None for lists and the like of two kinds."""
    kinds = {_plain_type(dtype) for dtype in found if dtype != pl.Null}
    if not kinds:
        return pl.String()
    if len(kinds) == 1:
        return kinds.pop()
    if all(dtype.is_integer() and dtype != pl.UInt64 for dtype in kinds):
        return pl.Int64()
    if all(dtype.is_float() for dtype in kinds):
        return pl.Float64()
    return None if any(dtype.is_nested() or dtype == pl.Binary for dtype in kinds) else pl.String()


def _plain_type(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.Datetime):
        return pl.Datetime("us", dtype.time_zone)
    if isinstance(dtype, pl.Decimal):
        return pl.Float64()
    return pl.String() if _is_text(dtype) else dtype


def _cast_cell(name: str, found: pl.DataType | None, dtype: pl.DataType) -> pl.Expr:
    if found is None:
        return pl.lit(None, dtype=dtype).alias(name)
    if dtype == pl.String and not _is_text(found):
        return read_text(pl.col(name), found).alias(name)
    return pl.col(name).cast(dtype)


def _repeats_header(types: pl.Schema) -> pl.Expr | None:
    """Whether a row holds the column names again; None where the types rule it out. Two columns are looked at."""
    if not types or not all(dtype == pl.String for dtype in types.values()):
        return None
    same = (pl.col(name).str.strip_chars().str.to_lowercase() == name for name in types.names()[:2])
    return pl.all_horizontal(same).fill_null(value=False)


def _count(frame: pl.LazyFrame, condition: pl.Expr, name: str) -> int:
    try:
        return int(frame.select(condition.sum()).collect().item())
    except pl.exceptions.PolarsError as error:
        rule = "is damaged: its rows cannot be read, or some have more cells than there are columns"
        raise InputContractError([Violation(name, "", rule)]) from error


# ---- reading cells: each takes a column and its type in the file, and returns null for what it cannot read ----


def read_text(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read text: blanks around it are removed, and nothing but blanks is null. Whole decimals lose their `.0`."""
    if dtype.is_float():
        whole = value.cast(pl.Int64, strict=False)
        value = pl.when(value == whole).then(whole.cast(pl.String)).otherwise(value.cast(pl.String))
    stripped = value.cast(pl.String).str.strip_chars()
    return pl.when(stripped != "").then(stripped)


def read_number(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read a decimal number (point as decimal sign); NaN and infinity are no numbers."""
    number = (read_text(value, dtype) if _is_text(dtype) else value).cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def read_whole_number(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read a whole number of 64 bits, perhaps written with `.0`; anything else is null, also 1.5."""
    if _is_text(dtype):
        return value.cast(pl.String).str.extract(_WHOLE_NUMBER).cast(pl.Int64, strict=False)
    whole = value.cast(pl.Int64, strict=False)
    return pl.when(value == whole).then(whole) if dtype.is_float() else whole


def read_datetime(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read a time as it was written, without its zone; a date alone is its midnight.

    Text is `YYYY-MM-DD` or `YYYYMMDD`, perhaps with a time `HH:MM[:SS[.f]]` behind a blank or T, perhaps with a zone;
    a number is YYYYMMDD. A zone is dropped and the clock kept: what happened on a day stays on that day.
    """
    if isinstance(dtype, pl.Datetime):
        return value.dt.replace_time_zone(None).dt.cast_time_unit("us")
    if dtype == pl.Date:
        return value.cast(pl.Datetime("us"))
    text = value.cast(pl.String) if _is_text(dtype) else read_whole_number(value, dtype).cast(pl.String)
    return text.map_batches(_read_times, return_dtype=pl.Datetime("us"), is_elementwise=True)


def read_day(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read the calendar day of what `read_datetime` reads."""
    return value if dtype == pl.Date else read_datetime(value, dtype).dt.date()


def has_clock(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Whether a time of day was written; midnight counts as none where the type cannot tell."""
    if isinstance(dtype, pl.Datetime):
        return value.dt.time() != pl.time(0, 0, 0)
    if not _is_text(dtype):
        return pl.lit(value=False)
    return value.cast(pl.String).str.contains(r"\d{2}:\d{2}")


def read_key(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read an id as a whole number of 64 bits."""
    return read_whole_number(value, dtype)


def read_text_key(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Read an id as text."""
    return read_text(value, dtype)


def find_key_type(table: SourceTable, column: str) -> pl.DataType:
    """Return int64 where every id of the column is a whole number of 64 bits without leading zeros, else text."""
    dtype = table.types[column]
    if not _is_text(dtype):
        whole = read_whole_number(pl.col(column), dtype)
        fits = whole.is_not_null() | pl.col(column).is_null()
    else:
        text = read_text(pl.col(column), dtype)
        fits = text.is_null() | (
            text.str.contains(_PLAIN_WHOLE_NUMBER) & read_whole_number(pl.col(column), dtype).is_not_null()
        )
    return pl.Int64() if table.frame.select(fits.all()).collect().item() else pl.String()


def _read_times(texts: pl.Series) -> pl.Series:
    """Read texts as times: one usual form after the other, as long as cells are left that none has fitted.

    A function of series and no expression, because the regular expression costs twenty times a plain form and is
    hardly ever needed.
    """
    times = pl.Series(texts.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    cells = pl.DataFrame({"text": texts.str.strip_chars(), "time": times})
    for read in (*_USUAL_FORMS, _read_any_form):
        if cells["time"].null_count() == cells["text"].null_count():
            break
        left = pl.when(pl.col("time").is_null()).then(pl.col("text"))
        cells = cells.with_columns(left=left).with_columns(pl.coalesce("time", read(pl.col("left"))).alias("time"))
    return cells.select(pl.when(pl.col("time").dt.year() >= _FIRST_YEAR).then(pl.col("time")))["time"]


def _read_any_form(text: pl.Expr) -> pl.Expr:
    parts = text.str.extract_groups(_DATE_AND_TIME)
    year, month, day, clock = (parts.struct.field(name) for name in ("year", "month", "day", "clock"))
    date = (year + month + day).str.to_date("%Y%m%d", strict=False)
    clock = clock.fill_null("00:00")
    seconds = pl.when(clock.str.len_bytes() == len("00:00")).then(clock + ":00").otherwise(clock)
    return date.cast(pl.Datetime("us")) + seconds.str.to_time("%H:%M:%S%.f", strict=False).cast(pl.Duration("us"))


def _as_date(text: pl.Expr) -> pl.Expr:
    return text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))


def _as_time(text: pl.Expr) -> pl.Expr:
    return text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")


def _as_iso_time(text: pl.Expr) -> pl.Expr:
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us")


def _as_utc_time(text: pl.Expr) -> pl.Expr:
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", strict=False, time_unit="us")


def _as_eight_digits(text: pl.Expr) -> pl.Expr:
    eight = pl.when(text.str.len_bytes() == len("YYYYMMDD")).then(text)
    return eight.str.to_date("%Y%m%d", strict=False).cast(pl.Datetime("us"))


_USUAL_FORMS = (_as_date, _as_time, _as_iso_time, _as_utc_time, _as_eight_digits)


def _is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)
