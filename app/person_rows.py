"""One row a person, as a registered model is given it, to the tables that scoring reads, and back to one row a person.

Everything is checked here, in words of our own: MLflow's text for a bad input quotes the data frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_DAYS
from data_schemas.cohort import SEXES, Events, Subjects
from data_schemas.errors import InputContractError, Violation
from data_schemas.person_rows import PersonRows
from data_schemas.results import ALL_FUTURE, Risks

_INPUT = "model input"
_SHOWN_ROWS = 5
_ROW, _RISK_COLUMN = "row", "risk_column"
_NUMBERS, _TEXTS = pa.list_(pa.float64()), pa.list_(pa.string())
_COLUMN_TYPES: dict[str, tuple[pa.DataType, str]] = {
    PersonRows.sex.name: (pa.string(), "text"),
    PersonRows.codes.name: (_TEXTS, "a list of text"),
    PersonRows.ages_days.name: (_NUMBERS, "a list of numbers"),
    PersonRows.values.name: (_NUMBERS, "a list of numbers or nulls"),
    PersonRows.landmark_age_days.name: (pa.float64(), "a number"),
}
_MAX_AGE = f"between 0 and {MAX_AGE_DAYS:g} days"


@dataclass(frozen=True)
class ScoringTables:
    """People, events and landmarks; a person's `subject_id` here is the row number, since ids may repeat."""

    subjects: pl.DataFrame
    events: pl.LazyFrame
    landmarks: pl.DataFrame


def read_person_rows(rows: pd.DataFrame) -> pl.DataFrame:
    """Check a data frame of one row a person and return it in the types of `PersonRows`; other columns are ignored.

    Raises:
        InputContractError: names column, rule and row numbers, never a value.
    """
    missing = [name for name in PersonRows.column_names() if name not in rows.columns]
    if missing:
        raise InputContractError([Violation(_INPUT, name, "is missing") for name in missing])
    columns, violations = {PersonRows.subject_id.name: _read_ids(rows)}, []
    for name, (data_type, words) in _COLUMN_TYPES.items():
        column = _convert(rows[name], data_type)
        if column is None:
            bad = [row for row, cell in enumerate(rows[name]) if _convert(pd.Series([cell]), data_type) is None]
            violations.append(_violation(name, f"expected {words} in every row", bad))
        else:
            columns[name] = column
    if violations:
        raise InputContractError(violations)
    table = pl.DataFrame({name: pl.from_arrow(column) for name, column in columns.items()})
    _check_rules(table)
    return table


def to_scoring_tables(people: pl.DataFrame) -> ScoringTables:
    """Unfold checked person rows. Nothing is known of their follow-up, so it reaches from birth past the landmark.

    Events after the landmark stay: the one place that leaves them out is `predict_risks`, whatever the route.
    """
    numbered = people.drop(PersonRows.subject_id.name).with_row_index(_ROW).with_columns(pl.col(_ROW).cast(pl.Int64))
    landmark = PersonRows.landmark_age_days.col
    subjects = numbered.select(
        pl.col(_ROW).alias(Subjects.subject_id.name),
        PersonRows.sex.col.alias(Subjects.sex.name),
        pl.lit(None, pl.Date).alias(Subjects.birth_date.name),
        pl.lit(0.0).alias(Subjects.entry_age_days.name),
        (landmark + 1.0).alias(Subjects.exit_age_days.name),
        pl.lit(None, pl.String).alias(Subjects.cluster_id.name),
        pl.lit(None, pl.String).alias(Subjects.split.name),
    )
    lists = (PersonRows.ages_days.name, PersonRows.codes.name, PersonRows.values.name)
    events = (
        numbered.lazy()
        .filter(PersonRows.codes.col.list.len() > 0)
        .explode(*lists)
        .select(
            pl.col(_ROW).alias(Events.subject_id.name),
            PersonRows.ages_days.col.alias(Events.age_days.name),
            PersonRows.codes.col.alias(Events.code.name),
            PersonRows.values.col.alias(Events.numeric_value.name),
        )
        .sort(Events.subject_id.name, Events.age_days.name, maintain_order=True)
    )
    landmarks = numbered.select(pl.col(_ROW).alias(Risks.subject_id.name), landmark.alias(Risks.landmark_age_days.name))
    return ScoringTables(subjects, events, landmarks)


def risk_column(outcome: str, horizon_years: float, method: str) -> str:
    """Name the column of one outcome and horizon: `stroke|5y`, or `stroke|5y|frozen_history` for an approximation."""
    name = f"{outcome}|{horizon_years:g}y"
    return name if method == ALL_FUTURE else f"{name}|{method}"


