"""Find the age at which each outcome first happened to each person, from the full history."""

import polars as pl

from data_schemas.cohort import Events
from data_schemas.dataset import GROUP, OUTCOME_ROLES, Vocabulary
from data_schemas.results import FirstOccurrences


def find_first_occurrences(events: pl.LazyFrame, vocabulary: pl.DataFrame) -> pl.LazyFrame:
    """Return one row a person × outcome that ever happened (`FirstOccurrences`), sorted by person and outcome.

    A group happens with the first of any of its members; members may be outcomes themselves, input-only codes, or
    codes too rare for the vocabulary.
    """
    names = vocabulary.lazy().select(Vocabulary.token.col, Vocabulary.code.col.alias(FirstOccurrences.outcome.name))
    return (
        find_first_tokens(events, vocabulary)
        .join(names, on=Vocabulary.token.name, how="inner")
        .select(FirstOccurrences.column_names())
        .sort(Events.subject_id.name, FirstOccurrences.outcome.name)
    )


def find_first_tokens(events: pl.LazyFrame, vocabulary: pl.DataFrame) -> pl.LazyFrame:
    """Return the same with the token of the outcome in place of its name, in no order."""
    return (
        events.select(Events.subject_id.name, Events.code.name, Events.age_days.name)
        .join(_outcomes_of_codes(vocabulary).lazy(), on=Events.code.name, how="inner")
        .group_by(Events.subject_id.name, Vocabulary.token.name)
        .agg(Events.age_days.col.min().alias(FirstOccurrences.first_age_days.name))
    )


def _outcomes_of_codes(vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Return code → outcome (token): itself for a disease or death, and each group that the code is a member of."""
    single = vocabulary.filter(
        Vocabulary.role.col.is_in([role for role in OUTCOME_ROLES if role != GROUP])
    ).select(Vocabulary.code.col, Vocabulary.token.col)  # fmt: skip
    members = (
        vocabulary.filter(Vocabulary.role.col == GROUP)
        .select(Vocabulary.members.col, Vocabulary.token.col)
        .explode(Vocabulary.members.name, empty_as_null=False)
        .select(Vocabulary.members.col.alias(Events.code.name), Vocabulary.token.col)
    )
    return pl.concat([single, members])
