"""Fit the reference rates from the sequences of a split, a lot of outcomes at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.cohort import DEATH_CODE
from data_schemas.dataset import OUTCOME_ROLES, Vocabulary
from pipelines.evaluation.array_types import IntArray
from pipelines.fit_reference_rates import FirstAges, fit_rates_of_outcomes
from pipelines.read_dataset import read_split_subjects
from pipelines.sequence_files import scan_split

_FIRSTS_IN_MEMORY = 1_000_000


def fit_rates_of_split(dataset: Path, split: str, vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Fit incidence and death rates by sex and age on the people of a split (schema `ReferenceRates`)."""
    outcomes = vocabulary.filter(Vocabulary.role.col.is_in(OUTCOME_ROLES))
    names = dict(outcomes.select(Vocabulary.token.name, Vocabulary.code.name).iter_rows())
    death = next(token for token, code in names.items() if code == DEATH_CODE)
    (deaths,) = (ages for _, ages in _read_firsts(dataset, split, death, death + 1))
    firsts = (
        (names[token], ages)
        for first, end in _lots_of_outcomes(dataset, split, outcomes[Vocabulary.token.name].to_numpy())
        for token, ages in _read_firsts(dataset, split, first, end)
    )
    return fit_rates_of_outcomes(read_split_subjects(dataset, split), deaths, firsts)


def _lots_of_outcomes(dataset: Path, split: str, tokens: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of tokens (first, end) with at most so many first occurrences as fit into memory, or one outcome."""
    n_firsts = np.zeros(tokens[-1] + 1, dtype=np.int64)
    for shard in scan_split(dataset, split):
        n_firsts += np.bincount(shard.first_tokens, minlength=n_firsts.size)
    lots = np.cumsum(n_firsts[tokens]) // _FIRSTS_IN_MEMORY
    starts = np.flatnonzero(np.diff(lots, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], tokens.size], strict=True):
        yield int(tokens[start]), int(tokens[stop - 1]) + 1


def _read_firsts(dataset: Path, split: str, first_token: int, end_token: int) -> Iterator[tuple[int, FirstAges]]:
    """Yield each outcome of a range of tokens with the rows of the people who have it, and their ages in days."""
    persons, tokens, ages = [], [], []
    n_people = 0
    for shard in scan_split(dataset, split):
        is_wanted = (shard.first_tokens >= first_token) & (shard.first_tokens < end_token)
        persons.append(shard.owner_of_first()[is_wanted] + n_people)
        tokens.append(shard.first_tokens[is_wanted])
        ages.append(shard.first_ages_days[is_wanted])
        n_people += len(shard)
    token = np.concatenate(tokens)
    order = np.argsort(token, kind="stable")
    ends = np.searchsorted(token[order], np.arange(first_token, end_token + 1))
    person, age = np.concatenate(persons)[order], np.concatenate(ages)[order]
    for outcome, start, stop in zip(range(first_token, end_token), ends[:-1], ends[1:], strict=True):
        yield outcome, (person[start:stop], age[start:stop])
