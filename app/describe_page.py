"""The description of a cohort as text lines, and as one HTML file that needs nothing else: no network, no scripts."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no window, no display

import matplotlib.pyplot as plt
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from data_schemas.errors import UsageError
from pipelines.describe_cohort import QUANTILES, CohortDescription, FollowUp, Histogram, Spread, TableFlow
from pipelines.small_counts import show_count
from pipelines.tables_on_disk import replace_when_done

_TEMPLATE = "describe_page.html"
_COLOUR = "#0072B2"
_NOT_SHOWN = "not shown"
_N_CODES_PRINTED = 10
_SHARES = tuple(f"{share:.0%}" for share in QUANTILES)
_MAX_TICKS = 14


def description_lines(description: CohortDescription) -> list[str]:
    """Return what the command line prints."""
    follow_up = description.follow_up
    sexes = ", ".join(f"{sex} {show_count(count)}" for sex, count in description.sexes.items())
    lines = [
        f"{show_count(description.people)} people ({sexes})",
        f"{show_count(description.events)} events of {description.n_codes:,} codes, "
        f"{show_count(description.deaths)} deaths",
        *(f"{name}: {_spread_in_words(spread)}" for name, spread in _spreads(description)),
        f"follow-up (reverse Kaplan–Meier): median {_years(follow_up.median_years)}, "
        f"quartiles {_years(follow_up.lower_quartile_years)} and {_years(follow_up.upper_quartile_years)}, "
        f"{_person_years(follow_up)} person-years",
        f"codes of most people, of {description.n_codes:,} ({description.n_rare_codes:,} under 10 people, not shown):",
    ]
    lines += [
        f"  {code.code}: {code.people:,} people, {code.events:,} rows{code.description and f' ({code.description})'}"
        for code in description.top_codes[:_N_CODES_PRINTED]
    ]
    for table in description.attrition:
        verb = "added" if table.is_derived else "read"
        lines.append(f"{table.table}: rows {verb}: {_read_count(table)}, kept: {show_count(table.rows_kept)}")
        lines += [f"  {show_count(drop.rows)} dropped by {drop.rule}: {drop.sentence}" for drop in table.drops]
    return lines


def write_page(description: CohortDescription, title: str, path: Path) -> None:
    """Write the page; it appears whole or not at all.

    Raises:
        UsageError: the file cannot be written there.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; --html is the file for the page")
    try:
        with replace_when_done(path) as temporary:
            temporary.write_text(render_page(description, title), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def render_page(description: CohortDescription, title: str) -> str:
    """Return the page as HTML; every text of the cohort is escaped."""
    follow_up = description.follow_up
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters.update(count=show_count, read_count=_read_count)
    return environment.get_template(_TEMPLATE).render(
        title=title,
        figures=[
            ("people", show_count(description.people)),
            *((sex, show_count(count)) for sex, count in description.sexes.items()),
            ("events", show_count(description.events)),
            ("codes", f"{description.n_codes:,}"),
            ("deaths", show_count(description.deaths)),
            ("person-years", _person_years(follow_up)),
            ("median follow-up", _years(follow_up.median_years)),
        ],
        shares=_SHARES,
        spreads=[(name, [_number(value) for value in spread.quantiles]) for name, spread in _spreads(description)],
        plots=[Markup(plot) for plot in _plots(description)],  # noqa: S704 - our own SVG, its texts escaped by matplotlib
        codes=description.top_codes,
        n_codes=f"{description.n_codes:,}",
        n_rare=f"{description.n_rare_codes:,}" if description.n_rare_codes else "",
        attrition=description.attrition,
        notes=description.notes,
    )


def _plots(description: CohortDescription) -> list[str]:
    return [
        _draw("entry_ages", lambda axes: _draw_bars(axes, description.entry_ages, "age at entry (years)", "people")),
        _draw("event_ages", lambda axes: _draw_bars(axes, description.event_ages, "age at event (years)", "events")),
        _draw(
            "events_per_person",
            lambda axes: _draw_bars(axes, description.people_by_events, "events a person", "people"),
        ),
        _draw("follow_up", lambda axes: _draw_follow_up(axes, description.follow_up)),
    ]


def _draw(name: str, draw: Callable[[Axes], None]) -> str:
    """Return one plot as an SVG element; the same numbers give the same text, and no two plots share an id."""
    settings: Any = {
        "svg.hashsalt": f"deephealth {name}", "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False,
        "axes.spines.right": False, "figure.constrained_layout.use": True,
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(figsize=(6, 3.4))
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]  # without the XML declaration, which has no place inside HTML


def _draw_bars(axes: Axes, histogram: Histogram, label: str, unit: str) -> None:
    """Draw a bar a bin."""
    places = np.arange(len(histogram.counts))
    axes.bar(places, histogram.counts, width=0.9, color=_COLOUR)
    step = -(-len(places) // _MAX_TICKS) or 1
    axes.set_xticks(places[::step], histogram.labels[::step], rotation=45, ha="right", rotation_mode="anchor")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(xlabel=label, ylabel=unit, ylim=(0, None))


def _draw_follow_up(axes: Axes, follow_up: FollowUp) -> None:
    axes.step(follow_up.years, follow_up.still_observed, where="post", color=_COLOUR)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(
        xlabel="years since entry (reverse Kaplan–Meier, drawn to 10 people)",
        ylabel="still under observation",
        ylim=(0, 1.02),
        xlim=(0, None),
    )


def _read_count(table: TableFlow) -> str:
    """Write how many rows were read; who is told the number kept could otherwise find what is withheld."""
    return _NOT_SHOWN if table.rows_read is None else show_count(table.rows_read)


def _spreads(description: CohortDescription) -> Sequence[tuple[str, Spread]]:
    return (
        ("age at entry (years)", description.entry_age_years),
        ("age at exit (years)", description.exit_age_years),
        ("events a person", description.events_per_person),
    )


def _spread_in_words(spread: Spread) -> str:
    _, lower, _, upper, _ = spread.quantiles
    return f"median {_number(spread.median)}, quartiles {_number(lower)} and {_number(upper)}"


def _number(value: float | None) -> str:
    return _NOT_SHOWN if value is None else f"{value:g}"


def _years(value: float | None) -> str:
    return _NOT_SHOWN if value is None else f"{value:.1f} years"


def _person_years(follow_up: FollowUp) -> str:
    return _NOT_SHOWN if follow_up.person_years is None else f"{follow_up.person_years:,}"
