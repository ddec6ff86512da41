"""The age–sex reference: rates against lifelines, risks against integration, and both against a known truth."""

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lifelines import NelsonAalenFitter
from scipy.integrate import quad

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.dataset import ReferenceRates
from data_schemas.results import SMALLEST_SHOWN_COUNT, FirstOccurrences, Outcomes, Risks
from pipelines.fit_reference_rates import (
    SMALLEST_EXPOSURE_YEARS,
    AgeBands,
    fit_reference_rates,
    piecewise_constant_risk,
    reference_risks,
)

OUTCOME_RATE, DEATH_RATE = {FEMALE: 0.02, MALE: 0.03}, 0.01
Cohort = tuple[pl.DataFrame, pl.DataFrame]


def make_cohort(sex: list[str], years: dict[str, np.ndarray]) -> Cohort:
    """Return subjects and first occurrences from ages in years; a NaN age did not happen."""
    days = {name: np.asarray(values) * DAYS_PER_YEAR for name, values in years.items()}
    subjects = pl.DataFrame(
        {
            Subjects.subject_id.name: np.arange(len(sex)),
            Subjects.sex.name: sex,
            Subjects.entry_age_days.name: days["entry"],
            Subjects.exit_age_days.name: days["exit"],
        }
    )
    first = pl.concat(
        pl.DataFrame(
            {
                FirstOccurrences.subject_id.name: np.arange(len(sex)),
                FirstOccurrences.outcome.name: outcome,
                FirstOccurrences.first_age_days.name: days[outcome],
            }
        ).filter(FirstOccurrences.first_age_days.col.is_not_nan())
        for outcome in ("A", DEATH_CODE)
    )
    return subjects, first


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    """Return 60,000 people with constant hazards from birth, seen from an age between 20 and 70 for up to 15 years."""
    rng = np.random.default_rng(5)
    n = 60_000
    sex = rng.choice([FEMALE, MALE], n)
    death = rng.exponential(1 / DEATH_RATE, n)
    outcome = rng.exponential([1 / OUTCOME_RATE[s] for s in sex])
    entry = rng.uniform(20, 70, n)
    exit_age = np.minimum(entry + rng.uniform(0.1, 15, n), death)
    lives = death > entry
    years = {
        "entry": entry,
        "exit": exit_age,
        "A": np.where(outcome <= np.minimum(exit_age, death), outcome, np.nan),
        DEATH_CODE: np.where(death <= exit_age, death, np.nan),
    }
    return make_cohort(list(sex[lives]), {name: values[lives] for name, values in years.items()})


def rates_of(rates: pl.DataFrame, outcome: str, sex: str) -> AgeBands:
    rows = rates.filter((ReferenceRates.outcome.col == outcome) & (ReferenceRates.sex.col == sex))
    return AgeBands(*(rows[name].to_numpy() for name in ReferenceRates.column_names()[2:]))


def test_table_satisfies_its_contract_and_bands_hold_enough(cohort: Cohort) -> None:
    rates = fit_reference_rates(*cohort, ["A", DEATH_CODE])
    ReferenceRates.validate(rates)
    assert set(rates[ReferenceRates.sex.name]) == {FEMALE, MALE, UNKNOWN}
    bands = rates_of(rates, DEATH_CODE, FEMALE)
    assert bands.from_years[0] == 0.0
    assert not bands.death_rate_per_year.any()
    entry, exit_age = (
        cohort[0].filter(Subjects.sex.col == FEMALE)[name].to_numpy() / DAYS_PER_YEAR
        for name in (Subjects.entry_age_days.name, Subjects.exit_age_days.name)
    )
    ends = np.append(bands.from_years[1:], np.inf)
    years = [
        np.clip(np.minimum(exit_age, end) - np.maximum(entry, start), 0, None).sum()
        for start, end in zip(bands.from_years, ends, strict=True)
    ]
    assert min(years) >= SMALLEST_EXPOSURE_YEARS


