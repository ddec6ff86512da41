"""Rows of our own, same-day order, delayed measurements: equal to a slow loop, and blind to what comes later."""

from dataclasses import replace

import numpy as np
import pytest
from drawn_people import ROLES, TOKENS, VOCABULARY, Person, events_of, people, subjects_of
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import AGE_STEPS_PER_DAY, DAYS_PER_YEAR
from data_schemas.dataset import COVARIATE, NO_EVENT_TOKEN, QUERY_TOKEN
from pipelines.augment_histories import (
    HistoryOptions,
    augment_histories,
    count_no_event_rows,
    delay_covariates,
    insert_rows,
    shuffle_same_day,
)
from pipelines.build_sequences import build_sequences
from pipelines.sequence_files import shard_of
from pipelines.token_tables import TokenTables

TABLES = TokenTables.of(VOCABULARY, "next_token")
CODES = {token: code for code, token in TOKENS.items()}
DAY = 1 / DAYS_PER_YEAR  # in years
FIRSTS = ("first_offsets", "first_tokens", "first_ages_days")
PEOPLE = ("sex", "entry_age_days", "exit_age_days", *FIRSTS)


def shard_for(drawn):
    return shard_of(build_sequences(subjects_of(drawn), events_of(drawn), VOCABULARY))


def histories(shard):
    """Return (age, token, value) of each person; -1 stands for no value."""
    rows = list(zip(shard.ages_days, shard.tokens, np.nan_to_num(shard.values, nan=-1.0), strict=True))
    return [
        [(float(age), int(token), float(value)) for age, token, value in rows[start:end]]
        for start, end in zip(shard.offsets[:-1], shard.offsets[1:], strict=True)
    ]


def assert_kept(shard, other):
    for name in PEOPLE:
        np.testing.assert_array_equal(getattr(shard, name), getattr(other, name))
    for name in ("tokens", "ages_days", "values", "offsets"):
        assert getattr(shard, name).dtype == getattr(other, name).dtype
    assert all((np.diff([age for age, _, _ in history]) >= 0).all() for history in histories(shard))
    np.testing.assert_array_equal(shard.ages_days * AGE_STEPS_PER_DAY, np.round(shard.ages_days * AGE_STEPS_PER_DAY))


def long_lives(n=400, events=((30.0, "a", None),)):
    return shard_for([Person("male", 10.0, 5000.0, events)] * n)


@settings(max_examples=60, deadline=None)
@given(drawn=people(), new=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=6))
def test_rows_are_put_behind_the_events_of_their_age(drawn, new):
    new = [(person % len(drawn), half_days / 2) for person, half_days in new]
    shard = shard_for(drawn)
    found = insert_rows(shard, *(np.array(column) for column in zip(*new, strict=True)), 2) if new else shard
    expected = histories(shard)
    for person, age in new:
        behind = sum(other <= age for other, _, _ in expected[person])
        expected[person].insert(behind, (age, 2, -1.0))
    assert histories(found) == expected
    assert_kept(found, shard)


def test_a_query_row_stands_at_entry_of_everybody():
    shard = shard_for([Person("male", 10.0, 90.0, ((10.0, "a", None), (10.5, "b", None))), Person("female", 5, 9, ())])
    found = augment_histories(shard, HistoryOptions(query_row_at_entry=True), TABLES)
    assert [[row[:2] for row in history] for history in histories(found)] == [
        [(10.0, TOKENS["a"]), (10.0, QUERY_TOKEN), (10.5, TOKENS["b"])], [(5.0, QUERY_TOKEN)],
    ]  # fmt: skip
    assert histories(augment_histories(shard, HistoryOptions(), TABLES)) == histories(shard)


