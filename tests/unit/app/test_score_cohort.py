"""Scoring a whole cohort: nobody is lost, the same bytes twice, and no other files are touched."""

import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from app.predict_risks import ScoringModel, layout_of_vocabulary, predict_risks
from app.score_cohort import landmarks_of, score_cohort
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import Events, Subjects
from data_schemas.dataset import Vocabulary
from data_schemas.errors import InputContractError, UsageError
from data_schemas.results import DEAD, OUTSIDE_FOLLOW_UP, PREVALENT, Outcomes, Risks
from models.config import TrainConfig
from models.risk_model import seeded_model
from pipelines.import_cohort.from_parquet import import_parquet
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.read_dataset import read_reference_rates, read_vocabulary
from pipelines.tables_on_disk import hash_file, read_json, read_subjects, scan_events

REQUEST = {"horizons_years": [1.0, 5.0], "outcomes": [], "facts": {"name": "test"}}
N_OUTCOMES = 8
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(small_dataset):
    vocabulary = read_vocabulary(small_dataset)
    network = seeded_model(TrainConfig(n_reasoning_rounds=1), layout_of_vocabulary(vocabulary, "all_future")).eval()
    return ScoringModel(network, vocabulary, read_reference_rates(small_dataset), {})


def test_rows_are_people_times_outcomes_times_horizons_in_one_file_for_each_event_file(model, small_cohort, tmp_path):
    result = score_cohort(model, small_cohort, tmp_path / "risks", landmark="entry", **REQUEST)
    assert sorted(path.name for path in (tmp_path / "risks").iterdir()) == [
        "0000.parquet", "0001.parquet", "risks_manifest.json",
    ]  # fmt: skip
    risks = pl.read_parquet(tmp_path / "risks" / "*.parquet")
    assert (result.people, result.rows) == (300, 300 * N_OUTCOMES * 2)
    assert risks.height == result.rows
    assert set(risks[Risks.subject_id.name]) == set(read_subjects(small_cohort)[Subjects.subject_id.name])
    Risks.validate(risks)
    reasons = dict(risks.group_by(Risks.reason.name).len().drop_nulls().iter_rows())
    assert result.rows_without_risk == reasons
    codes = scan_events(small_cohort).collect()[Events.code.name]
    n_unknown = result.unknown_code_events
    assert n_unknown == (~codes.is_in(model.vocabulary[Vocabulary.code.name].implode())).sum() > 0
    manifest = read_json(tmp_path / "risks" / "risks_manifest.json")
    assert manifest["model"] == {"name": "test"}
    assert manifest["settings"] == {"landmark": "entry", "horizons_years": [1.0, 5.0], "outcomes": "all"}
    assert manifest["counts"] == {
        "people": 300,
        "rows": risks.height,
        "rows_without_risk": reasons,
        "unknown_code_events": n_unknown,
    }


def test_twice_gives_the_same_bytes_and_old_files_go(model, small_cohort, tmp_path):
    out = tmp_path / "risks"
    hashes = []
    for _ in range(2):
        score_cohort(model, small_cohort, out, landmark="exit", **REQUEST)
        hashes.append({path.name: hash_file(path) for path in out.iterdir()})
        (out / "0099.parquet").write_bytes(b"of an earlier cohort")
    assert hashes[0] == hashes[1]


def test_the_numbers_are_those_of_predict_risks(model, small_cohort, tmp_path):
    score_cohort(model, small_cohort, tmp_path / "risks", landmark="60", **REQUEST)
    found = pl.read_parquet(tmp_path / "risks" / "*.parquet")
    people = read_subjects(small_cohort)
    at = people.select(
        Subjects.subject_id.name, pl.lit(60 * DAYS_PER_YEAR).alias(Outcomes.landmark_age_days.name)
    )  # fmt: skip
    direct = predict_risks(model, people, scan_events(small_cohort), at, [], [1.0, 5.0])
    key = [Risks.subject_id.name, Risks.outcome.name, Risks.horizon_days.name]
    both = direct.join(found, on=key, suffix="_file")
    assert both.height == direct.height
    assert (both[Risks.risk.name] - both["risk_file"]).abs().max() < 1e-6
    assert both[Risks.reason.name].eq_missing(both["reason_file"]).all()
    assert set(found[Risks.reason.name].drop_nulls()) == {PREVALENT, OUTSIDE_FOLLOW_UP}


