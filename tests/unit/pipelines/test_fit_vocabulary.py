"""The vocabulary: roles, rare codes, groups, scaling, and the population's rates."""

import math

import numpy as np
import polars as pl
import pytest
from drawn_people import OUTCOMES, events_of, people, subjects_of
from hypothesis import given, settings

from data_schemas.age_units import AGE_STEPS_PER_DAY, DAYS_PER_YEAR
from data_schemas.cohort import COVARIATE, DEATH_CODE, DISEASE, Codes, Events
from data_schemas.dataset import DEATH, GROUP, OUTCOME_ROLES, Vocabulary
from data_schemas.errors import UsageError
from pipelines.fit_vocabulary import fit_vocabulary, log_population_rates
from pipelines.prepare_config import PrepareConfig

NO_CODES = pl.DataFrame(Codes.create_empty())
N_PEOPLE = 30


def fit(events, codes=NO_CODES, n_people=N_PEOPLE, **settings):
    subjects = pl.DataFrame(
        {
            "subject_id": range(n_people),
            "sex": "female",
            "entry_age_days": 1000.0,
            "exit_age_days": 2000.0,
        }
    )
    frame = pl.LazyFrame(
        events, schema=dict(zip(Events.column_names(), (pl.Int64, pl.Float64, pl.String, pl.Float64), strict=True)),
        orient="row",
    )  # fmt: skip
    return fit_vocabulary(subjects, frame, codes, PrepareConfig(**{"min_subjects": 2} | settings))


def had(code, n, value=None, age=1500.0):
    return [(person, age, code, value) for person in range(n)]


def roles_of(vocabulary):
    return dict(vocabulary.select(Vocabulary.code.name, Vocabulary.role.name).iter_rows())


def row(vocabulary, code):
    return vocabulary.row(by_predicate=pl.col(Vocabulary.code.name) == code, named=True)


def codes(**kinds):
    return pl.DataFrame(
        {
            Codes.code.name: list(kinds),
            Codes.kind.name: list(kinds.values()),
            Codes.description.name: [f"about {code}" for code in kinds],
            Codes.chapter.name: pl.Series([None] * len(kinds), dtype=pl.String),
        }
    )


def test_tokens_are_special_rows_diseases_groups_death_covariates_each_by_name():
    events = [*had("z", 9), *had("bmi", 9, 25.0), *had("a", 9), *had(DEATH_CODE, 5), *had("age_at_menarche", 3, 12.0)]
    vocabulary = fit(events, groups={"y_or": ("a",), "any": ("a", "z")})
    assert vocabulary[Vocabulary.token.name].to_list() == list(range(10))
    assert vocabulary[Vocabulary.code.name].to_list() == [
        "pad", "query", "no_event", "a", "z", "any", "y_or", DEATH_CODE, "age_at_menarche", "bmi",
    ]  # fmt: skip
    Vocabulary.validate(vocabulary)


def test_roles_come_from_settings_then_the_cohort_then_the_values():
    events = [*had("listed", 9, 1.0), *had("nafld", 9), *had("x//yes", 9), *had("x//no", 9), *had("new", 9, 2.0)]
    vocabulary = fit(events, codes(listed=DISEASE, nafld=DISEASE), input_only_codes=("nafld", "x//*"))
    roles = roles_of(vocabulary)
    assert roles["listed"] == DISEASE
    assert roles["new"] == COVARIATE
    assert {roles["nafld"], roles["x//yes"], roles["x//no"]} == {COVARIATE}
    assert row(vocabulary, "listed")[Vocabulary.description.name] == "about listed"


def test_death_is_death_whatever_settings_say_and_there_although_nobody_died():
    assert roles_of(fit(had("a", 5), input_only_codes=("*",)))[DEATH_CODE] == DEATH
    vocabulary = fit([*had("a", 5), *had(DEATH_CODE, 1)], input_only_codes=("*",))
    assert roles_of(vocabulary)[DEATH_CODE] == DEATH
    alive = row(fit(had("a", 5)), DEATH_CODE)
    assert math.isfinite(alive[Vocabulary.log_rate_per_year.name])
    assert alive[Vocabulary.n_subjects.name] is None


def test_codes_of_too_few_people_are_left_out():
    events = [*had("three", 3), *had("two", 2), *had("two", 2, age=1600.0)]
    assert "two" not in roles_of(fit(events, min_subjects=3))
    assert "two" in roles_of(fit(events, min_subjects=2))


