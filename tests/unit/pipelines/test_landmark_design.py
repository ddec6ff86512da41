"""Landmarks by name, several a person, before exit and by date; gaps after them; outcomes that belong to one sex."""

from datetime import date

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.evaluation_tables import PeopleLeftOut
from data_schemas.results import FirstOccurrences, Outcomes
from pipelines.find_outcomes import count_gap, find_outcomes, landmarks_at, leave_out_gap


def subjects_of(*rows, **columns):
    names = [Subjects.subject_id.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name]
    return pl.DataFrame(
        rows, schema=dict(zip(names, (pl.Int64, pl.Float64, pl.Float64), strict=True)), orient="row"
    ).with_columns(**{name: pl.Series(values) for name, values in columns.items()})


def first_of(*rows):
    schema = {**FirstOccurrences.create_empty().schema, FirstOccurrences.subject_id.name: pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def years(*ages):
    return [age * DAYS_PER_YEAR for age in ages]


def test_a_grid_of_ages_gives_each_person_those_inside_follow_up():
    subjects = subjects_of((1, *years(43, 52)), (2, *years(39, 45)), (3, *years(81, 90)))
    found = landmarks_at(subjects, "ages40-80by5")
    assert found.rows() == [(1, *years(45)), (1, *years(50)), (2, *years(40))]


@pytest.mark.parametrize(
    ("name", "ages"),
    [
        ("ages40-50by5", (40, 45, 50)),
        ("ages40-52by5", (40, 45, 50)),
        ("ages40-40by5", (40,)),
        ("ages1-2by0.5", (1, 1.5, 2)),
    ],
)
def test_the_ages_of_a_grid(name, ages):
    found = landmarks_at(subjects_of((1, *years(0, 100))), name)
    assert found[Outcomes.landmark_age_days.name].to_list() == pytest.approx(years(*ages), abs=1 / 256)


def test_before_exit_only_people_whose_exit_is_the_last_contact():
    subjects = subjects_of((1, *years(40, 60)), (2, *years(40, 60)), (3, *years(58, 60)), (4, *years(40, 60)))
    deaths = first_of((2, DEATH_CODE, 60 * DAYS_PER_YEAR), (4, DEATH_CODE, 61 * DAYS_PER_YEAR), (1, "A", 1.0))
    found = landmarks_at(subjects, "exit-5y", deaths)
    assert found.rows() == [(1, *years(55)), (4, *years(55))]  # 2 died at exit, 3 was not observed then
    with pytest.raises(ValueError, match="first_occurrences"):
        landmarks_at(subjects, "exit-5y")


def test_a_day_is_an_age_and_needs_birth_dates():
    born = [date(1960, 1, 1), date(1950, 1, 1), date(2014, 12, 31)]
    subjects = subjects_of((1, *years(50, 60)), (2, *years(10, 20)), (3, 0.0, 10.0), birth_date=born)
    assert landmarks_at(subjects, "2015-01-01").rows() == [(1, 20089.0), (3, 1.0)]
    with pytest.raises(InputContractError, match=r"birth_date.*\(1 row\)"):
        landmarks_at(subjects_of((1, 1.0, 2.0), (2, 1.0, 2.0), birth_date=[None, date(1960, 1, 1)]), "2015-01-01")
    with pytest.raises(InputContractError, match=r"\(2 rows\)"):
        landmarks_at(subjects_of((1, 1.0, 2.0), (2, 1.0, 2.0)), "2015-01-01")


@pytest.mark.parametrize(
    "name",
    ["ages40-80", "ages80-40by5", "ages40-80by0", "age121", "ages100-130by5", "2015-02-30", "2015-1-1", "exit+5y"],
)
def test_what_is_no_landmark_is_refused(name):
    with pytest.raises(UsageError, match="landmark"):
        landmarks_at(subjects_of((1, 1.0, 2.0), birth_date=[date(2000, 1, 1)]), name, first_of())


def test_the_names_that_are_accepted_are_listed():
    with pytest.raises(UsageError, match=r"`entry`.*`exit-5y`.*`age60`.*`ages40-80by5`.*`2015-01-01`"):
        landmarks_at(subjects_of((1, 1.0, 2.0)), "exit")


def test_nobody_at_a_landmark():
    assert landmarks_at(subjects_of(), "ages40-80by5").is_empty()


# The gap

GAP = 30.0


def outcomes_of(*rows):
    filled = [(person, 100.0, "A", time, status) for person, (time, status) in enumerate(rows)]
    return pl.DataFrame(
        filled, schema={**Outcomes.create_empty().schema, Outcomes.subject_id.name: pl.Int64}, orient="row"
    )


def test_who_has_an_event_or_leaves_in_the_gap_is_left_out_and_counted():
    rows = [(30.0, 1), (30.5, 1), (10.0, 2), (29.0, 0), (30.0, 0), (31.0, 0)] * 10
    outcomes = outcomes_of(*rows)
    kept = leave_out_gap(outcomes, GAP)
    assert kept[Outcomes.time_days.name].unique().sort().to_list() == [30.5, 31.0]
    counts = count_gap(outcomes, "entry", GAP)
    PeopleLeftOut.validate(counts)
    assert counts.rows() == [("A", "entry", GAP, 60, 10, 10, 20)]


def test_small_counts_of_the_gap_are_not_shown():
    counts = count_gap(outcomes_of(*[(5.0, 1)] * 3, *[(5.0, 0)] * 24, *[(50.0, 0)] * 20), "entry", GAP)
    assert counts.row(0)[3:] == (47, None, 0, 20)


def test_without_a_gap_nobody_is_left_out():
    outcomes = outcomes_of((0.5, 1), (3.0, 0))
    assert leave_out_gap(outcomes, 0.0).equals(outcomes)
    assert count_gap(outcomes, "entry", 0.0).row(0)[4:] == (0, 0, 0)


times = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), max_size=40)


@settings(max_examples=50, deadline=None)
@given(times, st.sampled_from([0.0, 1.0, 30.0, 59.5, 100.0]))
def test_everybody_is_judged_or_left_out_for_one_reason(rows, gap):
    kept = [(time, status) for time, status in rows if time > gap or gap == 0]
    found = leave_out_gap(outcomes_of(*rows), gap).select(Outcomes.time_days.name, Outcomes.status.name).rows()
    assert found == kept


# Sex


def test_outcomes_that_belong_to_one_sex():
    subjects = subjects_of((1, 1.0, 9.0), (2, 1.0, 9.0), (3, 1.0, 9.0), sex=[FEMALE, MALE, UNKNOWN])
    landmarks = landmarks_at(subjects, "entry")
    found = find_outcomes(subjects, first_of(), landmarks, ["prostate", "A"], sex_of_outcome={"prostate": MALE})
    assert found.select(Outcomes.subject_id.name, Outcomes.outcome.name).rows() == [
        (1, "A"), (2, "prostate"), (2, "A"), (3, "A"),
    ]  # fmt: skip
