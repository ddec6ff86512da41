"""Subgroups at landmarks: what they are called, where numbers are cut, and that the future changes nothing."""

from datetime import date

import numpy as np
import polars as pl
import pytest

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import FEMALE, MALE, Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.evaluation_tables import Subgroups
from data_schemas.results import Outcomes
from pipelines.evaluation.subgroups import SubgroupKind, assign_subgroups, fit_subgroups

LANDMARK = 50 * DAYS_PER_YEAR


def people_of(n, landmark=LANDMARK, **columns):
    return pl.DataFrame(
        {
            Subjects.subject_id.name: pl.Series(range(n), dtype=pl.Int64),
            Outcomes.landmark_age_days.name: pl.Series([landmark] * n, dtype=pl.Float64),
            Subjects.sex.name: pl.Series([FEMALE, MALE] * (n // 2) + [FEMALE] * (n % 2), dtype=pl.String),
            **columns,
        }
    )


def events_of(*rows):
    schema = {**Events.create_empty().schema, Events.subject_id.name: pl.Int64}
    return pl.LazyFrame(rows, schema=schema, orient="row")


def names_of(people, events, kinds):
    found = assign_subgroups(people, events, kinds)
    Subgroups.validate(found)
    return found[Subgroups.subgroup.name].to_list()


def test_sex_age_and_period():
    people = people_of(2, **{Subjects.birth_date.name: [date(1960, 1, 1), date(1965, 7, 1)]})
    kinds = fit_subgroups(people, events_of(), ["sex", "age", "period", "sex"])
    assert names_of(people, events_of(), kinds) == [
        "sex=female", "sex=male", "age=50-59", "age=50-59", "period=2005-2009", "period=2015-2019",
    ]  # fmt: skip


@pytest.mark.parametrize(("years", "band"), [(9.99, "0-9"), (10.0, "10-19"), (49.999, "40-49"), (101.0, "100-109")])
def test_bands_of_age(years, band):
    assert names_of(people_of(1, years * DAYS_PER_YEAR), events_of(), [SubgroupKind("age")]) == [f"age={band}"]


def test_periods_need_birth_dates():
    with pytest.raises(InputContractError, match="birth date"):
        assign_subgroups(people_of(2), events_of(), [SubgroupKind("period")])
    people = people_of(2, **{Subjects.birth_date.name: [date(1960, 1, 1), None]})
    with pytest.raises(InputContractError, match=r"\(1 row\)"):
        assign_subgroups(people, events_of(), [SubgroupKind("period")])


def test_numbers_are_cut_into_thirds_of_the_training_people():
    train = people_of(30)
    kinds = fit_subgroups(train, events_of(*((i, 1.0, "bmi", 20.0 + i) for i in range(30))), ["bmi"])
    assert kinds[0].cuts == (29.7, 39.3)
    others = events_of((0, 1.0, "bmi", 29.69), (1, 1.0, "bmi", 29.7), (2, 1.0, "bmi", 39.3), (3, 1.0, "bmi", None))
    assert names_of(people_of(5), others, kinds) == [
        "bmi=under 29.7", "bmi=29.7 to under 39.3", "bmi=39.3 or more", "bmi=none", "bmi=none",
    ]  # fmt: skip


def test_a_number_with_few_different_values_has_fewer_parts():
    two = fit_subgroups(people_of(30), events_of(*((i, 1.0, "n", float(i >= 20)) for i in range(30))), ["n"])
    assert len(two[0].cuts) == 1
    one = fit_subgroups(people_of(30), events_of(*((i, 1.0, "n", 7.0) for i in range(30))), ["n"])
    assert one[0].cuts == ()
    assert names_of(people_of(1), events_of((0, 1.0, "n", 9.0)), one) == ["n=any"]


def test_categories_and_history_take_the_latest_at_the_landmark():
    events = events_of(
        (0, 10.0, "smoking//yes", None),
        (0, 20.0, "smoking//no", None),
        (1, LANDMARK, "smoking//yes", None),
        (2, LANDMARK + 1, "smoking//yes", None),
        (1, 20.0, "gout", None),
        (2, LANDMARK + 1, "gout", None),
        (0, 20.0, "smoking_cessation", None),
    )
    kinds = fit_subgroups(people_of(3), events, ["smoking", "gout"])
    assert names_of(people_of(3), events, kinds) == [
        "smoking=no", "smoking=yes", "smoking=none", "gout=no", "gout=yes", "gout=no",
    ]  # fmt: skip


def test_several_landmarks_of_one_person():
    people = pl.concat([people_of(1, 40 * DAYS_PER_YEAR), people_of(1, 60 * DAYS_PER_YEAR)])
    events = events_of((0, 50 * DAYS_PER_YEAR, "gout", None))
    assert names_of(people, events, [SubgroupKind("age"), SubgroupKind("gout")]) == [
        "age=40-49", "age=60-69", "gout=no", "gout=yes",
    ]  # fmt: skip


def test_unknown_and_hardly_measured_codes_are_refused():
    with pytest.raises(UsageError, match="subgroup 'gout': no training person"):
        fit_subgroups(people_of(3), events_of((0, LANDMARK + 1, "gout", None)), ["gout"])
    with pytest.raises(UsageError, match="fewer than 20"):
        fit_subgroups(people_of(30), events_of(*((i, 1.0, "bmi", 1.0 + i) for i in range(19))), ["bmi"])


def test_parts_hold_a_third_each():
    rng = np.random.default_rng(0)
    events = events_of(*((i, 1.0, "x", float(v)) for i, v in enumerate(rng.normal(100, 15, 900))))
    people = people_of(900)
    counts = pl.Series(names_of(people, events, fit_subgroups(people, events, ["x"]))).value_counts()["count"]
    assert counts.len() == 3
    assert counts.is_between(290, 310).all()


def test_no_kinds_and_nobody():
    assert assign_subgroups(people_of(3), events_of(), []).is_empty()
    assert assign_subgroups(people_of(0), events_of(), [SubgroupKind("sex"), SubgroupKind("gout")]).is_empty()
