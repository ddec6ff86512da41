"""Medicare's synthetic claims: follow-up by yearly summaries, deaths to the month, second segments."""

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_schemas.cohort import DEATH_CODE, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_desynpuf import DesynpufOptions, deliver_desynpuf
from pipelines.tables_on_disk import read_subjects, scan_events

SUMMARY = '"DESYNPUF_ID","BENE_BIRTH_DT","BENE_DEATH_DT","BENE_SEX_IDENT_CD","BENE_HI_CVRAGE_TOT_MONS"\n'
YEARS = {
    2008: ["A,19400301,,1,12", "B,19300501,20080601,2,6", "C,19250101,,2,0"],
    2009: ["A,19400301,,1,12", "C,19250101,,3,0", "D,,,1,12", ",19250101,,1,12"],
    2010: ["A,19400301,20100201,1,2"],
}
CLAIM_COLUMNS = (
    "DESYNPUF_ID", "CLM_ID", "SEGMENT", "CLM_FROM_DT", "CLM_THRU_DT", "CLM_ADMSN_DT", "ADMTNG_ICD9_DGNS_CD",
    "NCH_BENE_DSCHRG_DT", "ICD9_DGNS_CD_1", "ICD9_DGNS_CD_2",
)  # fmt: skip
CLAIMS = """A,1,1,20090401,20090410,20090401,7866,20090410,25000,4019
A,1,2,,,20090301,,20090410,4280,
A,2,1,20090701,20090702,20090701,,20090702,,
A,3,1,20100220,20100225,20100220,,,0389,
B,4,1,20080620,20080630,20080620,,20080630,0389,25000
C,5,1,,,20080101,,,25000,4019
E,6,1,20090101,20090102,20090101,,20090102,25000,
"""


def write(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for year, rows in YEARS.items():
        with gzip.open(folder / f"DE1_0_{year}_Beneficiary_Summary_File_Sample_1.csv.gz", "wt") as handle:
            handle.write(SUMMARY + "\n".join(rows) + "\n")
    (folder / "DE1_0_2008_to_2010_Inpatient_Claims_Sample_1.csv").write_text(",".join(CLAIM_COLUMNS) + "\n" + CLAIMS)
    return folder


def imported(tmp_path: Path, source: Path, **settings: Any) -> tuple[Path, ImportReport]:
    out = tmp_path / "cohort"
    return out, finish_import(deliver_desynpuf(source, DesynpufOptions(**settings)), out)


def days(cohort: Path) -> list[tuple[Any, ...]]:
    day = Subjects.birth_date.col + pl.duration(days=Events.age_days.col)
    dated = scan_events(cohort).join(
        read_subjects(cohort).lazy(), on=Subjects.subject_id.name, how="left", maintain_order="left"
    )
    return dated.select(Events.subject_id.name, day.alias("day"), Events.code.name).collect().rows()


def test_people_events_and_the_account(tmp_path: Path) -> None:
    cohort, report = imported(tmp_path, write(tmp_path / "source"))
    assert days(cohort) == [
        ("A", date(2009, 4, 10), "E11"),
        ("A", date(2009, 4, 10), "I10"),
        ("A", date(2009, 4, 10), "I50"),  # of the second segment
        ("A", date(2010, 2, 25), "A41"),  # without a day of discharge; in the month of death
        ("A", date(2010, 2, 28), DEATH_CODE),
        ("B", date(2008, 6, 30), "A41"),
        ("B", date(2008, 6, 30), "E11"),
        ("B", date(2008, 6, 30), DEATH_CODE),
    ]
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    ends = subjects.select(
        Subjects.subject_id.name,
        Subjects.sex.name,
        start=Subjects.birth_date.col + pl.duration(days=Subjects.entry_age_days.col),
        end=Subjects.birth_date.col + pl.duration(days=Subjects.exit_age_days.col),
    )
    assert ends.rows() == [
        ("A", "male", date(2008, 1, 1), date(2010, 2, 28)),
        ("B", "female", date(2008, 1, 1), date(2008, 6, 30)),
        ("C", "female", date(2008, 1, 1), date(2009, 12, 31)),
    ]
    assert {table.table: dict(table.dropped) for table in report.tables} == {
        "beneficiaries": {"no_birth_date": 1},
        "inpatient claims (diagnoses)": {"no_date": 2, "unknown_person": 1},
    }
    notes = {note.name: note.rows for note in report.notes}
    assert (notes["years"], notes["summary_without_id"], notes["contradiction"]) == (8, 1, 1)
    assert (notes["claims"], notes["claims_without_diagnosis"]) == (7, 1)


def test_settings(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    cohort, report = imported(
        tmp_path, source, death_day="first", drop_without_part_a=True, code_form="as_delivered", claims=["inpatient"]
    )
    assert [code for *_, code in days(cohort)] == ["ICD9CM/25000", "ICD9CM/4019", "ICD9CM/4280", DEATH_CODE, DEATH_CODE]
    assert {table.table: dict(table.dropped) for table in report.tables} == {
        "beneficiaries": {"no_birth_date": 1, "no_part_a": 1},
        "inpatient claims (diagnoses)": {"no_date": 2, "unknown_person": 1, "after_exit": 3},
    }


def test_several_samples_and_claims_of_other_kinds(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write(source / "1")
    (source / "2").mkdir()
    (source / "2" / "DE1_0_2008_Beneficiary_Summary_File_Sample_2.csv").write_text(SUMMARY + "Z,19400301,,1,12\n")
    (source / "2" / "DE1_0_2008_to_2010_Outpatient_Claims_Sample_2.csv").write_text(
        "DESYNPUF_ID,CLM_FROM_DT,CLM_THRU_DT,ICD9_DGNS_CD_1\nZ,20080101,20080105,4019\n"
    )
    (source / "2" / "._DE1_0_2008_to_2010_Outpatient_Claims_Sample_2.csv").write_text("left over of an archive")
    cohort, report = imported(tmp_path, source)
    assert report.subjects == 4
    assert ("Z", date(2008, 1, 5), "I10") in days(cohort)


def test_what_is_missing_stops_the_import(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with pytest.raises(InputContractError, match="no such folder"):
        deliver_desynpuf(source, DesynpufOptions())
    source.mkdir()
    with pytest.raises(InputContractError) as caught:
        deliver_desynpuf(source, DesynpufOptions())
    assert [fault.rule for fault in caught.value.violations] == [
        "holds no file of beneficiary summaries",
        "holds no file of claims (inpatient, outpatient, carrier)",
    ]
    write(source)
    (source / "DE1_0_2008_to_2010_Inpatient_Claims_Sample_1.csv").write_text("DESYNPUF_ID,CLM_THRU_DT\nA,20080101\n")
    with pytest.raises(InputContractError, match="'ICD9_DGNS_CD_1': is missing"):
        deliver_desynpuf(source, DesynpufOptions())
