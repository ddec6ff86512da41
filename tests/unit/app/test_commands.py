"""`cohort import` and `prepare` by their command lines, on a cohort of forty made-up people."""

import json

import polars as pl
import pytest

from app.main import main

N_PEOPLE = 40


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "events").mkdir(parents=True)
    ids = range(1, N_PEOPLE + 1)
    pl.DataFrame(
        {
            "subject_id": ids,
            "sex": ["female", "male"] * (N_PEOPLE // 2),
            "entry_age_days": [15000.0] * N_PEOPLE,
            "exit_age_days": [20000.0] * N_PEOPLE,
        }
    ).write_parquet(folder / "subjects.parquet")
    write_events(folder, [16000.0 + number for number in ids])
    return folder


def write_events(folder, ages_days):
    codes = ["htn", "DEATH"]
    pl.DataFrame(
        {
            "subject_id": [number for number in range(1, N_PEOPLE + 1) for _ in codes],
            "age_days": [age for first in ages_days for age in (first, 20000.0)],
            "code": codes * N_PEOPLE,
        },
        schema_overrides={"age_days": pl.Float64},
    ).with_columns(numeric_value=pl.lit(None, pl.Float64)).write_parquet(folder / "events" / "0.parquet")


def run(capsys, *args):
    code = main([str(arg) for arg in args], {})
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_import_and_prepare_say_what_they_wrote_and_prepare_does_nothing_twice(source, tmp_path, capsys):
    cohort, dataset = tmp_path / "cohort", tmp_path / "dataset"
    code, out, err = run(capsys, "cohort", "import", "parquet", source, "--out", cohort)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"cohort written to {cohort}"
    assert (cohort / "import_report.json").exists()

    code, out, err = run(capsys, "prepare", cohort, "--out", dataset, "--set", "min_subjects=1", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["fresh"] is True
    assert facts["manifest"]["settings"]["min_subjects"] == 1

    code, out, _ = run(capsys, "prepare", cohort, "--out", dataset, "--set", "min_subjects=1")
    assert code == 0
    assert out.splitlines()[-1] == f"dataset in {dataset} is up to date; nothing was done"


def test_deaths_under_another_spelling_are_pointed_out(source, tmp_path, capsys):
    file = source / "events" / "0.parquet"
    pl.read_parquet(file).with_columns(pl.col("code").replace("DEATH", "Death")).write_parquet(file)
    code, out, _ = run(capsys, "cohort", "import", "parquet", source, "--out", tmp_path / "cohort")
    assert code == 0
    said = "no event has the code DEATH; 'Death' is taken for a disease"
    assert f"{said}: {N_PEOPLE}" in out.splitlines()
    notes = json.loads((tmp_path / "cohort" / "import_report.json").read_text())["notes"]
    assert {"note": "no_death_code", "rows": N_PEOPLE, "text": said} in notes


def test_import_shows_progress_on_a_terminal(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, out, err = run(capsys, "cohort", "import", "parquet", source, "--out", tmp_path / "cohort")
    assert code == 0
    assert "importing" in err
    assert "importing" not in out


def test_rows_that_break_a_rule_stop_the_import_or_are_dropped_on_demand(source, tmp_path, capsys):
    write_events(source, [None, *[16000.0] * (N_PEOPLE - 1)])
    code, out, err = run(capsys, "cohort", "import", "parquet", source, "--out", tmp_path / "cohort")
    assert (code, out) == (3, "")
    assert "0.parquet: column 'age_days'" in err
    assert not (tmp_path / "cohort").exists()
    code, *_ = run(capsys, "cohort", "import", "parquet", source, "--out", tmp_path / "cohort", "--drop-bad-rows")
    assert code == 0


def test_prepare_refuses_a_config_key_it_does_not_know(source, tmp_path, capsys):
    config = tmp_path / "prepare.yaml"
    config.write_text("tain_share: 0.5\n")
    code, _, err = run(capsys, "prepare", tmp_path, "--out", tmp_path / "dataset", "--config", config)
    assert code == 2
    assert f"{config}: key 'tain_share': unknown; did you mean 'train_share'?" in err
