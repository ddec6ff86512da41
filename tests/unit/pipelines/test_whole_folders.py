"""A folder appears whole or not at all, and nothing else is ever lost to it."""

import os
import socket
import subprocess
import sys

import pytest

from data_schemas.errors import UsageError
from pipelines.whole_folders import WORK_FOLDER, FolderKind, refuse_other_folder, replace_folder_when_done

KIND = FolderKind("album", marks=("index.json",), contents=("index.json", "*.txt", "pages"))


def write(out, **files):
    with replace_folder_when_done(out, KIND) as folder:
        for name, text in {"index": "{}", **files}.items():
            (folder / (f"{name}.json" if name == "index" else f"{name}.txt")).write_text(text)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_earlier_folder_is_replaced_as_a_whole(tmp_path):
    out = tmp_path / "deep" / "er"
    write(out, one="1", two="2")
    write(out, two="new")
    assert contents(out) == {"index.json": "{}", "two.txt": "new"}
    assert [path.name for path in out.parent.iterdir()] == ["er"]


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path):
    write(tmp_path / "real", one="1")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", two="2")
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "real") == {"index.json": "{}", "two.txt": "2"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["thesis.md"], "is not empty and holds no album; choose another folder for --out"),
        (["one.txt"], "is not empty and holds no album"),
        (["index.json", "thesis.md"], "holds thesis.md besides the album and would be replaced as a whole"),
        (["index.json", ".git", "thesis.md"], r"holds \.git and 1 more besides the album"),
    ],
)
def test_what_is_not_of_the_kind_is_refused_and_stays(tmp_path, names, said):
    out = tmp_path / "out"
    out.mkdir()
    for name in names:
        (out / name).write_text("years of work")
    for act in (lambda: refuse_other_folder(out, KIND), lambda: write(out)):
        with pytest.raises(UsageError, match=said):
            act()
    assert contents(out) == dict.fromkeys(names, "years of work")


def test_a_file_and_the_folder_we_stand_in_are_refused_in_words(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file is a file; --out is the folder for the album"):
        write(tmp_path / "file")
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    for out in (".", "..", "../../here", "/"):
        with pytest.raises(UsageError, match="is the folder we stand in, or one above it"):
            write(type(tmp_path)(out))
    write(type(tmp_path)("new"))  # relative paths are fine
    assert (tmp_path / "here" / "below" / "new" / "index.json").exists()


def test_a_parent_that_is_a_file_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot write the album to"):
        write(tmp_path / "file" / "out")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_changes_nothing(tmp_path, error):
    out = tmp_path / "out"
    write(out, one="1")

    def stop_halfway():
        with replace_folder_when_done(out, KIND) as folder:
            (folder / "one.txt").write_text("half")
            raise error

    with pytest.raises(error):
        stop_halfway()
    assert contents(out) == {"index.json": "{}", "one.txt": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_stage_writes_must_be_in_its_list(tmp_path):
    with pytest.raises(AssertionError, match="surprise"), replace_folder_when_done(tmp_path / "out", KIND) as folder:
        (folder / "surprise.bin").touch()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import pipelines.whole_folders as module

kind = module.FolderKind("album", marks=("index.json",), contents=("index.json", "one.txt"))
if sys.argv[2] == "between":
    rename = module.os.replace
    def replace(source, target):
        if str(source).endswith(".part"):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
    module.os.replace = replace
with module.replace_folder_when_done(Path(sys.argv[1]), kind) as folder:
    (folder / "index.json").write_text("of the killed run")
    if sys.argv[2] == "midway":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_run(out, moment):
    done = subprocess.run([sys.executable, "-c", KILLED, str(out), moment], check=False)
    assert done.returncode == -9


def test_what_a_killed_run_leaves_does_no_harm_and_is_removed_by_the_next(tmp_path):
    out = tmp_path / "out"
    write(out, one="1")
    kill_a_run(out, "midway")
    assert contents(out) == {"index.json": "{}", "one.txt": "1"}
    assert len(list(tmp_path.iterdir())) == 2
    write(out, two="2")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_killed_between_its_renames_loses_nothing(tmp_path):
    out = tmp_path / "out"
    write(out, one="1")
    kill_a_run(out, "between")
    assert not out.exists()
    with pytest.raises(RuntimeError), replace_folder_when_done(out, KIND):
        raise RuntimeError
    assert contents(out) == {"index.json": "{}", "one.txt": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folders_of_the_living_and_of_other_hosts_and_names_stay(tmp_path):
    host = socket.gethostname().replace(".", "-")
    kept = {f".out.{host}.{os.getppid()}.part", ".out.another-host.1.part", f".other.{host}.{os.getpid()}.part"}
    for name in (*kept, f".out.{host}.{os.getpid()}.part"):
        (tmp_path / name).mkdir()
    write(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *kept}


def interrupt(out, inputs, text, error=KeyboardInterrupt):
    def work():
        with replace_folder_when_done(out, KIND, inputs=inputs) as folder:
            (folder / "one.txt").write_text(text)
            (folder / WORK_FOLDER).mkdir(exist_ok=True)
            (folder / WORK_FOLDER / "in_between").write_text("useful")
            (folder / ".two.txt.123.part").write_text("half")
            raise error

    with pytest.raises(error):
        work()


def test_interrupted_work_on_the_same_inputs_is_gone_on_with(tmp_path):
    out = tmp_path / "out"
    interrupt(out, "a and b", "done before")
    assert not out.exists()
    with replace_folder_when_done(out, KIND, inputs="a and b") as folder:
        assert (folder / "one.txt").read_text() == "done before"
        assert (folder / WORK_FOLDER / "in_between").exists()
        assert not (folder / ".two.txt.123.part").exists()
        (folder / "index.json").write_text("{}")
    assert contents(out) == {"index.json": "{}", "one.txt": "done before"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("inputs", ["a and c", None])
def test_work_on_other_inputs_is_thrown_away(tmp_path, inputs):
    interrupt(tmp_path / "out", "a and b", "of others")
    with replace_folder_when_done(tmp_path / "out", KIND, inputs=inputs) as folder:
        assert {path.name for path in folder.iterdir()} == (set() if inputs is None else {".inputs"})
        (folder / "index.json").write_text("{}")
    assert contents(tmp_path / "out") == {"index.json": "{}"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_work_that_failed_is_thrown_away(tmp_path):
    interrupt(tmp_path / "out", "a and b", "wrong", error=ValueError)
    interrupt(tmp_path / "out", None, "nobody knows of what")
    assert list(tmp_path.iterdir()) == []


def test_work_of_a_killed_process_is_gone_on_with_and_of_a_living_one_is_left_alone(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for process, text in ((int(dead.stdout), "of the dead"), (os.getppid(), "of the living")):
        left = tmp_path / f".out.{socket.gethostname().replace('.', '-')}.{process}.part"
        left.mkdir()
        (left / ".inputs").write_text("a and b")
        (left / "one.txt").write_text(text)
    write_with_inputs = replace_folder_when_done(tmp_path / "out", KIND, inputs="a and b")
    with write_with_inputs as folder:
        (folder / "index.json").write_text("{}")
    assert contents(tmp_path / "out")["one.txt"] == "of the dead"
    assert [path.name for path in sorted(tmp_path.iterdir())] == [left.name, "out"]
