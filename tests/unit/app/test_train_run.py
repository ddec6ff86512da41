"""Training as a tracked run: one process at a time, a checkpoint that is whole, and errors in words."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from app import train_run as module
from app.main import main
from app.predict_risks import load_risk_model
from app.settings import Settings
from app.tracking import open_store
from app.train_run import CHECKPOINT_FILES, train_run
from models.config import TrainConfig
from models.train import STATE_FILE

CONFIG = TrainConfig(max_epochs=1, n_reasoning_rounds=1, batch_size=64)
TRAIN = """
import sys
from pathlib import Path
from app.settings import Settings
from app.tracking import open_store
from app.train_run import train_run
from models.config import TrainConfig

settings = Settings(home=Path(sys.argv[2]))
config = TrainConfig.model_validate_json(sys.argv[3])
trained = train_run(Path(sys.argv[1]), config, settings, open_store(settings))
print(trained.run_id, trained.fresh)
"""


@pytest.fixture(scope="module")
def trained(small_dataset, tmp_path_factory):
    """One finished training: its settings and what it returned."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    return settings, train_run(small_dataset, CONFIG, settings, open_store(settings))


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_processes_that_train_the_same_give_one_run(small_dataset, tmp_path):
    arguments = [str(small_dataset), str(tmp_path / "home"), CONFIG.model_dump_json()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (first_id, first_fresh), (second_id, second_fresh) = (out.split() for out, _ in said)
    assert first_id == second_id
    assert sorted([first_fresh, second_fresh]) == ["False", "True"]


def test_the_second_waits_for_the_lock_and_finds_it_finished(small_dataset, trained):
    settings, first = trained
    store, found = open_store(settings), []
    second = threading.Thread(target=lambda: found.append(train_run(small_dataset, CONFIG, settings, store)))
    with FileLock(first.checkpoint.parent / "training.lock"):
        second.start()
        second.join(timeout=1.0)
        assert second.is_alive()
        assert not found
    second.join(timeout=60)
    assert [(run.run_id, run.fresh) for run in found] == [(first.run_id, False)]


@pytest.mark.parametrize("missing", [*CHECKPOINT_FILES, None])
def test_a_checkpoint_that_is_gone_is_made_again_from_the_saved_state(small_dataset, trained, missing):
    settings, first = trained
    before = bytes_of(first.checkpoint)
    shutil.rmtree(first.checkpoint) if missing is None else (first.checkpoint / missing).unlink()
    again = train_run(small_dataset, CONFIG, settings, open_store(settings))
    assert (again.run_id, again.fresh) == (first.run_id, False)
    assert bytes_of(again.checkpoint) == before
    load_risk_model(again.checkpoint)


def test_a_checkpoint_appears_whole_or_not_at_all(small_dataset, tmp_path, monkeypatch):
    settings = Settings(home=tmp_path / "home")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfile", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(small_dataset, CONFIG, settings, open_store(settings))
    (folder,) = (settings.home / "training").iterdir()
    assert {path.name for path in folder.iterdir()} == {STATE_FILE, "run.json", "training.lock"}
    assert not json.loads((folder / "run.json").read_text())["logged"]
    finished = train_run(small_dataset, CONFIG, settings, open_store(settings))
    assert {path.name for path in finished.checkpoint.iterdir()} == set(CHECKPOINT_FILES)


def test_a_training_that_diverges_says_so_in_words(small_dataset, tmp_path, capsys):
    options = ("learning_rate=1e30", "max_epochs=2", "n_reasoning_rounds=1", "batch_size=16", "warmup_steps=1")
    code = main(["train", str(small_dataset), "--set", *options], {"DEEPHEALTH_HOME": str(tmp_path)})
    assert code == 1
    said = capsys.readouterr().err
    assert "the loss is" in said
    assert "try a lower learning rate" in said
