"""Find the intervals of the point process in whole histories, and cut long histories into pieces.

Mode next_token predicts at the last row of each age what happens up to the next age. B people, N intervals, K outcomes,
M events, P pieces.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.sequence_files import SequenceShard, ragged_positions
from pipelines.token_tables import TokenTables


@dataclass(frozen=True)
class Intervals:
    """Stretches from one age to the next of a person's rows, by person and age."""

    person: NDArray[np.int64]  # [N]
    row: NDArray[np.int64]  # [N] the last row of the age at which it starts, in the flat arrays of the people
    start_age_days: NDArray[np.float64]  # [N]
    end_age_days: NDArray[np.float64]  # [N]
    n_end_rows: NDArray[np.int64]  # [N] rows of the age that ends it; they stand right behind `row`

    def __len__(self) -> int:
        """Count the intervals."""
        return len(self.row)

    def take(self, which: NDArray[np.int64]) -> "Intervals":
        """Return some of them, in ascending order of place."""
        return Intervals(**{name: array[which] for name, array in vars(self).items()})


@dataclass(frozen=True)
class Pieces:
    """Stretches of consecutive rows that are read together, by person and age."""

    person: NDArray[np.int64]  # [P]
    first_row: NDArray[np.int64]  # [P] in the flat arrays of the people
    n_rows: NDArray[np.int64]  # [P]
    of_interval: NDArray[np.int64]  # [N] the piece in which each interval is a target


def find_intervals(people: SequenceShard, tables: TokenTables) -> Intervals:
    """Return the intervals of people whose histories have a query row at entry.

    An interval starts at each age of any row with entry <= age < end, end = min(exit, death). It ends at the next age
    of any row, the last one at `end`. Rows after `end` do not count.
    """
    end = _end_of_observation(people, tables)
    owner, ages = people.owner_of_event(), people.ages_days
    is_last = np.ones(len(ages), dtype=bool)
    is_last[:-1] = (np.diff(owner) != 0) | (np.diff(ages) != 0)
    last_row = np.flatnonzero(is_last)  # of each age of each person
    n_rows = np.diff(last_row, prepend=-1)
    person, age = owner[last_row], ages[last_row]
    starts = np.flatnonzero((age >= people.entry_age_days[person]) & (age < end[person]))

    whose, following = person[starts], np.minimum(starts + 1, max(len(age) - 1, 0))
    is_ended = (following > starts) & (person[following] == whose) & (age[following] <= end[whose])
    return Intervals(
        person=whose,
        row=last_row[starts],
        start_age_days=age[starts],
        end_age_days=np.where(is_ended, age[following], end[whose]),
        n_end_rows=np.where(is_ended, n_rows[following], 0),
    )


def cut_pieces(people: SequenceShard, intervals: Intervals, max_events: int) -> Pieces:
    """Cut histories of more than `max_events` rows so that every interval is a target of exactly one piece.

    The first piece is the first `max_events` rows, more where entry comes late in them; each later piece has the
    intervals that start in the next `max_events` / 2 rows as targets, and the rows before as context. Keeping the
    latest rows alone would drop the early person-time of those who later have many events: a choice by the future.
    """
    stride = max(max_events // 2, 1)
    place = intervals.row - people.offsets[intervals.person]
    is_first = np.diff(intervals.person, prepend=-1) != 0
    entry_place = place[is_first][np.cumsum(is_first) - 1]
    first_end = np.maximum(max_events, entry_place + stride)
    number = np.maximum(-((first_end - place - 1) // stride), 0)  # rounded up: rows behind the first piece / stride

    is_new = is_first | (np.diff(number, prepend=0) != 0)
    is_last = np.ones(len(number), dtype=bool)
    is_last[:-1] = is_new[1:]
    person, end_row = intervals.person[is_last], intervals.row[is_last] + 1
    n_rows = np.minimum(end_row - people.offsets[person], max_events)
    return Pieces(person, end_row - n_rows, n_rows, np.cumsum(is_new) - 1)


def find_risk_sets(people: SequenceShard, intervals: Intervals, tables: TokenTables) -> NDArray[np.bool_]:
    """Return [N,K] who is at risk of what: a cause that is recorded once, until its first occurrence ever."""
    at_risk = np.ones((len(intervals), tables.n_outcomes), dtype=bool)
    person, outcome, age = people.owner_of_first(), tables.outcome_of_token[people.first_tokens], people.first_ages_days
    once = np.flatnonzero((outcome >= 0) & tables.recorded_once[outcome])
    bounds = np.searchsorted(intervals.person, np.arange(len(people) + 1))
    n_intervals = np.diff(bounds)[person[once]]
    first = np.repeat(once, n_intervals)
    interval = ragged_positions(bounds[person[once]], n_intervals)
    gone = age[first] <= intervals.start_age_days[interval]
    at_risk[interval[gone], outcome[first[gone]]] = False
    return at_risk


def find_events(
    people: SequenceShard, intervals: Intervals, tables: TokenTables, at_risk: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return interval and outcome of each event [M]: a cause at risk, at the age that ends the interval, once a day."""
    rows = ragged_positions(intervals.row + 1, intervals.n_end_rows)
    interval = np.repeat(np.arange(len(intervals)), intervals.n_end_rows)
    outcome = tables.outcome_of_token[people.tokens[rows]]
    counts = (outcome >= 0) & at_risk[interval, outcome]
    pairs = np.unique(interval[counts] * tables.n_outcomes + outcome[counts])
    return pairs // tables.n_outcomes, pairs % tables.n_outcomes


def _end_of_observation(people: SequenceShard, tables: TokenTables) -> NDArray[np.float64]:
    """Return min(exit, death) of each person [B]."""
    end = people.exit_age_days.copy()
    is_death = people.first_tokens == tables.death_token
    died = people.owner_of_first()[is_death]
    end[died] = np.minimum(end[died], people.first_ages_days[is_death])
    return end