def test_at_exit_the_dead_are_told_from_the_living(model, small_cohort, tmp_path):
    score_cohort(model, small_cohort, tmp_path / "risks", landmark="exit", **REQUEST)
    risks = pl.read_parquet(tmp_path / "risks" / "*.parquet")
    died = scan_events(small_cohort).filter(pl.col("code") == "DEATH").collect()["subject_id"]
    dead = risks.filter(pl.col(Risks.reason.name) == DEAD)[Risks.subject_id.name].unique()
    assert sorted(dead) == sorted(died)


def people(*birth_dates):
    return pl.DataFrame(
        {
            Subjects.subject_id.name: range(len(birth_dates)),
            Subjects.birth_date.name: pl.Series(birth_dates, dtype=pl.Date),
            Subjects.entry_age_days.name: [18_000.0] * len(birth_dates),
            Subjects.exit_age_days.name: [20_000.0] * len(birth_dates),
        }
    )


@pytest.mark.parametrize(
    ("landmark", "age_days"),
    [("entry", 18_000.0), ("exit", 20_000.0), ("60", 60 * DAYS_PER_YEAR), ("0", 0.0), ("2000-03-01", 18_322.0)],
)
def test_landmarks_by_name_age_or_date(landmark, age_days):
    found = landmarks_of(people(date(1950, 1, 1), date(1950, 1, 1)), landmark)
    assert found.rows() == [(0, age_days), (1, age_days)]
    assert found.columns == [Subjects.subject_id.name, Outcomes.landmark_age_days.name]


def test_a_date_needs_birth_dates():
    with pytest.raises(InputContractError, match=r"column 'birth_date': 1 people have no birth date"):
        landmarks_of(people(date(1950, 1, 1), None), "2000-01-01")


@pytest.mark.parametrize("landmark", ["2020", "120.5", "20200131"])
def test_an_age_that_nobody_reaches_is_probably_meant_as_a_date(landmark):
    said = r"a number is an age in years, at most 120; a date is written in full, for example 2020-01-31"
    with pytest.raises(UsageError, match=said):
        landmarks_of(people(date(1950, 1, 1)), landmark)


@pytest.mark.parametrize("landmark", ["", "birth", "-5", "nan", "inf", "2000-13-01"])
def test_any_other_landmark_is_refused(landmark):
    with pytest.raises(UsageError, match="expected entry, exit, an age in years or a date"):
        landmarks_of(people(date(1950, 1, 1)), landmark)


def test_a_folder_with_other_files_is_left_alone(model, small_cohort, tmp_path):
    (tmp_path / "thesis.parquet").write_bytes(b"three years of work")
    with pytest.raises(UsageError, match="is not empty and holds no risks"):
        score_cohort(model, small_cohort, tmp_path, landmark="entry", **REQUEST)
    assert (tmp_path / "thesis.parquet").read_bytes() == b"three years of work"


