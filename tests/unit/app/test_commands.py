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


def test_rules_are_set_in_a_file_or_by_option(source, tmp_path, capsys):
    write_events(source, [14000.0] * 5 + [16000.0] * (N_PEOPLE - 5))
    config = tmp_path / "import.yaml"
    config.write_text("rules:\n  before_entry: true\nplaceholder_dates: [2000-01-01]\n")
    cohort = tmp_path / "cohort"
    code, out, _ = run(capsys, "cohort", "import", "parquet", source, "--out", cohort, "--config", config)
    assert code == 0
    assert "  5 dropped by before_entry: the event lies before the start of follow-up" in out.splitlines()
    settings = json.loads((cohort / "import_report.json").read_text())["settings"]
    assert settings == {
        "options": {}, "strict": True, "rules": {"before_entry": True}, "placeholder_dates": ["2000-01-01"]
    }  # fmt: skip
    off = ("--config", config, "--set", "rules.before_entry=false")
    code, out, _ = run(capsys, "cohort", "import", "parquet", source, "--out", cohort, *off)
    assert "before_entry" not in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "rules.before_lunch=true"], "no such cleaning rule: before_lunch; the rules are "),
        (["--set", "rules.after_exit=false"], "cleaning rule after_exit cannot be switched off"),
        (["--set", "rule.before_entry=true"], "key 'rule': unknown; did you mean 'rules'?"),
        (["--set", "placeholder_dates=[someday]"], "key 'placeholder_dates.0'"),
        (["--dictionary", "fields.tsv"], "cohort import parquet takes no --dictionary"),
    ],
)
def test_settings_of_an_import_that_cannot_be_used_are_wrong_usage(source, tmp_path, capsys, options, said):
    code, _, err = run(capsys, "cohort", "import", "parquet", source, "--out", tmp_path / "cohort", *options)
    assert code == 2
    assert said in err
    assert not (tmp_path / "cohort").exists()


def test_a_quarantine_holds_the_dropped_rows(source, tmp_path, capsys):
    write_events(source, [None, *[16000.0] * (N_PEOPLE - 1)])
    cohort, apart = tmp_path / "cohort", tmp_path / "apart"
    code, out, _ = run(capsys, "cohort", "import", "parquet", source, "--out", cohort, "--quarantine", apart)
    assert code == 0
    assert f"dropped rows written to {apart}" in out.splitlines()
    dropped = pl.read_parquet(apart / "dropped_events.parquet")
    assert dropped.select("subject_id", "code", "table", "source_row", "dropped_by").rows() == [
        (1, "htn", "events/0.parquet", 0, "age_days|nullability")
    ]
    assert not list(cohort.rglob("*dropped*"))


def test_the_settings_and_rules_of_every_kind_are_listed(capsys):
    for kind, setting in (("omop", "birth_imputation"), ("parquet", "placeholder_dates"), ("ukb", "dictionary")):
        code, out, _ = run(capsys, "cohort", "settings", kind)
        assert code == 0
        assert f"  {setting} (default " in out
        assert "  before_entry (off): the event lies before the start of follow-up" in out
        assert "  after_exit (always on): the event lies after the end of follow-up" in out
    _, out, _ = run(capsys, "cohort", "settings", "omop", "--json")
    facts = json.loads(out)
    assert {rule["rule"]: rule["default"] for rule in facts["rules"]}["exact_duplicate"] is True


def test_an_import_without_the_source_is_named(tmp_path, capsys):
    for kind in ("meds", "omop", "synthea"):
        code, _, err = run(capsys, "cohort", "import", kind, tmp_path / "nowhere", "--out", tmp_path / "cohort")
        assert (code, f"{tmp_path / 'nowhere'}: no such folder or file" in err) == (3, True)


def test_dataset_check_passes_a_prepared_dataset_and_stops_at_a_leak(source, tmp_path, capsys):
    cohort, dataset = tmp_path / "cohort", tmp_path / "dataset"
    run(capsys, "cohort", "import", "parquet", source, "--out", cohort)
    run(capsys, "prepare", cohort, "--out", dataset, "--set", "min_subjects=1")
    code, out, err = run(capsys, "dataset", "check", dataset, "--cohort", cohort)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "40 people, 0 groups, 80 events looked at",
        "codes that nearly always come on the day of an outcome: none",
        f"no leak in {dataset}: nobody in two splits, nothing from after follow-up",
    ]
    _, out, _ = run(capsys, "dataset", "check", dataset, "--cohort", cohort, "--json")
    assert json.loads(out)["people"] == N_PEOPLE
    train, held_out = (dataset / "sequences" / split / "0000.arrow" for split in ("train", "held_out"))
    held_out.write_bytes(train.read_bytes())
    code, out, err = run(capsys, "dataset", "check", dataset, "--cohort", cohort)
    assert (code, out) == (3, "")
    assert "people are there twice, in two splits or in one" in err
    code, _, err = run(capsys, "dataset", "check", dataset, "--cohort", cohort, "--same-day-share", "2")
    assert (code, "expected a share above 0" in err) == (2, True)


def test_prepare_refuses_a_config_key_it_does_not_know(source, tmp_path, capsys):
    config = tmp_path / "prepare.yaml"
    config.write_text("tain_share: 0.5\n")
    code, _, err = run(capsys, "prepare", tmp_path, "--out", tmp_path / "dataset", "--config", config)
    assert code == 2
    assert f"{config}: key 'tain_share': unknown; did you mean 'train_share'?" in err
