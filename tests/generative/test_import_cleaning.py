"""Cleaning as polars steps equals cleaning one person and one row at a time."""

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_schemas.cohort import Events, Subjects
from pipelines.import_cohort.clean_events import clean_cohort
from pipelines.import_cohort.row_rules import DROPPED_BY

ENTRY, EXIT = 10.0, 40.0
PEOPLE = (1, 2)
Row = tuple[int, float, str, float | None]

rows = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3]),
        st.sampled_from([-1.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 41.0, 50_000.0]),
        st.sampled_from(["A", "DEATH"]),
        st.sampled_from([None, 1.0]),
    ),
    max_size=25,
)


def reason_before_death(delivered: list[Row], i: int) -> str | None:
    subject, age, _, _ = delivered[i]
    broken = {
        "exact_duplicate": delivered[i] in delivered[:i],
        "before_birth": age < 0,
        "age_over_120": age > 43_830,
        "unknown_subject": subject not in PEOPLE,
        "after_exit": age > EXIT,
    }
    return next((rule for rule, is_broken in broken.items() if is_broken), None)


def clean_slowly(delivered: list[Row]) -> tuple[list[Row], dict[str, int], dict[int, float]]:
    """Return the kept rows, the rows each rule dropped, and the exit of each person kept."""
    reasons = [reason_before_death(delivered, i) for i in range(len(delivered))]
    exits = {}
    for subject in PEOPLE:
        own = [i for i, row in enumerate(delivered) if row[0] == subject and reasons[i] is None]
        deaths = [i for i in own if delivered[i][2] == "DEATH"]
        first = min(deaths, key=lambda i: (delivered[i][1], i), default=None)
        death_age = EXIT if first is None else delivered[first][1]
        for i in own:
            if i in deaths and i != first:
                reasons[i] = "several_deaths"
            elif delivered[i][1] > death_age:
                reasons[i] = "after_death"
            elif death_age <= ENTRY:
                reasons[i] = "no_follow_up"
        if death_age > ENTRY:
            exits[subject] = death_age
    kept = [row for row, reason in zip(delivered, reasons, strict=True) if reason is None]
    return kept, {reason: reasons.count(reason) for reason in reasons if reason is not None}, exits


@settings(max_examples=150, deadline=None)
@given(rows)
@example([(1, 10.0, "DEATH", None), (1, 5.0, "A", None), (1, 20.0, "A", None)])
@example([(1, 41.0, "DEATH", None), (1, 30.0, "DEATH", 1.0), (1, 30.0, "DEATH", None)])
def test_polars_steps_equal_row_by_row(delivered: list[Row]) -> None:
    people = pl.LazyFrame(
        {
            Subjects.subject_id.name: PEOPLE,
            Subjects.sex.name: ["female", "male"],
            Subjects.entry_age_days.name: [ENTRY] * 2,
            Subjects.exit_age_days.name: [EXIT] * 2,
        }
    ).select(
        pl.col(name) if name in ("subject_id", "sex", "entry_age_days", "exit_age_days")
        else pl.lit(None, dtype=column.dtype).alias(name)
        for name, column in Subjects.columns().items()
    )  # fmt: skip
    schema = dict(zip(Events.column_names(), [pl.Int64(), pl.Float64(), pl.String(), pl.Float64()], strict=True))
    table = pl.LazyFrame(delivered, schema=schema, orient="row")
    half = len(delivered) // 2
    cleaned = clean_cohort(people, {"first": table.head(half), "second": table.slice(half)})

    kept, dropped, exits = clean_slowly(delivered)
    counted = dict(cleaned.dropped_events.group_by(DROPPED_BY).len().iter_rows())
    assert cleaned.events.rows() == kept
    assert counted == dropped
    assert dict(cleaned.subjects.select(Subjects.subject_id.name, Subjects.exit_age_days.name).iter_rows()) == exits
    assert cleaned.exits_moved == sum(age < EXIT for age in exits.values())
