"""From landmarks to what happened after them: time and kind of the first event, for people at risk."""

import re
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import polars as pl

from data_schemas.age_units import MAX_AGE_YEARS, round_age_days, years_to_days
from data_schemas.cohort import DEATH_CODE, SUBJECTS_FILE, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.evaluation_tables import PeopleLeftOut
from data_schemas.results import CENSORED, COMPETING_DEATH, OUTCOME, FirstOccurrences, Outcomes
from pipelines.small_counts import withhold_small, withhold_small_among

LANDMARK_NAMES = (
    "`entry`, `entry+5y` and `exit-5y` (any number of years), `age60` (any age), `ages40-80by5` (several ages), "
    "`2015-01-01` (any date; needs birth dates)"
)
_YEARS = r"\d+(?:\.\d+)?"
_NAME = re.compile(
    rf"(?P<entry>entry)(?:\+(?P<after>{_YEARS})y)?|exit-(?P<before>{_YEARS})y|age(?P<age>{_YEARS})"
    rf"|ages(?P<first>{_YEARS})-(?P<last>{_YEARS})by(?P<step>{_YEARS})|(?P<date>\d{{4}}-\d\d-\d\d)"
)
_DEATH_AGE = "death_age_days"


def landmarks_at(subjects: pl.DataFrame, name: str, first_occurrences: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return subject_id and landmark_age_days of everyone under observation at a named landmark, in subject order.

    - `entry`; `entry+5y`, 5 × 365.25 days later, for people with follow-up beyond it;
    - `age60`, for people observed from that age or earlier until after it;
    - `ages40-80by5`: the ages 40, 45 … 80, a row for each of them that lies inside follow-up. One person then counts
      several times, so whatever judges these rows must treat the person as the unit;
    - `2015-01-01`: the age on that day; needs a birth date of everyone;
    - `exit-5y`: 5 × 365.25 days before the end of follow-up. The landmark is placed by the future. Where exit is
      death, everyone who dies does so exactly 5 years later, and nobody can be scored this way in advance; so it is
      used only where exit is the last contact, and people who died are left out (`first_occurrences` tells who).
      What remains are risks of people known to survive: discrimination of diseases is useful, absolute risks are too
      low and death cannot be judged at all. Prefer any other landmark where one is possible.

    Raises:
        UsageError: any other name, ages out of order or above 120 years, or a day that does not exist.
        InputContractError: a date is asked for and people have no birth date.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"landmark '{name}' is not one of {LANDMARK_NAMES}")
    if match["before"] is not None:
        subjects = _without_deaths(subjects, first_occurrences)
    ages = pl.concat_list(_landmark_ages(subjects, name, match))
    return (
        subjects.select(
            Subjects.subject_id.name,
            Subjects.entry_age_days.name,
            Subjects.exit_age_days.name,
            ages.alias(Outcomes.landmark_age_days.name),
        )
        .explode(Outcomes.landmark_age_days.name, empty_as_null=False)
        .filter(is_observed())
        .select(Subjects.subject_id.name, Outcomes.landmark_age_days.name)
    )


def _landmark_ages(subjects: pl.DataFrame, name: str, match: re.Match[str]) -> list[pl.Expr]:
    """Return the ages in days, one expression a landmark of a person."""
    if match["entry"]:
        return [Subjects.entry_age_days.col + _days(float(match["after"] or 0))]
    if match["before"]:
        return [Subjects.exit_age_days.col - _days(float(match["before"]))]
    if match["date"]:
        return [_age_on(subjects, name)]
    years = (
        [float(match["age"])]
        if match["age"]
        else _grid(name, *(float(match[key]) for key in ("first", "last", "step")))
    )
    if max(years) > MAX_AGE_YEARS:
        raise UsageError(f"landmark '{name}': ages are in years, at most {MAX_AGE_YEARS:g}")
    return [pl.lit(_days(age)) for age in years]


def _days(years: float) -> float:
    return round_age_days(years_to_days(years))


def _grid(name: str, first: float, last: float, step: float) -> list[float]:
    """Return first, first + step, … up to and with last."""
    if step == 0 or first > last:
        raise UsageError(f"landmark '{name}': expected ages from low to high and a step above 0, as in ages40-80by5")
    return [float(age) for age in np.round(np.arange(first, last + step * 1e-6, step), 6)]


def _age_on(subjects: pl.DataFrame, day: str) -> pl.Expr:
    """Return the age on a day, in days."""
    try:
        on = date.fromisoformat(day)
    except ValueError:
        raise UsageError(f"landmark '{day}': there is no such day") from None
    birth_date = Subjects.birth_date.name
    without = subjects[birth_date].null_count() if birth_date in subjects.columns else subjects.height
    if without:
        rule = "people have no birth date; a landmark given as a date needs one"
        raise InputContractError([Violation(SUBJECTS_FILE, birth_date, rule, without)])
    return (pl.lit(on) - Subjects.birth_date.col).dt.total_days().cast(pl.Float64)