def test_people_are_counted_not_rows_and_shown_from_ten_on():
    events = [*had("ten", 10), *had("ten", 10, age=1600.0), *had("nine", 9), *had("nine", 9, age=1600.0), *had("z", 12)]
    vocabulary = fit(events, groups={"any_nine": ("nine",), "any": ("nine", "z")})
    shown = dict(vocabulary.select(Vocabulary.code.name, Vocabulary.n_subjects.name).iter_rows())
    hidden = {"pad", "query", "no_event", "nine", "any_nine", DEATH_CODE}
    assert shown == {"ten": 10, "z": 12, "any": 12} | dict.fromkeys(hidden)


def recurs_of(vocabulary):
    return dict(vocabulary.select(Vocabulary.code.name, Vocabulary.recurs.name).iter_rows())


def test_a_disease_recurs_when_somebody_has_it_at_two_ages():
    events = [
        *had("twice", 5), (3, 500.0, "twice", None),  # once before entry
        *had("same_day", 5), *had("same_day", 5), (2, 1500.0 + 0.4 / AGE_STEPS_PER_DAY, "same_day", None),
        *had("once", 5), (6, 1700.0, "once", None),  # two people, two ages
        *had(DEATH_CODE, 3), *had(DEATH_CODE, 3, age=1600.0),
        *had("bmi", 5, 20.0), *had("bmi", 5, 21.0, age=1600.0),
    ]  # fmt: skip
    assert recurs_of(fit(events, groups={"any": ("twice",)})) == {
        "twice": True, "same_day": False, "once": False, DEATH_CODE: False,
        "bmi": None, "any": None, "pad": None, "query": None, "no_event": None,
    }  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(drawn=people(8))
def test_recurrence_equals_a_plain_loop(drawn):
    vocabulary = fit_vocabulary(subjects_of(drawn), events_of(drawn), NO_CODES, PrepareConfig(min_subjects=1))
    diseases = vocabulary.filter(Vocabulary.role.col == DISEASE)[Vocabulary.code.name]
    expected = {
        code: any(len({age for age, other, _ in person.events if other == code}) > 1 for person in drawn)
        for code in diseases
    }
    assert {code: recurs for code, recurs in recurs_of(vocabulary).items() if code in expected} == expected


def test_a_group_counts_its_people_once_and_may_have_rare_and_input_only_members():
    events = [*had("a", 6), *had("seldom", 1, age=1200.0), *had("visit", 11, age=1700.0)]
    vocabulary = fit(events, groups={"any": ("a", "seldom", "visit")}, input_only_codes=("visit",))
    group = row(vocabulary, "any")
    assert group[Vocabulary.role.name] == GROUP
    assert group[Vocabulary.n_subjects.name] == 11
    lost_days = 800 + 5 * 500 + 5 * 300  # person 0 falls ill at 1200, the others of `a` at 1500, the rest at 1700
    counts = [(6, 6 * 500), (11, lost_days), (0, 0)]  # of a, of the group, of death
    all_days = N_PEOPLE * 1000
    expected = log_rates_of(
        [masked(n, (all_days - lost) / DAYS_PER_YEAR, all_days / DAYS_PER_YEAR) for n, lost in counts]
    )
    rates = vocabulary[Vocabulary.log_rate_per_year.name].drop_nulls()
    assert rates.to_list() == pytest.approx(expected)


def masked(n_events, years, all_years):
    """A count under 10 is hidden: it enters as 5, in everybody's years."""
    return (n_events, years) if n_events >= 10 else (5, all_years)


def log_rates_of(counts):
    """Say the formula in plain words for (events, person-years) of each outcome."""
    overall = max(sum(n_events for n_events, _ in counts), 0.5) / max(sum(years for _, years in counts), 1.0)
    return [math.log((n_events + 0.5) / (years + 0.5 / overall)) for n_events, years in counts]