def test_whole_bands_sum_to_the_nelson_aalen_estimate_of_lifelines(cohort: Cohort) -> None:
    subjects, first = cohort
    bands = rates_of(fit_reference_rates(subjects, first, ["A"]), "A", MALE)
    ages = first.filter(FirstOccurrences.outcome.col == "A")
    people = subjects.filter(Subjects.sex.col == MALE).join(ages, on=Subjects.subject_id.name, how="left")
    entry, exit_age = people[Subjects.entry_age_days.name].to_numpy(), people[Subjects.exit_age_days.name].to_numpy()
    onset = people[FirstOccurrences.first_age_days.name].fill_null(np.inf).to_numpy()
    free = onset > entry
    fitter = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(
        np.minimum(onset, exit_age)[free] / DAYS_PER_YEAR,
        (onset <= exit_age)[free],
        entry=entry[free] / DAYS_PER_YEAR,
    )
    starts = np.array([age for age, _ in steps_of(bands, "rate_per_year") if 40 <= age <= 60])
    assert starts.size >= 15  # many people: mostly one band a year
    expected = np.diff(fitter.cumulative_hazard_at_times(starts).to_numpy())
    rates = bands.rate_per_year[np.searchsorted(bands.from_years, starts[:-1])]
    np.testing.assert_allclose(rates * np.diff(starts), expected, atol=1e-10)


def test_risks_are_those_of_the_known_hazards(cohort: Cohort) -> None:
    rates = fit_reference_rates(*cohort, ["A", DEATH_CODE])
    people = pl.DataFrame(
        {
            Outcomes.subject_id.name: [1, 2],
            Subjects.sex.name: [FEMALE, MALE],
            Outcomes.landmark_age_days.name: [45 * DAYS_PER_YEAR, 45.5 * DAYS_PER_YEAR],
        }
    )
    found = reference_risks(rates, people, ["A", DEATH_CODE], [10 * DAYS_PER_YEAR])
    truth = []
    for sex in (FEMALE, MALE):
        total = OUTCOME_RATE[sex] + DEATH_RATE
        truth += [OUTCOME_RATE[sex] / total * -np.expm1(-10 * total), -np.expm1(-10 * DEATH_RATE)]
    assert found[Risks.risk.name].to_list() == pytest.approx(truth, abs=0.015)  # about three standard errors


def test_long_table_keeps_the_order_of_people_and_gives_no_risk_without_a_landmark(cohort: Cohort) -> None:
    rates = fit_reference_rates(*cohort, ["A"])
    people = pl.DataFrame(
        {
            Outcomes.subject_id.name: ["x", "y", "z"],
            Subjects.sex.name: [MALE, UNKNOWN, FEMALE],
            Outcomes.landmark_age_days.name: [50 * DAYS_PER_YEAR, None, 130 * DAYS_PER_YEAR],
        }
    )
    horizons = [365.25, 3652.5]
    found = reference_risks(rates, people, ["A"], horizons)
    Risks.validate(found)
    assert found.select(Risks.subject_id.name, Risks.horizon_days.name).rows() == [
        (person, horizon) for person in ("x", "y", "z") for horizon in horizons
    ]
    assert found[Risks.risk.name].is_null().to_list() == [False, False, True, True, False, False]
    assert found[Risks.reference_risk.name].equals(found[Risks.risk.name])


def test_unknown_sex_and_a_sex_with_little_exposure_get_the_rates_of_both() -> None:
    n = 100
    entry = np.full(n, 50.2)
    cohort = make_cohort(
        [MALE] * (n - 1) + [FEMALE],
        {"entry": entry, "exit": entry + 3, "A": np.r_[np.full(10, 51.5), np.full(n - 10, np.nan)],
         DEATH_CODE: np.full(n, np.nan)},
    )  # fmt: skip
    rates = fit_reference_rates(*cohort, ["A"])
    female, both = rates_of(rates, "A", FEMALE), rates_of(rates, "A", UNKNOWN)
    np.testing.assert_array_equal(female.rate_per_year, both.rate_per_year)
    assert both.rate_per_year.max() > 0


def test_rate_is_over_the_years_that_anyone_was_observed() -> None:
    n = 200  # between 50.5 and 51.0 only: half a year of the band, twelve cases on one day
    cohort = make_cohort(
        [MALE] * n,
        {
            "entry": np.full(n, 50.5),
            "exit": np.full(n, 51.0 - 1e-9),
            "A": np.r_[np.full(12, 50.75), np.full(n - 12, np.nan)],
            DEATH_CODE: np.full(n, np.nan),
        },
    )
    bands = rates_of(fit_reference_rates(*cohort, ["A"]), "A", MALE)
    assert bands.rate_per_year.tolist() == pytest.approx([12 / n / 0.5])


