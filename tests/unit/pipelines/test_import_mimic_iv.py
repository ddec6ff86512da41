"""The hospital tables of MIMIC-IV: ages, follow-up, what dates a diagnosis, deaths at day precision."""

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_schemas.cohort import DEATH_CODE, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_mimic_iv import MimicIvOptions, deliver_mimic_iv
from pipelines.tables_on_disk import read_subjects, scan_events

PATIENTS = """subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod
1,F,60,2150,2011 - 2013,
2,M,91,2150,2011 - 2013,2150-03-01
3,M,40,2150,2011 - 2013,
4,?,40,2150,2011 - 2013,2143-01-01
5,F,40,2150,2011 - 2013,
"""
ADMISSIONS = """subject_id,hadm_id,admittime,dischtime,deathtime,admission_type
1,11,2150-01-10 23:00:00,2150-01-12 01:00:00,,URGENT
1,12,2151-05-01 08:00:00,2151-05-03 12:00:00,,EW EMER.
2,21,2150-02-27 20:00:00,2150-03-01 07:00:00,2150-03-01 22:00:00,URGENT
3,31,2150-02-01 10:00:00,2150-02-20 10:00:00,2150-02-10 09:00:00,
4,41,2143-12-20 10:00:00,2143-12-24 10:00:00,,URGENT
"""
DIAGNOSES = """subject_id,hadm_id,seq_num,icd_code,icd_version
1,11,1,25000,9
1,11,2,25002,9
1,12,1,I2101,10
2,21,1,J189,10
3,31,1,0389,9
3,99,1,I10,10
3,31,2,,10
3,31,3,I10,11
4,41,1,I10,10
"""
BORN = date(2090, 7, 1)


def write(folder: Path, patients: str = PATIENTS, admissions: str = ADMISSIONS, diagnoses: str = DIAGNOSES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "patients.csv").write_text(patients)
    (folder / "admissions.csv").write_text(admissions)
    (folder / "diagnoses_icd.csv").write_text(diagnoses)
    return folder


def imported(tmp_path: Path, source: Path, **settings: Any) -> tuple[Path, ImportReport]:
    out = tmp_path / "cohort"
    return out, finish_import(deliver_mimic_iv(source, MimicIvOptions(**settings)), out)


def days(cohort: Path) -> list[tuple[Any, ...]]:
    """Return person, calendar day and code of all events."""
    day = Subjects.birth_date.col + pl.duration(days=Events.age_days.col)
    dated = scan_events(cohort).join(
        read_subjects(cohort).lazy(), on=Subjects.subject_id.name, how="left", maintain_order="left"
    )
    return dated.select(Events.subject_id.name, day.alias("day"), Events.code.name).collect().rows()


def test_people_events_and_the_account(tmp_path: Path) -> None:
    write(tmp_path / "mimic" / "hosp")
    cohort, report = imported(tmp_path, tmp_path / "mimic")
    assert days(cohort) == [
        (1, date(2150, 1, 10), "admission//URGENT"),
        (1, date(2150, 1, 12), "E11"),
        (1, date(2151, 5, 1), "admission//EW EMER."),
        (1, date(2151, 5, 3), "I21"),
        (2, date(2150, 2, 27), "admission//URGENT"),
        (2, date(2150, 3, 1), "J18"),
        (2, date(2150, 3, 1), DEATH_CODE),  # hours after discharge, the same day
        (3, date(2150, 2, 1), "admission//unknown"),
        (3, date(2150, 2, 10), "A41"),  # died before the discharge that would date it
        (3, date(2150, 2, 10), DEATH_CODE),  # from deathtime
    ]
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    assert subjects[Subjects.sex.name].to_list() == ["female", "male", "male"]
    assert subjects.row(0, named=True) | {"subject_id": 1} == {
        "subject_id": 1,
        "sex": "female",
        "birth_date": BORN,
        "entry_age_days": float((date(2150, 1, 10) - BORN).days),
        "exit_age_days": float((date(2151, 5, 3) - BORN).days + 365),
        "cluster_id": None,
        "split": None,
    }
    assert {table.table: dict(table.dropped) for table in (*report.tables, *report.derived)} == {
        "patients.csv": {"no_stay": 1, "no_follow_up": 1},  # the last one died before the first admission
        "diagnoses_icd.csv": {
            "no_admission": 1,
            "no_code": 1,
            "unknown_version": 1,
            "exact_duplicate": 1,
            "after_exit": 1,
        },
        "admissions.csv": {"after_exit": 1},
        "DEATH of patients.csv (dod, else deathtime)": {"no_follow_up": 1},
    }
    notes = {note.name: note.rows for note in report.notes}
    assert (notes["over_89"], notes["dod_missing"], notes["stay_after_death"], notes["sex_unknown"]) == (1, 1, 2, 1)


