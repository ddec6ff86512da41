"""Score everyone in a cohort: one file of risks for each file of events, and a manifest that says what was done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from app.predict_risks import ScoringModel, check_request, predict_risks
from app.terminal import show_progress
from data_schemas.age_units import MAX_AGE_YEARS, years_to_days
from data_schemas.cohort import SUBJECTS_FILE, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.results import Outcomes, Risks
from pipelines.build_sequences import count_unknown_codes
from pipelines.pair_people_with_events import pair_people_with_events
from pipelines.prepare_dataset import fingerprint_cohort
from pipelines.tables_on_disk import read_subjects, write_json, write_parquet
from pipelines.whole_folders import FolderKind, refuse_other_folder, replace_folder_when_done

ENTRY, EXIT = "entry", "exit"
RISKS_MANIFEST_FILE = "risks_manifest.json"
RISKS_FOLDER = FolderKind("risks", marks=(RISKS_MANIFEST_FILE,), contents=("*.parquet", RISKS_MANIFEST_FILE))


@dataclass(frozen=True)
class ScoredCohort:
    """What scoring wrote. Rows = people × outcomes × horizons, always."""

    folder: Path
    people: int
    rows: int
    rows_without_risk: dict[str, int]  # by reason
    unknown_code_events: int  # events whose code the model does not know; they were not used


def score_cohort(
    model: ScoringModel,
    cohort: Path,
    out: Path,
    *,
    landmark: str,
    horizons_years: Sequence[float],
    outcomes: Sequence[str],
    facts: dict[str, Any],
) -> ScoredCohort:
    """Write `out/NNNN.parquet` (`Risks`) for each event file of the cohort, and `out/risks_manifest.json`.

    Risks that were there are replaced at the end, when everyone has been scored.

    Args:
        model: what scores.
        cohort: folder of an imported cohort.
        out: folder of the risks.
        landmark: entry, exit, an age in years, or a date (needs birth_date).
        horizons_years: times after the landmark.
        outcomes: names of outcomes; empty means all.
        facts: what the manifest says of the model (name, version, run).

    Raises:
        UsageError: `out` holds something else, or the request does not fit the model.
        InputContractError: the cohort is broken, or a date is asked for and a person has no birth date.
    """
    refuse_other_folder(out, RISKS_FOLDER)
    check_request(model, outcomes, horizons_years)
    subjects = read_subjects(cohort)
    landmarks = landmarks_of(subjects, landmark)
    with replace_folder_when_done(out, RISKS_FOLDER) as folder:
        result = _write_risks(model, cohort, subjects, landmarks, outcomes, horizons_years, folder)
        manifest = {
            "model": facts,
            "settings": {
                "landmark": landmark,
                "horizons_years": list(horizons_years),
                "outcomes": list(outcomes) or "all",
            },
            "cohort": fingerprint_cohort(cohort),
            "counts": {
                "people": result.people,
                "rows": result.rows,
                "rows_without_risk": result.rows_without_risk,
                "unknown_code_events": result.unknown_code_events,
            },
            "deephealth_version": version("deephealth"),
        }
        write_json(manifest, folder / RISKS_MANIFEST_FILE)
    return replace(result, folder=out)


def _write_risks(
    model: ScoringModel,
    cohort: Path,
    subjects: pl.DataFrame,
    landmarks: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_years: Sequence[float],
    folder: Path,
) -> ScoredCohort:
    """Write one file of risks for each event file, and count what was written."""
    tables = []
    unknown_code_events = 0
    with show_progress("scoring", subjects.height) as bar:
        for name, people, events in pair_people_with_events(cohort, subjects):
            risks = predict_risks(model, people, events, landmarks, outcomes, horizons_years)
            write_parquet(risks, folder / f"{name}.parquet")
            tables.append(risks.group_by(Risks.reason.name).agg(pl.len()))
            unknown_code_events += count_unknown_codes(events, model.vocabulary)
            bar.advance(people.height)
    counts = pl.concat(tables).group_by(Risks.reason.name).agg(pl.col("len").sum()).sort(Risks.reason.name)
    by_reason = dict(counts.iter_rows())
    return ScoredCohort(
        folder=folder,
        people=subjects.height,
        rows=sum(by_reason.values()),
        rows_without_risk={reason: count for reason, count in by_reason.items() if reason},
        unknown_code_events=unknown_code_events,
    )


def landmarks_of(subjects: pl.DataFrame, landmark: str) -> pl.DataFrame:
    """Return subject_id and landmark_age_days for entry, exit, an age in years (`60`) or a date (`2020-01-31`).

    Raises:
        UsageError: it is none of these, or an age that nobody reaches.
        InputContractError: a date is asked for and a person has no birth date.
    """
    if landmark in {ENTRY, EXIT}:
        age = (Subjects.entry_age_days if landmark == ENTRY else Subjects.exit_age_days).col
    elif (years := _as_number(landmark)) is not None:
        if years > MAX_AGE_YEARS:
            raise UsageError(
                f"--landmark-age {landmark}: a number is an age in years, at most {MAX_AGE_YEARS:g}; "
                "a date is written in full, for example 2020-01-31"
            )
        age = pl.lit(years_to_days(years))
    elif (day := _as_date(landmark)) is not None:
        without = int(subjects[Subjects.birth_date.name].null_count())
        if without:
            rule = f"{without} people have no birth date; a landmark given as a date needs one"
            raise InputContractError([Violation(SUBJECTS_FILE, Subjects.birth_date.name, rule)])
        age = (pl.lit(day) - Subjects.birth_date.col).dt.total_days().cast(pl.Float64)
    else:
        raise UsageError(f"--landmark-age {landmark}: expected entry, exit, an age in years or a date like 2020-01-31")
    return subjects.select(Subjects.subject_id.name, age.alias(Outcomes.landmark_age_days.name))


def _as_number(text: str) -> float | None:
    try:
        years = float(text)
    except ValueError:
        return None
    return years if 0 <= years < math.inf else None


def _as_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