def test_outcome_before_death_on_one_day_and_prevalent_people_left_out() -> None:
    n = 400
    onset = np.r_[np.full(10, 50.5), np.full(99, 40.0), np.full(n - 109, np.nan)]  # 10 cases, 99 before entry
    death = np.r_[np.full(10, 50.5), np.full(99, 50.6), np.full(n - 109, np.nan)]
    cohort = make_cohort(
        [FEMALE] * n,
        {"entry": np.full(n, 50.0), "exit": np.fmin(51.0, death), "A": onset, DEATH_CODE: death},
    )
    bands = rates_of(fit_reference_rates(*cohort, ["A"]), "A", FEMALE)
    assert bands.rate_per_year.tolist() == pytest.approx([10 / (n - 99)])
    assert bands.death_rate_per_year.tolist() == [0.0]


def cohort_with_cases(n_cases: int, n_deaths: int, women_with_it: int = 0, n: int = 2000) -> Cohort:
    """Return women and men in turn, seen from 50 for 20 years; cases at 60, then deaths at 65, most among men."""
    is_case, is_dead = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    is_case[0 : 2 * women_with_it : 2] = True
    is_case[1 : 2 * (n_cases - women_with_it) : 2] = True
    is_dead[n - n_deaths :] = True
    death = np.where(is_dead, 65.0, np.nan)
    return make_cohort(
        [FEMALE, MALE] * (n // 2),
        {
            "entry": np.full(n, 50.0),
            "exit": np.fmin(70.0, death),
            "A": np.where(is_case, 60.5, np.nan),
            DEATH_CODE: death,
        },
    )


def test_an_outcome_with_few_events_has_no_rows_and_no_risk() -> None:
    rates = fit_reference_rates(*cohort_with_cases(9, 30), ["A", DEATH_CODE])
    assert rates[ReferenceRates.outcome.name].unique().to_list() == [DEATH_CODE]
    assert fit_reference_rates(*cohort_with_cases(9, 9), ["A", DEATH_CODE]).is_empty()
    people = pl.DataFrame(
        {Outcomes.subject_id.name: [1], Subjects.sex.name: [MALE], Outcomes.landmark_age_days.name: [60 * 365.25]}
    )
    found = reference_risks(rates, people, ["A", DEATH_CODE], [3652.5])
    Risks.validate(found)
    assert found[Risks.risk.name].is_null().to_list() == [True, False]


def test_few_deaths_in_all_are_no_deaths() -> None:
    for n_deaths, is_shown in ((9, False), (10, True)):
        bands = rates_of(fit_reference_rates(*cohort_with_cases(50, n_deaths), ["A"]), "A", UNKNOWN)
        assert bands.death_rate_per_year.any() == is_shown


def test_a_sex_with_few_cases_gets_the_rates_of_both_and_one_with_none_only_where_ten_would_be_expected() -> None:
    few = fit_reference_rates(*cohort_with_cases(100, 0, women_with_it=9), ["A"])
    assert rates_of(few, "A", FEMALE).rate_per_year.tolist() == rates_of(few, "A", UNKNOWN).rate_per_year.tolist()
    of_men, of_both = (piecewise_constant_risk(rates_of(few, "A", s), np.array([55.0]), 10.0) for s in (MALE, UNKNOWN))
    assert of_men == pytest.approx(2 * 91 / 100 * of_both, rel=0.05)
    none_of_fifty = fit_reference_rates(*cohort_with_cases(100, 0), ["A"])
    assert not rates_of(none_of_fifty, "A", FEMALE).rate_per_year.any()
    none_of_six = fit_reference_rates(*cohort_with_cases(12, 0), ["A"])
    assert rates_of(none_of_six, "A", FEMALE).rate_per_year.any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0005, 0.03), st.floats(0.0005, 0.03), st.integers(20, 400))