@pytest.mark.parametrize(
    "wrong",
    [
        {"landmark": "2020"},
        {"outcomes": ["gout"]},
        {"horizons_years": [float("nan")]},
        {"horizons_years": [1000.0]},
        {"cohort": "nowhere"},
    ],
)
def test_a_wrong_request_leaves_earlier_risks_untouched(model, small_cohort, tmp_path, wrong):
    out = tmp_path / "risks"
    score_cohort(model, small_cohort, out, landmark="entry", **REQUEST)
    before = {path.name: (hash_file(path), path.stat().st_mtime_ns) for path in out.iterdir()}
    arguments = {"cohort": small_cohort, "landmark": "entry", **REQUEST, **wrong}
    cohort = tmp_path / arguments.pop("cohort")
    with pytest.raises((UsageError, InputContractError)):
        score_cohort(model, cohort, out, **arguments)
    assert {path.name: (hash_file(path), path.stat().st_mtime_ns) for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["risks"]


SCORE_AND_DIE = """
import os, signal, sys
from pathlib import Path
import app.score_cohort as module
from app.predict_risks import ScoringModel, layout_of_vocabulary
from models.config import TrainConfig
from models.risk_model import seeded_model
from pipelines.read_dataset import read_reference_rates, read_vocabulary

dataset, cohort, out = map(Path, sys.argv[1:])
write = module.write_parquet
def write_one_and_die(frame, path):
    if path.stem == "0001":
        os.kill(os.getpid(), signal.SIGKILL)
    write(frame, path)
module.write_parquet = write_one_and_die
vocabulary = read_vocabulary(dataset)
network = seeded_model(TrainConfig(n_reasoning_rounds=1), layout_of_vocabulary(vocabulary, "all_future")).eval()
model = ScoringModel(network, vocabulary, read_reference_rates(dataset), {})
module.score_cohort(model, cohort, out, landmark="entry", horizons_years=[1.0, 5.0], outcomes=[], facts={})
"""


def test_a_killed_scoring_leaves_earlier_risks_and_can_be_run_again(model, small_cohort, small_dataset, tmp_path):
    earlier, fresh = tmp_path / "earlier", tmp_path / "fresh"
    score_cohort(model, small_cohort, earlier, landmark="entry", **REQUEST)
    before = {path.name: hash_file(path) for path in earlier.iterdir()}
    for folder in (earlier, fresh):
        arguments = [str(path) for path in (small_dataset, small_cohort, folder)]
        done = subprocess.run([sys.executable, "-c", SCORE_AND_DIE, *arguments], check=False, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL
    assert {path.name: hash_file(path) for path in earlier.iterdir()} == before
    assert not fresh.exists()
    (left,) = tmp_path.glob(".fresh.*")
    assert [path.name for path in left.iterdir()] == ["0000.parquet"]
    for folder in (earlier, fresh):
        score_cohort(model, small_cohort, folder, landmark="entry", **REQUEST)
        assert {path.name: hash_file(path) for path in folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"earlier", "fresh"}


def test_each_stage_refuses_the_folders_of_the_others(model, small_cohort, tmp_path):
    folders = {name: tmp_path / name for name in ("cohort", "dataset", "risks")}
    stages = {
        "cohort": lambda out: import_parquet(small_cohort, out),
        "dataset": lambda out: prepare_dataset(small_cohort, out, PrepareConfig()),
        "risks": lambda out: score_cohort(model, small_cohort, out, landmark="entry", **REQUEST),
    }
    for name, stage in stages.items():
        stage(folders[name])
    before = {path: hash_file(path) for path in tmp_path.rglob("*") if path.is_file()}
    for name, stage in stages.items():
        for other in set(folders) - {name}:
            with pytest.raises(UsageError, match=f"is not empty and holds no {name}; choose another folder"):
                stage(folders[other])
        with pytest.raises(UsageError, match="is a file"):
            stage(folders["risks"] / "0000.parquet")
        with pytest.raises(UsageError, match="is the folder we stand in"):
            stage(Path())
    assert {path: hash_file(path) for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_unknown_outcome_is_refused_before_anything_is_written(model, small_cohort, tmp_path):
    with pytest.raises(UsageError, match="does not predict gout"):
        score_cohort(
            model, small_cohort, tmp_path / "risks", landmark="entry", **{**REQUEST, "outcomes": ["gout"]}
        )  # fmt: skip
    assert not (tmp_path / "risks").exists()
