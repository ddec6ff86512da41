"""Public OMOP and MEDS data: every row accounted for, differences explained, and the way to MEDS and back."""

import os
import zipfile
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data_schemas.import_report import ImportReport, TableReport
from pipelines.export_meds import export_meds
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_meds import MedsOptions, deliver_meds
from pipelines.import_cohort.from_omop import OmopOptions, deliver_omop
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

DATA = os.environ.get("DEEPHEALTH_TEST_DATA", "")
pytestmark = pytest.mark.skipif(
    not Path(DATA).is_dir() or not DATA, reason="DEEPHEALTH_TEST_DATA names no folder of public data"
)
NAMES = {"birth_codes": ["DOB"], "death_codes": ["DOD"]}  # the names of meds-synthetic


def import_omop(source: Path, out: Path, **options: object) -> ImportReport:
    return finish_import(deliver_omop(source, OmopOptions.model_validate(options)), out)


def import_meds(source: Path, out: Path, **options: object) -> ImportReport:
    return finish_import(deliver_meds(source, MedsOptions.model_validate(options)), out)


def table_of(report: ImportReport, name: str) -> TableReport:
    (table,) = [table for table in report.tables if table.table.lower().startswith(name)]
    return table


def assert_round_trip(cohort: Path, tmp_path: Path) -> None:
    export_meds(cohort, tmp_path / "meds")
    import_meds(tmp_path / "meds", tmp_path / "back")
    assert_frame_equal(read_subjects(cohort).sort("subject_id"), read_subjects(tmp_path / "back").sort("subject_id"))
    assert_frame_equal(scan_events(cohort).collect(), scan_events(tmp_path / "back").collect())
    assert_frame_equal(read_codes(cohort), read_codes(tmp_path / "back"))


def unpack(archive: str, tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(DATA) / "synthea27nj-omop" / archive) as zipped:
        zipped.extractall(tmp_path)
    return tmp_path


def test_meds_synthetic(tmp_path: Path) -> None:
    report = import_meds(Path(DATA) / "meds-synthetic", tmp_path / "cohort", entry="birth", **NAMES)
    people, rows = table_of(report, "people"), table_of(report, "data")
    assert (people.rows_read, rows.rows_read) == (500, 18_801)
    assert people.dropped == {"no_dated_row": 2}  # two have birth and static rows alone
    assert rows.dropped["about_the_person"] == 1_000  # a birth and a sex each
    assert (report.subjects, report.deaths) == (498, 100)
    splits = dict(read_subjects(tmp_path / "cohort")["split"].value_counts().iter_rows())
    assert splits == {"train": 398, "tuning": 50, "held_out": 50}
    assert_round_trip(tmp_path / "cohort", tmp_path)


def test_meds_synthetic_followed_from_the_first_row(tmp_path: Path) -> None:
    report = import_meds(Path(DATA) / "meds-synthetic", tmp_path / "cohort", **NAMES)
    people = table_of(report, "people")
    assert people.rows_read == 500
    assert people.rows_kept == 484  # the others have one day with rows: no follow-up
    assert_round_trip(tmp_path / "cohort", tmp_path)


def test_gibleed(tmp_path: Path) -> None:
    report = import_omop(Path(DATA) / "gibleed-omop", tmp_path / "cohort")
    assert (report.subjects, report.deaths) == (2_694, 0)
    assert table_of(report, "condition_occurrence").rows_read == 65_332
    assert table_of(report, "death").rows_read == 0  # its one row is the header
    notes = {note.name: note.rows for note in report.notes}
    assert notes["outside_person"] == 2_649  # observed, but not in PERSON
    assert notes["header_rows"] == 1
    assert report.codes == 80
    assert_round_trip(tmp_path / "cohort", tmp_path)


def test_synthea27nj_is_the_same_as_text_and_as_parquet(tmp_path: Path) -> None:
    text = unpack("Synthea27Nj_5.4.zip", tmp_path / "text")
    parquet = unpack("Synthea27NjParquet_5.4.zip", tmp_path / "parquet") / "Synthea27NjParquet"
    reports = [import_omop(source, tmp_path / f"cohort of {source.name}") for source in (text, parquet)]
    for report in reports:
        assert (report.subjects, report.deaths) == (28, 3)
        assert table_of(report, "condition_occurrence").rows_read == 470
    cohorts = [tmp_path / f"cohort of {source.name}" for source in (text, parquet)]
    assert_frame_equal(*(read_subjects(cohort) for cohort in cohorts))
    assert_frame_equal(*(scan_events(cohort).collect() for cohort in cohorts))
    assert_round_trip(cohorts[0], tmp_path)