def test_every_rate_rests_on_ten_events_or_none(seed: int, rate: float, death_rate: float, n: int) -> None:
    rng = np.random.default_rng(seed)
    entry = rng.uniform(0, 80, n)
    death = entry + rng.exponential(1 / death_rate, n)
    onset = 30 + rng.exponential(1 / rate, n)
    exit_age = np.minimum(entry + rng.uniform(1, 30, n), death)
    subjects, first = make_cohort(
        list(rng.choice([FEMALE, MALE], n, p=[0.2, 0.8])),
        {"entry": entry, "exit": exit_age, "A": onset, DEATH_CODE: np.where(death <= exit_age, death, np.nan)},
    )
    followed = onset > entry
    had_outcome = followed & (onset <= exit_age)
    died = followed & ~had_outcome & (death <= exit_age)
    rates = fit_reference_rates(subjects, first, ["A"])
    assert rates.is_empty() == (had_outcome.sum() < SMALLEST_SHOWN_COUNT)
    everyone = np.ones(n, dtype=bool)
    for sex in () if rates.is_empty() else (FEMALE, MALE, UNKNOWN):
        bands = rates_of(rates, "A", sex)
        both = rates_of(rates, "A", UNKNOWN)
        for happened, column in ((had_outcome, "rate_per_year"), (died, "death_rate_per_year")):
            values = getattr(bands, column)
            is_pooled = sex == UNKNOWN or steps_of(bands, column) == steps_of(both, column)
            members = everyone if is_pooled else (subjects[Subjects.sex.name] == sex).to_numpy()
            starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)  # one rate may reach over several rows
            edges = np.append(bands.from_years[starts], np.inf)
            counts, _ = np.histogram(np.minimum(onset, exit_age)[happened & members], bins=edges)
            if happened is died and happened.sum() < SMALLEST_SHOWN_COUNT:
                assert not values.any()
            else:
                assert ((counts == 0) | (counts >= SMALLEST_SHOWN_COUNT)).all()
                assert ((counts == 0) == (values[starts] == 0)).all()


def steps_of(bands: AgeBands, column: str) -> list[tuple[float, float]]:
    """Return from which age each value of one rate holds."""
    values = getattr(bands, column)
    starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    return list(zip(bands.from_years[starts], values[starts], strict=True))


bands_drawn = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 7.0]), st.sampled_from([0.0, 0.01, 3.0]), st.sampled_from([0.0, 0.05, 2.0])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(bands_drawn, st.floats(0, 30), st.floats(0.1, 25))
@example([(1.0, 0.0, 0.0)], 5.0, 10.0)
@example([(1.0, 0.01, 0.05), (1.0, 3.0, 2.0)], 1.0, 1.0)
def test_closed_form_is_the_integral(drawn: list[tuple[float, float, float]], age: float, horizon: float) -> None:
    widths, rate, death_rate = (np.array(column) for column in zip(*drawn, strict=True))
    bands = AgeBands(np.concatenate([[0.0], np.cumsum(widths)[:-1]]), rate, death_rate)
    knots = np.unique(np.clip(np.concatenate([bands.from_years, [age, age + horizon]]), age, age + horizon))

    def band_at(u: float) -> int:
        return int(np.searchsorted(bands.from_years, u, side="right") - 1)

    def hazard_until(u: float) -> float:
        inner = np.append(knots[knots < u], u)
        rates = [(rate + death_rate)[band_at(x)] for x in (inner[:-1] + inner[1:]) / 2]
        return float(np.dot(rates, np.diff(inner)))

    expected = sum(
        quad(lambda u: rate[band_at(u)] * np.exp(-hazard_until(u)), low, high, epsabs=1e-12)[0]
        for low, high in zip(knots[:-1], knots[1:] - 1e-12, strict=True)
    )
    found = piecewise_constant_risk(bands, np.array([age]), horizon)
    assert found[0] == pytest.approx(expected, abs=1e-8)


@given(bands_drawn, st.floats(0, 130))
@settings(max_examples=60, deadline=None)
def test_risk_grows_with_the_horizon_and_stays_below_one(drawn: list[tuple[float, float, float]], age: float) -> None:
    widths, rate, death_rate = (np.array(column) for column in zip(*drawn, strict=True))
    bands = AgeBands(np.concatenate([[0.0], np.cumsum(widths)[:-1]]), rate, death_rate)
    risks = [piecewise_constant_risk(bands, np.array([age]), horizon)[0] for horizon in (0.5, 1.0, 5.0, 40.0)]
    assert (np.diff(risks) >= -1e-12).all()
    assert risks[0] >= 0.0
    assert risks[-1] <= 1.0 + 1e-12
