"""Read the people of a prepared dataset back as tables: what evaluation and its references work on."""

from pathlib import Path

import polars as pl

from data_schemas.cohort import SEXES, Events, Subjects
from data_schemas.dataset import (
    OUTCOME_ROLES_OF_MODE,
    REFERENCE_FILE,
    SEQUENCES_FOLDER,
    VOCABULARY_FILE,
    Sequences,
    Vocabulary,
)
from data_schemas.results import FirstOccurrences
from pipelines.tables_on_disk import require_file

_NOT_PREPARED = "not found; make a dataset with `deephealth prepare`"


def read_vocabulary(dataset: Path) -> pl.DataFrame:
    """Read the vocabulary of a dataset or checkpoint, in token order."""
    return pl.read_parquet(require_file(dataset / VOCABULARY_FILE, _NOT_PREPARED), glob=False)


def read_reference_rates(dataset: Path) -> pl.DataFrame:
    """Read the incidence by sex and age of the training split, of a dataset or checkpoint."""
    return pl.read_parquet(require_file(dataset / REFERENCE_FILE, _NOT_PREPARED), glob=False)


def outcome_names(vocabulary: pl.DataFrame, mode: str) -> list[str]:
    """List the outcomes of a mode in token order: the columns of every prediction; next_token knows no groups."""
    is_outcome = Vocabulary.role.col.is_in(OUTCOME_ROLES_OF_MODE[mode])
    return vocabulary.filter(is_outcome)[Vocabulary.code.name].to_list()


def read_split_subjects(dataset: Path, split: str) -> pl.DataFrame:
    """Return the people of a split with sex and observed ages."""
    sex = Sequences.sex.col.replace_strict(dict(enumerate(SEXES)), return_dtype=pl.String)
    return (
        _scan_sequences(dataset, split)
        .select(
            Sequences.subject_id.col,
            sex.alias(Subjects.sex.name),
            Sequences.entry_age_days.col,
            Sequences.exit_age_days.col,
        )
        .collect()
    )


def scan_split_events(dataset: Path, split: str, vocabulary: pl.DataFrame) -> pl.LazyFrame:
    """Return the events of a split, one row an event, with their codes."""
    lists = (Sequences.tokens.name, Sequences.ages_days.name, Sequences.values.name)
    return (
        _scan_sequences(dataset, split)
        .select(Sequences.subject_id.name, *lists)
        .explode(*lists, empty_as_null=False)
        .select(
            Sequences.subject_id.col,
            Sequences.ages_days.col.alias(Events.age_days.name),
            _code_of(Sequences.tokens.col, vocabulary).alias(Events.code.name),
            Sequences.values.col.cast(pl.Float64).fill_nan(None).alias(Events.numeric_value.name),
        )
    )


def read_split_first_occurrences(dataset: Path, split: str, vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Return the first occurrences of a split, one row a person × outcome."""
    lists = (Sequences.first_tokens.name, Sequences.first_ages_days.name)
    return (
        _scan_sequences(dataset, split)
        .select(Sequences.subject_id.name, *lists)
        .explode(*lists, empty_as_null=False)
        .select(
            Sequences.subject_id.col,
            _code_of(Sequences.first_tokens.col, vocabulary).alias(FirstOccurrences.outcome.name),
            Sequences.first_ages_days.col.alias(FirstOccurrences.first_age_days.name),
        )
        .collect()
    )


def _scan_sequences(dataset: Path, split: str) -> pl.LazyFrame:
    folder = require_file(dataset / SEQUENCES_FOLDER / split, _NOT_PREPARED)
    return pl.scan_ipc(sorted(folder.glob("*.arrow")), glob=False)


def _code_of(token: pl.Expr, vocabulary: pl.DataFrame) -> pl.Expr:
    codes = dict(zip(vocabulary[Vocabulary.token.name], vocabulary[Vocabulary.code.name], strict=True))
    return token.cast(pl.Int64).replace_strict(codes, return_dtype=pl.String)