def test_population_rates_pull_rare_outcomes_to_the_overall_rate():
    counts = pl.DataFrame({"events": [1000, None, 0, 10], "years": [50_000.0, None, 60_000.0, 1_000.0]})
    overall = 1010 / 111_000
    expected = [(1000.5) / (50_000 + 0.5 / overall), 0.5 / (60_000 + 0.5 / overall), 10.5 / (1000 + 0.5 / overall)]
    found = counts.select(log_population_rates(pl.col("events"), pl.col("years"))).to_series()
    assert found.drop_nulls().to_list() == pytest.approx([math.log(rate) for rate in expected])
    assert found.is_null().to_list() == [False, True, False, False]
    nobody = pl.select(log_population_rates(pl.lit(pl.Series([0, 0])), pl.lit(pl.Series([0.0, 0.0])))).to_series()
    assert nobody.is_finite().all()


@pytest.mark.parametrize("name", ["a", "rare", "pad", "query", "no_event", DEATH_CODE])
def test_a_group_must_not_have_the_name_of_a_code(name):
    with pytest.raises(UsageError, match=f"'{name}' is also the name of a code"):
        fit([*had("a", 6), *had("rare", 1)], groups={name: ("a",)})


@pytest.mark.parametrize(("members", "said"), [(("a", "nowhere", "b"), "b, nowhere"), ((), "none")])
def test_a_group_with_unknown_or_no_members_is_refused(members, said):
    with pytest.raises(UsageError, match=f"'any' names codes that no training person has: {said}"):
        fit(had("a", 6), groups={"any": members})


def test_a_typing_error_does_not_set_the_scale():
    rng = np.random.default_rng(0)
    values = [*rng.normal(25, 4, size=999).tolist(), 25_000.0]
    clean = fit([(0, 1500.0, "bmi", value) for value in values[:-1]], min_subjects=1)
    soiled = fit([(0, 1500.0, "bmi", value) for value in values], min_subjects=1)
    for name in (Vocabulary.mean.name, Vocabulary.std.name):
        assert row(soiled, "bmi")[name] == pytest.approx(row(clean, "bmi")[name], rel=0.02)
    assert row(soiled, "bmi")[Vocabulary.std.name] == pytest.approx(4, rel=0.1)


def test_scale_of_constant_single_and_missing_values():
    events = [*had("same", 5, 7.0), (0, 1500.0, "once", 3.0), *had("empty", 5)]
    vocabulary = fit(events, codes(empty=COVARIATE), min_subjects=1)
    assert (row(vocabulary, "same")["mean"], row(vocabulary, "same")["std"]) == (7.0, 1.0)
    assert (row(vocabulary, "once")["mean"], row(vocabulary, "once")["std"]) == (3.0, 1.0)
    assert (row(vocabulary, "empty")["mean"], row(vocabulary, "empty")["std"]) == (None, None)


def test_missing_values_do_not_count_in_the_scale():
    events = [*had("bmi", 9, 20.0), *[(p, 1600.0, "bmi", 30.0) for p in range(9)], *had("bmi", 9, None, 1700.0)]
    assert row(fit(events), "bmi")["mean"] == pytest.approx(25.0)


@settings(max_examples=60, deadline=None)
@given(drawn=people(8))
def test_rates_equal_a_plain_loop(drawn):
    drawn = drawn * 12  # so that some counts are shown and some are hidden
    present = {code for person in drawn for _, code, _ in person.events}
    groups = {name: tuple(sorted(codes)) for name, codes in OUTCOMES.items() if len(codes) > 1 and codes <= present}
    vocabulary = fit_vocabulary(
        subjects_of(drawn), events_of(drawn), NO_CODES, PrepareConfig(min_subjects=1, groups=groups)
    )
    outcomes = vocabulary.filter(Vocabulary.role.col.is_in(OUTCOME_ROLES))[Vocabulary.code.name].to_list()
    counts = []
    for outcome in outcomes:
        n_events, days = 0, 0.0
        for person in drawn:
            first = person.first_age(OUTCOMES.get(outcome, {outcome}))
            if first is not None and first <= person.entry:
                continue
            happened = first is not None and first <= person.exit
            n_events += happened
            days += (first if happened else person.exit) - person.entry
        all_days = sum(person.exit - person.entry for person in drawn)
        counts.append(masked(n_events, days / DAYS_PER_YEAR, all_days / DAYS_PER_YEAR))
    rates = vocabulary.select(Vocabulary.code.name, Vocabulary.log_rate_per_year.name).drop_nulls()
    assert rates[Vocabulary.code.name].to_list() == outcomes
    assert rates[Vocabulary.log_rate_per_year.name].to_list() == pytest.approx(log_rates_of(counts))