@settings(max_examples=60, deadline=None)
@given(drawn=people(), quarter_days=st.integers(1, 30))
def test_regular_no_event_rows_equal_a_plain_loop(drawn, quarter_days):
    step = quarter_days / 4
    options = HistoryOptions(no_event_rows="regular", no_event_interval_years=step * DAY)
    shard = shard_for(drawn)
    found = augment_histories(shard, options, TABLES)
    for person, history in zip(drawn, histories(found), strict=True):
        ages = [age for age, token, _ in history if token == NO_EVENT_TOKEN]
        expected, number = [], 1
        while person.entry + number * step <= person.exit:
            expected.append(person.entry + number * step)
            number += 1
        np.testing.assert_allclose(ages, expected, atol=1 / AGE_STEPS_PER_DAY)
    without = [[row for row in history if row[1] != NO_EVENT_TOKEN] for history in histories(found)]
    assert without == histories(shard)
    counts = np.bincount(found.owner_of_event()[found.tokens == NO_EVENT_TOKEN], minlength=len(drawn))
    assert count_no_event_rows(options, shard.entry_age_days, shard.exit_age_days).tolist() == counts.tolist()
    assert_kept(found, shard)


def test_random_no_event_rows_are_a_poisson_process_under_observation():
    shard, options = long_lives(), HistoryOptions(no_event_rows="random", no_event_interval_years=1.0)
    found = augment_histories(shard, options, TABLES, np.random.default_rng(0))
    is_own = found.tokens == NO_EVENT_TOKEN
    ages, count = found.ages_days[is_own], np.bincount(found.owner_of_event()[is_own], minlength=len(shard))
    mean = 4990 / DAYS_PER_YEAR
    assert count.mean() == pytest.approx(mean, abs=4 * (mean / 400) ** 0.5)
    assert count.var() == pytest.approx(mean, rel=0.35)  # the standard error of a variance of 400 counts is 7 %
    assert ages.min() > 10.0
    assert ages.max() <= 5000.0
    assert np.histogram(ages, 4, (10.0, 5000.0))[0] == pytest.approx(np.full(4, len(ages) / 4), rel=0.12)
    assert_kept(found, shard)


def test_random_rows_stand_on_the_regular_grid_where_nothing_is_drawn():
    shard = long_lives(3)
    random, regular = (
        augment_histories(shard, HistoryOptions(no_event_rows=kind, no_event_interval_years=2.0), TABLES)
        for kind in ("random", "regular")
    )
    assert histories(random) == histories(regular)
    drawn = augment_histories(
        shard, HistoryOptions(no_event_rows="random", no_event_interval_years=2.0), TABLES, np.random.default_rng(1)
    )
    assert histories(drawn) != histories(regular)


ALL = HistoryOptions(True, "random", 2 * DAY, shuffle_same_day=True, covariate_delay_years=3 * DAY)


@settings(max_examples=60, deadline=None)
@given(drawn=people(), half_days=st.integers(0, 40))
def test_what_stands_up_to_an_age_does_not_depend_on_what_comes_after(drawn, half_days):
    landmark = half_days / 2
    seen = histories(augment_histories(shard_for(drawn), ALL, TABLES))
    blind = [
        replace(
            person,
            exit=max(landmark, person.entry + 0.5) if landmark < person.exit else person.exit,
            events=tuple(event for event in person.events if event[0] <= landmark),
        )
        for person in drawn
    ]
    known = histories(augment_histories(shard_for(blind), ALL, TABLES))
    for person, one, other in zip(blind, seen, known, strict=True):
        limit = min(landmark, person.exit)
        assert [row for row in one if row[0] <= limit] == [row for row in other if row[0] <= limit]


@settings(max_examples=30, deadline=None)
@given(drawn=people())
def test_a_person_gets_the_same_rows_alone_and_in_company(drawn):
    together = histories(augment_histories(shard_for(drawn), ALL, TABLES))
    alone = [histories(augment_histories(shard_for([person]), ALL, TABLES))[0] for person in drawn]
    assert together == alone


@settings(max_examples=40, deadline=None)
@given(drawn=people(), seed=st.integers(0, 99))
def test_shuffling_keeps_the_events_of_each_age(drawn, seed):
    shard = shard_for(drawn)
    found = shuffle_same_day(shard, np.random.default_rng(seed))
    assert [sorted(history) for history in histories(found)] == [sorted(history) for history in histories(shard)]
    assert_kept(found, shard)


