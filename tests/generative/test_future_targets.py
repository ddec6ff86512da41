"""Padded batches and targets equal a slow, obvious loop on drawn people."""

import math

import numpy as np
import pytest
import torch
from drawn_people import OUTCOMES, ROLES, TOKENS, VOCABULARY, Person, events_of, people, subjects_of
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, SEXES
from pipelines.build_sequences import build_sequences
from pipelines.pad_tensors import future_targets, pad_batch
from pipelines.sequence_files import shard_of
from pipelines.token_tables import TokenTables

TABLES = TokenTables.of(VOCABULARY, "all_future")
BMI_MEAN, BMI_STD, CLIP = 25.0, 2.0, 5.0
ORDER = {"covariate": 0, "disease": 1, "death": 2}


def shard_for(drawn):
    return shard_of(build_sequences(subjects_of(drawn), events_of(drawn), VOCABULARY))


@st.composite
def people_and_queries(draw):
    """Draw people with ascending query ages, NaN behind them; ages around entry, exit and the events."""
    drawn = draw(people())
    n_queries = draw(st.integers(1, 3))
    rows = []
    for person in drawn:
        age = st.integers(0, 2 * int(person.exit) + 2).map(lambda half_days: half_days / 2)
        ages = sorted(draw(st.lists(age, max_size=n_queries)))
        rows.append(ages + [math.nan] * (n_queries - len(ages)))
    return drawn, np.array(rows)


def expected_history(person, queries, max_events):
    """Return the rows (token, age, z) that a network may see of a person, in order."""
    asked = [age for age in queries if not math.isnan(age)]
    known = [event for event in person.events if event[1] in TOKENS and asked and event[0] <= max(asked)]
    known.sort(key=lambda event: (event[0], ORDER[ROLES[event[1]]], TOKENS[event[1]], event[2] or -1.0))
    rows = []
    for age, code, value in known[-max_events:]:
        z = math.nan if value is None else min(max((value - BMI_MEAN) / BMI_STD, -CLIP), CLIP)
        rows.append((TOKENS[code], age, z))
    return rows


@settings(max_examples=100, deadline=None)
@given(drawn_and_queries=people_and_queries(), max_events=st.integers(1, 6))
def test_a_padded_batch_equals_a_plain_loop(drawn_and_queries, max_events):
    drawn, queries = drawn_and_queries
    batch = pad_batch(shard_for(drawn), queries, TABLES, max_events)
    longest = 0
    for i, person in enumerate(drawn):
        history = expected_history(person, queries[i], max_events)
        longest = max(longest, len(history))
        n = len(history)
        assert batch.tokens[i, :n].tolist() == [token for token, _, _ in history]
        assert batch.ages_days[i, :n].tolist() == [age for _, age, _ in history]
        np.testing.assert_allclose(batch.values[i, :n], [z for _, _, z in history], rtol=1e-6)
        assert batch.valid[i].tolist() == [True] * n + [False] * (batch.valid.shape[1] - n)
        assert batch.tokens[i, n:].eq(0).all()
        assert batch.values[i, n:].isnan().all()
        assert (batch.sex[i], batch.entry_age_days[i], batch.exit_age_days[i]) == (
            SEXES.index(person.sex), person.entry, person.exit,
        )  # fmt: skip
        wanted = [person.entry if math.isnan(age) else age for age in queries[i]]
        assert batch.query_ages_days[i].tolist() == wanted
        assert batch.query_valid[i].tolist() == [not math.isnan(age) for age in queries[i]]
    assert batch.tokens.shape[1] == max(longest, 1)


def expected_target(person, query, codes):
    """Return (years, happened, at risk) of one outcome after one query."""
    first = person.first_age(codes)
    inside = not math.isnan(query) and person.entry <= query < person.exit
    if not inside or (first is not None and first <= query):
        return 0.0, False, False
    if first is not None and first <= person.exit:
        return max(first - query, 0.5) / DAYS_PER_YEAR, True, True
    return (person.exit - query) / DAYS_PER_YEAR, False, True


