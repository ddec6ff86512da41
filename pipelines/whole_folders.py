"""Write a folder of several files so that it appears whole or not at all, and never over something else.

The work goes into a hidden neighbour that takes the name of the folder when everything is written. What a killed run
leaves behind is such a neighbour: it does no harm, and the next write to the same folder removes it, or goes on with it
where the writer names its inputs and they are still the same.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from data_schemas.errors import UsageError

WORK_FOLDER = ".work"  # inside the neighbour: what a stage needs on the way and nobody afterwards
_PART, _PREVIOUS = "part", "previous"
_INPUTS_FILE = ".inputs"  # inside the neighbour: what the work in it was made of
_NOT_FOR_NAMES = re.compile(r"[^\w-]")


@dataclass(frozen=True)
class FolderKind:
    """What a stage writes: its name in messages, the entries that mark it, and all it may hold (patterns of names)."""

    name: str
    marks: tuple[str, ...]
    contents: tuple[str, ...]


def refuse_other_folder(out: Path, kind: FolderKind) -> None:
    """Refuse a target whose content would be lost: only nothing, an empty folder or one of this kind is replaced.

    Raises:
        UsageError: something else is there, or we stand in it.
    """
    folder = out.resolve()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{out} is a file; --out is the folder for the {kind.name}")
    if Path.cwd().is_relative_to(folder):
        raise UsageError(f"{out} is the folder we stand in, or one above it; name a folder of its own for --out")
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    if not entries:
        return
    if not all((folder / mark).exists() for mark in kind.marks):
        raise UsageError(f"{out} is not empty and holds no {kind.name}; choose another folder for --out")
    others = [entry.name for entry in entries if not _belongs(entry, kind)]
    if others:
        raise UsageError(
            f"{out} holds {others[0]}{f' and {len(others) - 1} more' if len(others) > 1 else ''} besides the "
            f"{kind.name} and would be replaced as a whole; move that away or choose another folder for --out"
        )


@contextmanager
def replace_folder_when_done(out: Path, kind: FolderKind, *, inputs: str | None = None) -> Iterator[Path]:
    """Yield a neighbour of `out` that takes its name once the block ends without an error.

    Folders cannot be exchanged in one step: between the two renames `out` is absent for a moment, never half-written.
    The neighbour is new and empty, unless `inputs` says what the work is made of (settings, fingerprints, versions):
    then a run that was killed or interrupted left its work there for the next one with the same inputs. Whoever gives
    `inputs` must write each file whole or not at all, and may put what only the work needs into `WORK_FOLDER`.

    Raises:
        UsageError: `out` holds something else, or cannot be written.
    """
    refuse_other_folder(out, kind)
    folder = out.resolve()  # `.` and `..` have no name, and a link is not to be replaced itself
    temporary, previous = (_neighbour(folder, suffix) for suffix in (_PART, _PREVIOUS))
    is_kept = False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _go_on_or_begin(folder, temporary, inputs)
        yield temporary
        shutil.rmtree(temporary / WORK_FOLDER, ignore_errors=True)
        (temporary / _INPUTS_FILE).unlink(missing_ok=True)
        strange = [entry.name for entry in temporary.iterdir() if not _belongs(entry, kind)]
        assert not strange, f"{strange} is missing in what a folder of {kind.name} may hold"
        if folder.exists():
            os.replace(folder, previous)
        os.replace(temporary, folder)
    except OSError as error:
        raise UsageError(f"cannot write the {kind.name} to {out}: {error.strerror or error}") from error
    except KeyboardInterrupt:
        is_kept = inputs is not None
        raise
    finally:
        if previous.exists() and not folder.exists():
            os.replace(previous, folder)
        if not is_kept:
            shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(previous, ignore_errors=True)


def _belongs(entry: Path, kind: FolderKind) -> bool:
    return any(entry.match(pattern) for pattern in kind.contents)


def _neighbour(folder: Path, suffix: str) -> Path:
    """Name a neighbour that only this process uses; process ids repeat from host to host."""
    return folder.with_name(f".{folder.name}.{_host()}.{os.getpid()}.{suffix}")


def _host() -> str:
    return _NOT_FOR_NAMES.sub("-", socket.gethostname())


def _go_on_or_begin(folder: Path, temporary: Path, inputs: str | None) -> None:
    """Make the neighbour to work in: what an earlier run has left where its inputs are the same, or a new one."""
    left_parts = (left for left, _ in _left_behind(folder, _PART)) if inputs is not None else iter(())
    found = next((left for left in left_parts if _inputs_of(left) == inputs), None)
    _tidy_after_killed_runs(folder, keep=found)
    if found is not None:
        with suppress(FileNotFoundError):  # another process was faster and goes on with it
            os.replace(found, temporary)
        for half_written in temporary.rglob(f".*.{_PART}"):
            half_written.unlink()
    if not temporary.exists():
        temporary.mkdir()
        if inputs is not None:
            (temporary / _INPUTS_FILE).write_text(inputs, encoding="utf-8")


def _inputs_of(neighbour: Path) -> str | None:
    path = neighbour / _INPUTS_FILE
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _tidy_after_killed_runs(folder: Path, keep: Path | None) -> None:
    """Remove what processes of this host that are gone have left beside `folder`.

    One that was killed between its two renames has moved the earlier folder aside: that one is put back first.
    Neighbours of other hosts stay: whether their process lives cannot be seen from here.
    """
    for entry, suffix in _left_behind(folder, f"{_PART}|{_PREVIOUS}"):
        if suffix == _PREVIOUS and not folder.exists():
            os.replace(entry, folder)
        elif entry != keep:
            shutil.rmtree(entry)


def _left_behind(folder: Path, suffixes: str) -> list[tuple[Path, str]]:
    """Return the neighbours that no living process works in, or that we left ourselves, each with its suffix."""
    ours = re.compile(rf"\.{re.escape(folder.name)}\.{re.escape(_host())}\.(\d+)\.({suffixes})")
    matches = [(entry, ours.fullmatch(entry.name)) for entry in sorted(folder.parent.iterdir())]
    return [
        (entry, match[2])
        for entry, match in matches
        if match is not None and (int(match[1]) == os.getpid() or not _is_alive(int(match[1])))
    ]


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's; a number that no process can have is left alone too
        return True
    return True
