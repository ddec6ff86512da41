"""From calendar days to ages: how sources with dates deliver people and events."""

from collections.abc import Iterable, Mapping

import polars as pl

from data_schemas.age_units import MAX_AGE_DAYS
from data_schemas.cohort import Events, Subjects
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule

DAY = "day"  # the calendar day of a dated row
_MARK = "dropped/"  # before the name of a rule
_UNKNOWN_PERSON = {"unknown_person": "the person is not in the table of people, or has no date of birth there"}

_entry, _exit = Subjects.entry_age_days.col, Subjects.exit_age_days.col
NO_BIRTH_DATE = RowRule(
    "no_birth_date", "the date of birth is not known", Subjects.birth_date.col.is_null(), fixed=True
)
NO_ENTRY = RowRule("no_entry", "it is not known when follow-up starts", _entry.is_null(), fixed=True)
NO_EXIT = RowRule("no_exit", "it is not known when follow-up ends", _exit.is_null(), fixed=True)
IMPOSSIBLE_AGE = RowRule(
    "impossible_age",
    "follow-up starts before birth, or goes on after the age of 120 years",
    (_entry < 0) | (pl.max_horizontal(_entry, _exit) > MAX_AGE_DAYS),
    fixed=True,
)
NO_ID = RowRule("no_id", "the person has no id", Subjects.subject_id.col.is_null(), fixed=True)
REPEATED_PERSON = RowRule(
    "repeated_person", "the person stands in an earlier row", ~Subjects.subject_id.col.is_first_distinct(), fixed=True
)
PEOPLE_RULES = (
    NO_ID,
    REPEATED_PERSON,
    NO_BIRTH_DATE,
    NO_ENTRY,
    NO_EXIT,
    IMPOSSIBLE_AGE,
)  # of people whose ages are made of dates


def age_on(day: pl.Expr, birth_date: pl.Expr) -> pl.Expr:
    """Return the age in whole days on a calendar day; null where the day or the birth is not known."""
    return (day - birth_date).dt.total_days().cast(pl.Float64)


def born_in_month(year: pl.Expr, month: pl.Expr | int, day_of_month: int = 1) -> pl.Expr:
    """Return a birth date from its year and month; null where they are not known or make no date."""
    text = pl.format("{}-{}-{}", year, month if isinstance(month, pl.Expr) else pl.lit(month), pl.lit(day_of_month))
    return text.str.to_date("%Y-%m-%d", strict=False)


def first_reason(reasons: Iterable[tuple[str, pl.Expr]]) -> pl.Expr:
    """Return, as `dropped_by`, the name of the first rule whose condition holds, null where none does."""
    return pl.coalesce([pl.when(condition).then(pl.lit(rule)) for rule, condition in reasons]).alias(DROPPED_BY)


def marked_rules(sentences: Mapping[str, str]) -> tuple[RowRule, ...]:
    """Return the rules by which rows were marked: those of an importer and that of `at_ages`."""
    return tuple(
        RowRule(name, sentence, Events.code.col == f"{_MARK}{name}", fixed=True)
        for name, sentence in (*sentences.items(), *_UNKNOWN_PERSON.items())
    )


def at_ages(dated: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Turn dated rows into `DeliveredEvents` with their marks (`dropped_by`), in the order they came.

    A row that has no mark and a person of unknown birth is marked here: it has no age.

    Args:
        dated: subject_id, `day`, code, perhaps numeric_value and `dropped_by`.
        people: `Subjects`, or at least subject_id and birth_date.
    """
    optional = {Events.numeric_value.name: pl.Float64, DROPPED_BY: pl.String}
    present = dated.collect_schema()
    births = people.select(Subjects.subject_id.name, Subjects.birth_date.name)
    births = births.unique(Subjects.subject_id.name, keep="first", maintain_order=True)
    return (
        dated.with_columns(
            pl.lit(None, dtype=dtype).alias(name) for name, dtype in optional.items() if name not in present
        )
        .join(births, on=Subjects.subject_id.name, how="left", maintain_order="left")
        .with_columns(
            age_on(pl.col(DAY), Subjects.birth_date.col).alias(Events.age_days.name),
            pl.coalesce(
                DROPPED_BY, first_reason((name, Subjects.birth_date.col.is_null()) for name in _UNKNOWN_PERSON)
            ),
        )
        .select(*Events.column_names(), DROPPED_BY)
    )


def marks_as_codes(events: Mapping[str, pl.LazyFrame]) -> dict[str, pl.LazyFrame]:
    """Turn marks into codes, by which the rules of `marked_rules` find the rows: a dropped row needs no code."""
    marked = pl.col(DROPPED_BY).is_not_null()
    code = pl.when(marked).then(pl.concat_str(pl.lit(_MARK), DROPPED_BY)).otherwise(Events.code.col)
    return {
        name: frame.with_columns(code.alias(Events.code.name)).select(Events.column_names())
        for name, frame in events.items()
    }