@pytest.fixture
def billed(tmp_path: Path) -> tuple[Path, ImportReport]:
    """The OMOP form of the MIMIC-IV demo, billing alone, codes as delivered."""
    report = import_omop(
        Path(DATA) / "mimic-iv-demo-omop",
        tmp_path / "cohort",
        condition_types=[32821],
        drugs=False,
        code_form="as_delivered",
        times="keep",
    )
    return tmp_path / "cohort", report


def test_the_omop_form_of_mimic_against_the_native_tables(billed: tuple[Path, ImportReport]) -> None:
    cohort, report = billed
    native = Path(DATA) / "mimic-iv-demo-2.2" / "hosp"
    patients, admissions, diagnoses = (
        pl.read_csv(native / f"{name}.csv", infer_schema=False) for name in ("patients", "admissions", "diagnoses_icd")
    )
    person = pl.read_csv(Path(DATA) / "mimic-iv-demo-omop" / "person.csv", infer_schema=False)
    names = person.select(pl.col("person_id").cast(pl.Int64).alias("subject_id"), native_id="person_source_value")
    subjects = read_subjects(cohort).join(names, on="subject_id")
    events = scan_events(cohort).collect().join(names, on="subject_id")

    # The same hundred people, born in the same years (which is all that either form knows of birth).
    assert subjects.height == report.subjects == 100
    years = subjects.join(patients, left_on="native_id", right_on="subject_id").select(
        pl.col("birth_date").dt.year() == pl.col("anchor_year").cast(pl.Int32) - pl.col("anchor_age").cast(pl.Int32)
    )
    assert years.to_series().all()

    # 31 people have a date of death; OMOP has the 15 who died in hospital.
    assert patients["dod"].drop_nulls().len() == 31
    in_hospital = set(admissions.filter(pl.col("hospital_expire_flag") == "1")["subject_id"])
    assert set(events.filter(pl.col("code") == "DEATH")["native_id"]) == in_hospital
    assert len(in_hospital) == report.deaths == 15

    # All codes of OMOP are native ones. What is missing there are factors, external causes and the like (Z, V, E, Y,
    # W, X and a few more), which OMOP puts into OBSERVATION, not among the files here.
    ours = events.filter(pl.col("code").str.starts_with("SOURCE/")).select(
        "native_id", code=pl.col("code").str.strip_prefix("SOURCE/")
    )
    theirs = diagnoses.select(native_id="subject_id", code=pl.col("icd_code").str.strip_chars())
    assert ours.join(theirs, on=["native_id", "code"], how="anti").is_empty()
    missing = theirs.join(ours, on=["native_id", "code"], how="anti")["code"].str.slice(0, 1)
    assert missing.is_in(list("ZVEYWX")).mean() > 0.9

    # 3,833 rows of billing stand for 3,640 of the 4,506 diagnoses: a code mapped to several concepts has several rows.
    conditions = table_of(report, "condition_occurrence")
    assert conditions.rows_read == 16_441
    assert conditions.dropped["other_condition_type"] == 12_608  # rhythms and the like from charts, every few hours
    assert diagnoses.height == 4_506
    assert conditions.rows_kept + conditions.dropped["exact_duplicate"] == 3_833


def test_the_omop_form_of_mimic_in_icd10(tmp_path: Path) -> None:
    report = import_omop(Path(DATA) / "mimic-iv-demo-omop", tmp_path / "cohort", source_vocabulary="ICD")
    assert report.subjects == 100
    notes = {note.name: note for note in report.notes}
    assert notes["birth_month_imputed"].rows == 100
    events = scan_events(tmp_path / "cohort").collect()
    assert events.filter(pl.col("code").str.contains(r"^[A-Z]\d[0-9A-Z]$")).height > 2_000
    assert events["subject_id"].min() < 0  # ids of 64 bits with a sign
    assert_round_trip(tmp_path / "cohort", tmp_path)
