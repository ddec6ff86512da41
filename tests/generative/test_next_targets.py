"""Whole histories for mode next_token: rows, intervals and events equal a slow, obvious loop on drawn people."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from drawn_people import ROLES, TOKENS, VOCABULARY, Person, events_of, people, subjects_of
from hypothesis import given, settings
from hypothesis import strategies as st

from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.cohort import DEATH_CODE
from data_schemas.dataset import NO_EVENT, QUERY
from pipelines.augment_histories import HistoryOptions, augment_histories
from pipelines.build_sequences import build_sequences
from pipelines.find_intervals import cut_pieces, find_intervals
from pipelines.pad_tensors import pad_pieces
from pipelines.sequence_files import shard_of
from pipelines.token_tables import TokenTables

TABLES = TokenTables.of(VOCABULARY, "next_token")
CODES = {token: code for code, token in TOKENS.items()}
OUTCOMES = ("a", "b", DEATH_CODE)
RECORDED_ONCE = {"b", DEATH_CODE}
ORDER = {"covariate": 0, "disease": 1, "death": 2}
INTERVAL_DAYS = 3.0
NO_EVENT_ROWS = HistoryOptions(
    query_row_at_entry=True, no_event_rows="regular", no_event_interval_years=INTERVAL_DAYS / DAYS_PER_YEAR
)
PLAIN = HistoryOptions(query_row_at_entry=True)
DIVISOR = 7.5
UNCUT = 1000


@dataclass(frozen=True)
class Interval:
    """One stretch of one person: what is known at its start, how long it is, who is at risk, what ended it."""

    person: int
    start: float
    years: float
    at_risk: frozenset[str]
    events: frozenset[str]
    history: tuple[tuple[float, str], ...]


def shard_for(drawn, options=PLAIN):
    return augment_histories(
        shard_of(build_sequences(subjects_of(drawn), events_of(drawn), VOCABULARY)), options, TABLES
    )


def rows_of(person, options):
    """Return (age, code) in the order a network reads them."""
    rows = sorted(
        ((age, code) for age, code, _ in person.events if code in TOKENS),
        key=lambda row: (row[0], ORDER[ROLES[row[1]]], TOKENS[row[1]]),
    )
    own = [(person.entry, QUERY)]
    if options.no_event_rows == "regular":
        number = 1
        while person.entry + number * INTERVAL_DAYS <= person.exit:
            own.append((person.entry + number * INTERVAL_DAYS, NO_EVENT))
            number += 1
    for age, code in own:
        behind = sum(row_age <= age for row_age, _ in rows)
        rows.insert(behind, (age, code))
    return rows


def expected_intervals(drawn, options):
    found = []
    for number, person in enumerate(drawn):
        death = person.first_age({DEATH_CODE})
        end = person.exit if death is None else min(person.exit, death)
        rows = rows_of(person, options)
        starts = sorted({age for age, _ in rows if person.entry <= age < end})
        for start, stop in zip(starts, [*starts[1:], end], strict=False):
            first = {code: person.first_age({code}) for code in RECORDED_ONCE}
            happened = {code for code, age in first.items() if age is not None and age <= start}
            at_risk = set(OUTCOMES) - happened
            events = at_risk & {code for age, code in rows if age == stop}
            days = max(stop - start, 0.5) if events else stop - start
            history = tuple(row for row in rows if row[0] <= start)
            found.append(Interval(number, start, days / DAYS_PER_YEAR, frozenset(at_risk), frozenset(events), history))
    return found


def padded(drawn, options=PLAIN, max_events=UNCUT):
    shard = shard_for(drawn, options)
    intervals = find_intervals(shard, TABLES)
    pieces = cut_pieces(shard, intervals, max_events)
    batch, targets = pad_pieces(shard, intervals, pieces, np.arange(len(pieces.person)), TABLES, DIVISOR)
    return pieces, batch, targets


def intervals_of(pieces, batch, targets):
    """Read the intervals back off the tensors."""
    length, found = batch.tokens.shape[1], []
    for number, row in enumerate(targets.row.tolist()):
        piece, place = divmod(row, length)
        history = zip(batch.ages_days[piece].tolist(), batch.tokens[piece].tolist(), batch.valid[piece], strict=True)
        read = tuple((age, CODES[token]) for age, token, valid in list(history)[: place + 1] if valid)
        events = targets.event_outcome[targets.event_interval == number].tolist()
        assert len(events) == len(set(events))
        found.append(
            Interval(
                int(pieces.person[piece]),
                batch.ages_days[piece, place].item(),
                targets.interval_years[number].item(),
                frozenset(OUTCOMES[k] for k in torch.nonzero(targets.at_risk[number]).flatten().tolist()),
                frozenset(OUTCOMES[k] for k in events),
                read,
            )
        )
    return found


def assert_same(found, expected, max_events=UNCUT):
    """Same intervals; of the history at least what is short enough to be read in any case."""
    assert len(found) == len(expected)
    for one, other in zip(sorted(found, key=lambda i: (i.person, i.start)), expected, strict=True):
        assert (one.person, one.start, one.at_risk, one.events) == (
            other.person, other.start, other.at_risk, other.events,
        )  # fmt: skip
        assert one.years == pytest.approx(other.years, rel=1e-6)
        assert one.history == other.history[-len(one.history) :]
        assert len(one.history) >= min(len(other.history), max_events - max_events // 2 + 1)


@settings(max_examples=80, deadline=None)
@given(drawn=people(), options=st.sampled_from([PLAIN, NO_EVENT_ROWS]))
def test_intervals_equal_a_plain_loop(drawn, options):
    pieces, batch, targets = padded(drawn, options)
    assert_same(intervals_of(pieces, batch, targets), expected_intervals(drawn, options))
    assert len(set(pieces.person.tolist())) == len(pieces.person)  # nobody is cut
    assert batch.query_ages_days.shape == batch.query_valid.shape == (len(pieces.person), 0)
    assert targets.divisor == DIVISOR
    assert (targets.interval_years > 0).all()
    assert targets.at_risk[targets.event_interval, targets.event_outcome].all()
    assert (targets.row.dtype, targets.event_interval.dtype, targets.event_outcome.dtype) == (torch.int64,) * 3
    assert targets.interval_years.dtype == torch.float32


@settings(max_examples=80, deadline=None)
@given(drawn=people(), options=st.sampled_from([PLAIN, NO_EVENT_ROWS]), max_events=st.integers(2, 9))
def test_the_pieces_of_long_histories_hold_every_interval_once(drawn, options, max_events):
    pieces, batch, targets = padded(drawn, options, max_events)
    assert batch.tokens.shape[1] <= max_events
    assert_same(intervals_of(pieces, batch, targets), expected_intervals(drawn, options), max_events)
    whole, _, _ = padded(drawn, options)
    n_pieces = np.bincount(pieces.person, minlength=len(drawn))
    long = np.bincount(whole.person, whole.n_rows, minlength=len(drawn)) > max_events
    assert (n_pieces[~long] <= 1).all()  # only who has more rows is cut


@settings(max_examples=50, deadline=None)
@given(drawn=people(), max_events=st.integers(2, 9), cut=st.integers(0, 3))
def test_any_choice_of_pieces_holds_their_intervals(drawn, max_events, cut):
    shard = shard_for(drawn)
    intervals = find_intervals(shard, TABLES)
    pieces = cut_pieces(shard, intervals, max_events)
    order = np.random.default_rng(cut).permutation(len(pieces.person))
    found = []
    for part in (order[:cut], order[cut:]):
        if len(part):
            batch, targets = pad_pieces(shard, intervals, pieces, part, TABLES, DIVISOR)
            chosen = type(pieces)(pieces.person[part], pieces.first_row[part], pieces.n_rows[part], pieces.of_interval)
            found += intervals_of(chosen, batch, targets)
    assert_same(found, expected_intervals(drawn, PLAIN), max_events)


def intervals_for(*events, entry=10.0, exit_=90.0):
    """Return (start, days, events) of each interval of one person."""
    read = intervals_of(*padded([Person("male", entry, exit_, tuple((age, code, None) for age, code in events))]))
    return [(one.start, round(one.years * DAYS_PER_YEAR, 3), set(one.events)) for one in read], read


def test_who_has_no_event_is_observed_from_entry_to_exit():
    assert intervals_for()[0] == [(10.0, 80.0, set())]


def test_events_at_entry_are_history_and_at_exit_are_targets():
    found, read = intervals_for((10.0, "a"), (10.0, "b"), (90.0, "a"))
    assert found == [(10.0, 80.0, {"a"})]
    assert read[0].history == ((10.0, "a"), (10.0, "b"), (10.0, QUERY))
    assert read[0].at_risk == {"a", DEATH_CODE}


def test_nothing_counts_after_exit_or_after_death():
    assert intervals_for((90.5, "a"))[0] == [(10.0, 80.0, set())]
    assert intervals_for((60.0, DEATH_CODE), (60.0, "b"), (70.0, "a"))[0] == [(10.0, 50.0, {DEATH_CODE, "b"})]
    assert intervals_for((10.0, DEATH_CODE), (70.0, "a"))[0] == []


def test_two_diseases_of_one_day_end_one_interval_and_the_same_one_counts_once():
    assert intervals_for((30.0, "a"), (30.0, "b"), (30.0, "a"))[0] == [(10.0, 20.0, {"a", "b"}), (30.0, 60.0, set())]


def test_measurements_and_input_only_codes_end_an_interval_without_an_event():
    assert intervals_for((30.0, "bmi"), (40.0, "visit"))[0] == [
        (10.0, 20.0, set()), (30.0, 10.0, set()), (40.0, 50.0, set()),
    ]  # fmt: skip


def test_what_comes_again_counts_again_and_what_is_recorded_once_does_not():
    found, read = intervals_for((30.0, "a"), (40.0, "a"), (50.0, "b"), (60.0, "b"))
    assert [events for _, _, events in found] == [{"a"}, {"a"}, {"b"}, set(), set()]
    assert [sorted(one.at_risk - {DEATH_CODE}) for one in read] == [["a", "b"]] * 3 + [["a"]] * 2


def test_an_event_within_minutes_of_a_measurement_counts_as_half_a_day():
    assert intervals_for((30.0, "bmi"), (30.25, "a"), (30.5, "bmi"))[0] == [
        (10.0, 20.0, set()), (30.0, 0.5, {"a"}), (30.25, 0.25, set()), (30.5, 59.5, set()),
    ]  # fmt: skip


def test_no_event_rows_end_intervals_and_are_read():
    person = Person("male", 10.0, 16.5, ((13.0, "a", None), (14.0, "b", None)))
    read = intervals_of(*padded([person], NO_EVENT_ROWS))
    assert [(one.start, set(one.events)) for one in read] == [
        (10.0, {"a"}), (13.0, {"b"}), (14.0, set()), (16.0, set()),
    ]  # fmt: skip
    assert read[-1].history == ((10.0, QUERY), (13.0, "a"), (13.0, NO_EVENT), (14.0, "b"), (16.0, NO_EVENT))
    assert years_to_days(NO_EVENT_ROWS.no_event_interval_years) == INTERVAL_DAYS


def test_the_context_of_a_piece_is_what_came_before_its_targets():
    visits = tuple((20.0 + day, "visit", None) for day in range(9))
    pieces, batch, targets = padded([Person("male", 10.0, 90.0, visits)], max_events=4)  # ten rows with the query
    assert batch.ages_days.tolist() == [
        [10.0, 20.0, 21.0, 22.0], [21.0, 22.0, 23.0, 24.0], [23.0, 24.0, 25.0, 26.0], [25.0, 26.0, 27.0, 28.0],
    ]  # fmt: skip
    assert targets.row.tolist() == [0, 1, 2, 3, 6, 7, 10, 11, 14, 15]
    assert pieces.n_rows.tolist() == [4] * 4


def test_a_long_history_before_entry_is_context_and_no_piece_of_its_own():
    visits = tuple((float(day), "visit", None) for day in range(1, 10))
    pieces, batch, targets = padded([Person("male", 10.0, 90.0, visits)], max_events=4)
    assert batch.ages_days.tolist() == [[7.0, 8.0, 9.0, 10.0]]
    assert targets.row.tolist() == [3]
    assert pieces.person.tolist() == [0]
