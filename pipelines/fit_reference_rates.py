"""The reference every model must beat: risk of people of the same sex and age in the training split.

Incidence on the age scale with delayed entry, prevalent cases excluded, one rate a band of age; the risk that
follows, with death competing, is in closed form within a band. The rates travel with a model, so that none of them
rests on one to nine events.

n people, B bands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_YEARS
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.dataset import ReferenceRates
from data_schemas.results import AGE_SEX, SMALLEST_SHOWN_COUNT, FirstOccurrences, Outcomes, Risks
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray

BAND_YEARS = 1.0  # the narrowest band
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
class _AtRisk:
    """Ages (years) between which people were at risk, and whether that ended with the event in question."""

    entry: FloatArray  # [n]
    end: FloatArray  # [n]
    happened: BoolArray  # [n]

    @property
    def years(self) -> float:
        """Person-years at risk."""
        return float((self.end - self.entry).sum())

    @property
    def n_events(self) -> int:
        """People in whom it happened."""
        return int(self.happened.sum())


@dataclass(frozen=True)
class _Rates:
    """Rates of one event by age, constant from each age to the next."""

    from_years: FloatArray
    per_year: FloatArray

    def at(self, ages: FloatArray) -> FloatArray:
        """Return the rate at each age."""
        return self.per_year[np.searchsorted(self.from_years, ages, side="right") - 1]


_NO_RATES = _Rates(np.zeros(1), np.zeros(1))


def fit_reference_rates(
    subjects: pl.DataFrame, first_occurrences: pl.DataFrame, outcomes: Sequence[str]
) -> pl.DataFrame:
    """Fit incidence and death rates by sex and age on the training split (schema `ReferenceRates`).

    Rate of a band = Nelson–Aalen increments Σ dN/Y at the exact ages of events within it, over the years of it that
    anyone was at risk. Y counts people who entered before that age, have not left, and did not have the outcome at
    entry. Years of age are pooled upwards until a band has 50 person-years and 10 events, or none where the rate of
    all ages would give 10; what remains at the top joins the last. Outcome and death are pooled apart, because one is
    often rare where the other is not; a row begins wherever either rate changes. Rows are by outcome, sex and age, the
    first of each reaching down to birth.

    `unknown` stands for both sexes together, and so does a sex with too little by the same rule (none: where the rate
    of both sexes would give 10). An outcome with under 10 events in all has no rows; with under 10 deaths in all the
    death rate is 0.

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
        at_risk = {sex: _follow_up(entry, exit_age, first, death, is_member) for sex, is_member in of_sex.items()}
        to_outcome, to_death = at_risk[UNKNOWN]
        if to_outcome.n_events < SMALLEST_SHOWN_COUNT:
            continue
        for sex, (to_outcome_of_sex, to_death_of_sex) in at_risk.items():
            bands = _join_bands(_fit_rates(to_outcome_of_sex, to_outcome), _fit_rates(to_death_of_sex, to_death))
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
) -> tuple[_AtRisk, _AtRisk]:
    """Follow members without the outcome at entry to the first of outcome, death and exit, in that order of ties.

    The same people and years twice: until the outcome, and until death before it.
    """
    chosen = is_member & (first > entry) & (death > entry)
    entry, exit_age, first, death = entry[chosen], exit_age[chosen], first[chosen], death[chosen]
    end = np.minimum(np.minimum(first, death), exit_age)
    had_outcome = first <= end
    return _AtRisk(entry, end, had_outcome), _AtRisk(entry, end, (death <= end) & ~had_outcome)


