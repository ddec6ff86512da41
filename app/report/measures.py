"""The measures of an evaluation in a reader's words, and one number with its interval as text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from app.report.format_numbers import FIXED_SPACE, NOTHING, decimals, percent, significant, with_interval
from app.report.read_evaluation import Evaluation
from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    BRIER,
    CALIBRATION_INTERCEPT,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    DIFFERENCE_SUFFIX,
    E50,
    E90,
    ICI,
    INTEGRATED_BRIER,
    MODEL,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OVERALL,
    PRECISION_AT,
    PREDICTED_RISK,
    RECALL_AT,
    SCALED_BRIER,
    VERSUS_REST_SUFFIX,
    Metrics,
)

Row: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str, str, float, str, str]  # predictor, outcome, landmark, horizon, subgroup, metric


@dataclass(frozen=True)
class Measure:
    """How a measure is called and written: with fixed decimals, as a percentage, or with three significant digits."""

    label: str
    reads: str  # how to read it, in one sentence
    form: str = "decimals"


_OF_RISK = "percent"
_SMALL = "significant"
MEASURES: dict[str, Measure] = {
    AUC: Measure("AUC", "chance that someone who gets the outcome had the higher risk; 0.5 is a coin, 1 is perfect"),
    CONCORDANCE_IPCW: Measure("C-index (weighted)", "as the AUC, over all times up to the horizon, corrected for loss"),
    CONCORDANCE: Measure("C-index", "as the AUC, over all times up to the horizon"),
    OBSERVED_EXPECTED: Measure("observed / expected", "1 is right; above 1 the model expects too few cases"),
    CALIBRATION_SLOPE: Measure("calibration slope", "1 is right; below 1 high risks are too high and low ones too low"),
    CALIBRATION_INTERCEPT: Measure("calibration intercept", "0 is right; above 0 risks are too low on average"),
    ICI: Measure("ICI", "mean distance between predicted and observed risk (percentage points)", _OF_RISK),
    E50: Measure("E50", "half of the people have a smaller distance (percentage points)", _OF_RISK),
    E90: Measure("E90", "nine of ten people have a smaller distance (percentage points)", _OF_RISK),
    SCALED_BRIER: Measure("scaled Brier", "gain in accuracy over giving everyone the same risk; 0 is none", _OF_RISK),
    BRIER: Measure("Brier", "mean squared error of the risk; smaller is better", _SMALL),
    NULL_BRIER: Measure("Brier of one risk for all", "what the Brier score is compared with", _SMALL),
    INTEGRATED_BRIER: Measure("integrated Brier", "the Brier score averaged over the horizons", _SMALL),
    AVERAGE_PRECISION: Measure("average precision", "mean share of cases among those with the highest risks", _SMALL),
    OBSERVED_RISK: Measure("observed risk", "Aalen–Johansen estimate", _OF_RISK),
    PREDICTED_RISK: Measure("mean predicted risk", "mean over the people judged", _OF_RISK),
    **{
        name: Measure(
            f"cases in top {share:.0%}", f"share of all cases among the {share:.0%} at highest risk", _OF_RISK
        )
        for share, name in RECALL_AT.items()
    },
    **{
        name: Measure(f"risk in top {share:.0%}", f"share of the {share:.0%} at highest risk who are cases", _OF_RISK)
        for share, name in PRECISION_AT.items()
    },
}


class Numbers:
    """Numbers of the long table by their keys; what was not kept or has no estimate is not there."""

    def __init__(self, rows: pl.DataFrame) -> None:
        """Keep the rows that have an estimate."""
        known = rows.filter(Metrics.estimate.col.is_not_null())
        self._rows: dict[Key, Row] = {_key_of_row(row): row for row in known.iter_rows(named=True)}

    def find(self, key: Key) -> Row | None:
        """Return one row."""
        return self._rows.get(key)

    def value(self, key: Key) -> float | None:
        """Return one estimate."""
        row = self.find(key)
        return None if row is None else float(row[Metrics.estimate.name])

    def text(self, key: Key, *, with_limits: bool = True) -> str:
        """Write one number in the form of its measure."""
        row = self.find(key)
        return NOTHING if row is None else number_text(row, with_limits=with_limits)

    def difference(self, key: Key, reference: str) -> str:
        """Write the model's number minus a reference's, paired over the same people."""
        _, outcome, landmark, horizon_days, subgroup, metric = key
        row = self.find(
            (f"{MODEL}-{reference}", outcome, landmark, horizon_days, subgroup, f"{metric}{DIFFERENCE_SUFFIX}")
        )
        return NOTHING if row is None else number_text(row)


def _key_of_row(row: Row) -> Key:
    return (
        row[Metrics.predictor.name], row[Metrics.outcome.name], row[Metrics.landmark.name],
        row[Metrics.horizon_days.name], row[Metrics.subgroup.name], row[Metrics.metric.name],
    )  # fmt: skip


def number_text(row: Row, *, with_limits: bool = True) -> str:
    """Write the number of a row of `Metrics` in the form of its measure; differences have a sign."""
    metric: str = row[Metrics.metric.name]
    name = metric.removesuffix(DIFFERENCE_SUFFIX).removesuffix(VERSUS_REST_SUFFIX)
    is_difference = name != metric
    measure = MEASURES.get(name)
    estimate, lower, upper = (row[column] for column in (Metrics.estimate.name, Metrics.lower.name, Metrics.upper.name))
    if not with_limits:
        lower = upper = None
    if measure is not None and measure.form != "decimals":
        return _limits_around(estimate, lower, upper, measure.form, is_difference=is_difference)
    places = 3 if is_difference else 2
    return with_interval(estimate, lower, upper, places, signed=is_difference)


def _limits_around(estimate: float, lower: float | None, upper: float | None, form: str, *, is_difference: bool) -> str:
    """Write numbers that are no plain decimals, with their limits where they have some."""

    def write(value: float) -> str:
        text = percent(value).replace("-", "\N{MINUS SIGN}") if form == _OF_RISK else significant(value)
        return f"+{text}" if is_difference and value > 0 else text

    text = write(estimate)
    if lower is None or upper is None:
        return text
    between = f"{FIXED_SPACE}to{FIXED_SPACE}" if lower < 0 or is_difference else "–"
    return f"{text} ({write(lower).removesuffix(f'{FIXED_SPACE}%')}{between}{write(upper)})"


def present_measures(rows: pl.DataFrame, wanted: Iterable[str] = MEASURES) -> list[str]:
    """List the measures that have at least one estimate, in the order of `MEASURES`."""
    found = set(rows.filter(Metrics.estimate.col.is_not_null())[Metrics.metric.name])
    return [name for name in wanted if name in found]


def key_of(evaluation: Evaluation, predictor: str, outcome: str, metric: str, subgroup: str = OVERALL) -> Key:
    """Return the key of a number at the first landmark and horizon."""
    return (predictor, outcome, evaluation.landmark, evaluation.horizon_days, subgroup, metric)


def plain(value: float | None) -> str:
    """Write a number for a machine to sort by; empty where there is none."""
    return "" if value is None or decimals(value) == NOTHING else f"{value:.6g}"
