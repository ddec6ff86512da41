"""The plots of a report: colours that colour-blind readers tell apart, and a marker and a line that say the same again.

Each plot is small enough to be read on a phone without being shrunk; a page lays several side by side.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import polars as pl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from app.html_page import draw_inline
from app.report.format_numbers import years
from app.report.measures import Row, number_text
from app.report.read_evaluation import CALIBRATION, CALIBRATION_CURVE, DECISION_CURVE, PREDICTORS, Evaluation
from app.report.subgroup_table import SubgroupTable
from data_schemas.results import (
    AGE_SEX,
    COX,
    GRADIENT_BOOSTING,
    MODEL,
    OVERALL,
    TRUTH,
    CalibrationCurve,
    CalibrationGroups,
    DecisionCurve,
    Metrics,
)

N_OUTCOMES_DRAWN = 9
# Okabe & Ito 2008: stay apart for every kind of colour blindness. Colour, marker, line.
STYLES = {
    MODEL: ("#0072B2", "o", "-"),
    COX: ("#D55E00", "s", "--"),
    GRADIENT_BOOSTING: ("#009E73", "^", "-."),
    AGE_SEX: ("#5A5A5A", "D", ":"),
    TRUTH: ("#CC79A7", "*", "-"),
}
_GUIDE = "#BBBBBB"
_PERCENT = FuncFormatter(lambda share, _: f"{share * 100:g} %")
_STEPS = (1, 2, 2.5, 5, 10)  # between ticks
_ROOM = 1.05
_PANEL = (3.4, 3.1)  # inches
_FOREST_WIDTH, _FOREST_HEAD, _FOREST_ROW = 4.6, 1.1, 0.27


def calibration_plots(evaluation: Evaluation) -> list[Markup]:
    """Draw observed against predicted risk for the outcomes with most cases: smooth curve and groups."""
    groups = _at_first(evaluation, evaluation[CALIBRATION])
    curves = _at_first(evaluation, evaluation[CALIBRATION_CURVE])
    plots = []
    for outcome in evaluation.outcomes_by_cases(N_OUTCOMES_DRAWN):
        of_outcome = [table.filter(pl.col(Metrics.outcome.name) == outcome) for table in (groups, curves)]
        if all(table.is_empty() for table in of_outcome):
            continue
        says = f"Calibration of {outcome}: observed against predicted {_horizon(evaluation)} risk"
        plots.append(
            draw_inline(
                f"calibration {outcome}",
                partial(_draw_calibration, outcome=outcome, groups=of_outcome[0], curves=of_outcome[1]),
                size=_PANEL,
                says=says,
            )
        )
    return plots


def decision_plots(evaluation: Evaluation) -> list[Markup]:
    """Draw net benefit against the threshold of risk for the outcomes with most cases."""
    rows = _at_first(evaluation, evaluation[DECISION_CURVE])
    plots = []
    for outcome in evaluation.outcomes_by_cases(N_OUTCOMES_DRAWN):
        of_outcome = rows.filter(DecisionCurve.outcome.col == outcome, DecisionCurve.net_benefit.col.is_not_null())
        if of_outcome.is_empty():
            continue
        plots.append(
            draw_inline(
                f"decision {outcome}",
                partial(_draw_decision, outcome=outcome, rows=of_outcome),
                size=_PANEL,
                says=f"Net benefit of acting on the {_horizon(evaluation)} risk of {outcome}",
            )
        )
    return plots


def discrimination_plot(rows: Sequence[tuple[str, Sequence[Row | None]]], predictors: Sequence[str]) -> Markup:
    """Draw the AUC of each outcome for every predictor, with intervals; `rows` are outcomes, most cases first."""
    height = _FOREST_HEAD + (0.16 * len(predictors) + 0.12) * len(rows)
    return draw_inline(
        "discrimination",
        lambda axes: _draw_discrimination(axes, rows, predictors),
        size=(_FOREST_WIDTH, height),
        says="AUC of each outcome for the model and its references, with 95 % intervals",
    )


def forest_plot(table: SubgroupTable) -> Markup:
    """Draw the model's AUC in each subgroup of one outcome, everyone first."""
    return draw_inline(
        f"subgroups {table.outcome}",
        lambda axes: _draw_forest(axes, table),
        size=(_FOREST_WIDTH, _FOREST_HEAD + _FOREST_ROW * len(table.rows)),
        says=f"AUC for {table.outcome} in subgroups, with 95 % intervals",
    )


