"""A small made-up cohort on disk, for tests that need people rather than numbers.

Onset ages follow Gompertz hazards that rise with age and depend on sex and BMI, so a model has something to learn.
"""

import json
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import (
    CODES_FILE,
    COVARIATE,
    DEATH_CODE,
    DISEASE,
    EVENTS_FOLDER,
    FEMALE,
    IMPORT_REPORT_FILE,
    MALE,
    SUBJECTS_FILE,
    UNKNOWN,
    Codes,
    Events,
    Subjects,
)
from data_schemas.import_report import ImportReport, TableReport, report_to_json

# Disease: hazard a year of a woman of 60 with mean BMI, rise with a year of age, log ratio of men, of one sd of BMI.
DISEASES = {
    "angina": (0.020, 0.07, 0.6, 0.3),
    "cancer": (0.012, 0.06, 0.2, 0.0),
    "copd": (0.010, 0.05, 0.3, 0.1),
    "diabetes": (0.025, 0.03, 0.1, 0.8),
    "fracture": (0.015, 0.05, -0.7, -0.2),
    "stroke": (0.010, 0.09, 0.3, 0.2),
}
RARE_DISEASE = "porphyria"  # three people: too few for a vocabulary
SCREENING = "screening"  # a visit that is input only
BMI, SBP = "bmi", "sbp"
SMOKING = ("smoking//no", "smoking//yes")
_DEATH_HAZARD = (0.015, 0.09, 0.4, 0.1)
_HEALTHY_UNTIL_YEARS = 30.0


def write_small_cohort(
    folder: Path, *, n_subjects: int = 300, seed: int = 0, string_ids: bool = False, n_event_files: int = 1
) -> Path:
    """Write `subjects.parquet`, `events/NNNN.parquet`, `codes.parquet` and `import_report.json`; return the folder.

    Holds six diseases and a rare one, deaths, two measurements (some rows without a value, some people without rows),
    a category `smoking//yes|no`, an input-only code, clusters of two to four, ties on one day, repeated diagnoses,
    history before entry, and one person in twenty without any event.
    """
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.arange(1000, 1000 + n_subjects))  # not in order of size
    people = _draw_people(rng, n_subjects)
    rows = [row for person in range(n_subjects) for row in _draw_events(rng, person, people)]
    dtype = pl.String if string_ids else pl.Int64
    subjects = _subjects(people).with_columns(pl.Series(Subjects.subject_id.name, ids).cast(dtype))
    events = pl.DataFrame(rows, schema=["person", *Events.column_names()[1:]], orient="row").select(
        pl.Series(Subjects.subject_id.name, ids).cast(dtype).gather(pl.Series([row[0] for row in rows])),
        pl.col(Events.age_days.name).cast(pl.Float64),
        Events.code.name,
        pl.col(Events.numeric_value.name).cast(pl.Float64),
    )
    codes = _codes()
    (folder / EVENTS_FOLDER).mkdir(parents=True)
    subjects.select(Subjects.column_names()).write_parquet(folder / SUBJECTS_FILE)
    _write_event_files(events, subjects, folder / EVENTS_FOLDER, n_event_files)
    codes.write_parquet(folder / CODES_FILE)
    report = ImportReport(
        kind="parquet",
        subjects=n_subjects,
        events=events.height,
        codes=events[Events.code.name].n_unique(),
        deaths=int((events[Events.code.name] == DEATH_CODE).sum()),
        tables=(
            TableReport("subjects", n_subjects, n_subjects, {}),
            TableReport("events", events.height, events.height, {}),
        ),
        derived=(),
        rules={},
        notes=(),
    )
    (folder / IMPORT_REPORT_FILE).write_text(json.dumps(report_to_json(report), indent=2), encoding="utf-8")
    return folder


