"""`deephealth cohort export` and `deephealth risks export`: hand a cohort, or its risks, on in the MEDS standard."""

from dataclasses import asdict
from pathlib import Path

from app.terminal import Report, show_progress


def export_cohort(cohort: Path, /, *, out: Path, name: str | None = None) -> Report:
    """Write a cohort as a MEDS 0.4 dataset.

    `cohort import meds` reads it back without a difference: people, ages, values, splits and groups. A cohort without
    birth dates is put on an assumed calendar (birth on 1900-01-01); the dataset says so.

    Example: deephealth cohort export cohorts/2026 --out meds/2026

    Args:
        cohort: Folder written by `deephealth cohort import`.
        out: Folder of the MEDS dataset; written whole or not at all. It holds records of people.
        name: Name of the dataset in its metadata; without it that of the folder.
    """
    from pipelines.export_meds import export_meds

    with show_progress(f"exporting {cohort}"):
        written = export_meds(cohort, out, name=name or cohort.resolve().name)
    lines = [f"{written.subjects:,} people, {written.rows:,} rows in {written.files:,} files"]
    if written.assumed_births:
        lines.append(f"{written.assumed_births:,} people have no birth date: ages are right, their calendar is assumed")
    return Report(
        last_line=f"MEDS dataset written to {out}", facts={"cohort": cohort, "out": out, **asdict(written)}, lines=lines
    )


def export_risks(risks: Path, /, *, cohort: Path, out: Path) -> Report:
    """Write risks as MEDS prediction files, one an outcome and horizon.

    Who has no risk (prevalent, dead, outside follow-up) stands in no file. There are no labels: whether somebody who
    was censored had the outcome is not known.

    Example: deephealth risks export risks/2026 --cohort cohorts/2026 --out predictions/2026

    Args:
        risks: Folder written by `deephealth score`.
        cohort: The cohort that was scored; gives people the ids and times of `cohort export`.
        out: Folder of the predictions; written whole or not at all.
    """
    from pipelines.export_meds import export_predictions

    with show_progress(f"exporting {risks}"):
        written = export_predictions(risks, cohort, out)
    return Report(
        last_line=f"predictions written to {out}",
        facts={"risks": risks, "cohort": cohort, "out": out, **asdict(written)},
        lines=[f"{written.rows:,} risks in {written.files:,} files; {written.without_risk:,} rows had no risk"],
    )
