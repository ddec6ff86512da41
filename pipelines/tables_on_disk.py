"""Reading and writing of tables and JSON, in one place. Whatever is written appears whole or not at all."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from data_schemas.cohort import CODES_FILE, EVENTS_FOLDER, SUBJECTS_FILE, Codes
from data_schemas.errors import InputContractError, Violation

_NO_COHORT = "not found; make a cohort with `deephealth cohort import`"


@contextmanager
def replace_when_done(path: Path) -> Iterator[Path]:
    """Yield a temporary neighbour of `path` that takes its name once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write one parquet file atomically."""
    with replace_when_done(path) as temporary:
        frame.write_parquet(temporary)


def write_json(content: Any, path: Path) -> None:
    """Write JSON atomically, keys in the order given."""
    with replace_when_done(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def require_file(path: Path, rule: str) -> Path:
    """Return the path, or raise the contract error that says what should have been there."""
    if not path.exists():
        raise InputContractError([Violation(str(path), "", rule)])
    return path


def read_subjects(cohort: Path) -> pl.DataFrame:
    """Read `subjects.parquet` of an imported cohort, in the order delivered."""
    # glob=False, here and below: a folder may have brackets in its name.
    return pl.read_parquet(require_file(cohort / SUBJECTS_FILE, _NO_COHORT), glob=False)


def event_files(cohort: Path) -> list[Path]:
    """List the event files of an imported cohort, in name order; a subject's rows are in one of them."""
    folder = require_file(cohort / EVENTS_FOLDER, _NO_COHORT)
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise InputContractError([Violation(str(folder), "", f"holds no parquet files; {_NO_COHORT}")])
    return files


def scan_events(cohort: Path) -> pl.LazyFrame:
    """Scan all events of an imported cohort."""
    return pl.scan_parquet(event_files(cohort), glob=False)


def read_codes(cohort: Path) -> pl.DataFrame:
    """Read what the importer knew about the codes; an empty table where it knew nothing."""
    path = cohort / CODES_FILE
    return pl.read_parquet(path, glob=False) if path.exists() else pl.DataFrame(Codes.create_empty())


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
