"""From landmarks to what happened after them: time and kind of the first event, for people at risk."""

import re

import polars as pl

from data_schemas.age_units import round_age_days, years_to_days
from data_schemas.cohort import DEATH_CODE, Subjects
from data_schemas.errors import UsageError
from data_schemas.results import CENSORED, COMPETING_DEATH, OUTCOME, FirstOccurrences, Outcomes

LANDMARK_NAMES = "`entry`, `entry+5y` (any number of years), `age60` (any age)"
_NAME = re.compile(r"entry(?:\+(?P<after_years>\d+(?:\.\d+)?)y)?|age(?P<age_years>\d+(?:\.\d+)?)")
_DEATH_AGE = "death_age_days"


def landmarks_at(subjects: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return subject_id and landmark_age_days of everyone under observation at a named landmark, in subject order.

    `entry`; `entry+5y`, 5 × 365.25 days later, for people with follow-up beyond it; `age60`, for people observed from
    that age or earlier until after it. Raises UsageError for any other name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"landmark '{name}' is not one of {LANDMARK_NAMES}")
    if match["age_years"] is None:
        after_days = round_age_days(years_to_days(float(match["after_years"] or 0)))
        age_days = Subjects.entry_age_days.col + after_days
    else:
        age_days = pl.lit(round_age_days(years_to_days(float(match["age_years"]))))
    return subjects.select(
        Subjects.subject_id.name,
        Subjects.entry_age_days.name,
        Subjects.exit_age_days.name,
        age_days.alias(Outcomes.landmark_age_days.name),
    ).filter(is_observed()).select(Subjects.subject_id.name, Outcomes.landmark_age_days.name)  # fmt: skip


def is_observed() -> pl.Expr:
    """Say whether a landmark lies inside follow-up: entry ≤ landmark < exit."""
    landmark = Outcomes.landmark_age_days.col
    return (Subjects.entry_age_days.col <= landmark) & (landmark < Subjects.exit_age_days.col)


def find_outcomes(
    subjects: pl.DataFrame, first_occurrences: pl.DataFrame, landmarks: pl.DataFrame, outcomes: list[str]
) -> pl.DataFrame:
    """Follow people from their landmarks to the first of outcome, death and end of follow-up (schema `Outcomes`).

    `landmarks` has subject_id and landmark_age_days; a person may have several. At risk are the living under
    observation (entry ≤ landmark < exit) without that outcome at or before the landmark. On one day the outcome comes
    before death and death before the end of follow-up; what is recorded after exit does not count. Death as outcome
    has no competing event. Rows are in the order of landmarks × outcomes.
    """
    subject_id = Subjects.subject_id.name
    at_landmark = (
        landmarks.select(subject_id, Outcomes.landmark_age_days.name)
        .join(_follow_up(subjects, first_occurrences), on=subject_id, how="inner", maintain_order="left")
        .filter(is_observed())
        .filter(pl.col(_DEATH_AGE).is_null() | (pl.col(_DEATH_AGE) > Outcomes.landmark_age_days.col))
    )
    wanted = pl.DataFrame({Outcomes.outcome.name: outcomes}, schema={Outcomes.outcome.name: pl.String})
    first = FirstOccurrences.first_age_days.col
    exit_age = Subjects.exit_age_days.col
    death_age = pl.when(pl.col(_DEATH_AGE) <= exit_age).then(pl.col(_DEATH_AGE))
    end_age = pl.min_horizontal(death_age, exit_age)
    is_outcome = (first <= end_age).fill_null(value=False)
    return (
        at_landmark.join(wanted, how="cross")
        .join(first_occurrences, on=[subject_id, Outcomes.outcome.name], how="left", maintain_order="left")
        .filter(first.is_null() | (first > Outcomes.landmark_age_days.col))
        .select(
            subject_id,
            Outcomes.landmark_age_days.name,
            Outcomes.outcome.name,
            (pl.when(is_outcome).then(first).otherwise(end_age) - Outcomes.landmark_age_days.col).alias(
                Outcomes.time_days.name
            ),
            pl.when(is_outcome)
            .then(OUTCOME)
            .when(death_age.is_not_null())
            .then(COMPETING_DEATH)
            .otherwise(CENSORED)
            .cast(pl.Int8)
            .alias(Outcomes.status.name),
        )
    )


def _follow_up(subjects: pl.DataFrame, first_occurrences: pl.DataFrame) -> pl.DataFrame:
    """Return entry, exit and age at death (null: not recorded) of each subject."""
    deaths = first_occurrences.filter(FirstOccurrences.outcome.col == DEATH_CODE).select(
        Subjects.subject_id.name, FirstOccurrences.first_age_days.col.alias(_DEATH_AGE)
    )
    return subjects.select(
        Subjects.subject_id.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name
    ).join(deaths, on=Subjects.subject_id.name, how="left")  # fmt: skip
