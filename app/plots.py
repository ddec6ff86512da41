"""Plots as SVG files: colours that colour-blind readers tell apart, the same bytes for the same numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no window, no display

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.results import AGE_SEX, CONCORDANCE, COX, MACRO_MEAN, MODEL, CalibrationGroups, Metrics

# Okabe & Ito 2008, chosen to stay apart for every kind of colour blindness; the marker says the same again.
_STYLES = {MODEL: ("#0072B2", "o", "model"), COX: ("#D55E00", "s", "Cox"), AGE_SEX: ("#7F7F7F", "D", "age and sex")}
_SETTINGS: Any = {
    "svg.hashsalt": "deephealth", "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip
_COLUMNS = 3


def plot_training_curve(training_losses: Sequence[float], tuning_losses: Sequence[float], path: Path) -> None:
    """Draw the loss of both splits by epoch and mark the epoch that was kept."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = plt.subplots(figsize=(6, 4))
        epochs = np.arange(1, len(tuning_losses) + 1)
        axes.plot(epochs, training_losses, color=_STYLES[AGE_SEX][0], label="training people (dropout on)")
        axes.plot(epochs, tuning_losses, color=_STYLES[MODEL][0], label="tuning people")
        best = int(np.argmin(tuning_losses))
        axes.plot(epochs[best], tuning_losses[best], "o", color=_STYLES[MODEL][0], label="weights kept")
        axes.set(xlabel="epoch", ylabel="negative log-likelihood a query (nats)", title="Training")
        axes.legend()
        _save(figure, path)


def plot_discrimination(metrics: pl.DataFrame, horizon_days: float, landmark: str, path: Path) -> None:
    """Draw the concordance of each outcome for the model and both references, with 95 % intervals."""
    rows = metrics.filter(
        Metrics.metric.col == CONCORDANCE,
        Metrics.landmark.col == landmark,
        Metrics.horizon_days.col == horizon_days,
        Metrics.estimate.col.is_not_null(),
    )
    model = rows.filter(Metrics.predictor.col == MODEL).sort(Metrics.outcome.col == MACRO_MEAN, Metrics.estimate.name)
    outcomes = model[Metrics.outcome.name].to_list()
    with mpl.rc_context(_SETTINGS):
        figure, axes = plt.subplots(figsize=(7, 1.2 + 0.45 * max(len(outcomes), 1)))
        for offset, (predictor, (colour, marker, label)) in zip((0.2, 0.0, -0.2), _STYLES.items(), strict=True):
            found = {
                row[Metrics.outcome.name]: row
                for row in rows.iter_rows(named=True)
                if row[Metrics.predictor.name] == predictor
            }
            shown = [(place, found[outcome]) for place, outcome in enumerate(outcomes) if outcome in found]
            places = [place + offset for place, _ in shown]
            estimates = np.array([row[Metrics.estimate.name] for _, row in shown])
            limits = np.array([[row[Metrics.lower.name], row[Metrics.upper.name]] for _, row in shown], dtype=float)
            if shown:
                errors = np.abs(limits.T - estimates)
                axes.errorbar(estimates, places, xerr=errors, fmt=marker, color=colour, label=label, markersize=5)
        axes.set_yticks(range(len(outcomes)), [outcome.replace("_", " ") for outcome in outcomes])
        axes.axvline(0.5, color="#CCCCCC", linewidth=1)
        years = f"{horizon_days / DAYS_PER_YEAR:g} years"
        axes.set(
            xlabel="concordance (0.5: chance, 1: perfect order)", title=f"Discrimination, {years} after {landmark}"
        )
        if outcomes:
            axes.legend(loc="lower right")
        else:
            _say_nothing_is_shown(axes)
        _save(figure, path)


def plot_calibration(calibration: pl.DataFrame, horizon_days: float, landmark: str, path: Path) -> None:
    """Draw observed against predicted risk by groups of predicted risk, a panel an outcome, model only."""
    rows = calibration.filter(
        CalibrationGroups.predictor.col == MODEL,
        CalibrationGroups.landmark.col == landmark,
        CalibrationGroups.horizon_days.col == horizon_days,
    )
    panels = rows.partition_by(CalibrationGroups.outcome.name, maintain_order=True)
    n_rows = max(1, -(-len(panels) // _COLUMNS))
    with mpl.rc_context(_SETTINGS):
        figure, grid = plt.subplots(n_rows, _COLUMNS, figsize=(9, 3 * n_rows), squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_calibration(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        if not panels:
            _say_nothing_is_shown(grid.flat[0])
        years = f"{horizon_days / DAYS_PER_YEAR:g}-year risk"
        figure.suptitle(f"Calibration, {years} after {landmark}: groups of predicted risk, at least 10 cases each")
        figure.supxlabel("predicted risk (mean of the group)")
        figure.supylabel("observed risk (Aalen–Johansen, 95 % interval)")
        _save(figure, path)


def _say_nothing_is_shown(axes: Axes) -> None:
    axes.text(0, 0.5, "no outcome has enough cases to be shown", transform=axes.transAxes)


def _draw_calibration(axes: Axes, panel: pl.DataFrame) -> None:
    predicted = panel[CalibrationGroups.predicted.name].to_numpy()
    observed = panel[CalibrationGroups.observed.name].to_numpy()
    limits = panel.select(CalibrationGroups.lower.name, CalibrationGroups.upper.name).to_numpy().T
    largest = float(np.nanmax(np.concatenate([predicted, limits[1]]), initial=0.0)) * 1.05 or 1.0
    colour, marker, _ = _STYLES[MODEL]
    axes.plot([0, largest], [0, largest], color="#CCCCCC", linewidth=1)
    axes.errorbar(predicted, observed, yerr=np.abs(limits - observed), fmt=marker, color=colour, markersize=4)
    axes.set(xlim=(0, largest), ylim=(0, largest), title=panel[CalibrationGroups.outcome.name][0])
    axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)
