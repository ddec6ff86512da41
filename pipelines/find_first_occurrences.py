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
    return (
        events.join(_outcomes_of_codes(vocabulary).lazy(), on=Events.code.name, how="inner")
        .group_by(Events.subject_id.name, FirstOccurrences.outcome.name)
        .agg(Events.age_days.col.min().alias(FirstOccurrences.first_age_days.name))
        .sort(Events.subject_id.name, FirstOccurrences.outcome.name)
    )


def _outcomes_of_codes(vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Return code → outcome: itself for a disease or death, and each group that the code is a member of."""
    outcome = FirstOccurrences.outcome.name
    single = vocabulary.filter(
        Vocabulary.role.col.is_in([role for role in OUTCOME_ROLES if role != GROUP])
    ).select(Vocabulary.code.col, Vocabulary.code.col.alias(outcome))  # fmt: skip
    members = (
        vocabulary.filter(Vocabulary.role.col == GROUP)
        .select(Vocabulary.members.col, Vocabulary.code.col.alias(outcome))
        .explode(Vocabulary.members.name, empty_as_null=False)
        .select(Vocabulary.members.col.alias(Events.code.name), outcome)
    )
    return pl.concat([single, members])