def test_shuffling_gives_every_order_of_a_day():
    shard = long_lives(600, ((30.0, "a", None), (30.0, "b", None), (30.0, "bmi", 24.5), (40.0, "visit", None)))
    found = histories(shuffle_same_day(shard, np.random.default_rng(0)))
    orders = [tuple(CODES[token] for _, token, _ in history) for history in found]
    assert len(set(orders)) == 6
    assert all(order[-1] == "visit" for order in orders)
    assert {value for history in found for _, token, value in history if CODES[token] == "bmi"} == {24.5}
    assert min(orders.count(order) for order in set(orders)) > 60


@settings(max_examples=60, deadline=None)
@given(drawn=people(), seed=st.integers(0, 99))
def test_delays_equal_a_plain_loop_over_visits(drawn, seed):
    shard = shard_for(drawn)
    found = delay_covariates(shard, TABLES.is_covariate, 4 * DAY, np.random.default_rng(seed))
    most = 4 * AGE_STEPS_PER_DAY
    draws = iter(np.random.default_rng(seed).integers(0, most, size=1000, endpoint=True) / AGE_STEPS_PER_DAY)
    expected = []
    for person, history in zip(drawn, histories(shard), strict=True):
        delay_of, rows = {}, []
        for age, token, value in history:
            moved = age
            if ROLES[CODES[token]] == COVARIATE:
                moved = age + (delay_of[age] if age in delay_of else delay_of.setdefault(age, next(draws)))
                if moved > person.exit:
                    continue
            rows.append((float(moved), token, value))
        expected.append(sorted(rows, key=lambda row: row[0]))
    assert histories(found) == expected
    assert_kept(found, shard)


def test_delays_are_uniform_and_differ_by_visit():
    shard = long_lives(2000, ((30.0, "bmi", 24.5), (30.0, "visit", None), (30.0, "a", None), (2000.0, "bmi", 27.0)))
    found = delay_covariates(shard, TABLES.is_covariate, 2.0, np.random.default_rng(0))
    assert len(found.tokens) == len(shard.tokens)
    ages = {code: found.ages_days[found.tokens == TOKENS[code]] for code in ("bmi", "visit", "a")}
    first, second = ages["bmi"].reshape(-1, 2).T
    np.testing.assert_array_equal(first, ages["visit"])  # of one visit
    assert set(ages["a"]) == {30.0}
    most = 2 * DAYS_PER_YEAR
    for delay in (first - 30, second - 2000):
        assert delay.min() >= 0
        assert delay.max() <= most
        assert np.histogram(delay, 4, (0, most))[0] == pytest.approx(np.full(4, 500), rel=0.2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_a_measurement_that_would_lie_after_exit_is_dropped():
    shard = long_lives(400, ((4999.0, "bmi", 24.5), (4999.0, "a", None)))
    found = delay_covariates(shard, TABLES.is_covariate, 4 * DAY, np.random.default_rng(0))
    kept = (found.tokens == TOKENS["bmi"]).sum()
    assert kept / 400 == pytest.approx(0.25, abs=0.09)
    assert (found.tokens == TOKENS["a"]).sum() == 400


def test_training_draws_and_scoring_does_not():
    shard = long_lives(50, ((30.0, "a", None), (30.0, "bmi", 24.5), (30.0, "b", None)))
    options = replace(ALL, no_event_interval_years=1.0, covariate_delay_years=1.0)
    plain = augment_histories(shard, replace(options, shuffle_same_day=False, covariate_delay_years=0.0), TABLES)
    assert histories(augment_histories(shard, options, TABLES)) == histories(plain)
    one, same, other = (augment_histories(shard, options, TABLES, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert histories(one) == histories(same)
    assert histories(one) != histories(other)
    assert_kept(one, shard)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_nobody_is_no_trouble(rng):
    nobody = long_lives(1).take(np.zeros(0, np.int64))
    assert len(augment_histories(nobody, ALL, TABLES, rng)) == 0
