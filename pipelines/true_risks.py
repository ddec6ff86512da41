"""The true risks of made-up people, from the hazards they lived under: what no model can beat but by luck.

What is known at a landmark is what a cohort shows: sex, measurements at entry, and all first occurrences up to then.
The frailty is not known. Its gamma prior and the history give a gamma posterior, because the frailty multiplies every
hazard: with N events so far and Λ what all hazards (death too) have added up to without it,

    frailty | history ~ Gamma(shape 1/v + N, rate 1/v + Λ),  v the variance at birth.

That people were recruited alive is part of the history and needs no correction. What happens between landmark and
horizon changes hazards too, and death competes, so the risk is a mean over futures: frailties are drawn from the
posterior, one in each of equally likely strata, and lives from the exact simulation. For each future the risk given
everything but the outcome's own threshold is in closed form, which makes it unbiased and far less noisy than counting.

C codes (death last), n people, D futures a person, P = n · D paths, K outcomes, H horizons. Inside, ages are years.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import gammaincinv

from data_schemas.age_units import DAYS_PER_YEAR, round_to_age_step
from data_schemas.cohort import EVENTS_FOLDER, MALE, SUBJECTS_FILE, Events, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.results import DEAD, OUTSIDE_FOLLOW_UP, PREVALENT, TRUTH, Outcomes, Risks
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.synthesize.age_hazards import NEVER
from pipelines.synthesize.draw_first_ages import cumulative_between, draw_first_ages
from pipelines.synthesize.truth_files import read_truth
from pipelines.synthesize.world import BMI_CODE, SBP_CODE, SMOKING_CODES, Traits, World
from pipelines.tables_on_disk import read_subjects, scan_events

N_FUTURES = 64
SMALLEST_N_FUTURES = 2
STANDARD_ERROR = "standard_error"  # column beside those of `Risks`
_PATHS_PER_BLOCK = 16_384
_ROW, _PLACE = "row", "place"  # working columns
_NO_REASON = ""
_SMALLEST_FRAILTY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class KnownLives:
    """What is known of people at their landmarks; n rows, a person may have several."""

    traits: Traits
    landmark: FloatArray  # [n] years
    ages: FloatArray  # [C, n] years, first occurrences up to the landmark, `NEVER` where there is none

    def take(self, rows: IntArray) -> "KnownLives":
        """Return some of the rows."""
        return KnownLives(self.traits.take(rows), self.landmark[rows], self.ages[:, rows])


def true_risks(
    cohort: Path,
    landmarks: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_days: Sequence[float],
    *,
    n_futures: int = N_FUTURES,
    seed: int = 0,
) -> pl.DataFrame:
    """Return the true risk of each landmark × outcome × horizon, in this order: `Risks` and `standard_error`.

    Who is not at risk (prevalent, dead, outside follow-up) has a null risk and the reason. The standard error is that
    of the simulation, as if frailties were not stratified: the true one is at most as large. It falls with the square
    root of `n_futures`. The reference risk is null.

    Args:
        cohort: folder written by `synthesize_cohort`.
        landmarks: subject_id and landmark_age_days; a person may have several.
        outcomes: diseases of this world, or death.
        horizons_days: times after the landmark.
        n_futures: futures drawn for each landmark.
        seed: of the futures.

    Raises:
        InputContractError: the cohort has no truth, or lacks a person or a measurement.
        UsageError: an outcome that this world does not have, a horizon not above zero, or fewer than 2 futures.
    """
    world = read_truth(cohort)
    _check_request(world, outcomes, horizons_days, n_futures)
    people = _follow_up_at(landmarks, read_subjects(cohort))
    known, is_dead = _read_lives(world, people, cohort)
    places = np.array([world.codes.index(outcome) for outcome in outcomes], dtype=np.int64)
    reasons = _reasons(people, known, is_dead, places)  # [n, K]
    is_alive = ~np.isin(reasons, (DEAD, OUTSIDE_FOLLOW_UP)).any(axis=1)
    horizons = np.array(horizons_days, dtype=np.float64) / DAYS_PER_YEAR
    risk, error = np.full((2, people.height, places.size, horizons.size), np.nan)
    alive = np.flatnonzero(is_alive)
    risk[alive], error[alive] = simulate_risks(world, known.take(alive), places, horizons, n_futures, seed)
    has_reason = reasons != _NO_REASON
    risk[has_reason], error[has_reason] = np.nan, np.nan
    return _long_table(people, outcomes, horizons_days, risk, error, reasons)


def _check_request(world: World, outcomes: Sequence[str], horizons_days: Sequence[float], n_futures: int) -> None:
    if unknown := sorted(set(outcomes) - set(world.codes)):
        raise UsageError(f"this made-up world has no {', '.join(unknown)}")
    if not horizons_days or not all(0 < days < np.inf for days in horizons_days):
        raise UsageError("horizons are days above zero")
    if n_futures < SMALLEST_N_FUTURES:
        raise UsageError(f"at least {SMALLEST_N_FUTURES} futures are needed to state an error")


def true_risk(
    cohort: Path, subject_id: int, landmark_age_days: float, outcome: str, horizon_days: float, *, n_futures: int = 4096
) -> tuple[float | None, float | None]:
    """Return the true risk of one person and its standard error; None where the person is not at risk."""
    landmarks = pl.DataFrame(
        {Subjects.subject_id.name: [subject_id], Outcomes.landmark_age_days.name: [landmark_age_days]},
        schema_overrides={Outcomes.landmark_age_days.name: pl.Float64},
    )
    row = true_risks(cohort, landmarks, [outcome], [horizon_days], n_futures=n_futures).row(0, named=True)
    return row[Risks.risk.name], row[STANDARD_ERROR]


def simulate_risks(
    world: World, known: KnownLives, places: IntArray, horizons: FloatArray, n_futures: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Return risks and standard errors [n, K, H] of people alive at their landmarks; horizons [H] in years.

    Each block of people has a random stream of its own, so a result depends on the people, their order and the seed.
    """
    n = known.landmark.size
    risk, error = np.empty((2, n, places.size, horizons.size))
    people_per_block = max(1, _PATHS_PER_BLOCK // n_futures)
    for block, first in enumerate(range(0, n, people_per_block)):
        rows = np.arange(first, min(first + people_per_block, n))
        rng = np.random.default_rng([seed, block])
        for k, by_path in enumerate(_risks_by_path(world, known.take(rows), places, horizons, n_futures, rng)):
            risk[rows, k] = by_path.mean(axis=-1).T
            error[rows, k] = by_path.std(axis=-1, ddof=1).T / np.sqrt(n_futures)
    return risk, error


def frailty_posterior(world: World, known: KnownLives) -> tuple[FloatArray, FloatArray]:
    """Return shape and rate of the gamma posterior of the frailty given the history: two [n].

    Raises ZeroDivisionError where the frailty has no variance: it is 1 then.
    """
    start = np.zeros(known.landmark.size)
    rates = world.rates(known.traits)
    prior = 1.0 / world.settings.frailty_variance
    stops = np.minimum(known.ages, known.landmark)
    exposure = np.zeros(known.landmark.size)
    for place in range(len(world.codes)):
        exposure += (
            rates[place]
            * cumulative_between(world, place, known.ages[world.causes[place]], start, stops[place][None])[0]
        )
    n_events = np.isfinite(known.ages).sum(axis=0)
    return prior + n_events, prior + exposure


def _draw_frailties(world: World, known: KnownLives, n_futures: int, rng: np.random.Generator) -> FloatArray:
    """Draw from the posterior, one in each of equally likely strata in random order: [n, D]."""
    n = known.landmark.size
    if world.settings.frailty_variance == 0:
        return np.ones((n, n_futures))
    shape, rate = frailty_posterior(world, known)
    strata = rng.permuted(np.broadcast_to(np.arange(n_futures), (n, n_futures)), axis=1)
    share = (strata + rng.random((n, n_futures))) / n_futures
    frailty: FloatArray = gammaincinv(shape[:, None], share) / rate[:, None]
    return np.maximum(frailty, _SMALLEST_FRAILTY)


def _risks_by_path(
    world: World, known: KnownLives, places: IntArray, horizons: FloatArray, n_futures: int, rng: np.random.Generator
) -> Iterator[FloatArray]:
    """Yield for each outcome the risk given each drawn future: [H, n, D].

    With H_k the hazard of the outcome added up from the landmark along the ages of its causes, and d the age at death:

        1 − exp(−H_k(h)) − [d before h and before the outcome] · (1 − exp(−(H_k(h) − H_k(d))))

    The first part is the risk if nobody died, the second what death takes away. Both hold because the outcome depends
    on its causes alone, and until it happens nothing depends on it. For those who die first the difference is
    (1 − exp(−H_k(d))) · exp(−(H_k(h) − H_k(d))), so that each value lies in [0, 1].
    """
    rows = np.repeat(np.arange(known.landmark.size), n_futures)
    paths = known.take(rows)
    rates = world.rates(known.traits)[:, rows] * _draw_frailties(world, known, n_futures, rng).ravel()
    ages = draw_first_ages(world, rates, rng.standard_exponential(rates.shape), paths.landmark, paths.ages)
    death = ages[world.death]
    stops = paths.landmark + horizons[:, None]  # [H, P]
    for place in places:
        causes = ages[world.causes[place]]
        hazard = rates[place] * cumulative_between(world, place, causes, paths.landmark, stops)
        risk = -np.expm1(-hazard)
        if place != world.death:
            dead = np.flatnonzero((death < stops.max(axis=0)) & (death < ages[place]))
            ends = np.minimum(death[dead], stops[:, dead])  # [H, dead]
            until_end = rates[place, dead] * cumulative_between(
                world, place, causes[:, dead], paths.landmark[dead], ends
            )
            risk[:, dead] = -np.expm1(-until_end) * np.exp(until_end - hazard[:, dead])
        yield risk.reshape(horizons.size, -1, n_futures)


def _follow_up_at(landmarks: pl.DataFrame, subjects: pl.DataFrame) -> pl.DataFrame:
    """Return the landmarks in their order, with sex, entry and exit of each person."""
    landmark_age = round_to_age_step(Outcomes.landmark_age_days.col.cast(pl.Float64))
    people = landmarks.select(Subjects.subject_id.name, landmark_age).join(
        subjects.select(
            Subjects.subject_id.name, Subjects.sex.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name
        ),
        on=Subjects.subject_id.name,
        how="left",
        maintain_order="left",
    )
    if missing := people[Subjects.sex.name].null_count():
        rule = "lacks people whose risks are asked for"
        raise InputContractError([Violation(SUBJECTS_FILE, Subjects.subject_id.name, rule, missing)])
    return people


def _read_lives(world: World, people: pl.DataFrame, cohort: Path) -> tuple[KnownLives, BoolArray]:
    """Return what is known at each landmark, and who is dead by then [n]."""
    rows = people.select(Subjects.subject_id.name).with_row_index(_ROW)
    events = (
        scan_events(cohort)
        .join(rows.lazy(), on=Subjects.subject_id.name, how="inner")
        .select(_ROW, Events.age_days.name, Events.code.name, Events.numeric_value.name)
        .collect()
    )
    landmark = people[Outcomes.landmark_age_days.name].fill_null(np.nan).to_numpy()
    ages = np.full((len(world.codes), people.height), NEVER)
    happened = events.with_columns(_place_among(world.codes)).drop_nulls(_PLACE)
    ages[happened[_PLACE].to_numpy(), happened[_ROW].to_numpy()] = happened[Events.age_days.name].to_numpy()
    known = np.where(ages <= landmark, ages, NEVER)
    traits = Traits(
        is_male=(people[Subjects.sex.name] == MALE).to_numpy(),
        bmi=_values(events, BMI_CODE, people.height),
        sbp=_values(events, SBP_CODE, people.height),
        smoking=_smoking(events, people.height),
    )
    return KnownLives(traits, landmark / DAYS_PER_YEAR, known / DAYS_PER_YEAR), np.isfinite(known[world.death])


def _place_among(codes: Sequence[str]) -> pl.Expr:
    """Return the position of each event's code, null where it is none of these."""
    place = Events.code.col.replace_strict(codes, range(len(codes)), default=None, return_dtype=pl.Int64)
    return place.alias(_PLACE)


def _values(events: pl.DataFrame, code: str, n: int) -> FloatArray:
    """Return what was measured: [n]."""
    rows = events.filter(Events.code.col == code)
    values = np.full(n, np.nan)
    values[rows[_ROW].to_numpy()] = rows[Events.numeric_value.name].to_numpy()
    _refuse_missing(np.isnan(values), code)
    return values


def _smoking(events: pl.DataFrame, n: int) -> IntArray:
    rows = events.with_columns(_place_among(SMOKING_CODES)).drop_nulls(_PLACE)
    smoking = np.full(n, -1, dtype=np.int64)
    smoking[rows[_ROW].to_numpy()] = rows[_PLACE].to_numpy()
    _refuse_missing(smoking < 0, "smoking")
    return smoking


def _refuse_missing(is_missing: BoolArray, name: str) -> None:
    if is_missing.any():
        rule = f"holds no {name} of people whose risks are asked for"
        raise InputContractError([Violation(EVENTS_FOLDER, Events.code.name, rule, int(is_missing.sum()))])


def _reasons(people: pl.DataFrame, known: KnownLives, is_dead: BoolArray, places: IntArray) -> NDArray[np.str_]:
    """Say why there is no true risk: [n, K], empty where there is one. The same order as for predicted risks."""
    is_seen = people.select(
        Outcomes.landmark_age_days.col.is_between(Subjects.entry_age_days.col, Subjects.exit_age_days.col)
        .fill_null(value=False)
    ).to_series().to_numpy()  # fmt: skip
    is_prevalent = np.isfinite(known.ages[places]).T
    reasons: NDArray[np.str_] = np.select(
        [np.broadcast_to(~is_seen[:, None], is_prevalent.shape), is_dead[:, None], is_prevalent],
        [OUTSIDE_FOLLOW_UP, DEAD, PREVALENT],
        _NO_REASON,
    )
    return reasons


def _long_table(
    people: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_days: Sequence[float],
    risk: FloatArray,
    error: FloatArray,
    reasons: NDArray[np.str_],
) -> pl.DataFrame:
    wanted = pl.DataFrame({Risks.outcome.name: outcomes}, schema={Risks.outcome.name: pl.String}).join(
        pl.DataFrame({Risks.horizon_days.name: horizons_days}, schema={Risks.horizon_days.name: pl.Float64}),
        how="cross",
    )
    reason = pl.Series(Risks.reason.name, np.repeat(reasons.ravel(), len(horizons_days)), dtype=pl.String)
    return (
        people.select(Subjects.subject_id.name, Outcomes.landmark_age_days.name)
        .join(wanted, how="cross")
        .with_columns(
            pl.Series(Risks.risk.name, risk.ravel(), nan_to_null=True),
            pl.lit(None, dtype=pl.Float64).alias(Risks.reference_risk.name),
            reason.replace(_NO_REASON, None),
            pl.lit(TRUTH).alias(Risks.method.name),
            pl.Series(STANDARD_ERROR, error.ravel(), nan_to_null=True),
        )
        .select(*Risks.column_names(), STANDARD_ERROR)
    )
