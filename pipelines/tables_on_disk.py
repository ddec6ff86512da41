"""Reading and writing of tables and JSON, in one place. Whatever is written appears whole or not at all."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl
import pyarrow.parquet as pq

from data_schemas.cohort import CODES_FILE, EVENTS_FOLDER, SUBJECTS_FILE, Codes, Events, Subjects
from data_schemas.errors import InputContractError, Violation
from pipelines.import_cohort.check_contract import check_file, raise_violations

_UNDERLYING = "underlying IO error: "
_NO_COHORT = "not found; make a cohort with `deephealth cohort import`"


@contextmanager
def replace_when_done(path: Path) -> Iterator[Path]:
    """Yield a temporary neighbour of `path` that takes its name once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    except pl.exceptions.ComputeError as error:
        # polars 2.1 reports some failures to write as failures to compute
        _, is_written, reason = str(error).partition(_UNDERLYING)
        if not is_written:
            raise
        raise OSError(reason) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_parquet(frame: pl.DataFrame | pl.LazyFrame, path: Path) -> None:
    """Write one parquet file atomically."""
    with replace_when_done(path) as temporary:
        frame.lazy().sink_parquet(temporary)


def write_parquet_parts(parts: Iterable[pl.DataFrame], path: Path) -> None:
    """Write one parquet file atomically from parts of the same columns, of which there is at least one."""
    remaining = iter(parts)
    first = next(remaining).to_arrow(compat_level=pl.CompatLevel.oldest())
    with replace_when_done(path) as temporary, pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for part in remaining:
            writer.write_table(part.to_arrow(compat_level=pl.CompatLevel.oldest()))


def write_ipc(frame: pl.DataFrame, path: Path) -> None:
    """Write one Arrow file atomically, uncompressed: it is read in parts."""
    with replace_when_done(path) as temporary:
        frame.write_ipc(temporary)


def read_ipc(path: Path) -> pl.DataFrame:
    """Read one Arrow file."""
    return pl.scan_ipc(path, glob=False).collect()


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
    """Read `subjects.parquet` of an imported cohort, in the order delivered.

    Raises:
        InputContractError: it is missing or breaks its contract.
    """
    return _read_checked(require_file(cohort / SUBJECTS_FILE, _NO_COHORT), Subjects)


def event_files(cohort: Path) -> list[Path]:
    """List the event files of an imported cohort, in name order; a subject's rows are in one of them."""
    folder = require_file(cohort / EVENTS_FOLDER, _NO_COHORT)
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise InputContractError([Violation(str(folder), "", f"holds no parquet files; {_NO_COHORT}")])
    return files


def scan_events(cohort: Path) -> pl.LazyFrame:
    """Scan all events of an imported cohort."""
    # glob=False, here and elsewhere: a folder may have brackets in its name.
    return pl.scan_parquet(event_files(cohort), glob=False)


def scan_checked_events(cohort: Path) -> dict[Path, pl.LazyFrame]:
    """Check the event files of an imported cohort, and scan each.

    Raises:
        InputContractError: files break their contract; all that is wrong with all of them is listed.
    """
    checked = {path: check_file(path, Events, may_be_empty=True) for path in event_files(cohort)}
    raise_violations([fault for table in checked.values() for fault in (*table.structure_faults, *table.row_faults)])
    return {path: table.frame for path, table in checked.items()}


def read_codes(cohort: Path) -> pl.DataFrame:
    """Read what the importer knew about the codes; an empty table where it knew nothing.

    Raises:
        InputContractError: the table breaks its contract.
    """
    path = cohort / CODES_FILE
    return _read_checked(path, Codes) if path.exists() else pl.DataFrame(Codes.create_empty())


def _read_checked(path: Path, schema: type[dy.Schema]) -> pl.DataFrame:
    checked = check_file(path, schema)
    raise_violations([*checked.structure_faults, *checked.row_faults])
    return checked.frame.collect()


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
