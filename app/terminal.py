"""What a command shows: progress on stderr while it works, and its report on stdout when it is done.

Nothing but the report is ever written to stdout, so that `--json` gives one object and nothing else.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


@dataclass(frozen=True)
class Report:
    """What a command has done. Every command returns one; `main` prints it as text or as JSON.

    `last_line` says what was written where; `facts` is the same for machines (keys in snake_case, units in names);
    `lines` come before the last line and are for people only.
    """

    last_line: str
    facts: Mapping[str, Any]
    lines: Sequence[str] = field(default=())


def print_report(report: Report, *, as_json: bool, out: TextIO) -> None:
    """Write the report: text lines and the last line, or one JSON object on one line."""
    if as_json:
        print(json.dumps(_plain(report.facts), allow_nan=False), file=out)
        return
    for line in (*report.lines, report.last_line):
        print(line, file=out)


def _plain(value: Any) -> Any:
    """Reduce to what JSON knows: paths and anything unknown become text, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value) if isinstance(value, PathLike) or not hasattr(value, "item") else _plain(value.item())


def announce(line: str) -> None:
    """Say something about a run while it goes on, on stderr, also where nobody watches: a log keeps it."""
    print(line, file=sys.stderr, flush=True)


class Progress(Protocol):
    """What work reports to while it runs."""

    def advance(self, steps: float = 1, note: str = "") -> None:
        """Say that `steps` more are done; a `note` (loss, events per second) replaces the last one."""


class _Silent:
    def advance(self, steps: float = 1, note: str = "") -> None:
        """Show nothing: nobody is watching."""


class _Bar:
    def __init__(self, bars: "RichProgress", task: "TaskID") -> None:
        self._bars, self._task = bars, task

    def advance(self, steps: float = 1, note: str = "") -> None:
        """Move the bar."""
        if note:
            self._bars.update(self._task, advance=steps, note=note)
        else:
            self._bars.update(self._task, advance=steps)


@contextmanager
def show_progress(description: str, total: float | None = None) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs; silent where stderr is no terminal. It vanishes when done.

    Without a `total` the bar only shows that something is going on.
    """
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    note = TextColumn("{task.fields[note]}")
    with Progress(*columns, note, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars, bars.add_task(description, total=total, note=""))
