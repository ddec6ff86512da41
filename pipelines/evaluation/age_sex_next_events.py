"""What incidence by age and sex says of the next event: the reference of next-event quality.

Every cause at risk has the rate of people of the same age and sex in the training split, whatever else has happened.

S sexes, K outcomes, B one-year bands of age.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_YEARS
from data_schemas.cohort import SEXES, Subjects
from data_schemas.dataset import ReferenceRates
from data_schemas.evaluation_tables import IntervalEvents, Intervals
from data_schemas.results import FirstOccurrences
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.evaluation.next_event_quality import NextEvents

# A rate of 0 would make an event impossible: it is at least this share of the rate of the whole population.
SMALLEST_SHARE = 0.01
_SUBJECT = Intervals.subject_id.name
_N_BANDS = int(MAX_AGE_YEARS) + 1
_ROW = "row"  # working column


@dataclass(frozen=True)
class _Rates:
    """Rates by sex, outcome and year of age, constant within a year."""

    per_year: FloatArray  # [S, K, B]
    cumulative: FloatArray  # [S, K, B + 1] up to the start of each year

    def at(self, sex: IntArray, outcome: IntArray, age_years: FloatArray) -> FloatArray:
        """Return the rate at an age."""
        return self.per_year[sex, outcome, _band(age_years)]

    def between(self, sex: IntArray, outcome: IntArray, start: FloatArray, end: FloatArray) -> FloatArray:
        """Return the rate added up between two ages."""
        return self._until(sex, outcome, end) - self._until(sex, outcome, start)

    def _until(self, sex: IntArray, outcome: IntArray, age_years: FloatArray) -> FloatArray:
        band = _band(age_years)
        before: FloatArray = self.cumulative[sex, outcome, band]
        return before + self.per_year[sex, outcome, band] * (age_years - band)


def age_sex_next_events(
    found: NextEvents,
    subjects: pl.DataFrame,
    first_occurrences: pl.DataFrame,
    rates: pl.DataFrame,
    population_rate_per_year: Mapping[str, float],
    *,
    recorded_once: Sequence[str] | None = None,
) -> NextEvents:
    """Return the same intervals and events with the hazards of age and sex in place of the model's.

    Args:
        found: what a model says; only people, ages and outcomes are read.
        subjects: subject_id and sex.
        first_occurrences: which causes have happened and are at risk no more.
        rates: schema `ReferenceRates`, of the training split.
        population_rate_per_year: rate of each outcome at all ages (`Vocabulary.log_rate_per_year`): the outcomes there
            are, the rate of those without rows in `rates`, and what keeps a rate of 0 from making an event impossible.
        recorded_once: outcomes that leave the risk set once they have happened; None: all of them.
    """
    outcomes = list(population_rate_per_year)
    table = _read_rates(rates, population_rate_per_year)
    sexes = subjects.select(
        _SUBJECT, Subjects.sex.col.replace_strict(SEXES, range(len(SEXES)), return_dtype=pl.Int64)
    )  # fmt: skip
    gone = first_occurrences.filter(
        FirstOccurrences.outcome.col.is_in(outcomes if recorded_once is None else recorded_once)
    )
    return NextEvents(
        _reprice_intervals(found.intervals, sexes, gone, table, outcomes),
        _reprice_events(found.events, sexes, gone, table, outcomes),
    )


def _reprice_intervals(
    intervals: pl.DataFrame, sexes: pl.DataFrame, gone: pl.DataFrame, table: _Rates, outcomes: Sequence[str]
) -> pl.DataFrame:
    """Return the intervals with Σ_k H_k over the outcomes that have not happened by their start."""
    rows = intervals.join(sexes, on=_SUBJECT, how="left", maintain_order="left").with_row_index(_ROW)
    sex, start, end = (
        _sex_of(rows),
        _years(rows, Intervals.start_age_days.name),
        _years(rows, Intervals.end_age_days.name),
    )
    every = table.per_year.sum(axis=1, keepdims=True), table.cumulative.sum(axis=1, keepdims=True)
    total = _Rates(*every).between(sex, np.zeros_like(sex), start, end)
    happened = rows.join(gone, on=_SUBJECT).filter(
        FirstOccurrences.first_age_days.col <= Intervals.start_age_days.col
    )  # fmt: skip
    lost = table.between(
        _sex_of(happened),
        _outcome_of(happened, outcomes),
        _years(happened, Intervals.start_age_days.name),
        _years(happened, Intervals.end_age_days.name),
    )
    total -= np.bincount(happened[_ROW].to_numpy(), weights=lost, minlength=rows.height)
    return intervals.with_columns(pl.Series(Intervals.total_hazard.name, np.maximum(total, 0.0)))


def _reprice_events(
    events: pl.DataFrame, sexes: pl.DataFrame, gone: pl.DataFrame, table: _Rates, outcomes: Sequence[str]
) -> pl.DataFrame:
    """Return the events with log h_k and log Σ_k h_k over the outcomes that had not happened before."""
    rows = events.join(sexes, on=_SUBJECT, how="left", maintain_order="left").with_row_index(_ROW)
    sex, age = _sex_of(rows), _years(rows, IntervalEvents.age_days.name)
    own = table.at(sex, _outcome_of(rows, outcomes), age)
    total = table.per_year.sum(axis=1)[sex, _band(age)]
    happened = rows.drop(IntervalEvents.outcome.name).join(gone, on=_SUBJECT).filter(
        FirstOccurrences.first_age_days.col < IntervalEvents.age_days.col
    )  # fmt: skip
    lost = table.at(_sex_of(happened), _outcome_of(happened, outcomes), _years(happened, IntervalEvents.age_days.name))
    total = total - np.bincount(happened[_ROW].to_numpy(), weights=lost, minlength=rows.height)
    return events.with_columns(
        pl.Series(IntervalEvents.log_hazard.name, np.log(own)),
        pl.Series(IntervalEvents.log_total_hazard.name, np.log(np.maximum(total, own))),
    )


def _read_rates(rates: pl.DataFrame, population_rate_per_year: Mapping[str, float]) -> _Rates:
    """Spread the bands of the table over years of age; what it does not hold has the rate of the population."""
    population = np.array(list(population_rate_per_year.values()))
    per_year = np.broadcast_to(population[:, None], (len(SEXES), population.size, _N_BANDS)).copy()
    place = {outcome: number for number, outcome in enumerate(population_rate_per_year)}
    known = rates.filter(ReferenceRates.outcome.col.is_in(list(place))).sort(ReferenceRates.age_from_years.name)
    for (outcome, sex), bands in known.partition_by(
        ReferenceRates.outcome.name, ReferenceRates.sex.name, as_dict=True, maintain_order=True
    ).items():
        starts = bands[ReferenceRates.age_from_years.name].to_numpy()
        band = np.searchsorted(starts, np.arange(_N_BANDS), side="right") - 1
        floor = SMALLEST_SHARE * population[place[outcome]]
        rate = np.maximum(bands[ReferenceRates.rate_per_year.name].to_numpy()[band], floor)
        per_year[SEXES.index(sex), place[outcome]] = rate
    cumulative = np.concatenate([np.zeros((*per_year.shape[:2], 1)), np.cumsum(per_year, axis=2)], axis=2)
    return _Rates(per_year, cumulative)


def _band(age_years: FloatArray) -> IntArray:
    return np.minimum(np.floor(age_years), _N_BANDS - 1).astype(np.int64)


def _years(rows: pl.DataFrame, column: str) -> FloatArray:
    years: FloatArray = rows[column].to_numpy() / DAYS_PER_YEAR
    return years


def _sex_of(rows: pl.DataFrame) -> IntArray:
    return rows[Subjects.sex.name].to_numpy().astype(np.int64)


def _outcome_of(rows: pl.DataFrame, outcomes: Sequence[str]) -> IntArray:
    places = rows[IntervalEvents.outcome.name].replace_strict(outcomes, range(len(outcomes)), return_dtype=pl.Int64)
    return places.to_numpy().astype(np.int64)
