"""`cohort export` and `risks export` by their command lines: what is written, and that it reads back the same."""

import json

import polars as pl
from polars.testing import assert_frame_equal
from small_cohort import write_small_cohort

from app.main import main
from pipelines.tables_on_disk import scan_events


def run(capsys, *args):
    code = main([str(arg) for arg in args], {})
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return json.loads(captured.out)


def test_a_cohort_goes_out_as_meds_and_comes_back_the_same(tmp_path, capsys):
    cohort = write_small_cohort(tmp_path / "cohort")
    meds, back = tmp_path / "meds", tmp_path / "back"
    facts = run(capsys, "cohort", "export", cohort, "--out", meds, "--json")
    assert facts["subjects"] == pl.read_parquet(cohort / "subjects.parquet").height
    assert json.loads((meds / "metadata" / "dataset.json").read_text())["dataset_name"] == "cohort"
    run(capsys, "cohort", "import", "meds", meds, "--out", back, "--json")
    order = ["subject_id", "age_days", "code", "numeric_value"]
    assert_frame_equal(scan_events(back).collect().sort(order), scan_events(cohort).collect().sort(order))


def test_risks_go_out_as_one_file_an_outcome_and_horizon(tmp_path, capsys):
    cohort = write_small_cohort(tmp_path / "cohort")
    people = pl.read_parquet(cohort / "subjects.parquet").select(
        "subject_id", landmark_age_days="entry_age_days", outcome=pl.lit("stroke"), horizon_days=pl.lit(365.25)
    )
    risks = people.with_columns(
        risk=pl.when(pl.int_range(pl.len()) > 0).then(0.25), reference_risk=pl.lit(0.2), reason=pl.lit(None, pl.String)
    )
    (tmp_path / "risks").mkdir()
    risks.write_parquet(tmp_path / "risks" / "0.parquet")
    out = tmp_path / "predictions"
    facts = run(capsys, "risks", "export", tmp_path / "risks", "--cohort", cohort, "--out", out, "--json")
    assert (facts["files"], facts["rows"], facts["without_risk"]) == (1, people.height - 1, 1)
    written = pl.read_parquet(out / "stroke" / "365.25.parquet")
    assert written["predicted_boolean_probability"].to_list() == [0.25] * (people.height - 1)
