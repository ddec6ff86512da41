"""The one place where days become years, and the resolution at which ages are kept."""

import polars as pl

DAYS_PER_YEAR = 365.25

# Ages are kept in steps of 1/256 day (5.6 minutes). Every such age below 179 years is exact in float32, so an event
# that lies after a landmark in the table also lies after it inside a float32 tensor.
AGE_STEPS_PER_DAY = 256
MAX_AGE_YEARS = 120.0
MAX_AGE_DAYS = MAX_AGE_YEARS * DAYS_PER_YEAR


def round_to_age_step(age_days: pl.Expr) -> pl.Expr:
    """Round ages (days) to the nearest 1/256 day."""
    return (age_days * AGE_STEPS_PER_DAY).round() / AGE_STEPS_PER_DAY


def round_age_days(age_days: float) -> float:
    """Round one age (days) to the nearest 1/256 day, like `round_to_age_step`."""
    return round(age_days * AGE_STEPS_PER_DAY) / AGE_STEPS_PER_DAY


def years_to_days(years: float) -> float:
    """Years of 365.25 days, as days."""
    return years * DAYS_PER_YEAR
