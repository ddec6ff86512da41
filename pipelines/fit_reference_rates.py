"""The reference every model must beat: risk of people of the same sex and age in the training split.

Incidence on the age scale with delayed entry, prevalent cases excluded, one rate a band of a year of age; the risk
that follows, with death competing, is in closed form within a band.

n people, B bands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_YEARS
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.dataset import ReferenceRates
from data_schemas.results import FirstOccurrences, Outcomes, Risks
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray

BAND_YEARS = 1.0
# Fewer years at risk than this say little about a rate: the band is pooled with its neighbours.
SMALLEST_EXPOSURE_YEARS = 50.0
NEVER = np.inf


@dataclass(frozen=True)
class AgeBands:
    """Rates by age for one outcome and sex; band b reaches from `from_years[b]` to the next, the last is open."""

    from_years: FloatArray  # [B], the first is 0
    rate_per_year: FloatArray  # [B]
    death_rate_per_year: FloatArray  # [B] among people free of the outcome; 0 where death is the outcome


@dataclass(frozen=True)
class _FollowUp:
    """Ages (years) between which people were at risk of an outcome, and what ended it."""

    entry: FloatArray  # [n]
    end: FloatArray  # [n]
    had_outcome: BoolArray  # [n]
    died: BoolArray  # [n], before the outcome

    def years(self) -> float:
        """Return the person-years at risk."""
        return float((self.end - self.entry).sum())


def fit_reference_rates(
    subjects: pl.DataFrame, first_occurrences: pl.DataFrame, outcomes: Sequence[str]
) -> pl.DataFrame:
    """Fit incidence and death rates by sex and age on the training split (schema `ReferenceRates`).

    Rate of a band = Nelson–Aalen increments Σ dN/Y at the exact ages of events within it, over the years of it that
    anyone was at risk. Y counts people who entered before that age, have not left, and did not have the outcome at
    entry. Bands of one year with under 50 person-years are pooled with the next, what remains at the top with the
    last; rows are by outcome, sex and age, the first band of each reaching down to birth. `unknown` stands for both
    sexes together, and so does a sex with under 50 person-years in all.

    Aalen, Johansen 1978, Scand J Stat 5:141–150; delayed entry: Keiding 1992, Annu Rev Public Health 13:33–51.
    """
    people = subjects.select(
        Subjects.subject_id.name, Subjects.sex.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name
    )
    first_ages = {outcome: _first_ages_years(people, first_occurrences, outcome) for outcome in (DEATH_CODE, *outcomes)}
    entry = people[Subjects.entry_age_days.name].to_numpy() / DAYS_PER_YEAR
    exit_age = people[Subjects.exit_age_days.name].to_numpy() / DAYS_PER_YEAR
    of_sex = {sex: (people[Subjects.sex.name] == sex).to_numpy() for sex in (FEMALE, MALE)}
    of_sex[UNKNOWN] = np.ones(people.height, dtype=bool)
    tables = []
    for outcome in outcomes:
        first = first_ages[outcome]
        death = np.full(people.height, NEVER) if outcome == DEATH_CODE else first_ages[DEATH_CODE]
        for sex, is_member in of_sex.items():
            people_at_risk = _follow_up(entry, exit_age, first, death, is_member)
            if people_at_risk.years() < SMALLEST_EXPOSURE_YEARS:
                people_at_risk = _follow_up(entry, exit_age, first, death, of_sex[UNKNOWN])
            bands = _fit_bands(people_at_risk)
            tables.append(_as_table(outcome, sex, bands))
    return pl.concat(tables) if tables else pl.DataFrame(ReferenceRates.create_empty())


def _first_ages_years(people: pl.DataFrame, first_occurrences: pl.DataFrame, outcome: str) -> FloatArray:
    """Return each person's age at the first occurrence of one outcome, infinity where there is none: [n]."""
    found = first_occurrences.filter(FirstOccurrences.outcome.col == outcome)
    joined = people.select(Subjects.subject_id.name).join(
        found, on=Subjects.subject_id.name, how="left", maintain_order="left"
    )
    ages: FloatArray = joined[FirstOccurrences.first_age_days.name].fill_null(NEVER).to_numpy() / DAYS_PER_YEAR
    return ages


def _follow_up(
    entry: FloatArray, exit_age: FloatArray, first: FloatArray, death: FloatArray, is_member: BoolArray
) -> _FollowUp:
    """Follow members without the outcome at entry to the first of outcome, death and exit, in that order of ties."""
    chosen = is_member & (first > entry) & (death > entry)
    entry, exit_age, first, death = entry[chosen], exit_age[chosen], first[chosen], death[chosen]
    end = np.minimum(np.minimum(first, death), exit_age)
    had_outcome = first <= end
    return _FollowUp(entry, end, had_outcome, (death <= end) & ~had_outcome)


