"""Turn events into sequences: one row a person with the list of tokens, ages and values, and the first occurrences.

Training, evaluation and scoring all encode people through `build_sequences`.
"""

import polars as pl

from data_schemas.age_units import round_to_age_step
from data_schemas.cohort import SEXES, Events, Subjects
from data_schemas.dataset import COVARIATE, DEATH, DISEASE, Sequences, Vocabulary
from data_schemas.results import FirstOccurrences
from pipelines.find_first_occurrences import find_first_tokens

_ORDER_ON_ONE_DAY = {COVARIATE: 0, DISEASE: 1, DEATH: 2}
_RANK = "rank"  # working column: the order of codes on one day


def build_sequences(subjects: pl.DataFrame, events: pl.LazyFrame, vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Return one row a subject (`Sequences`), in the order of `subjects`; who has no events has empty lists.

    Codes that are not in the vocabulary are left out; count them with `count_unknown_codes`.
    """
    lists = [_event_lists(events, vocabulary), _first_occurrence_lists(find_first_tokens(events, vocabulary))]
    people = subjects.lazy().select(
        Subjects.subject_id.col,
        Subjects.sex.col.replace_strict({sex: row for row, sex in enumerate(SEXES)}, return_dtype=pl.Int8),
        round_to_age_step(Subjects.entry_age_days.col),
        round_to_age_step(Subjects.exit_age_days.col),
    )
    for table in lists:
        people = people.join(table, on=Subjects.subject_id.name, how="left", maintain_order="left")
    empty_if_none = [
        pl.col(name).fill_null([])
        for name in Sequences.column_names()
        if isinstance(Sequences.columns()[name].dtype, pl.List)
    ]
    return people.with_columns(empty_if_none).select(Sequences.column_names()).collect()


def count_unknown_codes(events: pl.LazyFrame, vocabulary: pl.DataFrame) -> int:
    """Count the events whose code the vocabulary does not know."""
    known = vocabulary.select(Vocabulary.code.name).lazy()
    return int(events.join(known, on=Events.code.name, how="anti").select(pl.len()).collect().item())


def _event_lists(events: pl.LazyFrame, vocabulary: pl.DataFrame) -> pl.LazyFrame:
    order = Vocabulary.role.col.replace_strict(_ORDER_ON_ONE_DAY, default=None, return_dtype=pl.Int8)
    encoded = vocabulary.select(
        Vocabulary.code.col,
        Vocabulary.token.col.cast(pl.Int32),
        pl.struct(order, Vocabulary.token.col).rank("ordinal").alias(_RANK),
    )
    return (
        events.join(encoded.lazy(), on=Events.code.name, how="inner")
        .with_columns(round_to_age_step(Events.age_days.col))
        .sort(Events.subject_id.col, Events.age_days.col, _RANK, Events.numeric_value.col)
        .group_by(Events.subject_id.name, maintain_order=True)
        .agg(
            Vocabulary.token.col.alias(Sequences.tokens.name),
            Events.age_days.col.alias(Sequences.ages_days.name),
            # NaN, not null: an array with nulls could not be mapped into memory as it is
            Events.numeric_value.col.cast(pl.Float32).fill_null(float("nan")).alias(Sequences.values.name),
        )
    )


def _first_occurrence_lists(firsts: pl.LazyFrame) -> pl.LazyFrame:
    return (
        firsts.sort(FirstOccurrences.subject_id.name, Vocabulary.token.name)
        .group_by(FirstOccurrences.subject_id.name, maintain_order=True)
        .agg(
            Vocabulary.token.col.cast(pl.Int32).alias(Sequences.first_tokens.name),
            round_to_age_step(FirstOccurrences.first_age_days.col).alias(Sequences.first_ages_days.name),
        )
    )
