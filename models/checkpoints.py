"""Weights and training states on disk. Only safetensors and JSON: nothing is ever unpickled.

A checkpoint is a folder: `model.safetensors` and `train_config.json` here; `vocabulary.parquet` and
`reference_rates.parquet` are laid beside them by the caller. It is rebuilt from those files alone.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_schemas.errors import ModelRefusedError
from models.config import TrainConfig
from models.risk_model import RiskModel, count_parameters
from models.vocabulary_layout import VocabularyLayout

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "train_config.json"
_FINGERPRINT = "backbone.architecture_fingerprint"
_SAVED_CONFIG = "train_config"  # in the metadata of the weights: mode and no_event rows, say, change no weight's shape


def describe_model(model: RiskModel) -> dict[str, Any]:
    """Return what `train_config.json` says of the network: every config key, what the backbone fixes, counts."""
    total, trainable = count_parameters(model)
    return {
        **model.config.model_dump(mode="json"),
        **model.backbone.describe(),
        "model_parameter_count": total,
        "trainable_parameter_count": trainable,
    }


def save_checkpoint(folder: Path, model: RiskModel, facts: Mapping[str, Any]) -> None:
    """Write weights and configuration; `facts` are hashes and versions that belong to this model."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS_FILE, model.state_dict(), {_SAVED_CONFIG: model.config.model_dump_json()})
    text = json.dumps({**describe_model(model), **facts}, indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """Read `train_config.json` of a checkpoint.

    Raises:
        ModelRefusedError: the file is missing or no JSON object.
    """
    path = folder / CONFIG_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelRefusedError(f"{path}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ModelRefusedError(f"{path}: expected a JSON object")
    return content


def load_checkpoint(folder: Path, layout: VocabularyLayout) -> RiskModel:
    """Rebuild a model and verify it: architecture, size preset, the exact set of weights, fingerprint, counts.

    Raises:
        ModelRefusedError: says what differs.
    """
    content = read_config(folder)
    config = verified_config(content, folder / CONFIG_FILE)
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; the caller's generator stays untouched
        model = RiskModel(config, layout)
    _verify_facts(content, model.backbone.describe(), folder / CONFIG_FILE)
    tensors, metadata = read_tensors(folder / WEIGHTS_FILE)
    _verify_tensors(tensors, model, folder / WEIGHTS_FILE)
    _verify_facts(content, describe_model(model), folder / CONFIG_FILE)
    _verify_saved_config(config, metadata, folder)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary, dict(metadata))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read one safetensors file and its metadata.

    Raises:
        ModelRefusedError: the file is missing, truncated or no safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        return load_file(path), metadata
    except (OSError, SafetensorError) as error:
        raise ModelRefusedError(f"{path}: missing, truncated or no safetensors file") from error


def verified_config(content: Mapping[str, Any], path: Path) -> TrainConfig:
    """Return the config that a checkpoint's facts hold; every key must be there and in range.

    Raises:
        ModelRefusedError: names file and key.
    """
    known = {key: value for key, value in content.items() if key in TrainConfig.model_fields}
    missing = sorted(set(TrainConfig.model_fields) - set(known))
    if missing:
        raise ModelRefusedError(f"{path}: keys are missing: {', '.join(missing)}")
    try:
        config = TrainConfig.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise ModelRefusedError(f"{path}: {place}{first['msg'].removeprefix('Value error, ')}") from error
    return config


def _verify_facts(content: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    for key, value in expected.items():
        if content.get(key) != value:
            raise ModelRefusedError(f"{path}: {key} is {content.get(key)}, the model has {value}")


def _verify_saved_config(config: TrainConfig, metadata: Mapping[str, str], folder: Path) -> None:
    """Compare the configuration with the one that was stored inside the file of the weights, key by key."""
    if _SAVED_CONFIG not in metadata:
        raise ModelRefusedError(f"{folder / WEIGHTS_FILE}: does not say with which configuration it was saved")
    saved = json.loads(metadata[_SAVED_CONFIG])
    for key, value in config.model_dump(mode="json").items():
        if saved.get(key) != value:
            raise ModelRefusedError(
                f"{folder / CONFIG_FILE}: {key} is {value}, the weights were saved with {saved.get(key)}"
            )


def _verify_tensors(tensors: Mapping[str, Tensor], model: RiskModel, path: Path) -> None:
    expected = model.state_dict()
    missing, surplus = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or surplus:
        raise ModelRefusedError(f"{path}: weights missing: {missing or 'none'}; not of this model: {surplus or 'none'}")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape or tensors[name].dtype != tensor.dtype:
            found, wanted = _kind(tensors[name]), _kind(tensor)
            raise ModelRefusedError(f"{path}: {name} is {found}, expected {wanted}")
    # A strict load would overwrite the fingerprint without a word, so it is compared before.
    if not torch.equal(tensors[_FINGERPRINT], expected[_FINGERPRINT]):
        has, needs = tensors[_FINGERPRINT].tolist(), expected[_FINGERPRINT].tolist()
        raise ModelRefusedError(
            f"{path}: {model.backbone.FINGERPRINT} are {has} in the weights, {needs} in {CONFIG_FILE}"
        )


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
