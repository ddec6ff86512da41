"""Importers on public tables: how many people, events and deaths, and what became of every row.

Found by DEEPHEALTH_TEST_DATA. There is no public export of UK Biobank: one is made here from the public list of its
first occurrence fields, in the column names of users, with rows whose numbers are known.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_schemas.cohort import DEATH_CODE, Codes, Events, Subjects
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.import_cohort.from_delphi_bin import DelphiBinOptions, deliver_delphi_bin
from pipelines.import_cohort.from_desynpuf import DesynpufOptions, deliver_desynpuf
from pipelines.import_cohort.from_mimic_iv import MimicIvOptions, deliver_mimic_iv
from pipelines.import_cohort.from_synthea import SyntheaOptions, deliver_synthea
from pipelines.import_cohort.from_ukb import UkbOptions, deliver_ukb
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

DATA = os.environ.get("DEEPHEALTH_TEST_DATA", "")
pytestmark = pytest.mark.skipif(
    not Path(DATA).is_dir() or not DATA, reason="DEEPHEALTH_TEST_DATA names no folder of public data"
)


def finished(delivered: DeliveredCohort, out: Path) -> ImportReport:
    report = finish_import(delivered, out)
    subjects, events = read_subjects(out), scan_events(out).collect()
    assert (subjects.height, events.height) == (report.subjects, report.events)
    joined = events.join(subjects, on=Subjects.subject_id.name, how="left", maintain_order="left")
    assert joined.filter(Events.age_days.col > Subjects.exit_age_days.col).is_empty()
    assert joined[Subjects.exit_age_days.name].null_count() == 0
    deaths = joined.filter(Events.code.col == DEATH_CODE)
    assert deaths[Events.age_days.name].equals(deaths[Subjects.exit_age_days.name], check_names=False)
    return report


def account(report: ImportReport) -> dict[str, tuple[int, dict[str, int]]]:
    return {table.table: (table.rows_read, dict(table.dropped)) for table in (*report.tables, *report.derived)}


def test_delphi(tmp_path: Path) -> None:
    delivered = deliver_delphi_bin(Path(DATA) / "delphi_simulated", DelphiBinOptions(split_from_files=True))
    report = finished(delivered, tmp_path)
    assert (report.subjects, report.events, report.codes, report.deaths) == (14_286, 348_301, 995, 3_762)
    assert account(report) == {
        "people of train.bin, val.bin": (14_286, {}),
        "train.bin": (181_293, {"sex_row": 7_142}),
        "val.bin": (181_293, {"sex_row": 7_143}),
    }
    notes = {note.name: note.rows for note in report.notes}
    assert (notes["cut_by_files"], notes["sex_missing"]) == (1, 1)
    subjects = read_subjects(tmp_path)
    assert dict(subjects.group_by(Subjects.split.name).len().rows()) == {"train": 7_143, "tuning": 7_143}
    cut = scan_events(tmp_path).filter(Events.subject_id.col == 427_985).collect()
    assert cut[Events.age_days.name].is_sorted()
    assert {21_579.0, 24_842.0, 25_510.0} <= set(cut[Events.age_days.name])
    codes = read_codes(tmp_path)
    assert codes.filter(Codes.code.col == "O01").height == 1
    no_chapter = codes.filter(Codes.chapter.col.is_null(), Codes.kind.col == "disease")
    assert no_chapter[Codes.code.name].to_list() == ["C42", "CXX", "I84"]  # no categories of the ICD-10 of today


def test_mimic(tmp_path: Path) -> None:
    report = finished(deliver_mimic_iv(Path(DATA) / "mimic-iv-demo-2.2", MimicIvOptions()), tmp_path)
    assert (report.subjects, report.events, report.codes, report.deaths) == (100, 4_488, 540, 31)
    assert account(report) == {
        "patients.csv": (100, {}),
        "diagnoses_icd.csv": (4_506, {"exact_duplicate": 324}),  # codes of one category in one stay
        "admissions.csv": (275, {}),
        "DEATH of patients.csv (dod, else deathtime)": (31, {}),
    }
    assert {note.name: note.rows for note in report.notes}["over_89"] == 3
    as_delivered = deliver_mimic_iv(
        Path(DATA) / "mimic-iv-demo-2.2", MimicIvOptions(code_form="as_delivered", admissions_as_events=False)
    )
    whole = finished(as_delivered, tmp_path / "whole")
    assert (whole.events, whole.codes) == (4_506 + 31, 1_474 + 1)


def test_synthea(tmp_path: Path) -> None:
    source = Path(DATA) / "synthea-csv" / "ibm-1k"
    report = finished(deliver_synthea(source, SyntheaOptions()), tmp_path / "all")
    assert (report.subjects, report.events, report.codes, report.deaths) == (1_000, 20_605, 137, 93)
    assert all(not dropped for _, dropped in account(report).values())
    fewer = finished(deliver_synthea(source, SyntheaOptions(findings="drop", medications=True)), tmp_path / "fewer")
    assert account(fewer) == {
        "patients.csv.gz": (1_000, {}),
        "conditions.csv.gz": (20_512, {"no_disease": 3_039}),
        "medications.csv.gz": (17_922, {"exact_duplicate": 5}),
        "DEATH of patients.csv.gz": (93, {}),
    }


def test_desynpuf(tmp_path: Path) -> None:
    report = finished(deliver_desynpuf(Path(DATA) / "desynpuf", DesynpufOptions()), tmp_path)
    # 150 of the deaths are in the summary of 2010; the other years' stand in their own summaries alone.
    assert (report.subjects, report.events, report.codes, report.deaths) == (10_000, 45_597, 1_009, 440)
    assert account(report) == {
        "beneficiaries": (10_000, {}),
        "inpatient claims (diagnoses)": (46_590, {"exact_duplicate": 1_433}),
        "DEATH of beneficiary summaries": (440, {}),
    }
    notes = {note.name: note.rows for note in report.notes}
    assert (notes["years"], notes["claims"], notes["claims_without_diagnosis"]) == (29_566, 5_775, 7)


def first_occurrences(fields: list[str]) -> Iterator[dict[str, Any]]:
    """Yield 1,129 people; number n has field n in 2000 and the next one as a placeholder date."""
    for number, field in enumerate(fields):
        after = fields[(number + 1) % len(fields)]
        yield {
            "eid": 5_000_000 + number, "31": number % 2, "34": 1950, "52": 1 + number % 12, "53": "2010-01-01",
            "54": 11010, "40000": "2020-01-01" if number % 10 == 0 else None, field: "2000-01-01", after: "2037-07-07",
        }  # fmt: skip


@pytest.mark.parametrize("style", ["f.{}.0.0", "{}-0.0", "X{}.0.0", "p{}"])
def test_an_export_made_of_the_list_of_fields(tmp_path: Path, style: str) -> None:
    listed = (Path(DATA) / "delphi_simulated" / "fields.txt").read_text().split()
    fields = [name.split(".")[1] for name in listed]
    assert len(fields) == 1_129
    people = pl.DataFrame(list(first_occurrences(fields)), infer_schema_length=None)
    ids = {"eid": "f.eid" if style.startswith("f") else "eid"}
    named = people.rename({name: ids.get(name) or style.format(name) for name in people.columns})
    tabs = style.startswith("f")
    source = tmp_path / ("ukb.tab" if tabs else "ukb.csv")
    named.write_csv(source, separator="\t" if tabs else ",", null_value="NA" if tabs else "")
    options = UkbOptions(
        dictionary=Path(DATA) / "delphi_simulated" / "icd10_codes_mod.tsv", censor_dates={"all": "2022-10-31"}
    )
    report = finished(deliver_ukb(source, options), tmp_path / "cohort")
    assert (report.subjects, report.events, report.deaths) == (1_129, 1_129 + 113, 113)
    assert account(report) == {
        "participants of " + source.name: (1_129, {}),
        "first occurrences": (2 * 1_129, {"special_date_placeholder": 1_129}),
        "cancer register": (0, {}),
        "deaths": (113, {}),
        "assessments": (0, {}),
    }
    assert report.codes == 1_129 + 1
