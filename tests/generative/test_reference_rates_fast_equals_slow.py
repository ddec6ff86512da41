"""The age-sex reference, fitted by what each outcome changes, equals following everybody for every outcome."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN
from pipelines.fit_reference_rates import fit_reference_rates

EDGES = np.arange(0.0, 122.0)
EMPTY = (np.zeros(1), np.zeros(1))


@dataclass
class People:
    entry: np.ndarray
    end: np.ndarray
    happened: np.ndarray

    @property
    def years(self) -> float:
        return float((self.end - self.entry).sum())

    @property
    def n_events(self) -> int:
        return int(self.happened.sum())


def is_enough(years: float, n_events: int, usual_rate: float) -> bool:
    return years >= 50 and (n_events >= 10 or (n_events == 0 and years * usual_rate >= 10))


def pool(people: People) -> np.ndarray:
    """Return the first one-year band of each pooled band, band by band as the documentation says."""
    overlap = np.clip(np.minimum(people.end[:, None], EDGES[1:]) - np.maximum(people.entry[:, None], EDGES[:-1]), 0, 1)
    years = overlap.sum(axis=0)
    events, _ = np.histogram(people.end[people.happened], EDGES)
    usual = events.sum() / max(years.sum(), 50.0)
    starts = [0]
    for band in range(1, len(years)):
        if is_enough(years[starts[-1] : band].sum(), events[starts[-1] : band].sum(), usual):
            starts.append(band)
    while len(starts) > 1 and not is_enough(years[starts[-1] :].sum(), events[starts[-1] :].sum(), usual):
        starts.pop()
    return np.array(starts)


def observed_years(people: People) -> np.ndarray:
    """Return how much of each band anyone was at risk, piece by piece between all ages that occur."""
    knots = np.unique(np.concatenate([people.entry, people.end, EDGES]))
    middle = (knots[1:] + knots[:-1]) / 2
    covered = ((people.entry[:, None] < middle) & (middle < people.end[:, None])).any(axis=0)
    return np.histogram(middle, EDGES, weights=np.diff(knots) * covered)[0]


def rates(people: People) -> tuple[np.ndarray, np.ndarray]:
    starts = pool(people)
    ages = people.end[people.happened]
    at_risk = ((people.entry[:, None] < ages) & (ages <= people.end[:, None])).sum(axis=0)
    increments, _ = np.histogram(ages, EDGES, weights=1.0 / at_risk)
    width = np.add.reduceat(observed_years(people), starts)
    return EDGES[starts], np.add.reduceat(increments, starts) / np.where(width > 0, width, 1.0)


def rates_of(of_sex: People, of_both: People) -> tuple[np.ndarray, np.ndarray]:
    if is_enough(of_sex.years, of_sex.n_events, of_both.n_events / max(of_both.years, 50.0)):
        return rates(of_sex)
    return rates(of_both) if of_both.n_events >= 10 else EMPTY


def follow(entry: np.ndarray, exit_age: np.ndarray, first: np.ndarray, death: np.ndarray) -> tuple[People, People]:
    chosen = (first > entry) & (death > entry)
    entry, exit_age, first, death = entry[chosen], exit_age[chosen], first[chosen], death[chosen]
    end = np.minimum(np.minimum(first, death), exit_age)
    return People(entry, end, first <= end), People(entry, end, (death <= end) & (first > end))


def fit_slowly(people: pl.DataFrame, firsts: dict[str, np.ndarray]) -> pl.DataFrame:
    entry, exit_age = (people[name].to_numpy() / DAYS_PER_YEAR for name in ("entry_age_days", "exit_age_days"))
    rows = []
    for outcome, first in firsts.items():
        death = np.full(people.height, np.inf) if outcome == DEATH_CODE else firsts[DEATH_CODE]
        members = {sex: (people["sex"] == sex).to_numpy() for sex in (FEMALE, MALE)} | {
            UNKNOWN: np.ones(len(first), bool)
        }
        followed = {sex: follow(entry[m], exit_age[m], first[m], death[m]) for sex, m in members.items()}
        if followed[UNKNOWN][0].n_events < 10:
            continue
        for sex, both_events in followed.items():
            fitted = [rates_of(mine, all_) for mine, all_ in zip(both_events, followed[UNKNOWN], strict=True)]
            starts = np.union1d(fitted[0][0], fitted[1][0])
            values = [rate[np.searchsorted(ages, starts, side="right") - 1] for ages, rate in fitted]
            rows += [(outcome, sex, *row) for row in zip(starts, *values, strict=True)]
    names = ["outcome", "sex", "age_from_years", "rate_per_year", "death_rate_per_year"]
    kinds = [pl.String, pl.String, *[pl.Float64] * 3]
    return pl.DataFrame(rows, schema=dict(zip(names, kinds, strict=True)), orient="row")


def draw(seed: int, n: int, with_gaps: bool, share: float) -> tuple[pl.DataFrame, dict[str, np.ndarray]]:
    """Draw people in whole days, so that ties are common; with gaps, some ages have nobody at risk."""
    rng = np.random.default_rng(seed)
    entry = np.round(rng.choice([30.0, 62.0], n) * DAYS_PER_YEAR + rng.integers(0, 900 if with_gaps else 9_000, n))
    exit_age = entry + rng.integers(1, 2_000 if with_gaps else 9_000, n)
    death = np.where(rng.random(n) < share, exit_age, np.inf)
    death = np.where(rng.random(n) < 0.02, entry, death)  # dead at entry: in no risk set
    firsts = {
        outcome: np.where(rng.random(n) < of, np.round(entry + (exit_age - entry) * rng.uniform(-0.3, 1.2, n)), np.inf)
        for outcome, of in (("common", 0.9), ("rare", share))
    }
    people = pl.DataFrame(
        {
            "subject_id": rng.permutation(n),
            "sex": rng.choice([FEMALE, MALE, UNKNOWN], n, p=[0.6, 0.35, 0.05]),
            "entry_age_days": entry,
            "exit_age_days": exit_age,
        }
    )
    return people, {name: ages / DAYS_PER_YEAR for name, ages in {**firsts, DEATH_CODE: death}.items()}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 400), st.booleans(), st.sampled_from([0.0, 0.05, 0.3, 1.0])
)  # fmt: skip
@example(1, 400, True, 0.3)
@example(2, 400, False, 0.05)
def test_fast_form_equals_slow_form(seed: int, n: int, with_gaps: bool, share: float) -> None:
    people, firsts = draw(seed, n, with_gaps, share)
    occurred = pl.concat(
        pl.DataFrame(
            {"subject_id": people["subject_id"], "outcome": outcome, "first_age_days": ages * DAYS_PER_YEAR},
            schema_overrides={"outcome": pl.String},
        ).filter(pl.col("first_age_days").is_finite())
        for outcome, ages in firsts.items()
    )
    fast = fit_reference_rates(people, occurred, list(firsts))
    assert_frame_equal(fast, fit_slowly(people, firsts), rel_tol=1e-9, abs_tol=1e-12)
