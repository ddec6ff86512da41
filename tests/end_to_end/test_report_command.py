"""From a trained run to its report, by the commands a person types."""

import json

import polars as pl
import pytest
from made_up_evaluation import write_made_up_evaluation
from small_cohort import write_small_cohort

from app.main import main

SMALL = ("max_epochs=1", "n_reasoning_rounds=1", "batch_size=64", "warmup_steps=2")
SHARES = ("train_share=0.4", "tuning_share=0.1")  # half is held out, so that there are cases to judge by


class World:
    """A folder with a trained model, and a way to run commands in it."""

    def __init__(self, folder):
        self.folder = folder
        self.cohort, self.dataset = folder / "cohort", folder / "dataset"

    def run(self, *arguments):
        return main([str(argument) for argument in arguments], {"DEEPHEALTH_HOME": str(self.folder / "home")})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world of [brackets] and spaces"))
    source = write_small_cohort(world.folder / "source", n_subjects=800)
    assert world.run("cohort", "import", "parquet", source, "--out", world.cohort) == 0
    assert world.run("prepare", world.cohort, "--out", world.dataset, "--set", *SHARES) == 0
    assert world.run("train", world.dataset, "--set", *SMALL) == 0
    run = next((world.folder / "home" / "training").glob("*/run.json"))
    world.run_id = json.loads(run.read_text())["run_id"]
    return world


def test_a_run_that_was_not_evaluated_says_what_to_do(world, capsys):
    assert world.run("report", world.run_id, "--out", world.folder / "none.html") == 2
    assert f"make one with `deephealth evaluate DATASET --run {world.run_id}`" in capsys.readouterr().err
    assert not (world.folder / "none.html").exists()


def test_a_run_that_does_not_exist_is_refused(world, capsys):
    assert world.run("report", "0f3a", "--out", world.folder / "none.html") == 4
    assert "there is no run 0f3a" in capsys.readouterr().err


def test_the_report_of_a_folder_of_tables(world, capsys):
    tables, out = write_made_up_evaluation(world.folder / "tables"), world.folder / "made up" / "report.html"
    answers = world.folder / "answers.yaml"
    answers.write_text("title: Our model\ntripod: {18a: A foundation.}\n", encoding="utf-8")
    options = ("--evaluation", tables, "--cohort", world.cohort, "--answers", answers, "--out", out, "--json")
    assert world.run("report", world.run_id, *options) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["report"] == str(out)
    html = out.read_text(encoding="utf-8")
    assert "<h1>Our model</h1>" in html
    assert "800" in html  # people of the cohort
    assert "The dataset was not at hand" not in html
    items = {item["number"]: item for item in json.loads((out.parent / "tripod_ai.json").read_text())["items"]}
    assert items["18a"]["state"] == "given"
    assert "seed 1" in items["12a"]["answer"]
    assert sum(item["state"] != "given" for item in items.values()) == facts["tripod_items_open"]
    card = json.loads((out.parent / "model_card.json").read_text())["AppliedModelCard"]
    assert world.run_id in card["ReleaseInfo"]["ReleaseVersion"]


def test_another_dataset_than_that_of_the_training_is_refused(world, capsys):
    other = world.folder / "other"
    assert world.run("prepare", world.cohort, "--out", other, "--set", "split_seed=7") == 0
    tables = write_made_up_evaluation(world.folder / "tables 2")
    options = ("--evaluation", tables, "--dataset", other, "--out", world.folder / "none.html")
    assert world.run("report", world.run_id, *options) == 2
    assert "is not the dataset that run" in capsys.readouterr().err


def test_the_report_of_what_evaluate_stored_in_the_run(world, capsys):
    evaluated = (
        "--landmarks",
        "entry",
        "--horizons",
        "1,5",
        "--subgroups",
        "sex",
        "--out",
        world.folder / "evaluation",
    )
    assert world.run("evaluate", world.dataset, "--run", world.run_id, *evaluated) == 0
    out = world.folder / "report.html"
    assert world.run("report", world.run_id, "--out", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"report written to {out}"
    html = out.read_text(encoding="utf-8")
    metrics = pl.read_parquet(world.folder / "evaluation" / "metrics.parquet", glob=False)
    judged = metrics.filter(pl.col("metric") == "auc", pl.col("estimate").is_not_null())["outcome"].unique()
    assert len(judged) > 1
    assert all(f"<td>{outcome}" in html for outcome in judged if outcome not in {"macro_mean", "pooled"})
    assert "this evaluation has no table" not in html
    assert "sex: female" in html
