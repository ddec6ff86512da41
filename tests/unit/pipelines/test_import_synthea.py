"""Synthea's CSV export in its three generations: what is a disease, how long anyone is followed."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from data_schemas.cohort import COVARIATE, DEATH_CODE, DISEASE, Codes, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_synthea import SyntheaOptions, deliver_synthea
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

# The headers of the generations: 2018 (ID, plain dates), 2020 (Id, no SYSTEM), 2024 (times, FIPS, INCOME, SYSTEM).
PATIENT_HEADERS = {
    "2018": "ID,BIRTHDATE,DEATHDATE,SSN,GENDER,ZIP",
    "2020": "Id,BIRTHDATE,DEATHDATE,SSN,GENDER,ZIP",
    "2024": "Id,BIRTHDATE,DEATHDATE,SSN,GENDER,ZIP,FIPS,INCOME",
}
CONDITION_HEADERS = {
    "2018": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION",
    "2020": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION",
    "2024": "START,STOP,PATIENT,ENCOUNTER,SYSTEM,CODE,DESCRIPTION",
}
PEOPLE = [
    ("a", "1950-05-05", "", "F"),
    ("b", "1960-01-01", "2015-03-04", "M"),
    ("c", "", "", "M"),
    ("d", "2016-01-01", "", ""),
]
CONDITIONS = [
    ("2001-02-03", "a", "44054006", "Diabetes mellitus type 2 (disorder)"),
    ("2002-02-03", "a", "160903007", "Full-time employment (finding)"),
    ("2003-02-03", "a", "399211009", "History of myocardial infarction (situation)"),
    ("2004-02-03", "a", "53741008", "Coronary Heart Disease"),
    ("2005-02-03", "a", "72892002", "Normal pregnancy"),
    ("2014-01-01", "b", "53741008", "Coronary Heart Disease"),
    ("2019-01-01", "a", "162573006", "Suspected lung cancer (situation)"),
    ("2016-01-01", "b", "44054006", "Diabetes mellitus type 2 (disorder)"),
    ("", "b", "44054006", "Diabetes mellitus type 2 (disorder)"),
    ("2010-01-01", "nobody", "44054006", "Diabetes mellitus type 2 (disorder)"),
]


def write(folder: Path, generation: str = "2018") -> Path:
    """Write the tables; the newest generation has times with a zone and names the system of its codes."""
    folder.mkdir(exist_ok=True)
    newest = generation == "2024"
    more = ",06073,50000" if newest else ""
    people = [f"{who},{born},{died},999-99-9999,{sex},91911.0{more}" for who, born, died, sex in PEOPLE]
    (folder / "patients.csv").write_text("\n".join([PATIENT_HEADERS[generation], *people]) + "\n")
    system = "http://snomed.info/sct," if newest else ""
    clock = "T03:04:05Z" if newest else ""
    conditions = [
        f"{day + clock if day else ''},,{who},e1,{system}{code},{name}" for day, who, code, name in CONDITIONS
    ]
    (folder / "conditions.csv").write_text("\n".join([CONDITION_HEADERS[generation], *conditions]) + "\n")
    return folder


def imported(tmp_path: Path, source: Path, **settings: Any) -> tuple[Path, ImportReport]:
    out = tmp_path / "cohort"
    return out, finish_import(deliver_synthea(source, SyntheaOptions(**settings)), out)


def codes_of(cohort: Path) -> list[tuple[Any, ...]]:
    return scan_events(cohort).select(Events.subject_id.name, Events.code.name).collect().rows()


def age(born: date, day: date) -> float:
    return float((day - born).days)


@pytest.mark.parametrize("generation", PATIENT_HEADERS)
def test_every_generation_gives_the_same_cohort(tmp_path: Path, generation: str) -> None:
    cohort, report = imported(tmp_path, write(tmp_path / "source", generation))
    assert codes_of(cohort) == [
        ("a", "SNOMED/44054006"),
        ("a", "SNOMED/160903007"),
        ("a", "SNOMED/399211009"),
        ("a", "SNOMED/53741008"),
        ("a", "SNOMED/72892002"),
        ("a", "SNOMED/162573006"),
        ("b", "SNOMED/53741008"),
        ("b", DEATH_CODE),
    ]
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    born_a, born_b, born_d = date(1950, 5, 5), date(1960, 1, 1), date(2016, 1, 1)
    assert subjects.select("subject_id", "sex", "birth_date", "entry_age_days", "exit_age_days").rows() == [
        ("a", "female", born_a, 0.0, age(born_a, date(2019, 1, 1))),
        ("b", "male", born_b, 0.0, age(born_b, date(2015, 3, 4))),
        ("d", "unknown", born_d, 0.0, age(born_d, date(2019, 1, 1))),
    ]
    assert {table.table: dict(table.dropped) for table in report.tables} == {
        "patients.csv": {"no_birth_date": 1},
        "conditions.csv": {"no_date": 1, "unknown_person": 1, "after_exit": 1},
    }
    kinds = dict(read_codes(cohort).select(Codes.code.name, Codes.kind.name).rows())
    diseases = {code for code, kind in kinds.items() if kind == DISEASE}
    assert diseases == {"SNOMED/44054006", "SNOMED/53741008"}
    assert kinds["SNOMED/72892002"] == COVARIATE  # a pregnancy, though this export does not call it a finding


def test_findings_may_be_dropped(tmp_path: Path) -> None:
    cohort, report = imported(tmp_path, write(tmp_path / "source"), findings="drop", not_diseases=())
    assert "SNOMED/160903007" not in {code for _, code in codes_of(cohort)}
    assert ("a", "SNOMED/72892002") in codes_of(cohort)
    assert dict(report.tables[1].dropped)["no_disease"] == 3
    assert "SNOMED/160903007" not in read_codes(cohort)[Codes.code.name].to_list()


def test_a_code_that_is_once_called_a_finding_is_one_everywhere(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    with (source / "conditions.csv").open("a") as handle:
        handle.write("2006-01-01,,a,e1,53741008.0,Coronary heart disease (finding)\n")
    cohort, _ = imported(tmp_path, source)
    row = read_codes(cohort).filter(Codes.code.col == "SNOMED/53741008").row(0, named=True)
    assert (row["kind"], row["description"]) == (COVARIATE, "Coronary Heart Disease")
    assert codes_of(cohort).count(("a", "SNOMED/53741008")) == 2


def test_follow_up_by_the_history_that_was_exported(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    cohort, report = imported(tmp_path, source, years_of_history=10, end_date="2020-01-01")
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    born = date(1950, 5, 5)
    assert subjects[Subjects.entry_age_days.name].to_list()[0] == age(born, date(2020, 1, 1)) - 3652
    assert subjects[Subjects.entry_age_days.name].to_list()[2] == 0.0  # born later
    assert subjects[Subjects.exit_age_days.name].to_list()[0] == age(born, date(2020, 1, 1))
    assert "on 2020-01-01 (as set)" in report.notes[0].text


def test_observations_and_medications_are_covariates(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    (source / "observations.csv").write_text(
        "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE\n"
        "2011-01-01,a,e1,8302-2,Body Height,171.5,cm,numeric\n"
        "2011-01-01,a,e1,72166-2,Smoking status,Never smoker,,text\n"
        "2011-01-01,a,,QALY,QALY,50.1,a,numeric\n"
    )
    (source / "medications.csv").write_text(
        "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n"
        "2012-01-01,,a,e1,308182,Amoxicillin 250 MG\n"
        "2020-06-01,,a,e1,1,x\n"
    )
    cohort, report = imported(tmp_path, source, observations=True, medications=True)
    events = scan_events(cohort).select(Events.code.name, Events.numeric_value.name).collect().rows()
    assert ("LOINC/8302-2 [cm]", 171.5) in events
    assert ("SYNTHEA/QALY [a]", 50.1) in events
    assert ("RxNorm/308182", None) in events
    assert dict(report.tables[2].dropped) == {"no_value": 1}
    assert "2020-06-01" in report.notes[0].text  # the last start in any table read


def test_what_is_missing_stops_the_import(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    with pytest.raises(InputContractError, match="observations: not found"):
        deliver_synthea(source, SyntheaOptions(observations=True))
    (source / "conditions.csv").write_text(CONDITION_HEADERS["2018"].replace("CODE", "KODE") + "\n")
    with pytest.raises(InputContractError, match="'code': is missing"):
        deliver_synthea(source, SyntheaOptions())
    (source / "conditions.csv").write_text(CONDITION_HEADERS["2018"] + "\n,,a,e1,1,x\n")
    with pytest.raises(InputContractError, match="no table has a date"):
        deliver_synthea(source, SyntheaOptions())
