"""Runs, registered models and their aliases in a real MLflow store, and the registered model on rows of people."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest
from mlflow.exceptions import MlflowException

from app.checkpoint_files import DATA_HASH, VOCABULARY_HASH
from app.main import main
from app.settings import Settings
from app.tracking import (
    fetch_model,
    log_risk_model,
    open_store,
    promote,
    register_version,
    run_exists,
    start_run,
)
from data_schemas.age_units import years_to_days
from data_schemas.errors import DeepHealthError, InputContractError, ModelRefusedError, UsageError

PERSON = "Jane Doe"
PEOPLE = pd.DataFrame(
    {
        "subject_id": ["b", "a", "b"],
        "sex": ["female", "male", "female"],
        "codes": [["htn", "bmi"], [], ["stroke"]],
        "ages_days": [[20000, 20001], [], [19000.5]],
        "values": [[None, 31.5], [], [None]],
        "landmark_age_days": [20100, 18000, 21000],
    }
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def store(settings):
    return open_store(settings)


def make_checkpoint(folder, weights=b"weights"):
    folder.mkdir()
    (folder / "train_config.json").write_text(json.dumps({VOCABULARY_HASH: "v" * 64, DATA_HASH: "d" * 64}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def trained(store, tmp_path):
    """Return the id of a finished run with a stored model."""
    with start_run(store, "trainings", "small", {"seed": 1}, {}) as run:
        log_risk_model(run, make_checkpoint(tmp_path / "checkpoint"))
    return run.run_id


# ---- the store


USE_STORE = """
import sys
from pathlib import Path
from app.settings import Settings
from app.tracking import open_store, start_run

home, number = Path(sys.argv[1]), int(sys.argv[2])
with start_run(open_store(Settings(home)), "shared", f"run {number}", {"number": number}, {}) as run:
    run.log_metrics({"loss": float(number)})
