"""Reports and progress."""

import io
import json
import sys
from pathlib import Path

import numpy as np

from app.terminal import Report, print_report, show_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(report, *, as_json):
    out = io.StringIO()
    print_report(report, as_json=as_json, out=out)
    return out.getvalue()


def test_json_holds_plain_values_only():
    facts = {
        "path": Path("a/b"),
        "missing": float("nan"),
        "infinite": np.float64("inf"),
        "count": np.int64(3),
        "share": np.float64(0.5),
        "flag": True,
        "none": None,
        "names": ("a", "b"),
        "nested": {"x": [Path("c")]},
    }
    assert json.loads(shown(Report("last", facts), as_json=True)) == {
        "path": "a/b",
        "missing": None,
        "infinite": None,
        "count": 3,
        "share": 0.5,
        "flag": True,
        "none": None,
        "names": ["a", "b"],
        "nested": {"x": ["c"]},
    }


def test_text_is_the_lines_and_then_the_last_line():
    assert shown(Report("last", {}, lines=["first"]), as_json=False) == "first\nlast\n"


def test_progress_is_silent_where_nobody_watches(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with show_progress("working", total=2) as progress:
        progress.advance(note="loss 0.1")
        progress.advance()
    assert stderr.getvalue() == ""


def test_progress_on_a_terminal_goes_to_stderr_with_its_note(monkeypatch, capsys):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress("working", total=2) as progress:
        progress.advance(2, note="loss 0.1")
    assert "working" in stderr.getvalue()
    assert "loss 0.1" in stderr.getvalue()
    assert capsys.readouterr().out == ""
