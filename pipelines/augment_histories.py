"""Change histories on their way into a batch: rows of our own, same-day order, later measurements.

Pure functions from people to people. First occurrences, which targets and risk sets are read from, stay as they are.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data_schemas.age_units import AGE_STEPS_PER_DAY, years_to_days
from data_schemas.dataset import NO_EVENT_TOKEN, QUERY_TOKEN
from pipelines.sequence_files import SequenceShard
from pipelines.token_tables import TokenTables

REGULAR, RANDOM = "regular", "random"


@dataclass(frozen=True)
class HistoryOptions:
    """What is done to every history of one model."""

    query_row_at_entry: bool = False  # mode next_token: people without events count too
    no_event_rows: str = "none"  # or regular, or random
    no_event_interval_years: float = 5.0
    shuffle_same_day: bool = False
    covariate_delay_years: float = 0.0


def augment_histories(
    people: SequenceShard, options: HistoryOptions, tables: TokenTables, rng: np.random.Generator | None = None
) -> SequenceShard:
    """Return the histories as a network reads them.

    With `rng`, in training, measurements are delayed, the events of one day are shuffled and `random` no_event rows are
    drawn. Without it, in tuning, evaluation and scoring, nothing is drawn: the same person always gets the same rows,
    whoever else is scored, and `random` no_event rows stand on the regular grid of the same density.
    """
    if rng is not None and options.covariate_delay_years > 0:
        people = delay_covariates(people, tables.is_covariate, options.covariate_delay_years, rng)
    if rng is not None and options.shuffle_same_day:
        people = shuffle_same_day(people, rng)
    if options.query_row_at_entry:
        people = insert_rows(people, np.arange(len(people)), people.entry_age_days, QUERY_TOKEN)
    if options.no_event_rows != "none":
        drawn = rng if options.no_event_rows == RANDOM else None
        people = insert_rows(people, *_no_event_rows(people, options.no_event_interval_years, drawn), NO_EVENT_TOKEN)
    return people


def count_no_event_rows(
    options: HistoryOptions, entry_age_days: NDArray[np.float64], age_days: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many no_event rows lie after entry and at or before an age; of random ones, about how many."""
    if options.no_event_rows == "none":
        return np.zeros(len(age_days), dtype=np.int64)
    n_intervals = (age_days - entry_age_days) / years_to_days(options.no_event_interval_years)
    return np.floor(np.maximum(n_intervals, 0.0)).astype(np.int64)


def insert_rows(
    people: SequenceShard, person: NDArray[np.int64], age_days: NDArray[np.float64], token: int
) -> SequenceShard:
    """Put rows without a value into histories, each behind the events of its age."""
    return _with_rows(
        people,
        np.concatenate([people.owner_of_event(), person]),
        np.concatenate([people.ages_days, age_days]),
        np.concatenate([people.tokens, np.full(len(person), token, dtype=people.tokens.dtype)]),
        np.concatenate([people.values, np.full(len(person), np.nan, dtype=people.values.dtype)]),
    )


def shuffle_same_day(people: SequenceShard, rng: np.random.Generator) -> SequenceShard:
    """Order the events of one age at random, so that nothing is learned from the order they happen to be listed in."""
    mixed = rng.permutation(len(people.tokens))
    return _with_rows(
        people, people.owner_of_event()[mixed], people.ages_days[mixed], people.tokens[mixed], people.values[mixed]
    )


def delay_covariates(
    people: SequenceShard, is_covariate: NDArray[np.bool_], max_years: float, rng: np.random.Generator
) -> SequenceShard:
    """Move the covariate rows of each visit (person and age) later by one draw from [0, max_years].

    A network then sees measurements of many ages and cannot take the age of an invitation for a risk. Rows move only
    later: a measurement moved to before a landmark would tell the future (Delphi moves them by -20 to +40 years). Rows
    that would lie after exit are dropped.
    """
    owner, ages = people.owner_of_event(), people.ages_days.copy()
    rows = np.flatnonzero(is_covariate[people.tokens])
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (np.diff(owner[rows]) != 0) | (np.diff(ages[rows]) != 0)
    most_steps = int(years_to_days(max_years) * AGE_STEPS_PER_DAY)
    delay = rng.integers(0, most_steps, size=is_new.sum(), endpoint=True) / AGE_STEPS_PER_DAY  # one a visit
    ages[rows] += delay[np.cumsum(is_new) - 1]
    kept = np.ones(len(ages), dtype=bool)
    kept[rows] = ages[rows] <= people.exit_age_days[owner[rows]]
    return _with_rows(people, owner[kept], ages[kept], people.tokens[kept], people.values[kept])


def _no_event_rows(
    people: SequenceShard, interval_years: float, rng: np.random.Generator | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return person and age of no_event rows in entry < age <= exit: a Poisson process with `rng`, else a grid.

    Only under observation does "nothing was recorded" mean that nothing happened. Where the rows lie before an age
    depends on nothing after it: rows that stop at the last event (Delphi) would tell that none is to come.
    """
    interval_days = years_to_days(interval_years)
    follow_up = people.exit_age_days - people.entry_age_days
    mean = np.maximum(follow_up, 0.0) / interval_days
    count = np.floor(mean).astype(np.int64) if rng is None else rng.poisson(mean)
    person = np.repeat(np.arange(len(people)), count)
    if rng is None:
        number = np.arange(len(person)) - np.repeat(np.cumsum(count) - count, count) + 1
        since_entry = number * interval_days
    else:
        since_entry = rng.random(len(person)) * follow_up[person]
    on_step = np.maximum(np.floor(since_entry * AGE_STEPS_PER_DAY), 1) / AGE_STEPS_PER_DAY
    return person, people.entry_age_days[person] + on_step


def _with_rows(
    people: SequenceShard,
    owner: NDArray[np.int64],
    ages_days: NDArray[np.float64],
    tokens: NDArray[np.int32],
    values: NDArray[np.float32],
) -> SequenceShard:
    """Give people these rows, sorted by age; rows of one age stay in the order given."""
    order = np.lexsort((ages_days, owner))  # stable
    n_rows = np.bincount(owner, minlength=len(people))
    return replace(
        people,
        offsets=np.concatenate([[0], np.cumsum(n_rows)]),
        tokens=tokens[order],
        ages_days=ages_days[order],
        values=values[order],
    )
