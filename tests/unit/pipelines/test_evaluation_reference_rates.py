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
from data_schemas.results import FirstOccurrences, Outcomes, Risks
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
    start, end = 40.0, 60.0  # many people: one band a year
    inside = (bands.from_years >= start) & (bands.from_years < end)
    assert inside.sum() == 20
    expected = fitter.cumulative_hazard_at_times([start, end]).to_numpy()
    assert bands.rate_per_year[inside].sum() == pytest.approx(expected[1] - expected[0], abs=1e-10)


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
        {"entry": entry, "exit": entry + 3, "A": np.r_[np.full(5, 51.5), np.full(n - 5, np.nan)],
         DEATH_CODE: np.full(n, np.nan)},
    )  # fmt: skip
    rates = fit_reference_rates(*cohort, ["A"])
    female, both = rates_of(rates, "A", FEMALE), rates_of(rates, "A", UNKNOWN)
    np.testing.assert_array_equal(female.rate_per_year, both.rate_per_year)
    assert both.rate_per_year.max() > 0


def test_rate_is_over_the_years_that_anyone_was_observed() -> None:
    n = 200  # between 50.5 and 51.0 only: half a year of the band, two cases of a hundred on one day
    cohort = make_cohort(
        [MALE] * n,
        {
            "entry": np.full(n, 50.5),
            "exit": np.full(n, 51.0 - 1e-9),
            "A": np.r_[np.full(4, 50.75), np.full(n - 4, np.nan)],
            DEATH_CODE: np.full(n, np.nan),
        },
    )
    bands = rates_of(fit_reference_rates(*cohort, ["A"]), "A", MALE)
    assert bands.rate_per_year.tolist() == pytest.approx([4 / n / 0.5])


def test_outcome_before_death_on_one_day_and_prevalent_people_left_out() -> None:
    n = 400
    onset = np.r_[[50.5], np.full(99, 40.0), np.full(n - 100, np.nan)]  # one case, 99 had it before entry
    death = np.r_[[50.5], np.full(99, 50.6), np.full(n - 100, np.nan)]
    cohort = make_cohort(
        [FEMALE] * n,
        {"entry": np.full(n, 50.0), "exit": np.fmin(51.0, death), "A": onset, DEATH_CODE: death},
    )
    bands = rates_of(fit_reference_rates(*cohort, ["A"]), "A", FEMALE)
    assert bands.rate_per_year.tolist() == pytest.approx([1 / (n - 99)])
    assert bands.death_rate_per_year.tolist() == [0.0]


def test_nobody_at_risk_gives_rate_zero() -> None:
    cohort = make_cohort(
        [FEMALE] * 2,
        {"entry": np.full(2, 50.0), "exit": np.full(2, 51.0), "A": np.full(2, 40.0), DEATH_CODE: np.full(2, np.nan)},
    )
    bands = rates_of(fit_reference_rates(*cohort, ["A"]), "A", MALE)
    assert bands.rate_per_year.tolist() == [0.0]


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