def _fit_bands(people: _FollowUp) -> AgeBands:
    """Fit the rates of one outcome and sex."""
    edges = np.arange(0.0, MAX_AGE_YEARS + BAND_YEARS + 1.0, BAND_YEARS)
    starts = _pool_bands(np.diff(_years_at_risk_before(people, edges)))
    observed_years = np.add.reduceat(np.diff(_observed_years_before(people, edges)), starts)
    outcome_increments = np.add.reduceat(_increments_per_band(people, people.had_outcome, edges), starts)
    death_increments = np.add.reduceat(_increments_per_band(people, people.died, edges), starts)
    width = np.where(observed_years > 0, observed_years, 1.0)  # nobody ever at risk: no increments either
    return AgeBands(edges[starts], outcome_increments / width, death_increments / width)


def _pool_bands(exposure: FloatArray) -> IntArray:
    """Return the first one-year band of each pooled band: closed once it holds enough, the rest joins the last."""
    smallest = SMALLEST_EXPOSURE_YEARS
    starts = [0]
    held = 0.0
    remaining = np.cumsum(exposure[::-1])[::-1]
    for band, years in enumerate(exposure):
        if held >= smallest and remaining[band] >= smallest:
            starts.append(band)
            held = 0.0
        held += years
    return np.array(starts)


def _years_at_risk_before(people: _FollowUp, ages: FloatArray) -> FloatArray:
    """Return the person-years at risk below each age."""
    return _sum_excess(people.entry, ages) - _sum_excess(people.end, ages)


def _sum_excess(values: FloatArray, ages: FloatArray) -> FloatArray:
    """Return Σ max(age − value, 0) over values, for each age."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, ages)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    excess: FloatArray = ages * below - total[below]
    return excess


def _observed_years_before(people: _FollowUp, ages: FloatArray) -> FloatArray:
    """Return how many years of age below each age had anyone at risk: the union of all follow-ups."""
    if people.entry.size == 0:
        return np.zeros_like(ages)
    order = np.argsort(people.entry)
    entry = people.entry[order]
    reached = np.maximum.accumulate(people.end[order])
    opens = np.concatenate([[True], entry[1:] > reached[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    knots = np.stack([entry[opens], reached[closes]], axis=1).ravel()
    lengths = np.diff(knots)
    lengths[1::2] = 0.0  # every second piece is a gap
    years: FloatArray = np.interp(ages, knots, np.concatenate([[0.0], np.cumsum(lengths)]))
    return years


def _increments_per_band(people: _FollowUp, happened: BoolArray, edges: FloatArray) -> FloatArray:
    """Return Σ 1/Y over events within each one-year band, Y the number at risk at the age of the event."""
    ages = people.end[happened]
    at_risk = np.searchsorted(np.sort(people.entry), ages) - np.searchsorted(np.sort(people.end), ages)
    increments, _ = np.histogram(ages, bins=edges, weights=1.0 / at_risk)
    return increments.astype(np.float64)


def _as_table(outcome: str, sex: str, bands: AgeBands) -> pl.DataFrame:
    return pl.DataFrame(
        {
            ReferenceRates.outcome.name: outcome,
            ReferenceRates.sex.name: sex,
            ReferenceRates.age_from_years.name: bands.from_years,
            ReferenceRates.rate_per_year.name: bands.rate_per_year,
            ReferenceRates.death_rate_per_year.name: bands.death_rate_per_year,
        }
    )


def piecewise_constant_risk(bands: AgeBands, age_years: FloatArray, horizon_years: float) -> FloatArray:
    """Return the risk between age a and a + h with death competing, for rates constant within bands: [n].

    ∫ λ(u) exp(−∫_a^u (λ + μ)) du. Whole bands between the two ages come from one table over pairs of bands, so that
    nothing is lost to subtraction at high ages; the two partial bands are added in closed form. NaN for a NaN age.
    """
    starts = bands.from_years
    is_given = ~np.isnan(age_years)
    age = np.maximum(age_years[is_given], starts[0])
    until = age + horizon_years
    first = np.searchsorted(starts, age, side="right") - 1
    last = np.searchsorted(starts, until, side="right") - 1
    band_end = np.append(starts[1:], np.inf)
    risk_in_first, free_after_first = _risk_in_band(bands, first, np.minimum(band_end[first], until) - age)
    in_between, free_in_between = _risk_between_starts(bands)
    middle = np.minimum(first + 1, last)  # where both ages lie in one band: the pair (last, last), which adds nothing
    rest = np.where(last > first, until - starts[last], 0.0)
    risk_in_last, _ = _risk_in_band(bands, last, rest)
    risk = np.full(age_years.shape, np.nan)
    risk[is_given] = risk_in_first + free_after_first * (
        in_between[middle, last] + free_in_between[middle, last] * risk_in_last
    )
    return risk


def _risk_in_band(bands: AgeBands, band: IntArray, years: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the risk over some years within a band, and the probability of leaving it free of both."""
    total = (bands.rate_per_year + bands.death_rate_per_year)[band] * years
    ended_per_hazard = np.divide(-np.expm1(-total), total, out=np.ones_like(total), where=total > 0)
    return bands.rate_per_year[band] * years * ended_per_hazard, np.exp(-total)


