"""What is kept about a checkpoint's files when it is stored, and the check that they are still the same."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.code_version import package_version
from data_schemas.errors import ModelRefusedError
from models.checkpoints import CONFIG_FILE
from pipelines.tables_on_disk import hash_file, read_json

# Keys of train_config.json; the first two are kept in the description.
VOCABULARY_HASH, DATA_HASH, REFERENCE_HASH = "vocabulary_sha256", "data_sha256", "reference_rates_sha256"
PACKAGE_VERSION, FILE_HASHES, CHECKPOINT_HASH = "deephealth_version", "checkpoint_files_sha256", "checkpoint_sha256"


def describe_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Return who made a checkpoint, from which data, and the sha256 of each of its files and of all together.

    Raises:
        ModelRefusedError: the folder is no checkpoint.
    """
    config_file = checkpoint / CONFIG_FILE
    if not config_file.is_file():
        raise ModelRefusedError(f"{checkpoint} is no checkpoint: {CONFIG_FILE} is missing")
    config = read_json(config_file)
    missing = [key for key in (VOCABULARY_HASH, DATA_HASH) if key not in config]
    if missing:
        raise ModelRefusedError(f"{config_file}: keys are missing: {', '.join(missing)}")
    hashes = _hash_files(checkpoint)
    return {
        PACKAGE_VERSION: package_version(),
        VOCABULARY_HASH: config[VOCABULARY_HASH],
        DATA_HASH: config[DATA_HASH],
        FILE_HASHES: hashes,
        CHECKPOINT_HASH: combine_hashes(hashes),
    }


def verify_checkpoint(checkpoint: Path, description: Mapping[str, Any]) -> None:
    """Check a checkpoint against what was written down when it was stored.

    Raises:
        ModelRefusedError: another major version of the package made it, or a file is missing, changed or new.
    """
    made_by, here = str(description[PACKAGE_VERSION]), package_version()
    if made_by.partition(".")[0] != here.partition(".")[0]:
        raise ModelRefusedError(f"the model was made by deephealth {made_by}; this is {here}, another major version")
    expected, found = description[FILE_HASHES], _hash_files(checkpoint)
    for name in sorted({*expected, *found}):
        if name not in found:
            raise ModelRefusedError(f"{checkpoint / name}: the file is missing")
        if name not in expected:
            raise ModelRefusedError(f"{checkpoint / name}: the file does not belong to the model")
        if expected[name] != found[name]:
            raise ModelRefusedError(f"{checkpoint / name}: the file was changed after the model was stored (sha256)")


def combine_hashes(hashes: Mapping[str, str]) -> str:
    """Return one sha256 for a list of files and theirs."""
    return hashlib.sha256(json.dumps(dict(sorted(hashes.items()))).encode()).hexdigest()


def _hash_files(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}
