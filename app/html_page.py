"""Pages as single HTML files: one template engine, one base page, plots drawn into the text."""

import io
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")  # no window, no display

import matplotlib.pyplot as plt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_schemas.errors import UsageError
from pipelines.small_counts import show_count
from pipelines.tables_on_disk import replace_when_done

if TYPE_CHECKING:
    from pipelines.describe_cohort import TableFlow

NOT_SHOWN = "not shown"
_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip


def render_template(template: str, **values: Any) -> str:
    """Fill a template of `app`; every text is escaped, and a value that is missing is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters.update(count=show_count, read_count=read_count, interval=keep_interval_whole)
    return environment.get_template(template).render(**values)


def read_count(table: "TableFlow") -> str:
    """Write how many rows were read; who is told the number kept could otherwise find what is withheld."""
    return NOT_SHOWN if table.rows_read is None else show_count(table.rows_read)


def keep_interval_whole(text: str) -> Markup:
    """Put what stands in brackets at the end on one line: `0.71 (0.69–0.73)` may break before the bracket only."""
    number, bracket, limits = text.rpartition(" (")
    if not bracket or not limits.endswith(")"):
        return Markup(escape(text))  # noqa: S704 - escaped
    return Markup('{} <span class="interval">({}</span>').format(number, limits)


def write_html(text: str, path: Path, option: str) -> None:
    """Write a page; it appears whole or not at all.

    Raises:
        UsageError: the file cannot be written there; names the option that gave it.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; {option} is the file for the page")
    try:
        with replace_when_done(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def draw_inline(
    name: str, draw: Callable[[Axes], None], *, size: tuple[float, float] = (6.0, 3.4), says: str = ""
) -> Markup:
    """Return one plot as an SVG element; the same numbers give the same text, and no two names share an id.

    Args:
        name: unique on the page.
        draw: fills the axes.
        size: width and height (inches).
        says: what the plot shows, for readers who cannot see it.
    """
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": f"deephealth {name}"}):
        figure, axes = plt.subplots(figsize=size)
        draw(axes)
        return Markup(_as_element(figure, says))  # noqa: S704 - our own SVG, its texts escaped by matplotlib


def _as_element(figure: Figure, says: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # without the XML declaration, which has no place inside HTML
    # Plots share names such as `axes_1`, and a page must not have an id twice; only what is pointed at keeps one.
    targets = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in targets else "", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(says)}"', 1) if says else text
