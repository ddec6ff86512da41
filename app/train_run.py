"""Train a model on a prepared dataset as one tracked run that can be interrupted and taken up again."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import app.batches
import models
import pipelines.augment_histories
import pipelines.draw_queries
import pipelines.find_intervals
import pipelines.pad_tensors
import pipelines.plan_batches
import pipelines.sequence_files
import pipelines.token_tables
from app.batches import DatasetBatches
from app.checkpoint_files import DATA_HASH, REFERENCE_HASH, VOCABULARY_HASH
from app.code_version import hash_sources
from app.plots import plot_training_curve
from app.predict_risks import layout_of_vocabulary
from app.settings import Settings
from app.terminal import announce, show_progress
from app.tracking import Run, Store, log_risk_model, run_exists, start_run
from data_schemas.dataset import REFERENCE_FILE, VOCABULARY_FILE
from models.checkpoints import CONFIG_FILE, WEIGHTS_FILE, save_checkpoint
from models.config import TrainConfig
from models.risk_model import RiskModel, count_parameters, seeded_model
from models.train import EpochRecord, Note, Progress, StepRecord, evaluate_loss, read_progress, train
from pipelines.prepare_dataset import read_manifest
from pipelines.read_dataset import read_vocabulary
from pipelines.tables_on_disk import hash_file, read_json, write_json
from pipelines.whole_folders import FolderKind, replace_folder_when_done

EXPERIMENT = "deephealth"
CHECKPOINT_FILES = (WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE, REFERENCE_FILE)
_CHECKPOINT_FOLDER = FolderKind("checkpoint", marks=(), contents=CHECKPOINT_FILES)  # an incomplete one is replaced
# A training is done again when the code that decides its weights has changed.
TRAINING_SOURCES = (
    models,
    app.batches,
    pipelines.augment_histories,
    pipelines.draw_queries,
    pipelines.find_intervals,
    pipelines.pad_tensors,
    pipelines.plan_batches,
    pipelines.sequence_files,
    pipelines.token_tables,
)
_RUN_FILE, _LOCK_FILE = "run.json", "training.lock"


@dataclass(frozen=True)
class TrainedRun:
    """What a training left behind."""

    run_id: str
    checkpoint: Path
    fresh: bool  # False when this very training had been finished before
    best_tuning_loss: float
    parameters: int


def train_run(dataset: Path, config: TrainConfig, settings: Settings, store: Store) -> TrainedRun:
    """Train on a dataset, store the model in the run, and return where it is.

    The same dataset, configuration and training code name the same training: called again it goes on where it was
    interrupted, and when it was finished it only says so. While another process is at it, this one waits.

    Raises:
        InputContractError: the folder holds no dataset.
        TrainingDivergedError: the loss is no longer finite.
    """
    manifest = read_manifest(dataset)
    folder = settings.home / "training" / _training_key(manifest, config)
    with _one_process_at_a_time(folder):
        return _train_in(folder, dataset, manifest, config, store)


@contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Keep others out of a training folder while the block runs; the lock of a process that dies is free."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        with show_progress("waiting for another process that trains the same"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _train_in(folder: Path, dataset: Path, manifest: dict[str, Any], config: TrainConfig, store: Store) -> TrainedRun:
    """Train in a folder that nobody else works in, or find that it was done."""
    vocabulary = read_vocabulary(dataset)
    layout = layout_of_vocabulary(vocabulary, config.mode)
    model = seeded_model(config, layout)
    n_parameters, n_trainable = count_parameters(model)
    batches = DatasetBatches(dataset, vocabulary, config)
    progress = read_progress(folder)
    known_run = _known_run(folder, store)
    if progress and progress.finished and known_run and known_run["logged"]:
        checkpoint = folder / "checkpoint"
        if not all((checkpoint / name).is_file() for name in CHECKPOINT_FILES):
            _run_epochs(config, model, batches, folder)  # no step is left: it gives the best weights of the saved state
            _write_checkpoint(folder, model, dataset, manifest)
        return TrainedRun(known_run["run_id"], checkpoint, False, min(progress.tuning_losses), n_parameters)

    name = f"{config.model_architecture} {config.head} {config.mode}"
    announce(f"{name}: {n_parameters:,} parameters, {n_trainable:,} of them trainable")
    tags = {"dataset": dataset.name, "dataset_sha256": manifest["content_sha256"]}
    run_id = known_run["run_id"] if known_run else None
    with start_run(store, EXPERIMENT, name, config.model_dump(mode="json"), tags, run_id=run_id) as run:
        write_json({"run_id": run.run_id, "logged": False}, folder / _RUN_FILE)
        run.log_dataset(dataset.name, manifest["content_sha256"], dataset)
        progress = _run_epochs(config, model, batches, folder)
        checkpoint = _write_checkpoint(folder, model, dataset, manifest)
        log_risk_model(run, checkpoint)
        run.log_metrics({"tuning_loss_of_kept_weights": evaluate_loss(model, batches.tuning())})
        _log_results(run, progress, n_parameters, folder)
        write_json({"run_id": run.run_id, "logged": True}, folder / _RUN_FILE)
    return TrainedRun(run.run_id, checkpoint, True, min(progress.tuning_losses), n_parameters)


def _training_key(manifest: dict[str, Any], config: TrainConfig) -> str:
    facts = [manifest["content_sha256"], config.model_dump(mode="json"), hash_sources(TRAINING_SOURCES)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _known_run(folder: Path, store: Store) -> dict[str, Any] | None:
    """Return the run of an earlier call, unless the store does not know it (another store, or it was deleted)."""
    path = folder / _RUN_FILE
    content: dict[str, Any] | None = read_json(path) if path.exists() else None
    return content if content and run_exists(store, content["run_id"]) else None


def _run_epochs(config: TrainConfig, model: RiskModel, batches: DatasetBatches, folder: Path) -> Progress:
    """Run the training loop to its end and return the curve it went through."""
    earlier = read_progress(folder)
    tuning = ""
    with show_progress("training", batches.count() * config.max_epochs) as bar:
        bar.advance(earlier.step if earlier else 0)
        for record in train(config, model, batches, folder):
            match record:
                case EpochRecord():
                    tuning = f"tuning {record.tuning_loss:.4f}  "
                case StepRecord():
                    bar.advance(1, f"loss {record.loss:.3f}  {tuning}{record.events_per_second:,.0f} events/s")
                case Note():
                    announce(record.text)
    progress = read_progress(folder)
    assert progress is not None  # the loop saves it at the end of every epoch
    return progress


def _write_checkpoint(folder: Path, model: RiskModel, dataset: Path, manifest: dict[str, Any]) -> Path:
    checkpoint = folder / "checkpoint"
    facts = {
        VOCABULARY_HASH: hash_file(dataset / VOCABULARY_FILE),
        REFERENCE_HASH: hash_file(dataset / REFERENCE_FILE),
        DATA_HASH: manifest["content_sha256"],
        "versions": {name: version(name) for name in ("deephealth", "torch")},
    }
    with replace_folder_when_done(checkpoint, _CHECKPOINT_FOLDER) as temporary:
        save_checkpoint(temporary, model, facts)
        for name in (VOCABULARY_FILE, REFERENCE_FILE):
            shutil.copyfile(dataset / name, temporary / name)
    return checkpoint


def _log_results(run: Run, progress: Progress, n_parameters: int, folder: Path) -> None:
    run.log_history("training_loss", dict(enumerate(progress.training_losses)))
    run.log_history("tuning_loss", dict(enumerate(progress.tuning_losses)))
    run.log_metrics({"best_tuning_loss": min(progress.tuning_losses), "parameters": n_parameters})
    plot = folder / "training_curve.svg"
    plot_training_curve(progress.training_losses, progress.tuning_losses, plot)
    run.log_files(plot, "plots")