@settings(max_examples=100, deadline=None)
@given(drawn_and_queries=people_and_queries())
def test_targets_equal_a_plain_loop(drawn_and_queries):
    drawn, queries = drawn_and_queries
    targets = future_targets(shard_for(drawn), queries, TABLES)
    assert targets.time_years.shape == (*queries.shape, len(OUTCOMES))
    for i, person in enumerate(drawn):
        for q, query in enumerate(queries[i]):
            for k, codes in enumerate(OUTCOMES.values()):
                years, happened, at_risk = expected_target(person, query, codes)
                assert targets.time_years[i, q, k].item() == pytest.approx(years, rel=1e-6)
                assert targets.happened[i, q, k].item() == happened
                assert targets.at_risk[i, q, k].item() == at_risk


@settings(max_examples=50, deadline=None)
@given(drawn_and_queries=people_and_queries(), max_events=st.integers(1, 6))
def test_types_and_finiteness(drawn_and_queries, max_events):
    drawn, queries = drawn_and_queries
    batch = pad_batch(shard_for(drawn), queries, TABLES, max_events)
    targets = future_targets(shard_for(drawn), queries, TABLES)
    assert (batch.tokens.dtype, batch.sex.dtype) == (torch.int64, torch.int64)
    assert (batch.ages_days.dtype, batch.values.dtype, targets.time_years.dtype) == (torch.float32,) * 3
    assert batch.query_ages_days.isfinite().all()
    assert targets.time_years.isfinite().all()
    assert not (targets.happened & ~targets.at_risk).any()
    assert (targets.time_years[targets.at_risk] > 0).all()


def targets_of(person, query):
    found = future_targets(shard_for([person]), np.array([[query]]), TABLES)
    return {
        outcome: (round(found.time_years[0, 0, k].item() * DAYS_PER_YEAR, 3), found.happened[0, 0, k].item())
        for k, outcome in enumerate(OUTCOMES)
        if found.at_risk[0, 0, k]
    }


def test_an_event_beyond_max_events_still_ends_the_risk():
    person = Person("female", 10.0, 90.0, ((1.0, "a", None), *((20.0 + i, "visit", None) for i in range(5))))
    batch = pad_batch(shard_for([person]), np.array([[50.0]]), TABLES, max_events=2)
    assert batch.tokens.tolist() == [[TOKENS["visit"]] * 2]
    assert batch.ages_days.tolist() == [[23.0, 24.0]]
    assert set(targets_of(person, 50.0)) == {"b", DEATH_CODE}  # `a`, and `visit` of a group, have happened


def test_a_disease_on_the_day_of_death_and_of_exit_happened():
    person = Person("male", 10.0, 90.0, ((90.0, DEATH_CODE, None), (90.0, "a", None)))
    assert targets_of(person, 60.0) == {
        "a": (30.0, True), "b": (30.0, False), "a_or_rare": (30.0, True), "b_or_visit": (30.0, False),
        DEATH_CODE: (30.0, True),
    }  # fmt: skip


def test_an_event_after_exit_is_none_and_its_person_is_censored_at_exit():
    person = Person("male", 10.0, 90.0, ((90.5, "a", None),))
    assert targets_of(person, 60.0)["a"] == (30.0, False)
    assert targets_of(person, 90.0) == {}


def test_events_a_few_minutes_apart_count_as_half_a_day():
    person = Person("male", 10.0, 90.0, ((60.25, "a", None),))
    assert targets_of(person, 60.0)["a"] == (0.5, True)
    assert targets_of(person, 60.0)["b"] == (30.0, False)


def test_queries_count_one_unless_weights_are_given():
    shard, queries = shard_for([Person("male", 10.0, 90.0, ())]), np.array([[20.0, 30.0]])
    assert future_targets(shard, queries, TABLES).query_weight.tolist() == [[1.0, 1.0]]
    assert future_targets(shard, queries, TABLES, queries / 10).query_weight.tolist() == [[2.0, 3.0]]


def test_the_divisor_is_the_valid_queries_unless_that_of_a_whole_step_is_given():
    shard, queries = shard_for([Person("male", 10.0, 90.0, ())] * 2), np.array([[20.0, 30.0], [40.0, np.nan]])
    assert future_targets(shard, queries, TABLES).divisor == 3.0
    assert future_targets(shard, queries, TABLES, divisor=8.0).divisor == 8.0


def test_nobody_asked_gives_a_batch_of_padding():
    batch = pad_batch(shard_for([Person("male", 10.0, 90.0, ((1.0, "a", None),))]), np.array([[np.nan]]), TABLES, 5)
    assert batch.valid.tolist() == [[False]]
    assert batch.query_valid.tolist() == [[False]]
