"""The description of a cohort as text lines, and as one HTML file that needs nothing else: no network, no scripts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from app.html_page import NOT_SHOWN, draw_inline, read_count, render_template, write_html
from pipelines.describe_cohort import QUANTILES, CohortDescription, FollowUp, Histogram, Spread
from pipelines.small_counts import show_count

_TEMPLATE = "describe_page.html"
_COLOUR = "#0072B2"
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
        lines.append(f"{table.table}: rows {verb}: {read_count(table)}, kept: {show_count(table.rows_kept)}")
        lines += [f"  {show_count(drop.rows)} dropped by {drop.rule}: {drop.sentence}" for drop in table.drops]
    return lines


def write_page(description: CohortDescription, title: str, path: Path) -> None:
    """Write the page; it appears whole or not at all.

    Raises:
        UsageError: the file cannot be written there.
    """
    write_html(render_page(description, title), path, "--html")


def render_page(description: CohortDescription, title: str) -> str:
    """Return the page as HTML; every text of the cohort is escaped."""
    follow_up = description.follow_up
    return render_template(
        _TEMPLATE,
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
        plots=_plots(description),
        codes=description.top_codes,
        n_codes=f"{description.n_codes:,}",
        n_rare=f"{description.n_rare_codes:,}" if description.n_rare_codes else "",
        attrition=description.attrition,
        notes=description.notes,
    )


def _plots(description: CohortDescription) -> list[Markup]:
    return [
        draw_inline(
            "entry_ages", lambda axes: _draw_bars(axes, description.entry_ages, "age at entry (years)", "people")
        ),
        draw_inline(
            "event_ages", lambda axes: _draw_bars(axes, description.event_ages, "age at event (years)", "events")
        ),
        draw_inline(
            "events_per_person",
            lambda axes: _draw_bars(axes, description.people_by_events, "events a person", "people"),
        ),
        draw_inline("follow_up", lambda axes: _draw_follow_up(axes, description.follow_up)),
    ]


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
    return NOT_SHOWN if value is None else f"{value:g}"


def _years(value: float | None) -> str:
    return NOT_SHOWN if value is None else f"{value:.1f} years"


def _person_years(follow_up: FollowUp) -> str:
    return NOT_SHOWN if follow_up.person_years is None else f"{follow_up.person_years:,}"
