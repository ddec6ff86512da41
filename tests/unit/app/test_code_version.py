"""Which code ran."""

import shutil
import subprocess
from importlib.metadata import version

import pytest

from app.code_version import code_tags, git_commit, pinned_requirements


def test_pins_are_exact_and_without_a_build_suffix():
    pins = dict(line.split("==") for line in pinned_requirements())
    assert pins["deephealth"] == version("deephealth")
    assert {"torch", "polars", "mlflow", "safetensors"} <= set(pins)
    assert not any("+" in pin for pin in pins.values())


def test_the_package_version_is_always_there():
    assert code_tags()["deephealth.version"] == version("deephealth")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_a_checkout_says_whether_it_was_changed(tmp_path):
    assert git_commit(tmp_path) is None

    def git(*args):
        settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *settings, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--quiet", "--message", "first", "--no-verify")
    commit = git("rev-parse", "HEAD")
    git("tag", "v1")
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
