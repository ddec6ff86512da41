"""The table that an evaluation ends with: the same figures for a person and for a machine."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.results import (
    AGE_SEX,
    CONCORDANCE,
    COX,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    OVERALL,
    POOLED,
    Metrics,
)
from pipelines.evaluation.evaluate_risks import MIN_CASES

HEADLINE_LANDMARK = "entry"
HEADLINE_HORIZON_YEARS = 5.0
_SUMMED_UP = (MACRO_MEAN, POOLED)
_REFERENCES = {COX: "Cox", AGE_SEX: "age and sex"}


def headline_landmark(landmarks: Sequence[str]) -> str:
    """Return the landmark that headlines are about: entry, else the first."""
    return HEADLINE_LANDMARK if HEADLINE_LANDMARK in landmarks or not landmarks else landmarks[0]


def headline_horizon_years(horizons_years: Sequence[float]) -> float:
    """Return the horizon that headlines are about: the one nearest to 5 years, the shorter of two as near."""
    return min(sorted(horizons_years), key=lambda years: abs(years - HEADLINE_HORIZON_YEARS), default=0.0)


def headline_rows(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the rows over all people at the headline landmark and horizon that have an estimate."""
    landmark = headline_landmark(metrics[Metrics.landmark.name].unique(maintain_order=True).to_list())
    return metrics.filter(
        Metrics.landmark.col == landmark,
        Metrics.horizon_days.col == years_to_days(_headline_years(metrics)),
        Metrics.subgroup.col == OVERALL,
        Metrics.estimate.col.is_not_null(),
    )


def _headline_years(metrics: pl.DataFrame) -> float:
    days = metrics[Metrics.horizon_days.name].unique().to_list()
    return headline_horizon_years([horizon / DAYS_PER_YEAR for horizon in days])


def result_table(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return one row an outcome: cases, concordance of model, Cox and age–sex, observed/expected with its interval."""
    rows = headline_rows(metrics).filter(~Metrics.outcome.col.is_in(_SUMMED_UP))
    table = _pick(rows, CONCORDANCE, MODEL).select(
        Metrics.outcome.col, Metrics.n_events.col.alias("n_cases"), Metrics.estimate.col.alias("c_index_model")
    )
    columns = [
        _pick(rows, CONCORDANCE, predictor).select(
            Metrics.outcome.col, Metrics.estimate.col.alias(f"c_index_{predictor}")
        )
        for predictor in (COX, AGE_SEX)
    ]
    ratio = _pick(rows, OBSERVED_EXPECTED, MODEL).select(
        Metrics.outcome.col,
        Metrics.estimate.col.alias("observed_expected"),
        Metrics.lower.col.alias("observed_expected_lower"),
        Metrics.upper.col.alias("observed_expected_upper"),
    )
    for part in (*columns, ratio):
        table = table.join(part, on=Metrics.outcome.name, how="left", maintain_order="left")
    return table.sort("n_cases", Metrics.outcome.name, descending=[True, False])


def overall_results(metrics: pl.DataFrame) -> dict[str, float | None]:
    """Return macro means, the paired differences to both references, and the pooled observed/expected ratio."""
    rows = headline_rows(metrics)
    figures: dict[str, float | None] = {}
    for predictor in (MODEL, COX, AGE_SEX):
        figures[f"c_index_{predictor}"] = _number(rows, CONCORDANCE, MACRO_MEAN, predictor, Metrics.estimate.name)
    for reference in _REFERENCES:
        pair = (CONCORDANCE + DIFFERENCE_SUFFIX, MACRO_MEAN, f"{MODEL}-{reference}")
        figures |= _with_interval(rows, f"difference_to_{reference}", *pair)
    figures |= _with_interval(rows, "observed_expected", OBSERVED_EXPECTED, POOLED, MODEL)
    return figures


def format_results(metrics: pl.DataFrame) -> list[str]:
    """Lay the results out as lines of text; a number that is not there is a dash.

    Without a row it says why: an outcome with few cases is not judged.
    """
    table, overall = result_table(metrics), overall_results(metrics)
    if table.is_empty():
        return [f"nothing could be judged: every outcome has fewer than {MIN_CASES} cases among the people judged"]
    rows = [
        [
            row[Metrics.outcome.name],
            _as_text(row["n_cases"]),
            *(_as_text(row[f"c_index_{predictor}"]) for predictor in (MODEL, COX, AGE_SEX)),
            _ratio_text(row),
        ]
        for row in table.iter_rows(named=True)
    ]
    means = [_as_text(overall[f"c_index_{predictor}"]) for predictor in (MODEL, COX, AGE_SEX)]
    rows.append(["mean; O/E pooled", "", *means, _ratio_text(overall)])
    headings = ["outcome", "cases", "C model", "C Cox", "C age-sex", f"O/E {_headline_years(metrics):g}y (95 %)"]
    differences = [
        f"C of the model - C of {words}: {_interval_text(overall, f'difference_to_{reference}', '+.3f')}"
        for reference, words in _REFERENCES.items()
    ]
    return [*_align([headings, *rows]), *differences]


def _pick(rows: pl.DataFrame, metric: str, predictor: str) -> pl.DataFrame:
    return rows.filter(Metrics.metric.col == metric, Metrics.predictor.col == predictor)


def _number(rows: pl.DataFrame, metric: str, outcome: str, predictor: str, column: str) -> float | None:
    found = _pick(rows, metric, predictor).filter(Metrics.outcome.col == outcome)[column].to_list()
    return found[0] if found else None


def _with_interval(rows: pl.DataFrame, name: str, metric: str, outcome: str, predictor: str) -> dict[str, float | None]:
    columns = {name: Metrics.estimate.name, f"{name}_lower": Metrics.lower.name, f"{name}_upper": Metrics.upper.name}
    return {key: _number(rows, metric, outcome, predictor, column) for key, column in columns.items()}


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]


def _ratio_text(figures: dict[str, Any]) -> str:
    return _interval_text(figures, "observed_expected", ".2f")


def _interval_text(figures: dict[str, Any], name: str, form: str) -> str:
    numbers = [figures[key] for key in (name, f"{name}_lower", f"{name}_upper")]
    if None in numbers:
        return _as_text(numbers[0])
    estimate, lower, upper = (format(number, form) for number in numbers)
    return f"{estimate} ({lower} to {upper})"


def _as_text(cell: float | int | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else f"{cell:,}"
