"""From ragged arrays to padded tensors: the one place where the tables' world meets torch.

B people, L events, Q queries, K outcomes.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.dataset import OUTCOME_ROLES, PAD_TOKEN, Vocabulary
from data_schemas.sequence_batch import FutureTargets, SequenceBatch
from pipelines.sequence_files import SequenceShard

_CLIP = 5.0  # standard deviations; a typing error moves a prediction no further than a very unusual value
_SHORTEST_GAP_YEARS = 0.5 / DAYS_PER_YEAR  # events are dated to the day: half a day stands for "the same or next day"


@dataclass(frozen=True)
class TokenTables:
    """What padding needs of the vocabulary. V tokens, K outcomes."""

    mean: NDArray[np.float64]  # [V]
    std: NDArray[np.float64]  # [V], NaN where a token carries no value
    outcome_of_token: NDArray[np.int64]  # [V] column of the outcome, -1 for a token that is none
    n_outcomes: int

    @staticmethod
    def of(vocabulary: pl.DataFrame) -> "TokenTables":
        """Read the tables off the vocabulary; outcomes are numbered in token order."""
        is_outcome = vocabulary[Vocabulary.role.name].is_in(OUTCOME_ROLES).to_numpy()
        column = np.where(is_outcome, np.cumsum(is_outcome) - 1, -1)
        mean, std = (
            vocabulary[name].fill_null(np.nan).to_numpy() for name in (Vocabulary.mean.name, Vocabulary.std.name)
        )
        return TokenTables(mean, std, column.astype(np.int64), int(is_outcome.sum()))


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
    kept = np.minimum(n_seen, max_events)
    length = max(1, int(kept.max(initial=0)))

    row = np.repeat(np.arange(len(people)), kept)
    place = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    source = np.repeat(people.offsets[:-1] + n_seen - kept, kept) + place

    tokens = np.full((len(people), length), PAD_TOKEN, dtype=np.int64)
    ages = np.zeros((len(people), length), dtype=np.float32)
    values = np.full((len(people), length), np.nan, dtype=np.float32)
    tokens[row, place] = people.tokens[source]
    ages[row, place] = people.ages_days[source]
    values[row, place] = _standardise(people.tokens[source], people.values[source], tables)
    return SequenceBatch(
        tokens=torch.from_numpy(tokens),
        ages_days=torch.from_numpy(ages),
        values=torch.from_numpy(values),
        valid=torch.from_numpy(tokens != PAD_TOKEN),
        sex=torch.from_numpy(people.sex.astype(np.int64)),
        entry_age_days=torch.from_numpy(people.entry_age_days.astype(np.float32)),
        exit_age_days=torch.from_numpy(people.exit_age_days.astype(np.float32)),
        query_ages_days=torch.from_numpy(queries.astype(np.float32)),
        query_valid=torch.from_numpy(query_valid),
    )


def future_targets(
    people: SequenceShard,
    query_ages_days: NDArray[np.float64],
    tables: TokenTables,
    query_weights: NDArray[np.float64] | None = None,
) -> FutureTargets:
    """Return what followed each query: time to the first occurrence, else to exit or death, and who was at risk.

    At risk: entry <= query < exit and no occurrence at or before the query. An occurrence after exit is none.
    Without `query_weights` [B,Q] every query counts 1.
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
    )


def _standardise(tokens: NDArray[np.int32], values: NDArray[np.float32], tables: TokenTables) -> NDArray[np.float32]:
    scaled = (values - tables.mean[tokens]) / tables.std[tokens]
    return np.clip(scaled, -_CLIP, _CLIP).astype(np.float32)
