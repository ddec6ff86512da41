"""How near a model comes to the true risks of a made-up cohort, as lines of text and for machines."""

from typing import Any

import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.evaluation_tables import TruthComparison
from data_schemas.results import MACRO_MEAN, MODEL, OVERALL, TRUTH, Metrics
from pipelines.evaluation.compare_with_truth import (
    AUC_GAP,
    MEAN_ABSOLUTE_DIFFERENCE,
    ROOT_MEAN_SQUARE_DIFFERENCE,
    TRUE_INTERCEPT,
    TRUE_OBSERVED_EXPECTED,
    TRUE_SLOPE,
    concordance_gap,
)

_SHOWN = (
    AUC_GAP, TRUE_SLOPE, TRUE_INTERCEPT, TRUE_OBSERVED_EXPECTED, MEAN_ABSOLUTE_DIFFERENCE, ROOT_MEAN_SQUARE_DIFFERENCE,
)  # fmt: skip


def truth_results(metrics: pl.DataFrame, truth: pl.DataFrame | None) -> list[dict[str, Any]]:
    """Return one row a landmark, horizon and subgroup: means over outcomes of the model beside the truth.

    The concordance of model and truth on what happened, and its gap, stand at all people together.
    """
    if truth is None:
        return []
    means = truth.filter(
        TruthComparison.predictor.col == MODEL,
        TruthComparison.outcome.col == MACRO_MEAN,
        TruthComparison.metric.col.is_in(_SHOWN),
    )
    keys = [TruthComparison.landmark.name, TruthComparison.horizon_days.name, TruthComparison.subgroup.name]
    wide = means.pivot(on=TruthComparison.metric.name, index=keys, values=TruthComparison.estimate.name)
    gaps = concordance_gap(metrics).rename(
        {MODEL: "c_index_model", TRUTH: "c_index_truth", "gap": "c_index_gap"}
    ).with_columns(pl.lit(OVERALL).alias(TruthComparison.subgroup.name))  # fmt: skip
    joined = wide.join(gaps, on=keys, how="left", maintain_order="left")
    years = (TruthComparison.horizon_days.col / DAYS_PER_YEAR).round(2).alias("horizon_years")
    return joined.with_columns(years).drop(Metrics.horizon_days.name).to_dicts()


def format_truth(metrics: pl.DataFrame, truth: pl.DataFrame | None) -> list[str]:
    """Lay the comparison out as text, one line a landmark, horizon and subgroup; nothing without truth."""
    rows = truth_results(metrics, truth)
    if not rows:
        return []
    heading = "beside the true risks (means over outcomes): C gap, AUC gap, slope, true/expected, mean |difference|"
    return [heading, *(_line(row) for row in rows)]


def _line(row: dict[str, Any]) -> str:
    names = ("c_index_gap", AUC_GAP, TRUE_SLOPE, TRUE_OBSERVED_EXPECTED, MEAN_ABSOLUTE_DIFFERENCE)
    numbers = "  ".join(f"{'-' if row.get(name) is None else format(row[name], '.4f'):>8}" for name in names)
    place = (
        f"{row[TruthComparison.landmark.name]}, {row['horizon_years']:g} years, {row[TruthComparison.subgroup.name]}"
    )
    return f"  {place:<40}{numbers}"
