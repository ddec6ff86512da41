"""From ragged arrays to padded tensors: the one place where the tables' world meets torch.

B people, L events, Q queries, K outcomes, N intervals, P pieces of histories.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.dataset import PAD_TOKEN
from data_schemas.sequence_batch import FutureTargets, NextTargets, SequenceBatch
from pipelines.find_intervals import Intervals, Pieces, find_events, find_risk_sets
from pipelines.sequence_files import SequenceShard, ragged_positions
from pipelines.token_tables import TokenTables

_CLIP = 5.0  # standard deviations; a typing error moves a prediction no further than a very unusual value
_SHORTEST_GAP_YEARS = 0.5 / DAYS_PER_YEAR  # events are dated to the day: half a day stands for "the same or next day"


def pad_batch(
    people: SequenceShard, query_ages_days: NDArray[np.float64], tables: TokenTables, max_events: int
) -> SequenceBatch:
    """Pad the histories up to each person's last query, the latest `max_events` of them.

    Args:
        people: the B people of the batch.
        query_ages_days: [B,Q], NaN where a person has fewer queries; ascending.
        tables: scaling of values.
        max_events: longest history kept, cut after the landmark cut.
    """
    query_valid = np.isfinite(query_ages_days)
    queries = np.where(query_valid, query_ages_days, people.entry_age_days[:, None])
    n_seen = people.count_events_up_to(np.where(query_valid, queries, -np.inf).max(axis=1))
    n_kept = np.minimum(n_seen, max_events)
    rows = _pad_rows(people, np.arange(len(people)), people.offsets[:-1] + n_seen - n_kept, n_kept, tables)
    return replace(
        rows,
        query_ages_days=torch.from_numpy(queries.astype(np.float32)),
        query_valid=torch.from_numpy(query_valid),
    )


def future_targets(
    people: SequenceShard,
    query_ages_days: NDArray[np.float64],
    tables: TokenTables,
    query_weights: NDArray[np.float64] | None = None,
    divisor: float | None = None,
) -> FutureTargets:
    """Return what followed each query: time to the first occurrence, else to exit or death, and who was at risk.

    At risk: entry <= query < exit and no occurrence at or before the query. An occurrence after exit is none.
    Without `query_weights` [B,Q] every query counts 1. The `divisor` is that of the whole step; without one these
    people are the step.
    """
    n_people, n_queries = query_ages_days.shape
    shape = (n_people, n_queries, tables.n_outcomes)
    under_observation = (query_ages_days >= people.entry_age_days[:, None]) & (
        query_ages_days < people.exit_age_days[:, None]
    )
    time_days = np.broadcast_to((people.exit_age_days[:, None] - query_ages_days)[..., None], shape).copy()
    at_risk = np.broadcast_to(under_observation[..., None], shape).copy()
    happened = np.zeros(shape, dtype=bool)

    person, outcome = people.owner_of_first(), tables.outcome_of_token[people.first_tokens]
    first = people.first_ages_days
    seen = first <= people.exit_age_days[person]
    person, outcome, first = person[seen], outcome[seen], first[seen]
    after = first[:, None] > query_ages_days[person]  # [F,Q]
    time_days[person, :, outcome] = np.where(
        after, first[:, None] - query_ages_days[person], time_days[person, :, outcome]
    )
    happened[person, :, outcome] = after
    at_risk[person, :, outcome] &= after

    time_years = np.nan_to_num(time_days / DAYS_PER_YEAR)
    time_years = np.where(happened, np.maximum(time_years, _SHORTEST_GAP_YEARS), time_years)
    weights = np.ones((n_people, n_queries)) if query_weights is None else query_weights
    return FutureTargets(
        time_years=torch.from_numpy(np.where(at_risk, time_years, 0.0).astype(np.float32)),
        happened=torch.from_numpy(happened & at_risk),
        at_risk=torch.from_numpy(at_risk),
        query_weight=torch.from_numpy(weights.astype(np.float32)),
        divisor=float(np.isfinite(query_ages_days).sum()) if divisor is None else divisor,
    )


def pad_pieces(
    people: SequenceShard,
    intervals: Intervals,
    pieces: Pieces,
    chosen: NDArray[np.int64],
    tables: TokenTables,
    divisor: float,
) -> tuple[SequenceBatch, NextTargets]:
    """Pad some pieces of histories, with the intervals that are their targets, for mode next_token.

    Args:
        people: whole histories with a query row at entry.
        intervals: theirs, from `find_intervals`.
        pieces: from `cut_pieces`.
        chosen: the pieces of this batch, each once, in the order of its rows.
        tables: scaling of values, outcomes and which of them are recorded once.
        divisor: intervals of an average step.
    """
    batch = _pad_rows(people, pieces.person[chosen], pieces.first_row[chosen], pieces.n_rows[chosen], tables)
    place = np.full(len(pieces.person), -1)
    place[chosen] = np.arange(len(chosen))
    which = np.flatnonzero(place[pieces.of_interval] >= 0)
    intervals, piece = intervals.take(which), pieces.of_interval[which]

    at_risk = find_risk_sets(people, intervals, tables)
    event_interval, event_outcome = find_events(people, intervals, tables, at_risk)
    years = (intervals.end_age_days - intervals.start_age_days) / DAYS_PER_YEAR
    years[event_interval] = np.maximum(years[event_interval], _SHORTEST_GAP_YEARS)
    row = place[piece] * batch.tokens.shape[1] + intervals.row - pieces.first_row[piece]
    return batch, NextTargets(
        row=torch.from_numpy(row),
        interval_years=torch.from_numpy(years.astype(np.float32)),
        at_risk=torch.from_numpy(at_risk),
        event_interval=torch.from_numpy(event_interval),
        event_outcome=torch.from_numpy(event_outcome),
        divisor=divisor,
    )


def _pad_rows(
    people: SequenceShard,
    person: NDArray[np.int64],
    first_row: NDArray[np.int64],
    n_rows: NDArray[np.int64],
    tables: TokenTables,
) -> SequenceBatch:
    """Pad stretches of rows of the flat arrays, each of one person, without queries."""
    length = max(1, int(n_rows.max(initial=0)))
    sequence, place = np.repeat(np.arange(len(person)), n_rows), ragged_positions(np.zeros_like(n_rows), n_rows)
    source = ragged_positions(first_row, n_rows)
    tokens = np.full((len(person), length), PAD_TOKEN, dtype=np.int64)
    ages = np.zeros((len(person), length), dtype=np.float32)
    values = np.full((len(person), length), np.nan, dtype=np.float32)
    tokens[sequence, place] = people.tokens[source]
    ages[sequence, place] = people.ages_days[source]
    values[sequence, place] = _standardise(people.tokens[source], people.values[source], tables)
    return SequenceBatch(
        tokens=torch.from_numpy(tokens),
        ages_days=torch.from_numpy(ages),
        values=torch.from_numpy(values),
        valid=torch.from_numpy(tokens != PAD_TOKEN),
        sex=torch.from_numpy(people.sex[person].astype(np.int64)),
        entry_age_days=torch.from_numpy(people.entry_age_days[person].astype(np.float32)),
        exit_age_days=torch.from_numpy(people.exit_age_days[person].astype(np.float32)),
        query_ages_days=torch.zeros(len(person), 0),
        query_valid=torch.zeros(len(person), 0, dtype=torch.bool),
    )


def _standardise(tokens: NDArray[np.int32], values: NDArray[np.float32], tables: TokenTables) -> NDArray[np.float32]:
    scaled = (values - tables.mean[tokens]) / tables.std[tokens]
    return np.clip(scaled, -_CLIP, _CLIP).astype(np.float32)
