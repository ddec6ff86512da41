"""From a folder of tables to risks from a registered model, by the commands a person types."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest
from small_cohort import write_small_cohort

from app.main import main
from app.predict_risks import load_risk_model, predict_risks
from app.settings import Settings
from app.tracking import fetch_model, open_store
from data_schemas.cohort import HELD_OUT, Events, Subjects
from data_schemas.results import Outcomes, Risks
from models.checkpoints import CONFIG_FILE, WEIGHTS_FILE
from models.train import read_progress
from pipelines.find_outcomes import landmarks_at
from pipelines.prepare_dataset import read_manifest
from pipelines.read_dataset import read_split_subjects, read_vocabulary, scan_split_events
from pipelines.tables_on_disk import read_subjects, scan_events

SMALL = ("max_epochs=2", "n_reasoning_rounds=2", "batch_size=64", "warmup_steps=2")
SHARES = ("train_share=0.4", "tuning_share=0.1")  # half is held out, so that there are cases to judge by
KEYS = (Risks.subject_id.name, Risks.outcome.name, Risks.horizon_days.name)


class World:
    """A folder with everything the commands write, and a way to run them in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(home=folder / "home")

    def run(self, *arguments: object) -> int:
        return main([str(argument) for argument in arguments], {"DEEPHEALTH_HOME": str(self.settings.home)})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The whole path once: import, prepare, train, register, promote."""
    world = World(tmp_path_factory.mktemp("world of [brackets] and spaces"))
    source = write_small_cohort(world.folder / "source", n_subjects=1200, n_event_files=2)
    assert world.run("cohort", "import", "parquet", source, "--out", world.folder / "cohort") == 0
    assert world.run("prepare", world.folder / "cohort", "--out", world.folder / "dataset", "--set", *SHARES) == 0
    assert world.run("train", world.folder / "dataset", "--set", *SMALL) == 0
    world.run_id = next((world.settings.home / "training").glob("*/run.json"))
    world.run_id = json.loads(world.run_id.read_text())["run_id"]
    assert world.run("register", "--run", world.run_id, "--name", "risk") == 0
    assert world.run("promote", "--name", "risk", "--version", 1) == 0
    return world


def score(world: World, name: str, *options: str, cohort: str = "cohort") -> Path:
    out = world.folder / name
    model = ("--model", "models:/risk@champion")
    assert world.run("score", world.folder / cohort, *model, "--out", out, *options) == 0
    return out


def read_risks(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(file, glob=False) for file in sorted(folder.glob("*.parquet"))])


def test_training_prints_its_run_id_last_and_is_not_done_twice(world, capsys) -> None:
    assert world.run("train", world.folder / "dataset", "--set", *SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == world.run_id
    assert "had been trained before" in lines[0]


def test_preparing_again_does_nothing_and_says_so(world, capsys) -> None:
    assert world.run("prepare", world.folder / "cohort", "--out", world.folder / "dataset", "--set", *SHARES) == 0
    assert "up to date" in capsys.readouterr().out.splitlines()[-1]


def test_evaluation_judges_all_three_predictors_on_the_same_people(world) -> None:
    out = world.folder / "evaluation"
    assert world.run("evaluate", world.folder / "dataset", "--run", world.run_id, "--out", out) == 0
    metrics = pl.read_parquet(out / "metrics.parquet", glob=False)
    concordance = metrics.filter((pl.col("metric") == "concordance") & (pl.col("outcome") != "macro_mean"))
    counts = concordance.group_by("outcome", "landmark", "horizon_days").agg(
        pl.col("predictor").n_unique(), pl.col("n").n_unique().alias("sizes")
    )
    assert counts.height > 0
    assert counts["predictor"].unique().to_list() == [3]
    assert counts["sizes"].unique().to_list() == [1]
    shown = metrics["n_events"].drop_nulls()
    assert shown.min() >= 10
    assert (out / "plots" / "calibration_entry_5y.svg").stat().st_size > 1000
    stored = open_store(world.settings).client.get_run(world.run_id).data.metrics
    assert any(name.startswith("concordance macro_mean") for name in stored)


def test_scoring_twice_gives_the_same_bytes_and_a_row_for_everything(world) -> None:
    first, second = (score(world, name, cohort="source") for name in ("risks_1", "risks_2"))  # two event files
    files = sorted(first.glob("*.parquet"))
    assert len(files) == 2
    for file in files:
        assert file.read_bytes() == (second / file.name).read_bytes()
    risks, people = read_risks(first), read_subjects(world.folder / "source")
    n_outcomes = risks["outcome"].n_unique()
    assert risks.height == people.height * n_outcomes * 3
    assert risks.select(KEYS).is_unique().all()
    assert (risks["risk"].is_null() == risks["reason"].is_not_null()).all()
    assert (risks["reference_risk"].is_null() == risks["reason"].is_not_null()).all()
    assert risks["risk"].drop_nulls().is_between(0, 1).all()


def test_risks_grow_with_the_horizon(world) -> None:
    risks = read_risks(score(world, "risks_grow", "--landmark-age", "entry")).drop_nulls("risk")
    by_horizon = risks.sort("horizon_days").group_by("subject_id", "outcome").agg(pl.col("risk").diff().min())
    assert by_horizon["risk"].drop_nulls().min() >= 0


def test_a_score_equals_the_number_that_evaluation_judged(world) -> None:
    """Evaluation reads people from the dataset, scoring from the cohort: the risks must be the same."""
    dataset = world.folder / "dataset"
    model = load_risk_model(fetch_model(open_store(world.settings), f"runs:/{world.run_id}").checkpoint)
    subjects = read_split_subjects(dataset, HELD_OUT)
    events = scan_split_events(dataset, HELD_OUT, read_vocabulary(dataset))
    landmarks = landmarks_at(subjects, "entry")
    judged = predict_risks(model, subjects, events, landmarks, (), (1.0, 5.0, 10.0))
    scored = read_risks(score(world, "risks_entry", "--landmark-age", "entry"))
    both = judged.join(scored, on=list(KEYS), suffix="_scored")
    assert both.height == judged.height > 0
    assert both["reason"].eq_missing(both["reason_scored"]).all()
    difference = (both["risk"] - both["risk_scored"]).abs().max()
    assert difference < 1e-6
    assert (both["reference_risk"] - both["reference_risk_scored"]).abs().max() < 1e-12


def test_the_registered_model_scores_by_itself_like_the_command(world) -> None:
    cohort = world.folder / "cohort"
    people = read_subjects(cohort).head(60)
    lists = (
        scan_events(cohort)
        .group_by(Events.subject_id.name)
        .agg(codes=Events.code.col, ages_days=Events.age_days.col, values=Events.numeric_value.col)
        .collect()
    )
    rows = (
        people.join(lists, on=Subjects.subject_id.name, how="left", maintain_order="left")
        .with_columns(pl.col("codes", "ages_days", "values").fill_null([]))
        .select("subject_id", "sex", "codes", "ages_days", "values", landmark_age_days=Subjects.entry_age_days.col)
    )
    open_store(world.settings)
    model = mlflow.pyfunc.load_model("models:/risk@champion")
    frame = pd.DataFrame({name: rows[name].to_list() for name in rows.columns})
    wide = pl.from_pandas(model.predict(frame, params={"horizons_years": [5.0], "outcomes": ["diabetes", "DEATH"]}))
    assert wide["subject_id"].to_list() == people["subject_id"].to_list()
    scored = read_risks(score(world, "risks_py", "--landmark-age", "entry", "--horizons", "5"))
    for outcome in ("diabetes", "DEATH"):
        mine = scored.filter(Risks.outcome.col == outcome)
        joined = wide.join(mine, on="subject_id", maintain_order="left")
        ours, theirs = joined["risk"].to_numpy(), joined[f"{outcome}|5y"].to_numpy()
        assert np.isfinite(ours).sum() > 20
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.nanmax(np.abs(ours - theirs)) < 1e-6


def test_what_cannot_be_scored_says_why(world) -> None:
    risks = read_risks(score(world, "risks_at_60", "--landmark-age", "60", "--horizons", "5"))
    people = read_subjects(world.folder / "cohort")
    age = 60 * 365.25
    outside = people.filter(~pl.lit(age).is_between(Subjects.entry_age_days.col, Subjects.exit_age_days.col))
    reasons = risks.join(outside.select("subject_id"), on="subject_id", how="semi")["reason"]
    assert reasons.unique().to_list() == ["outside_follow_up"]
    inside = risks.join(outside.select("subject_id"), on="subject_id", how="anti")
    assert set(inside["reason"].unique()) == {None, "prevalent"}
    assert inside.filter(Risks.reason.col.is_null())[Outcomes.landmark_age_days.name].unique().to_list() == [age]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--landmark-age", "tomorrow"), 2, "expected entry, exit, an age in years or a date"),
        (("--outcomes", "gout"), 2, "does not predict gout"),
        (("--horizons", "0"), 2, "years above zero"),
        (("--horizons", "soon"), 2, "expected years"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_words(world, capsys, options, code, says) -> None:
    model = ("--model", "models:/risk@champion")
    assert world.run("score", world.folder / "cohort", *model, "--out", world.folder / "refused", *options) == code
    assert says in capsys.readouterr().err


def test_a_date_as_landmark_needs_birth_dates(world, capsys) -> None:
    dated = read_risks(score(world, "risks_dated", "--landmark-age", "2015-01-31", "--horizons", "5"))
    ages = dated.join(read_subjects(world.folder / "cohort"), on="subject_id")
    days = (pl.date(2015, 1, 31) - pl.col("birth_date")).dt.total_days()
    assert ages.select((days == pl.col("landmark_age_days")).all()).item()
    undated = world.folder / "undated"
    shutil.copytree(world.folder / "cohort", undated)
    people = read_subjects(undated).with_columns(pl.lit(None, dtype=pl.Date).alias("birth_date"))
    people.write_parquet(undated / "subjects.parquet")
    options = ("--model", "models:/risk@champion", "--out", world.folder / "none", "--landmark-age", "2015-01-31")
    assert world.run("score", undated, *options) == 3
    assert f"{people.height} people have no birth date" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_exit_code_4(world, capsys) -> None:
    out = world.folder / "none"
    assert world.run("score", world.folder / "cohort", "--model", "models:/risk/9", "--out", out) == 4
    assert "9" in capsys.readouterr().err


def test_a_foreign_folder_is_not_written_into(world, capsys) -> None:
    out = world.folder / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    model = ("--model", "models:/risk@champion")
    assert world.run("score", world.folder / "cohort", *model, "--out", out) == 2
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    assert "choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "choices",
    [
        ("model_architecture=traj_mixer_v5", "d_model=24", "n_head=3", "n_layer=2"),
        ("model_architecture=delphi_gpt_v1", "d_model=24", "n_head=3", "n_layer=2", "head=mixed"),
    ],
)
def test_every_backbone_trains_and_scores(world, choices, capsys) -> None:
    settings = ("max_epochs=1", "batch_size=64", "warmup_steps=2", *choices)
    assert world.run("train", world.folder / "dataset", "--set", *settings) == 0
    run_id = capsys.readouterr().out.splitlines()[-1]
    out = world.folder / choices[0]
    model = ("--model", f"runs:/{run_id}", "--landmark-age", "entry")
    assert world.run("score", world.folder / "cohort", *model, "--out", out) == 0
    risks = read_risks(out)
    assert risks["risk"].drop_nulls().is_between(0, 1).all()
    assert risks["risk"].drop_nulls().len() > 1000


def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(world) -> None:
    settings = ("max_epochs=3", "n_reasoning_rounds=2", "batch_size=16", "checkpoint_every_steps=5", "seed=7")
    command = [sys.executable, "-m", "app.main", "train", str(world.folder / "dataset"), "--set", *settings]
    weights = {}
    for name in ("undisturbed", "killed"):
        home = world.folder / name
        environment = {**os.environ, "DEEPHEALTH_HOME": str(home), "OMP_NUM_THREADS": "1"}
        if name == "killed":
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert wait_for_steps(home, 40, process) < 80  # before the last of three epochs of 30 steps
            process.send_signal(signal.SIGKILL)
            process.wait()
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert finished.returncode == 0, finished.stderr
        (checkpoint,) = (home / "training").glob("*/checkpoint")
        weights[name] = (checkpoint / WEIGHTS_FILE).read_bytes()
        config = json.loads((checkpoint / CONFIG_FILE).read_text())
        assert config["data_sha256"] == read_manifest(world.folder / "dataset")["content_sha256"]
    assert weights["killed"] == weights["undisturbed"]


def wait_for_steps(home: Path, steps: int, process: subprocess.Popen) -> int:
    """Return how many steps a training has saved, once it is `steps` or more."""
    for _ in range(3000):
        assert process.poll() is None, "the training ended before it could be killed"
        folders = list((home / "training").glob("*"))
        progress = read_progress(folders[0]) if folders else None
        if progress and progress.step >= steps:
            return progress.step
        time.sleep(0.02)
    raise AssertionError("the training did not get that far")


NEXT = (
    "mode=next_token",
    "head=next_token",
    "no_event_rows=random",
    "shuffle_same_day=true",
    "covariate_delay_years=1",
)


def test_a_next_token_model_goes_the_same_way_and_its_risks_are_labelled(world, capsys) -> None:
    assert world.run("train", world.folder / "dataset", "--set", *SMALL, *NEXT) == 0
    said = capsys.readouterr()
    run_id = said.out.splitlines()[-1]
    assert "event_trajectory_shared_v1 next_token next_token: " in said.err
    assert "nats an interval" in said.out
    assert world.run("evaluate", world.folder / "dataset", "--run", run_id) == 0
    assert "risks by frozen_history: " in capsys.readouterr().out
    out = world.folder / "frozen"
    assert world.run("score", world.folder / "cohort", "--model", f"runs:/{run_id}", "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["method"] == "frozen_history"
    risks = read_risks(out)
    assert set(risks[Risks.method.name]) == {"frozen_history"}
    assert risks.filter(Risks.reason.col.is_null())[Risks.risk.name].is_between(0, 1).all()