def _risk_between_starts(bands: AgeBands) -> tuple[FloatArray, FloatArray]:
    """Return, for bands i ≤ j, the risk and the probability of neither from start i to start j: two [B, B]."""
    n_bands = bands.from_years.size
    width = np.diff(bands.from_years)
    in_band, _ = _risk_in_band(bands, np.arange(n_bands - 1), width)
    hazard = (bands.rate_per_year + bands.death_rate_per_year)[:-1] * width
    cumulative = np.concatenate([[0.0], np.cumsum(hazard)])
    free = np.exp(-np.maximum(cumulative[None, :] - cumulative[:, None], 0.0))
    later = np.triu(free[:, :-1]) * in_band
    return np.concatenate([np.zeros((n_bands, 1)), np.cumsum(later, axis=1)], axis=1), free


def reference_risks(
    rates: pl.DataFrame, people: pl.DataFrame, outcomes: Sequence[str], horizons_days: Sequence[float]
) -> pl.DataFrame:
    """Return the risk of people of the same sex and age, one row a person × outcome × horizon (schema `Risks`).

    `people` has subject_id, sex and landmark_age_days (null: no risk), in the order of the result; `rates` are those
    of `fit_reference_rates`. `risk` and `reference_risk` are the same number, so that the table is both a predictor to
    compare with and the column to join. Raises KeyError for an outcome that has no rates.
    """
    risk = reference_risk_array(rates, people, outcomes, horizons_days)
    wanted = pl.DataFrame({Risks.outcome.name: outcomes}, schema={Risks.outcome.name: pl.String}).join(
        pl.DataFrame({Risks.horizon_days.name: horizons_days}, schema={Risks.horizon_days.name: pl.Float64}),
        how="cross",
    )
    values = pl.Series(Risks.risk.name, risk.ravel(), nan_to_null=True)
    return (
        people.select(Subjects.subject_id.name, Outcomes.landmark_age_days.name)
        .join(wanted, how="cross")
        .with_columns(
            values,
            values.alias(Risks.reference_risk.name),
            pl.lit(None, dtype=pl.String).alias(Risks.reason.name),
        )
    )


def reference_risk_array(
    rates: pl.DataFrame, people: pl.DataFrame, outcomes: Sequence[str], horizons_days: Sequence[float]
) -> FloatArray:
    """Return the same risks as one array [n, outcomes, horizons], NaN for people without a landmark."""
    age_years = people[Outcomes.landmark_age_days.name].cast(pl.Float64).fill_null(np.nan).to_numpy() / DAYS_PER_YEAR
    sexes = people[Subjects.sex.name]
    bands = dict(_bands_by_outcome_and_sex(rates))
    risk = np.full((people.height, len(outcomes), len(horizons_days)), np.nan)
    for sex in sexes.unique(maintain_order=True):
        rows = np.flatnonzero((sexes == sex).to_numpy())
        for k, outcome in enumerate(outcomes):
            for h, horizon_days in enumerate(horizons_days):
                risk[rows, k, h] = piecewise_constant_risk(
                    bands[outcome, sex], age_years[rows], horizon_days / DAYS_PER_YEAR
                )
    return risk


def _bands_by_outcome_and_sex(rates: pl.DataFrame) -> Iterator[tuple[tuple[str, str], AgeBands]]:
    grouped = rates.sort(ReferenceRates.age_from_years.name).group_by(
        ReferenceRates.outcome.name, ReferenceRates.sex.name, maintain_order=True
    )
    for key, table in grouped:
        yield (
            (str(key[0]), str(key[1])),
            AgeBands(
                table[ReferenceRates.age_from_years.name].to_numpy(),
                table[ReferenceRates.rate_per_year.name].to_numpy(),
                table[ReferenceRates.death_rate_per_year.name].to_numpy(),
            ),
        )
