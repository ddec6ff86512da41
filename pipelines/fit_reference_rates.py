"""The reference every model must beat: risk of people of the same sex and age in the training split.

Incidence on the age scale with delayed entry, prevalent cases excluded, one rate a band of age; the risk that
follows, with death competing, is in closed form within a band. The rates travel with a model, so that none of them
rests on one to nine events.

n people, B bands.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
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
_EDGES: FloatArray = np.arange(0.0, MAX_AGE_YEARS + BAND_YEARS + 1.0, BAND_YEARS)  # [B+1]
FirstAges: TypeAlias = tuple[IntArray, FloatArray]  # of one outcome: rows of the people who have it, ages in days
_PERSON = "person"  # working column: the row of a person


@dataclass(frozen=True)
class AgeBands:
    """Rates by age for one outcome and sex; band b reaches from `from_years[b]` to the next, the last is open."""

    from_years: FloatArray  # [B], the first is 0
    rate_per_year: FloatArray  # [B]
    death_rate_per_year: FloatArray  # [B] among people free of the outcome; 0 where death is the outcome


@dataclass(frozen=True)
class _Observed:
    """The people of the split: sex, and the ages in years between which they were under observation."""

    sex: pl.Series
    entry: FloatArray
    exit: FloatArray


@dataclass(frozen=True)
class _FreePeople:
    """Follow-up of people as if the outcome never happened: to death or exit, ages in years, by age at entry.

    What is true of all of them is computed once; an outcome then changes it for those in whom it happened.
    """

    place: npt.NDArray[np.int32]  # [people] row of each person here, -1 for those who are not here
    entry: FloatArray  # [n] ascending
    end: FloatArray  # [n]
    sorted_end: FloatArray  # [n]
    death_ages: FloatArray  # [deaths] ascending
    death_of: npt.NDArray[np.int32]  # [n] row of each person's death among the deaths, -1 for none
    n_at_deaths: IntArray  # [deaths] people at risk at the age of each death
    years: float
    years_before_edges: FloatArray  # [B+1]
    observed_years_per_band: FloatArray  # [B] years of the band in which anyone was at risk
    cover: IntArray  # rows of a few people whose follow-ups together span all of them

    def n_at_risk(self, ages: FloatArray) -> IntArray:
        """Count the people at risk at each age: entered before it, and not left before it."""
        return np.searchsorted(self.entry, ages) - np.searchsorted(self.sorted_end, ages)


@dataclass(frozen=True)
class _FollowUp:
    """The free people followed until the outcome: the m in whom it happened leave earlier, the prevalent at entry."""

    free: _FreePeople
    place: npt.NDArray[np.int32]  # [m] their rows among the free people
    end: FloatArray  # [m] age at the outcome, or at entry for the prevalent
    free_end: FloatArray  # [m] the end they would have had
    happened: BoolArray  # [m] while at risk; false for the prevalent

    @cached_property
    def years(self) -> float:
        """Person-years at risk."""
        return self.free.years - float((self.free_end - self.end).sum())

    @cached_property
    def _sorted_ends(self) -> tuple[FloatArray, FloatArray]:
        """The ends with and without the outcome, ascending: searching is many times faster in order."""
        return np.sort(self.end), np.sort(self.free_end)

    @cached_property
    def years_per_band(self) -> FloatArray:
        """Person-years at risk in each one-year band of age: [B]."""
        end, free_end = self._sorted_ends
        lost = _sum_excess(end, _EDGES) - _sum_excess(free_end, _EDGES)
        years: FloatArray = np.diff(self.free.years_before_edges - lost)
        return years

    @cached_property
    def observed_years_per_band(self) -> FloatArray:
        """Years of each band in which anyone was at risk, the union of all follow-ups: [B]."""
        is_changed = np.zeros(self.free.end.size, dtype=bool)
        is_changed[self.place] = True
        if not is_changed[self.free.cover].any():
            return self.free.observed_years_per_band  # those who span it are all still there
        end = self.free.end.copy()
        end[self.place] = self.end  # of the prevalent: no time at all
        return _observed_years(self.free.entry, np.maximum.accumulate(end))

    @cached_property
    def deaths_before(self) -> BoolArray:
        """Whether each death of the free people happens to somebody who is still at risk of the outcome: [deaths]."""
        deaths = self.free.death_of[self.place]
        before = np.ones(self.free.death_ages.size, dtype=bool)
        before[deaths[deaths >= 0]] = False
        return before

    def outcomes(self) -> tuple[FloatArray, IntArray]:
        """Return the age of each outcome and the people at risk then."""
        end, free_end = self._sorted_ends
        ages = np.sort(self.end[self.happened])
        n_lost = np.searchsorted(end, ages) - np.searchsorted(free_end, ages)
        return ages, self.free.n_at_risk(ages) - n_lost

    def deaths(self) -> tuple[FloatArray, IntArray]:
        """Return the age of each death before the outcome and the people at risk then."""
        ages = self.free.death_ages
        # Deaths are many and in order: counting who left before each is faster than searching for each.
        left, gone_anyway = (np.searchsorted(ages, ends, "right") for ends in self._sorted_ends)
        n_lost = np.cumsum(_count(left, ages.size) - _count(gone_anyway, ages.size))
        return ages[self.deaths_before], (self.free.n_at_deaths - n_lost)[self.deaths_before]


@dataclass(frozen=True)
class _AtRisk:
    """People followed to the first of outcome, death and exit (in that order of ties), and one kind of event."""

    follow_up: _FollowUp
    is_death: bool  # the event is death before the outcome; else the outcome

    @property
    def years(self) -> float:
        """Person-years at risk."""
        return self.follow_up.years

    @property
    def n_events(self) -> int:
        """People in whom it happened."""
        return int((self.follow_up.deaths_before if self.is_death else self.follow_up.happened).sum())

    def events(self) -> tuple[FloatArray, IntArray]:
        """Return the age of each event and the people at risk then."""
        return self.follow_up.deaths() if self.is_death else self.follow_up.outcomes()


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
    people = subjects.select(Subjects.subject_id.name).with_row_index(_PERSON)
    located = first_occurrences.join(people, on=Subjects.subject_id.name, how="inner").select(
        FirstOccurrences.outcome.name, _PERSON, FirstOccurrences.first_age_days.name
    )
    parts = {
        str(outcome): (part[_PERSON].to_numpy().astype(np.int64), part[FirstOccurrences.first_age_days.name].to_numpy())
        for (outcome,), part in located.group_by(FirstOccurrences.outcome.name)
    }
    nobody = (np.empty(0, dtype=np.int64), np.empty(0))
    return fit_rates_of_outcomes(
        subjects, parts.get(DEATH_CODE, nobody), ((outcome, parts.get(outcome, nobody)) for outcome in outcomes)
    )


def fit_rates_of_outcomes(
    subjects: pl.DataFrame, deaths: FirstAges, firsts: Iterable[tuple[str, FirstAges]]
) -> pl.DataFrame:
    """Fit the same from first occurrences that come outcome by outcome, so that not all of them are in memory."""
    people = _Observed(
        sex=subjects[Subjects.sex.name],
        entry=subjects[Subjects.entry_age_days.name].to_numpy() / DAYS_PER_YEAR,
        exit=subjects[Subjects.exit_age_days.name].to_numpy() / DAYS_PER_YEAR,
    )
    death_years = np.full(subjects.height, NEVER)
    death_years[deaths[0]] = deaths[1] / DAYS_PER_YEAR
    to_death = _follow_free_people(people, death_years)
    fitted: list[tuple[str, str, AgeBands]] = []
    for outcome, (persons, first_age_days) in firsts:
        # Nothing competes with death as the outcome.
        free = _follow_free_people(people, np.full_like(death_years, NEVER)) if outcome == DEATH_CODE else to_death
        fitted += _fit_outcome(outcome, free, persons, first_age_days / DAYS_PER_YEAR)
    return _as_table(fitted)


def _follow_free_people(people: _Observed, death: FloatArray) -> dict[str, _FreePeople]:
    """Follow everyone alive at entry as if no outcome ever happened, by sex and for both sexes together."""
    of_sex = {sex: (people.sex == sex).to_numpy() for sex in (FEMALE, MALE)}
    of_sex[UNKNOWN] = np.ones(death.size, dtype=bool)
    return {sex: _follow(people, death, is_member) for sex, is_member in of_sex.items()}


def _follow(people: _Observed, death: FloatArray, is_member: BoolArray) -> _FreePeople:
    rows = np.flatnonzero(is_member & (death > people.entry))
    rows = rows[np.argsort(people.entry[rows], kind="stable")]
    place = np.full(death.size, -1, dtype=np.int32)
    place[rows] = np.arange(rows.size)
    entry, end = people.entry[rows], np.minimum(death, people.exit)[rows]
    sorted_end = np.sort(end)
    died = np.flatnonzero(death[rows] <= end)
    died = died[np.argsort(end[died], kind="stable")]
    death_of = np.full(rows.size, -1, dtype=np.int32)
    death_of[died] = np.arange(died.size)
    n_at_deaths = np.searchsorted(entry, end[died]) - np.searchsorted(sorted_end, end[died])
    years_before = _sum_excess(entry, _EDGES) - _sum_excess(sorted_end, _EDGES)
    years = float((end - entry).sum())
    reached = np.maximum.accumulate(end)
    observed, cover = _observed_years(entry, reached), _cover(entry, end, reached)
    return _FreePeople(
        place, entry, end, sorted_end, end[died], death_of, n_at_deaths, years, years_before, observed, cover
    )


def _fit_outcome(
    outcome: str, free: Mapping[str, _FreePeople], persons: IntArray, first: FloatArray
) -> Iterator[tuple[str, str, AgeBands]]:
    """Yield the rates of one outcome by sex; none where it happened too rarely."""
    followed = {sex: _until(people, persons, first) for sex, people in free.items()}
    to_outcome, to_death = followed[UNKNOWN]
    if to_outcome.n_events < SMALLEST_SHOWN_COUNT:
        return
    of_both = _rates_of_both(to_outcome), _rates_of_both(to_death)
    for sex in (FEMALE, MALE):
        to_outcome_of_sex, to_death_of_sex = followed[sex]
        bands = _join_bands(
            _rates_of_sex(to_outcome_of_sex, to_outcome, of_both[0]),
            _rates_of_sex(to_death_of_sex, to_death, of_both[1]),
        )
        yield outcome, sex, bands
    yield outcome, UNKNOWN, _join_bands(*of_both)


def _until(people: _FreePeople, persons: IntArray, first: FloatArray) -> tuple[_AtRisk, _AtRisk]:
    """Follow people to an outcome, and to death before it; a first age after the end of follow-up changes nothing."""
    place = people.place[persons]
    place, first = place[place >= 0], first[place >= 0]
    inside = first <= people.end[place]
    place, first = place[inside], first[inside]
    entry = people.entry[place]
    follow_up = _FollowUp(people, place, np.maximum(first, entry), people.end[place], first > entry)
    return _AtRisk(follow_up, is_death=False), _AtRisk(follow_up, is_death=True)


def _rates_of_both(of_both: _AtRisk) -> _Rates:
    """Fit the rates of one event for both sexes together; too few events: rate 0."""
    return _rates_by_age(of_both) if of_both.n_events >= SMALLEST_SHOWN_COUNT else _NO_RATES


def _rates_of_sex(of_sex: _AtRisk, of_both: _AtRisk, rates_of_both: _Rates) -> _Rates:
    """Fit the rates of one event for a sex; those of both sexes where its own people tell too little."""
    usual_rate_per_year = of_both.n_events / max(of_both.years, SMALLEST_EXPOSURE_YEARS)
    return _rates_by_age(of_sex) if _is_enough(of_sex.years, of_sex.n_events, usual_rate_per_year) else rates_of_both


def _rates_by_age(people: _AtRisk) -> _Rates:
    n_bands = _EDGES.size - 1
    ages, n_at_risk = people.events()
    band = np.searchsorted(_EDGES, ages, side="right") - 1
    starts = _pool_bands(people.follow_up.years_per_band, _count(band, n_bands))
    observed_years = np.add.reduceat(people.follow_up.observed_years_per_band, starts)
    increments = np.bincount(band, weights=1.0 / n_at_risk, minlength=n_bands)
    width = np.where(observed_years > 0, observed_years, 1.0)  # nobody ever at risk: no increments either
    return _Rates(_EDGES[starts], np.add.reduceat(increments, starts) / width)


def _is_enough(years: float, n_events: int, usual_rate_per_year: float) -> bool:
    """Say whether people tell a rate that may be shown: by 10 events, or by none where 10 are to be expected."""
    is_telling_none = n_events == 0 and years * usual_rate_per_year >= SMALLEST_SHOWN_COUNT
    return years >= SMALLEST_EXPOSURE_YEARS and (n_events >= SMALLEST_SHOWN_COUNT or is_telling_none)


def _pool_bands(years: FloatArray, n_events: IntArray) -> IntArray:
    """Return the first one-year band of each pooled band: closed once it tells enough, the rest joins the last."""
    # Plain numbers: this runs for every outcome, sex and band.
    years_before = [0.0, *np.cumsum(years).tolist()]
    events_before = [0, *np.cumsum(n_events).tolist()]
    usual_rate_per_year = events_before[-1] / max(years_before[-1], SMALLEST_EXPOSURE_YEARS)

    def is_enough(start: int, stop: int) -> bool:
        held_years = years_before[stop] - years_before[start]
        return held_years >= SMALLEST_EXPOSURE_YEARS and _is_enough(
            held_years, events_before[stop] - events_before[start], usual_rate_per_year
        )

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


def _sum_excess(ordered: FloatArray, ages: FloatArray) -> FloatArray:
    """Return Σ max(age − value, 0) over ascending values, for each age."""
    below = np.searchsorted(ordered, ages)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    excess: FloatArray = ages * below - total[below]
    return excess


def _observed_years(entry: FloatArray, reached: FloatArray) -> FloatArray:
    """Return the years of each band in which anyone was at risk: [B].

    `entry` ascends; `reached` is the latest end of the people up to each.
    """
    if entry.size == 0:
        return np.zeros(_EDGES.size - 1)
    opens = np.concatenate([[True], entry[1:] > reached[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    knots = np.stack([entry[opens], reached[closes]], axis=1).ravel()
    lengths = np.diff(knots)
    lengths[1::2] = 0.0  # every second piece is a gap
    years: FloatArray = np.diff(np.interp(_EDGES, knots, np.concatenate([[0.0], np.cumsum(lengths)])))
    return years


def _cover(entry: FloatArray, end: FloatArray, reached: FloatArray) -> IntArray:
    """Return the rows of few people whose follow-ups span all: always the one who goes on longest from there."""
    rows: list[int] = []
    row = 0  # the last one who has entered by the age that is spanned
    while row < entry.size:
        longest = int(np.searchsorted(reached[: row + 1], reached[row]))
        rows.append(longest)
        row = max(int(np.searchsorted(entry, end[longest], side="right")) - 1, row + 1)
    return np.array(rows, dtype=np.int64)


def _count(places: IntArray, n: int) -> IntArray:
    """Count how often each of n places is named; a place beyond them counts nowhere."""
    return np.bincount(places, minlength=n)[:n]


def _as_table(fitted: Sequence[tuple[str, str, AgeBands]]) -> pl.DataFrame:
    if not fitted:
        return pl.DataFrame(ReferenceRates.create_empty())
    all_bands = [bands for _, _, bands in fitted]
    row = np.repeat(np.arange(len(fitted)), [bands.from_years.size for bands in all_bands])
    return pl.DataFrame(
        {
            ReferenceRates.outcome.name: pl.Series([outcome for outcome, _, _ in fitted]).gather(row),
            ReferenceRates.sex.name: pl.Series([sex for _, sex, _ in fitted]).gather(row),
            ReferenceRates.age_from_years.name: np.concatenate([bands.from_years for bands in all_bands]),
            ReferenceRates.rate_per_year.name: np.concatenate([bands.rate_per_year for bands in all_bands]),
            ReferenceRates.death_rate_per_year.name: np.concatenate([bands.death_rate_per_year for bands in all_bands]),
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
