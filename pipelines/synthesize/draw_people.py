"""Draw people of a made-up world: who they are, when they are seen, and what happens to them until then.

A part of `PEOPLE_PER_PART` people has a random stream of its own, so that the first people of a cohort do not depend
on how many follow. Whoever dies before recruitment is replaced by another draw: people are alive at entry, and the
frail are fewer among them than at birth (left truncation).

C codes (death last), n people.
"""

from dataclasses import dataclass
from datetime import date

import numpy as np

from data_schemas.age_units import AGE_STEPS_PER_DAY, DAYS_PER_YEAR, MAX_AGE_DAYS
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.synthesize.age_hazards import NEVER
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.draw_first_ages import draw_first_ages
from pipelines.synthesize.world import Traits, World

PEOPLE_PER_PART = 2048
_SPARE_SHARE = 0.15  # drawn on top, because some are not alive at entry
_FEMALE_SHARE = 0.54
_MEDIAN_BMI, _LOG_BMI_SD = 27.0, 0.17  # kg/m²
_SBP_MEAN, _SBP_SD, _BMI_SBP_CORRELATION = 138.0, 18.0, 0.25  # mmHg
_SMOKING_SHARES = ((0.59, 0.32, 0.09), (0.49, 0.38, 0.13))  # women, men: never, previous, current
_SMALLEST_BMI, _SMALLEST_SBP = 14.0, 80.0


@dataclass(frozen=True)
class People:
    """People and their lives; all arrays are over the same n people, ages in days in steps of 1/256."""

    traits: Traits
    frailty: FloatArray  # [n]
    birth_day: IntArray  # [n], days since 1970-01-01
    entry_days: FloatArray  # [n]
    exit_days: FloatArray  # [n], age at death, end of follow-up or loss
    ages_days: FloatArray  # [C, n], first occurrence of each code, death last; `NEVER` where it is not before exit

    def take(self, people: IntArray) -> "People":
        """Return some of the people, in the order asked for."""
        return People(
            self.traits.take(people),
            self.frailty[people],
            self.birth_day[people],
            self.entry_days[people],
            self.exit_days[people],
            self.ages_days[:, people],
        )


def draw_part(world: World, config: SynthesizeConfig, seed: int, part: int) -> People:
    """Draw the people of one part, all alive at entry."""
    rng = np.random.default_rng([seed, part])
    drawn: list[People] = []
    missing = PEOPLE_PER_PART
    while missing > 0:
        candidates = _draw_candidates(world, config, missing + int(missing * _SPARE_SHARE) + 1, rng)
        alive = np.flatnonzero(candidates.ages_days[world.death] > candidates.entry_days)[:missing]
        drawn.append(candidates.take(alive))
        missing -= alive.size
    return end_follow_up(_join(drawn))


def _draw_candidates(world: World, config: SynthesizeConfig, n: int, rng: np.random.Generator) -> People:
    traits = _draw_traits(n, rng)
    frailty = draw_frailty(config.frailty_variance, n, rng)
    entry_days = np.floor(rng.uniform(config.entry_from_years, config.entry_until_years, n) * DAYS_PER_YEAR)
    recruited = rng.integers(_day(config.recruited_from), _day(config.recruited_until), n, endpoint=True)
    years_to_loss = rng.exponential(1.0 / config.loss_per_year, n) if config.loss_per_year else np.full(n, NEVER)
    birth_day = recruited - entry_days.astype(np.int64)
    leaves = entry_days + np.maximum(_round_to_step(years_to_loss * DAYS_PER_YEAR), 1.0)
    exit_days = np.minimum(np.minimum(leaves, _day(config.censored_on) - birth_day), MAX_AGE_DAYS)
    thresholds = rng.standard_exponential((len(world.codes), n))
    never = np.full(thresholds.shape, NEVER)
    ages = draw_first_ages(world, world.rates(traits) * frailty, thresholds, np.zeros(n), never)
    return People(traits, frailty, birth_day, entry_days, exit_days, _round_to_step(ages * DAYS_PER_YEAR))


def draw_frailty(variance: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Draw gamma frailties of mean 1: [n]; all 1 where the variance is 0."""
    if variance == 0:
        return np.ones(n)
    frailty: FloatArray = np.maximum(rng.gamma(1.0 / variance, variance, n), np.finfo(np.float64).tiny)
    return frailty


def _draw_traits(n: int, rng: np.random.Generator) -> Traits:
    """Draw sex and measurements, rounded as they are recorded: the hazards act on what the record says."""
    is_male = rng.random(n) >= _FEMALE_SHARE
    bmi_z, own_sbp_z = rng.standard_normal((2, n))
    sbp_z = _BMI_SBP_CORRELATION * bmi_z + np.sqrt(1 - _BMI_SBP_CORRELATION**2) * own_sbp_z
    thresholds = np.cumsum(np.array(_SMOKING_SHARES), axis=1)[is_male.astype(np.int64), :-1]  # [n, 2]
    return Traits(
        is_male=is_male,
        bmi=np.maximum(np.round(_MEDIAN_BMI * np.exp(_LOG_BMI_SD * bmi_z), 1), _SMALLEST_BMI),
        sbp=np.maximum(np.round(_SBP_MEAN + _SBP_SD * sbp_z), _SMALLEST_SBP),
        smoking=(rng.random(n)[:, None] >= thresholds).sum(axis=1).astype(np.int64),
    )


def end_follow_up(people: People) -> People:
    """Let death end follow-up, and forget what happens after its end."""
    exit_days = np.minimum(people.exit_days, people.ages_days[-1])
    seen = np.where(people.ages_days <= exit_days, people.ages_days, NEVER)
    return People(people.traits, people.frailty, people.birth_day, people.entry_days, exit_days, seen)


def _join(parts: list[People]) -> People:
    return People(
        Traits(
            np.concatenate([part.traits.is_male for part in parts]),
            np.concatenate([part.traits.bmi for part in parts]),
            np.concatenate([part.traits.sbp for part in parts]),
            np.concatenate([part.traits.smoking for part in parts]),
        ),
        np.concatenate([part.frailty for part in parts]),
        np.concatenate([part.birth_day for part in parts]),
        np.concatenate([part.entry_days for part in parts]),
        np.concatenate([part.exit_days for part in parts]),
        np.concatenate([part.ages_days for part in parts], axis=1),
    )


def _round_to_step(days: FloatArray) -> FloatArray:
    rounded: FloatArray = np.round(days * AGE_STEPS_PER_DAY) / AGE_STEPS_PER_DAY
    return rounded


def _day(day: date) -> int:
    return day.toordinal() - date(1970, 1, 1).toordinal()
