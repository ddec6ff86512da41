"""Real hospital patients (MIMIC-IV demo, 100 people) brought into our own layout by hand and through the first stages.

The importer for MIMIC-IV is another matter; here a person follows the guide with their own few lines of polars.
"""

import json
import os
from pathlib import Path

import polars as pl
import pytest

from app.main import main
from data_schemas.age_units import DAYS_PER_YEAR
from pipelines.tables_on_disk import read_subjects, scan_events

DATA = os.environ.get("DEEPHEALTH_TEST_DATA", "")
pytestmark = pytest.mark.skipif(
    not Path(DATA).is_dir() or not DATA, reason="DEEPHEALTH_TEST_DATA names no folder of public data"
)


def write_own_layout(hosp: Path, out: Path) -> None:
    """Follow people from their first admission to death or last discharge; a diagnosis is dated by discharge."""
    patients, admissions, diagnoses = (
        pl.read_csv(hosp / f"{name}.csv") for name in ("patients", "admissions", "diagnoses_icd")
    )
    stays = admissions.select(
        "subject_id", "hadm_id", pl.col("admittime", "dischtime").str.to_datetime().dt.date()
    )  # fmt: skip
    born = patients.select(
        "subject_id",
        sex=pl.col("gender"),
        birth_date=pl.date(pl.col("anchor_year") - pl.col("anchor_age"), 7, 1),
        died=pl.col("dod").str.to_date(),
    )
    span = stays.group_by("subject_id").agg(pl.col("admittime").min(), pl.col("dischtime").max())

    def age(column: str) -> pl.Expr:
        return (pl.col(column) - pl.col("birth_date")).dt.total_days().cast(pl.Float64)

    subjects = born.join(span, on="subject_id").select(
        "subject_id",
        "sex",
        "birth_date",
        entry_age_days=age("admittime"),
        exit_age_days=pl.max_horizontal(age("dischtime"), age("died"), age("admittime") + 1),
    )
    coded = diagnoses.join(stays, on=["subject_id", "hadm_id"]).join(born, on="subject_id")
    diseases = coded.select(
        "subject_id", age_days=age("dischtime"), code=pl.format("ICD{}/{}", "icd_version", "icd_code")
    )
    deaths = born.filter(pl.col("died").is_not_null()).select("subject_id", age_days=age("died"), code=pl.lit("DEATH"))
    (out / "events").mkdir(parents=True)
    subjects.write_parquet(out / "subjects.parquet")
    pl.concat([diseases, deaths]).write_parquet(out / "events" / "0000.parquet")


def test_a_hospital_becomes_a_dataset(tmp_path, capsys) -> None:
    write_own_layout(Path(DATA) / "mimic-iv-demo-2.2" / "hosp", tmp_path / "source")
    cohort, dataset = tmp_path / "cohort", tmp_path / "dataset"
    environ = {"DEEPHEALTH_HOME": str(tmp_path / "home")}
    assert main(["cohort", "import", "parquet", str(tmp_path / "source"), "--out", str(cohort)], environ) == 0
    report = json.loads((cohort / "import_report.json").read_text())
    for table in report["tables"]:
        assert table["rows_read"] == table["rows_kept"] + sum(table["dropped"].values())
    assert read_subjects(cohort).height == 100
    events = scan_events(cohort).collect()
    assert events.filter(pl.col("code") == "DEATH").height == 31
    assert events["age_days"].max() < 120 * DAYS_PER_YEAR
    capsys.readouterr()
    assert main(["prepare", str(cohort), "--out", str(dataset), "--json"], environ) == 0
    manifest = json.loads(capsys.readouterr().out)["manifest"]
    assert sum(manifest["counts"]["people"].values()) == 100
    assert manifest["counts"]["unknown_code_events"] > 0  # hardly any code is had by ten of a hundred people