def _without_deaths(subjects: pl.DataFrame, first_occurrences: pl.DataFrame | None) -> pl.DataFrame:
    """Keep people whose exit is the last contact, not death."""
    if first_occurrences is None:
        raise ValueError("a landmark before exit needs first_occurrences: they tell who died")
    deaths = _deaths(first_occurrences)
    died = subjects.join(deaths, on=Subjects.subject_id.name).filter(pl.col(_DEATH_AGE) <= Subjects.exit_age_days.col)
    return subjects.join(died, on=Subjects.subject_id.name, how="anti", maintain_order="left")


def is_observed() -> pl.Expr:
    """Say whether a landmark lies inside follow-up: entry ≤ landmark < exit."""
    landmark = Outcomes.landmark_age_days.col
    return (Subjects.entry_age_days.col <= landmark) & (landmark < Subjects.exit_age_days.col)


def find_outcomes(
    subjects: pl.DataFrame,
    first_occurrences: pl.DataFrame,
    landmarks: pl.DataFrame,
    outcomes: Sequence[str],
    *,
    sex_of_outcome: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Follow people from their landmarks to the first of outcome, death and end of follow-up (schema `Outcomes`).

    `landmarks` has subject_id and landmark_age_days; a person may have several. At risk are the living under
    observation (entry ≤ landmark < exit) without that outcome at or before the landmark; where an outcome belongs to
    one sex (`sex_of_outcome`: outcome → sex, `subjects` then needs the column), only people recorded with that sex.
    On one day the outcome comes before death and death before the end of follow-up; what is recorded after exit does
    not count. Death as outcome has no competing event. Rows are in the order of landmarks × outcomes.
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
        .filter(_is_of_its_sex(sex_of_outcome or {}))
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


def _is_of_its_sex(sex_of_outcome: Mapping[str, str]) -> pl.Expr:
    if not sex_of_outcome:
        return pl.lit(value=True)
    needed = Outcomes.outcome.col.replace_strict(dict(sex_of_outcome), default=None, return_dtype=pl.String)
    return needed.is_null() | (needed == Subjects.sex.col)


def leave_out_gap(outcomes: pl.DataFrame, gap_days: float) -> pl.DataFrame:
    """Keep rows of `Outcomes` that go on beyond a gap after the landmark; times stay those since the landmark.

    Events in the first weeks may be what brought a person to the landmark, or lie behind it because of late recording.
    With a gap, people are at risk from landmark + gap on: who has the outcome, dies or leaves follow-up in the gap
    (time ≤ gap) is not judged. As everybody is then under observation from the gap to the end, estimates that use
    these times are of the risk between gap and horizon given that nothing happened in the gap.
    """
    return outcomes.filter(Outcomes.time_days.col > gap_days) if gap_days > 0 else outcomes


def count_gap(outcomes: pl.DataFrame, landmark: str, gap_days: float) -> pl.DataFrame:
    """Count per outcome whom `leave_out_gap` leaves out, and why (schema `PeopleLeftOut`), outcomes in order."""
    status = Outcomes.status.col
    in_gap = Outcomes.time_days.col <= gap_days if gap_days > 0 else pl.lit(value=False)
    counted = outcomes.group_by(Outcomes.outcome.name, maintain_order=True).agg(
        pl.len().alias(PeopleLeftOut.n_at_risk.name),
        (in_gap & (status == OUTCOME)).sum().alias(PeopleLeftOut.n_with_outcome.name),
        (in_gap & (status == COMPETING_DEATH)).sum().alias(PeopleLeftOut.n_died.name),
        (in_gap & (status == CENSORED)).sum().alias(PeopleLeftOut.n_not_followed.name),
    )
    rows = [
        (outcome, landmark, gap_days, withhold_small(n_at_risk), *withhold_small_among(left_out))
        for outcome, n_at_risk, *left_out in counted.iter_rows()
    ]
    return pl.DataFrame(rows, schema=PeopleLeftOut.create_empty().schema, orient="row")


def _follow_up(subjects: pl.DataFrame, first_occurrences: pl.DataFrame) -> pl.DataFrame:
    """Return sex (where it is given), entry, exit and age at death (null: not recorded) of each subject."""
    wanted = (Subjects.subject_id.name, Subjects.sex.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name)
    return subjects.select(name for name in wanted if name in subjects.columns).join(
        _deaths(first_occurrences), on=Subjects.subject_id.name, how="left"
    )


def _deaths(first_occurrences: pl.DataFrame) -> pl.DataFrame:
    """Return subject_id and age at death of the people who died."""
    return first_occurrences.filter(FirstOccurrences.outcome.col == DEATH_CODE).select(
        Subjects.subject_id.name, FirstOccurrences.first_age_days.col.alias(_DEATH_AGE)
    )
