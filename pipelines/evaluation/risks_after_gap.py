"""Risks after a gap: what a predictor asked at the landmark says of people with whom nothing happened in it."""

from collections.abc import Sequence

import polars as pl

from data_schemas.cohort import DEATH_CODE
from data_schemas.results import Outcomes, Risks

_PERSON = (Risks.subject_id.name, Risks.landmark_age_days.name)
_SAME = 1e-9  # relative; horizons that went through years and back differ in the last digit
_IN_GAP, _DIED_IN_GAP = "risk_in_gap", "risk_of_death_in_gap"


def horizons_with_gap(horizons_days: Sequence[float], gap_days: float) -> list[float]:
    """Return the horizons at which a predictor must be asked: those wanted, and the end of the gap."""
    return [gap_days, *horizons_days] if gap_days > 0 else list(horizons_days)


def risks_after_gap(risks: pl.DataFrame, gap_days: float) -> pl.DataFrame:
    """Turn risks from the landmark into risks between gap and horizon, given neither outcome nor death in the gap.

    For the outcome k with F_k its cumulative incidence, g the gap and h the horizon, both from the landmark:

        P(g < T_k ≤ h | nothing until g) = (F_k(h) − F_k(g)) / S(g),   S(g) = (1 − F_k(g)) (1 − F_death(g)),

    for death S(g) = 1 − F_death(g). S is exact for the hazards to first order in the gap: with constant rates a and b
    it is off by a·b·g²/2, 10⁻⁵ for two rates of 2 % a year and a gap of 90 days. Without a risk of death in the table
    that factor is 1. `risks` (schema `Risks`) holds the gap as one of its horizons; its rows there are dropped. The
    reference risk, which is not conditional, becomes null.
    """
    if gap_days <= 0:
        return risks
    horizon = Risks.horizon_days.col
    is_gap = (horizon / gap_days - 1.0).abs() <= _SAME
    in_gap = risks.filter(is_gap).select(*_PERSON, Risks.outcome.name, Risks.risk.col.alias(_IN_GAP))
    died = in_gap.filter(Outcomes.outcome.col == DEATH_CODE).select(*_PERSON, pl.col(_IN_GAP).alias(_DIED_IN_GAP))
    other_death = pl.when(Risks.outcome.col == DEATH_CODE).then(0.0).otherwise(pl.col(_DIED_IN_GAP)).fill_null(0.0)
    free = (1.0 - pl.col(_IN_GAP)) * (1.0 - other_death)
    return (
        risks.filter(~is_gap)
        .join(in_gap, on=[*_PERSON, Risks.outcome.name], how="left", maintain_order="left")
        .join(died, on=_PERSON, how="left", maintain_order="left")
        .with_columns(
            pl.when(free > 0).then(((Risks.risk.col - pl.col(_IN_GAP)) / free).clip(0.0, 1.0)).alias(Risks.risk.name),
            pl.lit(None, dtype=pl.Float64).alias(Risks.reference_risk.name),
        )
        .drop(_IN_GAP, _DIED_IN_GAP)
    )
