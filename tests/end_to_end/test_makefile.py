"""What `make` says to somebody whose Python is too old."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_a_python_that_is_too_old_stops_at_once_with_one_line(tmp_path, target):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 1 ;; esac\ntouch "$(dirname "$0")/was_used"\n')
    old.chmod(0o755)
    # `make test` runs this: the make here must not take itself for a part of that one.
    environ = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    command = ["make", target, f"PYTHON={old}"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0
    said, make_itself = done.stderr.splitlines()
    assert said.startswith(f"deephealth needs Python 3.11 or newer, and '{old}' is not; name one")
    assert make_itself.startswith("make: ***")
    assert not (tmp_path / "was_used").exists()
    assert not (tmp_path / ".venv").exists()
