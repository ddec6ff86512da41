"""Sequences: every known event once, in order, with the first occurrences of the full history."""

import math

import polars as pl
import pytest
from drawn_people import OUTCOMES, ROLES, TOKENS, VOCABULARY, events_of, people, subjects_of
from hypothesis import given, settings

from data_schemas.cohort import SEXES, Events, Subjects
from data_schemas.dataset import COVARIATE, DEATH, DISEASE, Sequences
from pipelines.build_sequences import build_sequences, count_unknown_codes

PLACE_ON_ONE_DAY = {COVARIATE: 0, DISEASE: 1, DEATH: 2}


@settings(max_examples=60, deadline=None)
@given(drawn=people())
def test_sequences_equal_a_plain_sort(drawn):
    sequences = build_sequences(subjects_of(drawn), events_of(drawn), VOCABULARY)
    Sequences.validate(sequences)
    for person, found in zip(drawn, sequences.iter_rows(named=True), strict=True):
        known = [event for event in person.events if event[1] in TOKENS]
        known.sort(key=lambda event: (event[0], PLACE_ON_ONE_DAY[ROLES[event[1]]], TOKENS[event[1]], event[2] or -1.0))
        assert found[Sequences.ages_days.name] == [age for age, _, _ in known]
        assert found[Sequences.tokens.name] == [TOKENS[code] for _, code, _ in known]
        values = [math.nan if value is None else value for _, _, value in known]
        assert found[Sequences.values.name] == pytest.approx(values, nan_ok=True)
        assert found[Sequences.sex.name] == SEXES.index(person.sex)
        firsts = {TOKENS[outcome]: person.first_age(codes) for outcome, codes in OUTCOMES.items()}
        assert dict(zip(found[Sequences.first_tokens.name], found[Sequences.first_ages_days.name], strict=True)) == {
            token: age for token, age in firsts.items() if age is not None
        }


@settings(max_examples=20, deadline=None)
@given(drawn=people())
def test_codes_outside_the_vocabulary_are_counted(drawn):
    expected = sum(code not in TOKENS for person in drawn for _, code, _ in person.events)
    assert count_unknown_codes(events_of(drawn), VOCABULARY) == expected


def cohort(ids, entry=100.0, exit_=200.0):
    n = len(ids)
    return pl.DataFrame(
        {
            Subjects.subject_id.name: ids,
            Subjects.sex.name: ["female"] * n,
            Subjects.entry_age_days.name: [entry] * n,
            Subjects.exit_age_days.name: [exit_] * n,
        },
        schema_overrides={Subjects.sex.name: pl.String},
    )


def happened(*rows, id_type=pl.Int64):
    types = (id_type, pl.Float64, pl.String, pl.Float64)
    return pl.LazyFrame(rows, schema=dict(zip(Events.column_names(), types, strict=True)), orient="row")


@pytest.mark.parametrize(("ids", "id_type"), [([30, 10, 20], pl.Int64), (["c", "a", "b"], pl.String)])
def test_people_keep_their_order_and_the_kind_of_their_id(ids, id_type):
    events = happened((ids[1], 50.0, "a", None), (ids[0], 60.0, "b", None), id_type=id_type)
    sequences = build_sequences(cohort(ids), events, VOCABULARY)
    assert sequences[Sequences.subject_id.name].dtype == id_type
    assert sequences[Sequences.subject_id.name].to_list() == ids
    assert sequences[Sequences.tokens.name].to_list() == [[TOKENS["b"]], [TOKENS["a"]], []]


def test_nobody_and_nothing_give_empty_lists():
    sequences = build_sequences(cohort([1, 2]), happened(), VOCABULARY)
    for name in ("tokens", "ages_days", "values", "first_tokens", "first_ages_days"):
        assert sequences[name].to_list() == [[], []]
    Sequences.validate(sequences)
    assert build_sequences(cohort([]).cast({"subject_id": pl.Int64}), happened(), VOCABULARY).is_empty()


def test_events_of_other_people_are_left_out():
    sequences = build_sequences(cohort([1]), happened((1, 50.0, "a", None), (2, 50.0, "b", None)), VOCABULARY)
    assert sequences[Sequences.tokens.name].to_list() == [[TOKENS["a"]]]


def test_ages_lie_on_the_grid_that_float32_keeps():
    sequences = build_sequences(cohort([1], 100.001, 200.123), happened((1, 50.3, "a", None)), VOCABULARY)
    on_grid = round(50.3 * 256) / 256
    assert sequences[Sequences.ages_days.name].to_list() == [[on_grid]]
    assert sequences[Sequences.first_ages_days.name].to_list() == [[on_grid, on_grid]]  # of `a` and of its group
    assert sequences[Sequences.entry_age_days.name].to_list() == [100.0]
    assert sequences[Sequences.exit_age_days.name].to_list() == [round(200.123 * 256) / 256]
