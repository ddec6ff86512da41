"""Small made-up worlds for tests, and slow plain forms of what their hazards say."""

import itertools
import math

import numpy as np
import polars as pl

from data_schemas.cohort import DEATH_CODE
from data_schemas.truth import TrueComorbidities, TrueHazards
from pipelines.synthesize.world import Traits, World, WorldSettings, world_of

MEAN_TRAITS = {"bmi": 27.4, "sbp": 138.0, "smoking": 0}  # all effects are none


def hazard_row(code, form, shape, rate_per_year, *, male_ratio=1.0, window=(0.0, 120.0), log_ratios=(0.0,) * 4):
    return (code, form, shape, rate_per_year, rate_per_year * male_ratio, *window, *log_ratios)


def make_world(rows, comorbidities=(), frailty_variance=0.0) -> World:
    """Make a world of rows of `hazard_row`, death last, and (cause, effect, ratio)."""
    hazards, edges = make_tables(rows, comorbidities)
    return world_of(WorldSettings(frailty_variance=frailty_variance, made_with={}), hazards, edges)


def make_tables(rows, comorbidities=()):
    hazards = pl.DataFrame(rows, schema=TrueHazards.column_names(), orient="row")
    schema = dict(zip(TrueComorbidities.column_names(), (pl.String, pl.String, pl.Float64), strict=True))
    return hazards, pl.DataFrame(list(comorbidities), schema=schema, orient="row")


def chain_world(frailty_variance=0.5) -> World:
    """Three diseases, the first a cause of the others, all causes of death; rates high enough to see."""
    return make_world(
        [
            hazard_row("A", "gompertz", 0.05, 0.03, log_ratios=(0.3, 0.0, 0.2, 0.5)),
            hazard_row("B", "weibull", 2.0, 0.02, male_ratio=1.5),
            hazard_row("C", "weibull", 1.0, 0.04, window=(50.0, 66.0)),
            hazard_row(DEATH_CODE, "gompertz", 0.09, 0.02, log_ratios=(0.0, 0.2, 0.1, 0.3)),
        ],
        [("A", "B", 2.5), ("A", "C", 0.5), ("B", "C", 3.0), ("A", DEATH_CODE, 1.5), ("C", DEATH_CODE, 4.0)],
        frailty_variance,
    )


def make_traits(n, *, is_male=False, bmi=27.4, sbp=138.0, smoking=0) -> Traits:
    return Traits(
        np.full(n, is_male), np.full(n, bmi), np.full(n, sbp), np.full(n, smoking, dtype=np.int64)
    )  # fmt: skip


def plain_hazard(world, place, age, happened, trait_factor=1.0):
    """Return the hazard of one code a year, read off the definition; `happened` are positions of past diseases."""
    form = world.hazards[place]
    if not form.from_years <= age < form.until_years:
        return 0.0
    shape = math.exp(form.shape * (age - 60)) if form.form == "gompertz" else (age / 60) ** (form.shape - 1)
    causes = zip(world.causes[place], world.ratios[place], strict=True)
    return trait_factor * shape * math.prod(ratio for cause, ratio in causes if cause in happened)


def plain_integral(world, place, ages, start, stop, steps=300):
    """Return ∫ of `plain_hazard` along a life, by the midpoint rule between all ages at which it jumps.

    Points lie closer together at the lower end (age = low + width · x³), where a Weibull hazard may be infinite.
    """
    form = world.hazards[place]
    jumps = [form.from_years, form.until_years, *(ages[cause] for cause in world.causes[place])]
    knots = sorted({start, stop, *(age for age in jumps if start < age < stop)})
    x = (np.arange(steps) + 0.5) / steps
    total = 0.0
    for low, high in itertools.pairwise(knots):
        happened = {cause for cause in world.causes[place] if ages[cause] <= low}
        points, widths = low + (high - low) * x**3, (high - low) * 3 * x**2 / steps
        total += sum(
            width * plain_hazard(world, place, point, happened) for point, width in zip(points, widths, strict=True)
        )
    return total