def to_risk_columns(risks: pl.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Put risks (layout `Risks`, people by row number) beside the ids as delivered, one row an input row, in order."""
    horizon_years = Risks.horizon_days.col / DAYS_PER_YEAR
    named = risks.select(
        Risks.subject_id.name,
        Risks.risk.name,
        pl.struct(Risks.outcome.col, horizon_years, Risks.method.col)
        .map_elements(lambda pair: risk_column(*pair.values()), return_dtype=pl.String)
        .alias(_RISK_COLUMN),
    )
    wide = named.pivot(on=_RISK_COLUMN, index=Risks.subject_id.name, values=Risks.risk.name)
    in_order = wide.sort(Risks.subject_id.name).drop(Risks.subject_id.name)
    if in_order.height != len(rows):
        raise AssertionError("every person has a risk row for every outcome and horizon")
    table = in_order.to_pandas().set_index(rows.index)
    table.insert(0, PersonRows.subject_id.name, rows[PersonRows.subject_id.name])
    return table


def _read_ids(rows: pd.DataFrame) -> pa.Array:
    ids = _convert(rows[PersonRows.subject_id.name], None)
    if ids is None or not (pa.types.is_integer(ids.type) or pa.types.is_string(ids.type) or len(rows) == 0):
        raise InputContractError([Violation(_INPUT, PersonRows.subject_id.name, "expected whole numbers or text")])
    if ids.null_count:
        bad = [row for row, null in enumerate(ids.is_null().to_pylist()) if null]
        raise InputContractError([_violation(PersonRows.subject_id.name, "is null", bad)])
    return ids


def _convert(column: "pd.Series[Any]", data_type: pa.DataType | None) -> pa.Array | None:
    """Return the column as Arrow, NaN as null, or none where a cell is of another kind."""
    try:
        return pa.array(column.astype(object), type=data_type, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _rules() -> list[tuple[str, str, pl.Expr]]:
    """Return column, rule, and the expression that is true where the rule is kept."""
    codes, ages, values = PersonRows.codes.col, PersonRows.ages_days.col, PersonRows.values.col
    element, landmark = pl.element(), PersonRows.landmark_age_days.col
    same_length = (codes.list.len() == ages.list.len()) & (codes.list.len() == values.list.len())
    return [
        (PersonRows.sex.name, f"must be one of {', '.join(SEXES)}", PersonRows.sex.col.is_in(SEXES)),
        (
            PersonRows.landmark_age_days.name,
            f"must be {_MAX_AGE}",
            landmark.is_finite() & landmark.is_between(0.0, MAX_AGE_DAYS),
        ),
        (PersonRows.codes.name, "must be a list (empty: no events)", codes.is_not_null()),
        (PersonRows.ages_days.name, "must be a list (empty: no events)", ages.is_not_null()),
        (PersonRows.values.name, "must be a list (empty: no events)", values.is_not_null()),
        (PersonRows.codes.name, "must be as long as ages_days and values", same_length),
        (PersonRows.codes.name, "must not hold nulls or empty text", _all(codes, element.str.len_bytes() > 0)),
        (
            PersonRows.ages_days.name,
            f"must hold ages {_MAX_AGE}",
            _all(ages, element.is_between(0.0, MAX_AGE_DAYS)),
        ),
        (
            PersonRows.values.name,
            "must hold finite numbers or nulls",
            _all(values, element.is_null() | element.is_finite()),
        ),
    ]


def _all(lists: pl.Expr, kept: pl.Expr) -> pl.Expr:
    """True where every entry of the list keeps the rule; a null entry does not, unless the rule says so."""
    return lists.list.eval(kept.fill_null(value=False)).list.all()


def _check_rules(table: pl.DataFrame) -> None:
    """Raise with every rule that is broken; a null list breaks the rule that it be one, and no other."""
    rules = _rules()
    kept = table.select(expression.alias(str(number)) for number, (_, _, expression) in enumerate(rules))
    scalar = (PersonRows.sex.name, PersonRows.landmark_age_days.name)
    violations = []
    for column, (name, rule, _) in zip(kept, rules, strict=True):
        broken = ~column.fill_null(value=name not in scalar)
        if broken.any():
            violations.append(_violation(name, rule, broken.arg_true().to_list()))
    if violations:
        raise InputContractError(violations)


def _violation(column: str, rule: str, rows: Sequence[int]) -> Violation:
    return Violation(_INPUT, column, rule, len(rows), tuple(rows[:_SHOWN_ROWS]))