def test_settings(tmp_path: Path) -> None:
    source = write(tmp_path / "hosp")
    cohort, report = imported(
        tmp_path, source, admissions_as_events=False, drop_over_89=True, follow_up_days=0, code_form="as_delivered",
        birth_month=1,
    )  # fmt: skip
    assert [code for *_, code in days(cohort)] == [
        "ICD9CM/25000", "ICD9CM/25002", "ICD10CM/I2101", "ICD9CM/0389", DEATH_CODE,
    ]  # fmt: skip
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    assert subjects[Subjects.birth_date.name].to_list() == [date(2090, 1, 1), date(2110, 1, 1)]
    assert subjects[Subjects.exit_age_days.name][0] == (date(2151, 5, 3) - date(2090, 1, 1)).days
    assert dict(report.tables[0].dropped)["over_89"] == 1


def test_compressed_parquet_and_upper_case(tmp_path: Path) -> None:
    source = write(tmp_path / "hosp")
    first = finish_import(deliver_mimic_iv(source, MimicIvOptions()), tmp_path / "first")
    table = pl.read_csv(source / "patients.csv", try_parse_dates=True)
    table.rename(str.upper).write_parquet(source / "PATIENTS.parquet")
    (source / "patients.csv").unlink()
    second = finish_import(deliver_mimic_iv(source, MimicIvOptions()), tmp_path / "second")
    assert first.events == second.events
    assert days(tmp_path / "first") == days(tmp_path / "second")


def test_an_admission_without_dates(tmp_path: Path) -> None:
    admissions = ADMISSIONS.replace("2150-01-12 01:00:00", "").replace("2151-05-01 08:00:00", "soon")
    cohort, report = imported(tmp_path, write(tmp_path / "hosp", admissions=admissions))
    dropped = {table.table: dict(table.dropped) for table in report.tables}
    assert dropped["diagnoses_icd.csv"]["no_discharge"] == 2
    assert dropped["admissions.csv"]["no_date"] == 1
    assert [note.rows for note in report.notes if note.name == "unreadable"] == [1]
    assert (1, date(2151, 5, 3), "I21") in days(cohort)


def test_a_repeated_admission_or_a_missing_column_stops_the_import(tmp_path: Path) -> None:
    source = write(tmp_path / "hosp", admissions=ADMISSIONS + ADMISSIONS.splitlines()[2] + "\n")
    with pytest.raises(InputContractError) as caught:
        deliver_mimic_iv(source, MimicIvOptions())
    (fault,) = caught.value.violations
    assert (fault.column, fault.n_rows, fault.first_rows) == ("hadm_id", 2, (1, 5))
    write(source, patients=PATIENTS.replace("anchor_age", "age"))
    with pytest.raises(InputContractError, match="'anchor_age': is missing"):
        deliver_mimic_iv(source, MimicIvOptions())
    (source / "diagnoses_icd.csv").unlink()
    write(source)
    (source / "diagnoses_icd.csv").unlink()
    with pytest.raises(InputContractError, match="diagnoses_icd: not found"):
        deliver_mimic_iv(source, MimicIvOptions())