def _fit_rates(of_sex: _AtRisk, of_both: _AtRisk) -> _Rates:
    """Fit the rates of one event for a sex, from both sexes where its own people tell too little; none: rate 0."""
    if _is_enough(of_sex.years, of_sex.n_events, of_both.n_events / max(of_both.years, SMALLEST_EXPOSURE_YEARS)):
        people = of_sex
    elif of_both.n_events >= SMALLEST_SHOWN_COUNT:
        people = of_both
    else:
        return _NO_RATES
    edges = np.arange(0.0, MAX_AGE_YEARS + BAND_YEARS + 1.0, BAND_YEARS)
    n_events, _ = np.histogram(people.end[people.happened], bins=edges)
    starts = _pool_bands(np.diff(_years_at_risk_before(people, edges)), n_events)
    observed_years = np.add.reduceat(np.diff(_observed_years_before(people, edges)), starts)
    increments = np.add.reduceat(_increments_per_band(people, edges), starts)
    width = np.where(observed_years > 0, observed_years, 1.0)  # nobody ever at risk: no increments either
    return _Rates(edges[starts], increments / width)


def _is_enough(years: float, n_events: int, usual_rate_per_year: float) -> bool:
    """Say whether people tell a rate that may be shown: by 10 events, or by none where 10 are to be expected."""
    is_telling_none = n_events == 0 and years * usual_rate_per_year >= SMALLEST_SHOWN_COUNT
    return years >= SMALLEST_EXPOSURE_YEARS and (n_events >= SMALLEST_SHOWN_COUNT or is_telling_none)


def _pool_bands(years: FloatArray, n_events: IntArray) -> IntArray:
    """Return the first one-year band of each pooled band: closed once it tells enough, the rest joins the last."""
    years_before = np.concatenate([[0.0], np.cumsum(years)])
    events_before = np.concatenate([[0], np.cumsum(n_events)])
    usual_rate_per_year = events_before[-1] / max(years_before[-1], SMALLEST_EXPOSURE_YEARS)

    def is_enough(start: int, stop: int) -> bool:
        held_years, held_events = years_before[stop] - years_before[start], events_before[stop] - events_before[start]
        return _is_enough(float(held_years), int(held_events), float(usual_rate_per_year))

    starts = [0]
    for band in range(1, years.size):
        if is_enough(starts[-1], band):
            starts.append(band)
    while len(starts) > 1 and not is_enough(starts[-1], years.size):
        starts.pop()
    return np.array(starts)


def _join_bands(outcome: _Rates, death: _Rates) -> AgeBands:
    """Put two rates with bands of their own on common ones, which begin wherever either does."""
    from_years = np.union1d(outcome.from_years, death.from_years)
    return AgeBands(from_years, outcome.at(from_years), death.at(from_years))


def _years_at_risk_before(people: _AtRisk, ages: FloatArray) -> FloatArray:
    """Return the person-years at risk below each age."""
    return _sum_excess(people.entry, ages) - _sum_excess(people.end, ages)


def _sum_excess(values: FloatArray, ages: FloatArray) -> FloatArray:
    """Return Σ max(age − value, 0) over values, for each age."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, ages)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    excess: FloatArray = ages * below - total[below]
    return excess


def _observed_years_before(people: _AtRisk, ages: FloatArray) -> FloatArray:
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


def _increments_per_band(people: _AtRisk, edges: FloatArray) -> FloatArray:
    """Return Σ 1/Y over events within each one-year band, Y the number at risk at the age of the event."""
    ages = people.end[people.happened]
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
    compare with and the column to join: null for people without a landmark and for outcomes without rates.
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
            pl.lit(AGE_SEX).alias(Risks.method.name),
        )
    )


def reference_risk_array(
    rates: pl.DataFrame, people: pl.DataFrame, outcomes: Sequence[str], horizons_days: Sequence[float]
) -> FloatArray:
    """Return the same risks as one array [n, outcomes, horizons], NaN where there is none."""
    age_years = people[Outcomes.landmark_age_days.name].cast(pl.Float64).fill_null(np.nan).to_numpy() / DAYS_PER_YEAR
    sexes = people[Subjects.sex.name]
    bands = dict(_bands_by_outcome_and_sex(rates))
    has_rates = {outcome for outcome, _ in bands}
    risk = np.full((people.height, len(outcomes), len(horizons_days)), np.nan)
    for sex in sexes.unique(maintain_order=True):
        rows = np.flatnonzero((sexes == sex).to_numpy())
        for k, outcome in enumerate(outcomes):
            if outcome not in has_rates:
                continue
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