def _draw_people(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Draw sex, BMI in standard deviations, ages in whole days, and clusters; death ends observation."""
    sex = rng.choice([FEMALE, MALE, UNKNOWN], size=n, p=[0.50, 0.47, 0.03])
    bmi_z = rng.normal(size=n)
    entry = np.round(rng.uniform(40, 70, n) * DAYS_PER_YEAR)
    planned_exit = entry + np.round(rng.uniform(1, 16, n) * DAYS_PER_YEAR)
    death = _onset_days(rng, _DEATH_HAZARD, sex == MALE, bmi_z, from_years=entry / DAYS_PER_YEAR)
    sizes = rng.integers(2, 5, size=n)
    cluster = np.repeat(np.arange(n), sizes)[:n]
    return {
        "sex": sex,
        "bmi_z": bmi_z,
        "entry": entry,
        "exit": np.minimum(planned_exit, death),
        "death": np.where(death <= planned_exit, death, np.nan),
        "cluster": np.where(rng.random(n) < 0.3, cluster, -1),
        "is_silent": np.arange(n) % 20 == 7,
    }


def _onset_days(rng, hazard, is_male, bmi_z, from_years) -> np.ndarray:
    """Draw first ages (whole days) from a Gompertz hazard by inverting its cumulative hazard; at least a day later."""
    rate, slope, of_men, of_bmi = hazard
    scale = rate * np.exp(of_men * is_male + of_bmi * bmi_z) / slope
    target = rng.exponential(size=len(bmi_z)) / scale + np.exp(slope * (from_years - 60))
    return np.round(np.maximum((60 + np.log(target) / slope), from_years + 1 / DAYS_PER_YEAR) * DAYS_PER_YEAR)


def _subjects(people: dict[str, np.ndarray]) -> pl.DataFrame:
    cluster = [None if number < 0 else f"family {number}" for number in people["cluster"]]
    silent = people["is_silent"]  # nobody without an event can have died
    born = pl.Series(["1950-01-01"]).str.to_date().extend_constant(None, len(silent) - 1).fill_null(strategy="forward")
    return pl.DataFrame(
        {
            Subjects.sex.name: people["sex"],
            Subjects.birth_date.name: born,
            Subjects.entry_age_days.name: people["entry"],
            Subjects.exit_age_days.name: people["exit"],
            Subjects.cluster_id.name: pl.Series(cluster, dtype=pl.String),
            Subjects.split.name: pl.Series([None] * len(silent), dtype=pl.String),
        }
    )


def _draw_events(rng: np.random.Generator, person: int, people: dict[str, np.ndarray]) -> list[tuple]:
    """Draw one person's rows (person, age, code, value) up to exit."""
    if people["is_silent"][person]:
        return []
    entry, exit_, bmi_z = people["entry"][person], people["exit"][person], people["bmi_z"][person]
    is_male, one = people["sex"][person] == MALE, np.array([bmi_z])
    rows = []
    for code, hazard in DISEASES.items():
        age = _onset_days(rng, hazard, is_male, one, _HEALTHY_UNTIL_YEARS)[0]
        rows += [(person, age, code, None), (person, age + 400, code, None)]  # coded again a year later
    if person % 10 == 3:  # two diagnoses on one day
        rows.append((person, rows[0][1], "diabetes", None))
    if person in {11, 12, 13}:
        rows.append((person, entry, RARE_DISEASE, None))
    if rng.random() < 0.8:
        rows.append((person, entry, BMI, None if rng.random() < 0.1 else round(27 + 5 * bmi_z, 1)))
    for age in rng.uniform(entry - 2000, exit_, size=rng.integers(0, 5)):
        rows.append((person, np.floor(age), SBP, None if rng.random() < 0.1 else round(rng.normal(130, 15))))
    if rng.random() < 0.7:
        rows.append((person, entry, str(rng.choice(SMOKING)), None))
    if rng.random() < 0.5:
        rows.append((person, np.floor(rng.uniform(entry, exit_)), SCREENING, None))
    if not np.isnan(people["death"][person]):
        rows.append((person, people["death"][person], DEATH_CODE, None))
    return [row for row in rows if row[1] <= exit_]


def _codes() -> pl.DataFrame:
    kinds = dict.fromkeys((*DISEASES, RARE_DISEASE), DISEASE) | dict.fromkeys(
        (BMI, SBP, *SMOKING, SCREENING), COVARIATE
    )
    return pl.DataFrame(
        {
            Codes.code.name: list(kinds),
            Codes.kind.name: list(kinds.values()),
            Codes.description.name: [code.replace("//", ": ") for code in kinds],
            Codes.chapter.name: pl.Series([None] * len(kinds), dtype=pl.String),
        }
    )


def _write_event_files(events: pl.DataFrame, subjects: pl.DataFrame, folder: Path, n_files: int) -> None:
    """Deal the people out to the files in turn, each file sorted by person and age."""
    place = subjects.select(Subjects.subject_id.name, (pl.int_range(pl.len()) % n_files).alias("file"))
    placed = events.join(place, on=Events.subject_id.name).sort(
        Events.subject_id.name, Events.age_days.name, Events.code.name, Events.numeric_value.name
    )
    for number in range(n_files):
        placed.filter(pl.col("file") == number).select(Events.column_names()).write_parquet(
            folder / f"{number:04d}.parquet"
        )
