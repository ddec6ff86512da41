"""Check a table from outside against its schema and list everything that is wrong with it, never the values.

A fault of structure (no such file, no parquet, a missing column, a wrong type, an empty table) always stops an import.
A fault of rows stops it too, unless the owner asks for quarantine: then the same rules drop the rows and count them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dataframely as dy
import polars as pl

from data_schemas.age_units import MAX_AGE_DAYS, MAX_AGE_YEARS
from data_schemas.cohort import CODE_KINDS, SEXES, SPLITS, Codes, Subjects
from data_schemas.errors import InputContractError, Violation
from pipelines.import_cohort.row_rules import RowRule, find_violations

# Sentences for the rules that dataframely names; `nan` and `inf` come first because a range says nothing about them.
_RANGELESS_RULES = ("nullability", "nan", "inf")
_SENTENCES = {
    "nullability": "must not be null",
    "nan": "must not be NaN",
    "inf": "must not be infinite",
    "min_length": "must not be an empty text",
    f"{Subjects.sex.name}|check": f"must be one of {', '.join(SEXES)}",
    f"{Subjects.split.name}|check": f"must be null or one of {', '.join(SPLITS)}",
    f"{Codes.kind.name}|check": f"must be one of {', '.join(CODE_KINDS)}",
    "exit_after_entry": f"must be greater than {Subjects.entry_age_days.name}",
}
_LARGEST_INT64 = 2**63 - 1


@dataclass(frozen=True)
class CheckedTable:
    """A table as far as it could be brought into its schema, and all that is wrong with it.

    `frame` has the columns of the schema in its order, cast, optional ones filled with null, rows in the order of the
    file; use it only where `structure_faults` is empty. `rules` are those of the rows.
    """

    file: str
    n_rows: int
    frame: pl.LazyFrame
    rules: tuple[RowRule, ...]
    structure_faults: tuple[Violation, ...]
    row_faults: tuple[Violation, ...]
    extra_columns: tuple[str, ...]
    key_type: str  # "whole numbers", "text", or "" where there is no usable subject_id


def open_parquet(path: Path) -> pl.LazyFrame:
    """Scan one parquet file.

    Raises:
        InputContractError: there is no such file, it is a folder, cannot be read, or is not (or half) a parquet file.
    """
    if not path.is_file():
        raise InputContractError(
            [Violation(str(path), "", "is a folder, not a file" if path.is_dir() else "not found")]
        )
    try:
        frame = pl.scan_parquet(path, glob=False)
        frame.collect_schema()
    except OSError as error:
        raise InputContractError([Violation(str(path), "", "cannot be opened (are you allowed to?)")]) from error
    except pl.exceptions.PolarsError as error:
        raise InputContractError([Violation(str(path), "", "is no parquet file, or only part of one")]) from error
    return frame


def check_contract(frame: pl.DataFrame | pl.LazyFrame, schema: type[dy.Schema], file: str) -> pl.LazyFrame:
    """Return the table in the columns and types of its schema.

    Raises:
        InputContractError: it breaks the contract; every broken rule is listed.
    """
    checked = check_table(frame, schema, file)
    raise_violations([*checked.structure_faults, *checked.row_faults])
    return checked.frame


def raise_violations(violations: Sequence[Violation]) -> None:
    """Raise one error for all violations, if there are any."""
    if violations:
        raise InputContractError(violations)


def check_file(
    path: Path,
    schema: type[dy.Schema],
    *,
    prepare: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None,
    may_be_empty: bool = False,
    more_rules: Sequence[RowRule] = (),
) -> CheckedTable:
    """Check one parquet file; what keeps it from being read is a fault like any other.

    Args:
        path: the file.
        schema: what it should contain.
        prepare: brings other spellings to those of the schema before the check; must keep all rows in order.
        may_be_empty: no rows is no fault.
        more_rules: rules of this table beyond its schema.
    """
    try:
        frame = open_parquet(path)
    except InputContractError as error:
        return _unreadable(str(path), schema, error.violations)
    frame = prepare(frame) if prepare else frame
    return check_table(frame, schema, str(path), may_be_empty=may_be_empty, more_rules=more_rules)


def check_table(
    frame: pl.DataFrame | pl.LazyFrame,
    schema: type[dy.Schema],
    file: str,
    *,
    may_be_empty: bool = False,
    more_rules: Sequence[RowRule] = (),
) -> CheckedTable:
    """Bring a table into its schema and find all it breaks, column by column and row by row.

    Numbers may come as integers or decimals, dates as timestamps without a zone, texts as categories; a column of
    nulls fits any type. Columns that may be null may be missing. Nothing else is converted.
    """
    delivered = frame.lazy()
    types = delivered.collect_schema()
    columns = schema.columns()
    structure = _structure_faults(types, columns, file)
    faulty = {fault.column for fault in structure}
    usable = [name for name in columns if name in types and name not in faulty]
    conformed = delivered.select(_conform(column, types, name in usable) for name, column in columns.items())
    rules = tuple(rule for rule in [*contract_rules(schema), *more_rules] if _reads_only(rule, usable))
    key_rules = [rule for name in usable if _is_key(columns[name]) for rule in _key_value_rules(name, types[name])]
    try:
        n_rows = delivered.select(pl.len()).collect().item()
        key_faults = find_violations(delivered, key_rules, file)
        row_faults = find_violations(conformed, rules, file)
    except pl.exceptions.PolarsError:
        return _unreadable(file, schema, [*structure, Violation(file, "", "is damaged: its rows cannot be read")])
    empty = [Violation(file, "", "holds no rows")] if n_rows == 0 and not may_be_empty else []
    return CheckedTable(
        file=file,
        n_rows=n_rows,
        frame=conformed,
        rules=rules,
        structure_faults=(*structure, *key_faults, *empty),
        row_faults=tuple(row_faults),
        extra_columns=tuple(name for name in types if name not in columns),
        key_type=_key_type(columns, types, usable),
    )


def key_type_faults(tables: Iterable[CheckedTable]) -> list[Violation]:
    """Say which tables name people by another type than the first one does; they could never be joined."""
    first, *others = tables
    return [
        Violation(
            table.file,
            Subjects.subject_id.name,
            f"holds {table.key_type}, while {first.file} names people by {first.key_type}",
        )
        for table in others
        if table.key_type and first.key_type and table.key_type != first.key_type
    ]


def contract_rules(schema: type[dy.Schema]) -> list[RowRule]:
    """Return the row rules of a schema, each with a sentence in plain words.

    Rules about a range look only at finite values, so that a NaN is reported once, as NaN.
    """
    rules: list[RowRule] = []
    for name, column in schema.columns().items():
        value = pl.col(name)
        if _is_key(column):
            rules.append(_must(f"{name}|nullability", _SENTENCES["nullability"], value.is_null(), name))
        of_any = column.validation_rules(value)
        of_finite = column.validation_rules(_finite(value)) if column.dtype.is_float() else of_any
        for rule in sorted(of_any, key=lambda rule: rule not in _RANGELESS_RULES):
            holds = of_any[rule] if rule in _RANGELESS_RULES else of_finite[rule]
            rules.append(_must(f"{name}|{rule}", _sentence(name, rule, column), ~holds, name))
    for name in _identifying_columns(schema):
        value = pl.col(name)
        repeats = value.is_duplicated() & value.is_not_null()
        rules.append(_must(f"{name}|unique", "must not repeat: the table has one row for each", repeats, name))
    # The rules of a whole row have no public listing in dataframely 3.1; the column they are about is named first.
    for rule, content in schema._schema_validation_rules().items():
        names = content.expr.meta.root_names()
        numbers = [name for name in names if schema.columns()[name].dtype.is_float()]
        comparable = pl.all_horizontal(pl.lit(value=True), *(pl.col(name).is_finite() for name in numbers))
        rules.append(_must(rule, _SENTENCES.get(rule, rule), comparable & ~content.expr, names[0]))
    return rules


def _must(name: str, sentence: str, breaks: pl.Expr, column: str) -> RowRule:
    """Make a rule of a contract: nobody can switch it off."""
    return RowRule(name, sentence, breaks, column, fixed=True)


def _unreadable(file: str, schema: type[dy.Schema], faults: Sequence[Violation]) -> CheckedTable:
    empty: pl.LazyFrame = schema.create_empty(lazy=True)
    return CheckedTable(file, 0, empty, (), tuple(faults), (), (), "")


def _structure_faults(types: pl.Schema, columns: Mapping[str, dy.Column], file: str) -> list[Violation]:
    """Return the columns that are missing or of another type than expected."""
    missing = [name for name, column in columns.items() if name not in types and not _is_optional(column)]
    type_faults = {name: _type_fault(types[name], column) for name, column in columns.items() if name in types}
    return [
        *(Violation(file, name, "is missing") for name in missing),
        *(Violation(file, name, fault) for name, fault in type_faults.items() if fault is not None),
    ]


def _finite(value: pl.Expr) -> pl.Expr:
    return pl.when(value.is_finite()).then(value)


def _sentence(name: str, rule: str, column: dy.Column) -> str:
    """Say a rule of a column in plain words."""
    if rule in ("min", "max"):
        bound = getattr(column, rule)
        in_years = f" ({MAX_AGE_YEARS:g} years)" if bound == MAX_AGE_DAYS else ""
        return f"must be at {'least' if rule == 'min' else 'most'} {bound:g}{in_years}"
    return _SENTENCES.get(f"{name}|{rule}", _SENTENCES.get(rule, rule))


def _identifying_columns(schema: type[dy.Schema]) -> list[str]:
    """`subject_id` may be of two types, so dataframely cannot be told that it is the key of `Subjects`."""
    return [Subjects.subject_id.name] if issubclass(schema, Subjects) else list(schema.primary_key())


def _reads_only(rule: RowRule, usable: list[str]) -> bool:
    return set(rule.breaks.meta.root_names()) <= set(usable)


def _is_key(column: dy.Column) -> bool:
    """Only `subject_id` is declared without a type."""
    return isinstance(column, dy.Any)


def _is_optional(column: dy.Column) -> bool:
    return column.nullable and not _is_key(column)


def _conform(column: dy.Column, types: pl.Schema, usable: bool) -> pl.Expr:
    """Cast one column to the type of the schema; what is missing or cannot be used becomes null."""
    value = pl.col(column.name)
    if _is_key(column):
        if not usable:
            return pl.lit(None, dtype=pl.Int64).alias(column.name)
        if types[column.name].is_float():
            return value.fill_nan(None).cast(pl.Int64, strict=False)
        return value.cast(pl.Int64 if types[column.name].is_integer() else pl.String, strict=False)
    return value.cast(column.dtype) if usable else pl.lit(None, dtype=column.dtype).alias(column.name)


def _key_value_rules(name: str, dtype: pl.DataType) -> list[RowRule]:
    """Return rules that must look at the key before it is cast, because the cast would hide what they find."""
    value = pl.col(name)
    if dtype.is_float():
        whole = (value == value.round()) & (value.abs() <= 2**53)  # beyond, neighbouring whole numbers coincide
        return [RowRule(f"{name}|whole", "must be whole numbers (or text)", value.is_finite() & ~whole, name)]
    if dtype == pl.UInt64:
        return [RowRule(f"{name}|int64", "must fit a 64-bit signed integer", value > _LARGEST_INT64, name)]
    if _is_text(dtype):
        return [RowRule(f"{name}|min_length", _SENTENCES["min_length"], value.cast(pl.String) == "", name)]
    return []


def _key_type(columns: Mapping[str, dy.Column], types: pl.Schema, usable: list[str]) -> str:
    names = [name for name in usable if _is_key(columns[name]) and types[name] != pl.Null]
    return "" if not names else "text" if _is_text(types[names[0]]) else "whole numbers"


def _type_fault(found: pl.DataType, column: dy.Column) -> str | None:
    """Return what is wrong with the type of a column, or None where it fits or can be converted without loss."""
    if found == pl.Null:
        return None
    if _is_key(column):
        fits, expected = found.is_integer() or found.is_float() or _is_text(found), "whole numbers or text"
    elif column.dtype.is_numeric():
        fits, expected = found.is_numeric(), "numbers"
    elif column.dtype == pl.Date:
        fits = found == pl.Date or (isinstance(found, pl.Datetime) and found.time_zone is None)
        expected = "dates without a time zone"
    else:
        fits, expected = _is_text(found), "text"
    return None if fits else f"must hold {expected}, found {_type_in_words(found)}"


def _is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum)


def _type_in_words(dtype: pl.DataType) -> str:
    if _is_text(dtype):
        return "text"
    if dtype.is_numeric():
        return f"numbers ({dtype})"
    return "true/false" if dtype == pl.Boolean else str(dtype)
