"""A checkpoint is described when it is stored; nothing about it may differ when it is read again."""

import json

import pytest

from app.checkpoint_files import describe_checkpoint, verify_checkpoint
from data_schemas.errors import ModelRefusedError


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "train_config.json").write_text(json.dumps({"vocabulary_sha256": "v", "data_sha256": "d"}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_an_unchanged_checkpoint_passes(checkpoint):
    description = describe_checkpoint(checkpoint)
    assert set(description["checkpoint_files_sha256"]) == {"train_config.json", "model.safetensors"}
    assert (description["vocabulary_sha256"], description["data_sha256"]) == ("v", "d")
    verify_checkpoint(checkpoint, description)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"weightz"),
            "model.safetensors: the file was changed",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: the file is missing"),
        (lambda folder: (folder / "extra.bin").touch(), "extra.bin: the file does not belong to the model"),
    ],
)
def test_a_changed_missing_or_added_file_is_refused_by_name(checkpoint, change, said):
    description = describe_checkpoint(checkpoint)
    change(checkpoint)
    with pytest.raises(ModelRefusedError, match=said):
        verify_checkpoint(checkpoint, description)


def test_another_major_version_is_refused(checkpoint):
    description = {**describe_checkpoint(checkpoint), "deephealth_version": "99.1.0"}
    with pytest.raises(ModelRefusedError, match=r"made by deephealth 99\.1\.0"):
        verify_checkpoint(checkpoint, description)


def test_a_folder_that_is_no_checkpoint_is_refused(checkpoint):
    (checkpoint / "train_config.json").write_text("{}")
    with pytest.raises(ModelRefusedError, match="keys are missing: vocabulary_sha256, data_sha256"):
        describe_checkpoint(checkpoint)
    (checkpoint / "train_config.json").unlink()
    with pytest.raises(ModelRefusedError, match=r"train_config\.json is missing"):
        describe_checkpoint(checkpoint)