def _at_first(evaluation: Evaluation, table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(
        pl.col(Metrics.landmark.name) == evaluation.landmark,
        pl.col(Metrics.horizon_days.name) == evaluation.horizon_days,
        pl.col(Metrics.subgroup.name) == OVERALL,
    )


def _horizon(evaluation: Evaluation) -> str:
    return years(evaluation.horizon_days).replace(" years", "-year").replace(" year", "-year")


def _draw_calibration(axes: Axes, outcome: str, groups: pl.DataFrame, curves: pl.DataFrame) -> None:
    """Draw the model: its curve with its band, and its groups with their intervals; the diagonal is right."""
    colour, marker, line = STYLES[MODEL]
    groups = groups.filter(CalibrationGroups.predictor.col == MODEL)
    curves = curves.filter(CalibrationCurve.predictor.col == MODEL).sort(CalibrationCurve.predicted.name)
    columns = (CalibrationGroups.predicted.name, CalibrationGroups.observed.name)
    limits = (CalibrationGroups.lower.name, CalibrationGroups.upper.name)
    seen = [*columns, CalibrationGroups.upper.name]
    largest = max((value for value in groups.select(seen).max().row(0) if value), default=0.0)
    largest = min(1.0, max(largest, *(value or 0.0 for value in curves.select(columns).max().row(0))) * _ROOM) or 1.0
    axes.plot([0, largest], [0, largest], color=_GUIDE, linewidth=1)
    if curves.height:
        predicted, observed = (curves[column].to_numpy() for column in columns)
        lower, upper = (curves[column].cast(pl.Float64).fill_null(float("nan")).to_numpy() for column in limits)
        axes.fill_between(predicted, lower, upper, color=colour, alpha=0.15, linewidth=0)
        axes.plot(predicted, observed, line, color=colour)
    if groups.height:
        predicted, observed = (groups[column].cast(pl.Float64).to_numpy() for column in columns)
        errors = np.abs(groups.select(limits).to_numpy().astype(np.float64).T - observed)
        axes.errorbar(predicted, observed, yerr=errors, fmt=marker, color=colour, markersize=4, linewidth=1)
    axes.set(
        xlim=(0, largest), ylim=(0, largest), title=_short(outcome), xlabel="predicted risk", ylabel="observed risk"
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_PERCENT)
        axis.set_major_locator(MaxNLocator(5, steps=_STEPS))


def _draw_decision(axes: Axes, outcome: str, rows: pl.DataFrame) -> None:
    thresholds = rows.unique(DecisionCurve.threshold.name, keep="first").sort(DecisionCurve.threshold.name)
    everyone = thresholds[DecisionCurve.treat_all.name].cast(pl.Float64).to_numpy()
    places = thresholds[DecisionCurve.threshold.name].to_numpy()
    axes.axhline(0, color="#000000", linewidth=1, label="nobody")
    axes.plot(places, everyone, color=_GUIDE, linewidth=1.5, label="everybody")
    highest = 0.0
    for predictor, (colour, marker, line) in STYLES.items():
        curve = rows.filter(DecisionCurve.predictor.col == predictor).sort(DecisionCurve.threshold.name)
        if curve.is_empty():
            continue
        benefit = curve[DecisionCurve.net_benefit.name].to_numpy()
        highest = max(highest, float(benefit.max()))
        axes.plot(
            curve[DecisionCurve.threshold.name].to_numpy(), benefit, line, color=colour, marker=marker, markersize=4,
            markevery=max(1, curve.height // 5), linewidth=1.5, label=PREDICTORS[predictor],
        )  # fmt: skip
    axes.set(
        title=_short(outcome), xlabel="threshold of risk", ylabel="net benefit", xlim=(0, None),
        ylim=(-0.15 * highest or -0.01, highest * 1.1 or 0.01),
    )  # fmt: skip
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.legend(fontsize=8)


def _draw_discrimination(
    axes: Axes, rows: Sequence[tuple[str, Sequence[Row | None]]], predictors: Sequence[str]
) -> None:
    step = 0.8 / max(len(predictors), 1)
    for number, predictor in enumerate(predictors):
        places = [-place - (number - (len(predictors) - 1) / 2) * step for place in range(len(rows))]
        known = [(cells[number], place) for (_, cells), place in zip(rows, places, strict=True)]
        _draw_points(axes, [(row, place) for row, place in known if row is not None], predictor)
    axes.set_yticks([-place for place in range(len(rows))], [_short(outcome) for outcome, _ in rows])
    axes.set(xlabel="AUC (0.5: a coin, 1: perfect)", ylim=(-len(rows) + 0.4, 0.6))
    axes.axvline(0.5, color=_GUIDE, linewidth=1)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, fontsize=9)


def _draw_forest(axes: Axes, table: SubgroupTable) -> None:
    places = [-place for place in range(len(table.rows))]
    known = [(row.auc, place) for row, place in zip(table.rows, places, strict=True) if row.auc is not None]
    _draw_points(axes, known, MODEL)
    everyone = next((row.auc for row in table.rows if not row.kind), None)
    if everyone is not None:
        axes.axvline(everyone[Metrics.estimate.name], color=_GUIDE, linewidth=1)
    axes.set_yticks(places, [row.subgroup for row in table.rows])
    for row, place in zip(table.rows, places, strict=True):
        text = "too few cases" if row.auc is None else number_text(row.auc)
        axes.annotate(
            text, (1.02, place), xycoords=("axes fraction", "data"), fontsize=8, va="center", annotation_clip=False
        )
    axes.set(xlabel="AUC", title=_short(table.outcome), ylim=(-len(table.rows) + 0.4, 0.6))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=_STEPS))


def _draw_points(axes: Axes, known: Sequence[tuple[Row, float]], predictor: str) -> None:
    """Draw estimates with their intervals, each at its height."""
    if not known:
        return
    colour, marker, _ = STYLES[predictor]
    estimates = np.array([row[Metrics.estimate.name] for row, _ in known], dtype=np.float64)
    limits = np.array([[row[Metrics.lower.name], row[Metrics.upper.name]] for row, _ in known], dtype=np.float64)
    errors = np.nan_to_num(np.abs(limits.T - estimates))
    axes.errorbar(
        estimates, [place for _, place in known], xerr=errors, fmt=marker, color=colour, markersize=4.5, linewidth=1.2,
        label=PREDICTORS[predictor],
    )  # fmt: skip


def _short(name: str, longest: int = 24) -> str:
    """Cut a name so that it does not push the plot aside; the tables have it whole. `$` would be read as a formula."""
    text = name.replace("_", " ").replace("$", r"\$")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
