"""The table of every outcome at every landmark and horizon, which a reader sorts and filters."""

from dataclasses import dataclass

from app.report.format_numbers import count, years
from app.report.measures import MEASURES, Numbers, plain, present_measures
from app.report.read_evaluation import OVER_SEVERAL, PREDICTORS, Evaluation
from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    CALIBRATION_SLOPE,
    DIFFERENCE_SUFFIX,
    ICI,
    MODEL,
    OBSERVED_EXPECTED,
    OVERALL,
    SCALED_BRIER,
    Metrics,
)

_OF_MODEL = (OBSERVED_EXPECTED, CALIBRATION_SLOPE, ICI, SCALED_BRIER, AVERAGE_PRECISION)


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it is sorted by (empty: none)."""

    text: str
    value: str


@dataclass(frozen=True)
class OutcomeRow:
    """One outcome at one landmark and horizon."""

    outcome: str
    words: str
    landmark: str
    horizon_days: float
    horizon: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class OutcomeTable:
    """Headings (label and how to read it) of the number columns, and the rows."""

    headings: tuple[tuple[str, str], ...]
    rows: tuple[OutcomeRow, ...]


def tabulate_outcomes(evaluation: Evaluation, words: dict[str, str]) -> OutcomeTable:
    """Return a row for each outcome, landmark and horizon that has an AUC of the model."""
    metrics = (AUC, f"{AUC}{DIFFERENCE_SUFFIX}", *_OF_MODEL)
    rows = evaluation.metrics.filter(
        Metrics.subgroup.col == OVERALL,
        ~Metrics.outcome.col.is_in(OVER_SEVERAL),
        Metrics.metric.col.is_in(metrics),
    )
    numbers = Numbers(rows)
    shown = present_measures(rows.filter(Metrics.predictor.col == MODEL), _OF_MODEL)
    headings = [
        ("people", "at risk at the landmark"),
        ("cases", "people who had the outcome by the horizon"),
        *((f"AUC {PREDICTORS[predictor]}", MEASURES[AUC].reads) for predictor in evaluation.predictors),
        *((f"AUC model − {PREDICTORS[name]}", "above 0 the model is better") for name in evaluation.references),
        *((MEASURES[metric].label, MEASURES[metric].reads) for metric in shown),
    ]
    judged = rows.filter(
        Metrics.predictor.col == MODEL, Metrics.metric.col == AUC, Metrics.estimate.col.is_not_null()
    ).sort(Metrics.n_events.name, descending=True, maintain_order=True)
    return OutcomeTable(
        headings=tuple(headings),
        rows=tuple(_row(row, numbers, evaluation, shown, words) for row in judged.iter_rows(named=True)),
    )


def _row(
    row: dict[str, object], numbers: Numbers, evaluation: Evaluation, shown: list[str], words: dict[str, str]
) -> OutcomeRow:
    outcome, landmark = str(row[Metrics.outcome.name]), str(row[Metrics.landmark.name])
    horizon_days = float(str(row[Metrics.horizon_days.name]))

    def cell(predictor: str, metric: str) -> Cell:
        key = (predictor, outcome, landmark, horizon_days, OVERALL, metric)
        return Cell(numbers.text(key), plain(numbers.value(key)))

    difference = f"{AUC}{DIFFERENCE_SUFFIX}"
    return OutcomeRow(
        outcome=outcome,
        words=words.get(outcome, ""),
        landmark=landmark,
        horizon_days=horizon_days,
        horizon=years(horizon_days),
        cells=(
            _count_cell(row[Metrics.n.name]),
            _count_cell(row[Metrics.n_events.name]),
            *(cell(predictor, AUC) for predictor in evaluation.predictors),
            *(cell(f"{MODEL}-{name}", difference) for name in evaluation.references),
            *(cell(MODEL, metric) for metric in shown),
        ),
    )


def _count_cell(value: object) -> Cell:
    number = value if isinstance(value, int) else None
    return Cell(count(number), "" if number is None else str(number))
