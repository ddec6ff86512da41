"""First occurrences: of the full history, groups by the first of any member."""

import polars as pl
from drawn_people import OUTCOMES, VOCABULARY, events_of, people
from hypothesis import given, settings

from data_schemas.results import FirstOccurrences
from pipelines.find_first_occurrences import find_first_occurrences


@settings(max_examples=60, deadline=None)
@given(drawn=people())
def test_first_occurrences_equal_a_plain_loop(drawn):
    found = find_first_occurrences(events_of(drawn), VOCABULARY).collect()
    expected = [
        (number, outcome, person.first_age(codes))
        for number, person in enumerate(drawn)
        for outcome, codes in sorted(OUTCOMES.items())
        if person.first_age(codes) is not None
    ]
    assert found.rows() == expected
    FirstOccurrences.validate(found)


def test_nobody_has_no_occurrences():
    nobody = find_first_occurrences(events_of([]), VOCABULARY).collect()
    assert nobody.is_empty()
    assert nobody.columns == FirstOccurrences.column_names()


def test_a_vocabulary_without_groups_is_fine():
    plain = VOCABULARY.filter(pl.col("role") != "group")
    assert find_first_occurrences(events_of([]), plain).collect().is_empty()
