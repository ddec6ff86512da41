"""Cleaning rules: what each drops, that a row counts once, and where follow-up ends."""

from datetime import date

import polars as pl
import pytest

from data_schemas.cohort import Events, Subjects
from data_schemas.errors import UsageError
from pipelines.import_cohort.clean_events import EVENT_RULES, CleanedCohort, CleaningConfig, clean_cohort
from pipelines.import_cohort.row_rules import DROPPED_BY, choose_rules

Row = tuple[int, float, str, float | None]


def people(*rows: tuple[int, float, float]) -> pl.LazyFrame:
    return pl.LazyFrame(
        [(subject, "female", None, entry, exit_age, None, None) for subject, entry, exit_age in rows],
        schema={name: column.dtype for name, column in Subjects.columns().items()}
        | {Subjects.subject_id.name: pl.Int64()},
        orient="row",
    )


def events(*rows: Row) -> pl.LazyFrame:
    schema = dict(zip(Events.column_names(), [pl.Int64(), pl.Float64(), pl.String(), pl.Float64()], strict=True))
    return pl.LazyFrame(rows, schema=schema, orient="row")


def clean(*rows: Row, entry: float = 100.0, exit_age: float = 1_000.0, **switches: bool) -> CleanedCohort:
    return clean_cohort(people((1, entry, exit_age)), {"t": events(*rows)}, config=CleaningConfig(rules=switches))


def counts(cleaned: CleanedCohort) -> dict[str | None, int]:
    """Return the events by the rule that dropped them, None for those kept."""
    marks = [*cleaned.dropped_events[DROPPED_BY], *[None] * cleaned.events.height]
    return {mark: marks.count(mark) for mark in set(marks)}


def test_nothing_wrong_nothing_dropped() -> None:
    cleaned = clean((1, 50.0, "A", None), (1, 1_000.0, "B", 2.0))
    assert counts(cleaned) == {None: 2}
    assert cleaned.events.rows() == [(1, 50.0, "A", None), (1, 1_000.0, "B", 2.0)]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ((1, -0.01, "B", None), "before_birth"),
        ((1, 43_830.01, "B", None), "age_over_120"),
        ((2, 50.0, "B", None), "unknown_subject"),
        ((1, 1_000.01, "B", None), "after_exit"),
        ((1, 50.0, "A", None), "exact_duplicate"),
    ],
)
def test_each_rule_drops_its_row(row: Row, rule: str) -> None:
    cleaned = clean((1, 50.0, "A", None), row)
    assert counts(cleaned) == {None: 1, rule: 1}


def test_a_row_counts_under_the_first_rule_only() -> None:
    twice_before_birth = (1, -5.0, "A", None)
    assert counts(clean(twice_before_birth, twice_before_birth, (1, 5.0, "A", None))) == {
        "before_birth": 1,
        "exact_duplicate": 1,
        None: 1,
    }


def test_same_code_on_other_days_and_other_values_are_kept() -> None:
    cleaned = clean((1, 50.0, "A", None), (1, 60.0, "A", None), (1, 60.0, "A", 1.0), (1, 60.0, "A", 2.0))
    assert counts(cleaned) == {None: 4}


def test_ages_within_one_step_are_the_same() -> None:
    cleaned = clean((1, 50.0, "A", None), (1, 50.001, "A", None), (1, 50.3, "B", None))
    assert counts(cleaned) == {None: 2, "exact_duplicate": 1}
    assert cleaned.events[Events.age_days.name].to_list() == [50.0, 77 / 256 + 50]


def test_exit_moves_to_death_and_later_events_go() -> None:
    cleaned = clean((1, 500.0, "DEATH", None), (1, 500.0, "A", None), (1, 600.0, "B", None))
    assert cleaned.exits_moved == 1
    assert cleaned.subjects[Subjects.exit_age_days.name].to_list() == [500.0]
    assert counts(cleaned) == {None: 2, "after_death": 1}


def test_death_at_exit_moves_nothing() -> None:
    cleaned = clean((1, 1_000.0, "DEATH", None), (1, 1_000.0, "A", None))
    assert cleaned.exits_moved == 0
    assert counts(cleaned) == {None: 2}


def test_the_first_of_several_deaths_is_kept() -> None:
    cleaned = clean((1, 700.0, "DEATH", None), (1, 500.0, "DEATH", None), (1, 500.0, "DEATH", 1.0))
    assert cleaned.events.rows() == [(1, 500.0, "DEATH", None)]
    assert counts(cleaned) == {None: 1, "several_deaths": 2}


def test_a_death_that_a_rule_drops_ends_nothing() -> None:
    cleaned = clean((1, -1.0, "DEATH", None), (1, 5_000.0, "DEATH", None), (1, 500.0, "A", None))
    assert counts(cleaned) == {None: 1, "before_birth": 1, "after_exit": 1}
    assert cleaned.subjects[Subjects.exit_age_days.name].to_list() == [1_000.0]


