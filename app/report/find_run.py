"""What a report needs of a run in the store: its verified model, its tags, its dataset, and the tables it keeps."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from app.predict_risks import notes_on_method
from app.report.model_facts import ModelFacts, as_date
from app.tracking import Store, fetch_model
from data_schemas.dataset import MANIFEST_FILE
from data_schemas.errors import UsageError
from data_schemas.results import ALL_FUTURE, FROZEN_HISTORY
from models.checkpoints import read_config
from pipelines.describe_cohort import describe_cohort
from pipelines.prepare_dataset import read_manifest
from pipelines.read_dataset import read_vocabulary

_TABLES = "tables"  # where a run keeps the tables of its evaluation
_INTERNAL = "mlflow."
_DATASET_HASH, _METHOD = "dataset_sha256", "method"  # tags


@dataclass(frozen=True)
class FoundRun:
    """A run: what its report is about, and its dataset where that is still in its place."""

    run_id: str
    tags: Mapping[str, str]
    started: str
    dataset: Path | None


def find_run(store: Store, run_id: str, dataset: Path | None) -> FoundRun:
    """Read a run that has stored a risk model; `dataset` is looked for where it was at training unless it is named.

    Raises:
        UsageError: the dataset that is named is not the one the model was trained on.
    """
    run = store.client.get_run(run_id)
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith(_INTERNAL)}
    if dataset is not None:
        if read_manifest(dataset)["content_sha256"] != tags.get(_DATASET_HASH):
            raise UsageError(f"{dataset} is not the dataset that run {run_id} was trained on; --dataset names that one")
        return FoundRun(run_id, tags, as_date(run.info.start_time), dataset)
    places = [entry.dataset.source for entry in run.inputs.dataset_inputs] if run.inputs else []
    found = next((place for place in map(_local_path, places) if _is_dataset(place, tags)), None)
    return FoundRun(run_id, tags, as_date(run.info.start_time), found)


def read_model_facts(store: Store, run_id: str, dataset: Path | None, cohort: Path | None) -> ModelFacts:
    """Gather what is known of the model of a run.

    Raises:
        ModelRefusedError: there is no such run, it has stored no risk model, or the model's files were changed.
        InputContractError: the cohort or the dataset is none.
    """
    checkpoint = fetch_model(store, f"runs:/{run_id}").checkpoint
    run = find_run(store, run_id, dataset)
    facts = read_config(checkpoint)
    notes = notes_on_method(run.tags.get(_METHOD) or (ALL_FUTURE if facts["mode"] == ALL_FUTURE else FROZEN_HISTORY))
    if run.dataset is None:
        notes.append("The dataset was not at hand, so that its settings and splits are not shown.")
    return ModelFacts(
        run_id=run_id,
        trained_on=run.started,
        tags=run.tags,
        checkpoint=facts,
        vocabulary=read_vocabulary(checkpoint),
        manifest=read_manifest(run.dataset) if run.dataset else None,
        cohort=describe_cohort(cohort) if cohort else None,
        notes=tuple(notes),
    )


def fetch_evaluation(store: Store, run_id: str, folder: Path) -> Path:
    """Bring the tables that `deephealth evaluate --run` stored in a run into a folder, and return where they lie.

    Raises:
        UsageError: the run has none.
    """
    if not store.client.list_artifacts(run_id, _TABLES):
        raise UsageError(
            f"run {run_id} has no evaluation; make one with `deephealth evaluate DATASET --run {run_id}`, "
            "or name a folder of tables with --evaluation"
        )
    return Path(store.client.download_artifacts(run_id, _TABLES, str(folder)))


def _local_path(source: str) -> Path | None:
    """Return the folder that a logged dataset names, if it is one of this machine."""
    try:
        content: Any = json.loads(source)
    except ValueError:
        return None
    address = urlsplit(str(content.get("uri", ""))) if isinstance(content, dict) else urlsplit("")
    return Path(url2pathname(address.path)) if address.scheme == "file" else None


def _is_dataset(place: Path | None, tags: Mapping[str, str]) -> bool:
    """Say whether the very dataset of the training lies there."""
    if place is None or not (place / MANIFEST_FILE).is_file():
        return False
    return bool(read_manifest(place)["content_sha256"] == tags.get(_DATASET_HASH))