"""


def test_four_processes_can_open_a_new_store_at_once(tmp_path):
    home = tmp_path / "home"
    processes = [
        subprocess.Popen([sys.executable, "-c", USE_STORE, str(home), str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert said == [""] * 4  # no migration log, no telemetry, no link to the run
    store = open_store(Settings(home=tmp_path / "home"))
    experiment = store.client.get_experiment_by_name("shared")
    runs = store.client.search_runs([experiment.experiment_id])
    assert sorted(run.data.metrics["loss"] for run in runs) == [0.0, 1.0, 2.0, 3.0]
    assert experiment.artifact_location.startswith((tmp_path / "home").as_uri())


def test_the_local_store_lies_in_the_home_folder_wherever_one_stands(settings, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_exists(open_store(settings), trained)
    assert (settings.home / "mlflow.db").exists()
    assert not (tmp_path / "mlruns").exists()
    assert not (tmp_path / "mlflow.db").exists()


def test_a_store_that_does_not_answer_is_an_error_without_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(DeepHealthError, match="cannot be used") as caught:
        open_store(Settings(home=tmp_path, tracking_uri="http://user:hunter2@127.0.0.1:9"))
    assert "hunter2" not in str(caught.value)


# ---- runs


def test_a_run_keeps_parameters_metrics_dataset_files_and_code_version(store, tmp_path):
    table = tmp_path / "metrics.parquet"
    pl.DataFrame({"metric": ["auc"], "estimate": [0.8]}).write_parquet(table)
    params = {"model": {"d_model": 8, "codes": ["a", "b"]}, "seed": None}
    with start_run(store, "runs", "first", params, {"kind": "test"}) as run:
        run.log_metrics({"c_index/ang/isc|5y": 0.8}, step=2)
        run.log_history("loss", {step: 1 / (step + 1) for step in range(1500)})
        run.log_dataset("nafld", "ab" * 32, tmp_path)
        run.log_table(table)
    stored = store.client.get_run(run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params == {"model.d_model": "8", "model.codes": '["a", "b"]', "seed": "None"}
    assert stored.data.metrics["c_index_ang_isc_5y"] == 0.8
    assert len(store.client.get_metric_history(run.run_id, "loss")) == 1500
    assert stored.data.tags["kind"] == "test"
    assert stored.data.tags["deephealth.version"]
    (dataset,) = stored.inputs.dataset_inputs
    assert dataset.dataset.digest == ("ab" * 32)[:36]
    assert {tag.key: tag.value for tag in dataset.tags}[DATA_HASH] == "ab" * 32
    assert [entry.path for entry in store.client.list_artifacts(run.run_id, "tables")] == ["tables/metrics.parquet"]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_that_ends_badly_says_so_and_can_be_resumed(store, error, status):
    with pytest.raises(error), start_run(store, "runs", "broken", {"seed": 1}, {}) as run:
        raise error
    assert store.client.get_run(run.run_id).info.status == status
    with start_run(store, "runs", "broken", {"seed": 1, "new": 2}, {}, run.run_id) as resumed:
        assert store.client.get_run(run.run_id).info.status == "RUNNING"
        resumed.log_metrics({"loss": 1.0})
    assert resumed.run_id == run.run_id
    stored = store.client.get_run(run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params == {"seed": "1", "new": "2"}


def test_a_run_is_not_resumed_with_other_parameters(store, trained):
    other = start_run(store, "trainings", "small", {"seed": 2}, {}, trained)
    with pytest.raises(UsageError, match="was started with seed=1, now it is 2"), other:
        raise AssertionError("the run must not open")


def test_a_run_keeps_at_most_a_hundred_headline_metrics_also_when_resumed(store):
    with start_run(store, "runs", "many", {}, {}) as run:
        run.log_metrics({f"m{number}": 0.5 for number in range(99)})
        with pytest.raises(ValueError, match=r"at most 100 headline metrics, this would make 101; .*log_table"):
            run.log_metrics({"a": 1.0, "b": 1.0})
        run.log_metrics({"a": 1.0, "m0": 0.4})
    with (
        start_run(store, "runs", "many", {}, {}, run.run_id) as resumed,
        pytest.raises(ValueError, match="at most 100"),
    ):
        resumed.log_metrics({"c": 1.0})


# ---- the registry


def test_register_and_promote_move_the_alias_and_say_what_was_before(settings, store, tmp_path, capsys):
    environ = {"DEEPHEALTH_HOME": str(settings.home)}
    run_ids = []
    for number in range(2):
        with start_run(store, "trainings", f"run {number}", {}, {}) as run:
            log_risk_model(run, make_checkpoint(tmp_path / str(number), weights=f"weights {number}".encode()))
        run_ids.append(run.run_id)

    assert main(["register", "--run", run_ids[0], "--name", "nafld", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
    assert main(["register", "--run", run_ids[0], "--name", "nafld"], environ) == 0  # again: the same version
    assert "version 1 of nafld" in capsys.readouterr().out
    assert main(["register", "--run", run_ids[1], "--name", "nafld", "--alias", "challenger"], environ) == 0
    capsys.readouterr()

    assert main(["promote", "--name", "nafld", "--version", "1"], environ) == 0
    assert capsys.readouterr().out == "models:/nafld@champion is now version 1 (before: none)\n"
    assert main(["promote", "--name", "nafld", "--version", "2", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out)["previous_version"] == 1

    for uri in ("models:/nafld@champion", "models:/nafld@challenger", "models:/nafld/2"):
        fetched = fetch_model(store, uri)
        assert (fetched.name, fetched.version, fetched.run_id) == ("nafld", 2, run_ids[1])
        assert (fetched.checkpoint / "model.safetensors").read_bytes() == b"weights 1"
    by_run = fetch_model(store, f"runs:/{run_ids[0]}")
    assert (by_run.name, by_run.version, by_run.run_id) == (None, None, run_ids[0])

    for args, said in [
        (["promote", "--name", "nafld", "--version", "9"], "model 'nafld' has no version 9; its versions: 1, 2"),
        (["promote", "--name", "nafdl", "--version", "1"], "no model is registered as 'nafdl'; registered: nafld"),
        (["register", "--run", "0" * 32, "--name", "nafld"], "there is no run 0000"),
    ]:
        assert main(args, environ) == 4
        assert said in capsys.readouterr().err
    for args, said in [
        (["register", "--run", run_ids[0], "--name", "nafld", "--alias", "champion"], "moves by `deephealth promote`"),
        (["register", "--run", run_ids[0], "--name", "a/b"], "a/b"),
        (["register", "--run", run_ids[0], "--name", "nafld", "--alias", "v1"], "v1"),
    ]:
        assert main(args, environ) == 2
        assert said in capsys.readouterr().err


def test_what_is_not_there_is_refused_with_what_is(store, trained):
    register_version(store, trained, "known", "challenger")
    with pytest.raises(ModelRefusedError, match=r"no alias 'champion'; its aliases: challenger \(version 1\)"):
        fetch_model(store, "models:/known@champion")
    with start_run(store, "trainings", "without a model", {}, {}) as run:
        run.log_metrics({"loss": 1.0})
    for act in (
        lambda: register_version(store, run.run_id, "known"),
        lambda: fetch_model(store, f"runs:/{run.run_id}"),
    ):
        with pytest.raises(ModelRefusedError, match="has stored no risk model"):
            act()
    with pytest.raises(UsageError, match="expected models:/NAME@champion, models:/NAME/VERSION or runs:/RUN_ID"):
        fetch_model(store, "known")
    assert promote(store, "known", 1) is None
    assert promote(store, "known", 1) == 1


def test_a_changed_file_is_refused_even_when_its_hash_was_changed_too(store, trained):
    fetched = fetch_model(store, f"runs:/{trained}")
    weights, stored_hash = fetched.checkpoint / "model.safetensors", None
    weights.write_bytes(b"other weights")
    with pytest.raises(ModelRefusedError, match=r"model\.safetensors: the file was changed"):
        fetch_model(store, f"runs:/{trained}")
    from pipelines.tables_on_disk import hash_file

    description = next(parent / "MLmodel" for parent in weights.parents if (parent / "MLmodel").exists())
    lines = description.read_text().splitlines()
    stored_hash = next(line for line in lines if line.strip().startswith("model.safetensors:")).split()[-1]
    description.write_text(description.read_text().replace(stored_hash, hash_file(weights)))
    with pytest.raises(ModelRefusedError, match="not the one in the store's database"):
        fetch_model(store, f"runs:/{trained}")


def test_a_home_that_was_moved_still_serves_its_models_verified(tmp_path):
    before, after = tmp_path / "before", tmp_path / "mounted" / "elsewhere"
    store = open_store(Settings(home=before))
    with start_run(store, "trainings", "small", {}, {}) as run:
        log_risk_model(run, make_checkpoint(tmp_path / "checkpoint"))
    register_version(store, run.run_id, "risk")
    promote(store, "risk", 1)
    after.parent.mkdir()
    before.rename(after)

    moved = open_store(Settings(home=after))
    for uri in ("models:/risk@champion", "models:/risk/1", f"runs:/{run.run_id}"):
        fetched = fetch_model(moved, uri)
        assert fetched.checkpoint.is_relative_to(after)
        assert (fetched.checkpoint / "model.safetensors").read_bytes() == b"weights"
    (fetched.checkpoint / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ModelRefusedError, match=r"model\.safetensors: the file was changed"):
        fetch_model(moved, "models:/risk@champion")


def test_files_that_were_moved_away_are_missed_by_name(store, trained, tmp_path):
    fetched = fetch_model(store, f"runs:/{trained}")
    folder = next(parent for parent in fetched.checkpoint.parents if (parent / "MLmodel").exists())
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelRefusedError, match="the files of the model are not at"):
        fetch_model(store, f"runs:/{trained}")


# ---- the registered model


@pytest.fixture
def simple_scorer(monkeypatch):
    """Put simple arithmetic in the place of the network: what is tested here is the way to it and back."""

    def predict_risks(model, subjects, events, landmarks, outcomes, horizons_years):
        assert model == "loaded"
        n_events = dict(events.group_by("subject_id").len().collect().iter_rows())
        known = subjects["subject_id"].is_in(list(landmarks["subject_id"]))
        assert known.all()
        return pl.DataFrame(
            [
                {
                    "subject_id": subject,
                    "outcome": outcome,
                    "horizon_days": years_to_days(years),
                    "risk": None if outcome == "stroke" and subject == 2 else n_events.get(subject, 0) * years / 100,
                    "method": "all_future",
                }
                for subject in subjects["subject_id"]
                for outcome in outcomes or ["stroke", "DEATH"]
                for years in horizons_years
            ]
        )

    module = ModuleType("app.predict_risks")
    module.load_risk_model = lambda folder: "loaded" if (folder / "model.safetensors").exists() else None
    module.predict_risks = predict_risks
    monkeypatch.setitem(sys.modules, "app.predict_risks", module)


@pytest.fixture
def registered(simple_scorer, store, trained):
    register_version(store, trained, "scorer", "challenger")
    return mlflow.pyfunc.load_model("models:/scorer@challenger")


def test_rows_in_are_rows_out_in_the_same_order(registered):
    risks = registered.predict(PEOPLE)
    assert risks["subject_id"].tolist() == ["b", "a", "b"]
    expected = {f"{outcome}|{years}y" for outcome in ("stroke", "DEATH") for years in (1, 5, 10)}
    assert set(risks.columns) == expected | {"subject_id"}
    np.testing.assert_allclose(risks["DEATH|10y"], [0.2, 0.0, 0.1])
    assert risks["stroke|5y"].isna().tolist() == [False, False, True]


def test_horizons_and_outcomes_are_parameters(registered):
    risks = registered.predict(PEOPLE, params={"horizons_years": [2, 0.5], "outcomes": ["DEATH"]})
    assert set(risks.columns) == {"subject_id", "DEATH|2y", "DEATH|0.5y"}
    np.testing.assert_allclose(risks["DEATH|2y"], [0.04, 0.0, 0.02])


def test_whole_number_ids_and_nobody_are_fine(registered):
    assert registered.predict(PEOPLE.assign(subject_id=[3, 1, 2]))["subject_id"].tolist() == [3, 1, 2]
    assert registered.predict(PEOPLE.iloc[:0]).empty


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"sex": ["female", PERSON, "male"]},
            "column 'sex': must be one of female, male, unknown (1 row); first at row 1",
        ),
        ({"ages_days": [[20000, PERSON], [], [1.0]]}, "column 'ages_days': expected a list of numbers"),
        ({"landmark_age_days": [20000, None, 1.0]}, "column 'landmark_age_days': must be between"),
        ({"codes": [[PERSON], [], ["stroke"]]}, "column 'codes': must be as long as"),
    ],
)
def test_a_bad_input_is_an_error_that_quotes_nobody(registered, change, said):
    with pytest.raises(InputContractError) as caught:
        registered.predict(PEOPLE.assign(**change))
    assert said in str(caught.value)
    assert PERSON not in str(caught.value)


def test_a_missing_column_is_named(registered):
    with pytest.raises(InputContractError, match="column 'values': is missing"):
        registered.predict(PEOPLE.drop(columns="values"))


def test_where_mlflow_itself_refuses_it_quotes_nobody_either(registered):
    with pytest.raises(MlflowException) as caught:
        registered.predict(PEOPLE.assign(codes=[PERSON, PERSON, PERSON]))
    assert PERSON not in str(caught.value)


def test_a_tampered_model_is_not_loaded(simple_scorer, store, trained):
    fetched = fetch_model(store, f"runs:/{trained}")
    (fetched.checkpoint / "model.safetensors").write_bytes(b"other")
    register_version(store, trained, "tampered", "challenger")
    with pytest.raises(ModelRefusedError, match="was changed"):
        mlflow.pyfunc.load_model("models:/tampered@challenger")


def test_the_stored_model_has_signature_exact_pins_hashes_and_no_row_of_anybody(registered):
    stored = registered.metadata
    names = ["subject_id", "sex", "codes", "ages_days", "values", "landmark_age_days"]
    assert stored.signature.inputs.input_names() == names
    assert [param.name for param in stored.signature.params.params] == ["horizons_years", "outcomes"]
    assert set(stored.metadata["checkpoint_files_sha256"]) == {"model.safetensors", "train_config.json"}
    assert (stored.metadata[VOCABULARY_HASH], stored.metadata[DATA_HASH]) == ("v" * 64, "d" * 64)
    assert stored.saved_input_example_info is None
    assert "cloudpickle" not in json.dumps(list(stored.flavors["python_function"]["artifacts"]))
    pins = Path(mlflow.pyfunc.get_model_dependencies("models:/scorer@challenger"))
    lines = pins.read_text(encoding="utf-8").split()
    assert any(line.startswith("deephealth==") for line in lines)
    assert all("==" in line and "+" not in line for line in lines)