@pytest.mark.parametrize("death_age", [99.0, 100.0])
def test_death_at_or_before_entry_leaves_no_follow_up(death_age: float) -> None:
    cleaned = clean_cohort(
        people((1, 100.0, 1_000.0), (2, 100.0, 1_000.0)),
        {"t": events((1, 50.0, "A", None), (1, death_age, "DEATH", None), (2, 50.0, "A", None))},
    )
    assert cleaned.subjects[Subjects.subject_id.name].to_list() == [2]
    assert cleaned.dropped_subjects.select(Subjects.subject_id.name, DROPPED_BY).rows() == [(1, "no_follow_up")]
    assert counts(cleaned) == {None: 1, "no_follow_up": 2}


def test_follow_up_shorter_than_one_age_step_is_none() -> None:
    cleaned = clean((1, 50.0, "A", None), entry=100.0, exit_age=100.001)
    assert cleaned.subjects.is_empty()
    assert counts(cleaned) == {"no_follow_up": 1}


def test_people_without_events_stay() -> None:
    cleaned = clean_cohort(people((1, 100.0, 1_000.0), (2, 100.0, 900.0)), {"t": events((1, 50.0, "A", None))})
    assert cleaned.subjects[Subjects.subject_id.name].to_list() == [1, 2]


def test_rows_are_counted_by_table() -> None:
    cleaned = clean_cohort(
        people((1, 100.0, 1_000.0)),
        {"a": events((1, 50.0, "A", None)), "b": events((1, 50.0, "A", None), (1, -1.0, "A", None))},
    )
    assert cleaned.kept_events_of_table == {"a": 1}
    assert cleaned.dropped_events.select("table", "source_row", DROPPED_BY).rows() == [
        ("b", 0, "exact_duplicate"),
        ("b", 1, "before_birth"),
    ]


def test_rules_can_be_switched() -> None:
    twice = (1, 50.0, "A", None)
    assert counts(clean(twice, twice, exact_duplicate=False)) == {None: 2}
    assert counts(clean(twice, (1, 200.0, "A", None), before_entry=True)) == {None: 1, "before_entry": 1}


def test_rules_that_guard_the_contract_cannot_be_off() -> None:
    with pytest.raises(UsageError, match="after_exit cannot be switched off"):
        clean((1, 50.0, "A", None), after_exit=False)


def test_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no such cleaning rule: after_lunch; the rules are exact_duplicate, "):
        choose_rules(EVENT_RULES, {"after_lunch": True})


def test_only_first_occurrences_are_kept_where_asked_for() -> None:
    cleaned = clean(
        (1, 60.0, "A", None), (1, 50.0, "A", None), (1, 60.0, "B", None), (1, 70.0, "bmi", 2.0), (1, 80.0, "bmi", 2.0),
        later_occurrence=True,
    )  # fmt: skip
    assert counts(cleaned) == {None: 4, "later_occurrence": 1}
    assert cleaned.events.filter(Events.code.col == "A").rows() == [(1, 50.0, "A", None)]


def test_a_first_occurrence_before_entry_does_not_make_a_later_one_the_first() -> None:
    cleaned = clean((1, 50.0, "A", None), (1, 150.0, "A", None), later_occurrence=True, before_entry=True)
    assert counts(cleaned) == {"before_entry": 1, "later_occurrence": 1}


def test_a_row_that_a_rule_drops_is_nobodys_first_occurrence() -> None:
    cleaned = clean((1, -5.0, "A", None), (1, 150.0, "A", None), later_occurrence=True)
    assert counts(cleaned) == {"before_birth": 1, None: 1}


def test_several_deaths_are_counted_as_such_also_where_only_first_occurrences_are_kept() -> None:
    cleaned = clean((1, 500.0, "DEATH", None), (1, 600.0, "DEATH", None), later_occurrence=True)
    assert counts(cleaned) == {None: 1, "several_deaths": 1}


@pytest.mark.parametrize("day", [date(1900, 1, 1), date(1902, 2, 2), date(2037, 7, 7)])
def test_an_event_on_a_placeholder_date_is_dropped_whatever_its_age(day: date) -> None:
    born = date(1950, 3, 1)
    someone = people((1, 100.0, 43_000.0)).with_columns(pl.lit(born).alias(Subjects.birth_date.name))
    rows = events((1, float((day - born).days), "A", None), (1, 20_000.5, "A", None))
    assert counts(clean_cohort(someone, {"t": rows})) == {"placeholder_date": 1, None: 1}


def test_placeholder_dates_are_a_setting_and_need_a_birth_date() -> None:
    born, day = date(1950, 3, 1), date(1999, 9, 9)
    someone = people((1, 100.0, 43_000.0)).with_columns(pl.lit(born).alias(Subjects.birth_date.name))
    rows = events((1, float((day - born).days), "A", None))
    config = CleaningConfig(placeholder_dates=(day,))
    assert counts(clean_cohort(someone, {"t": rows}, config=config)) == {"placeholder_date": 1}
    assert counts(clean_cohort(people((1, 100.0, 43_000.0)), {"t": rows}, config=config)) == {None: 1}
