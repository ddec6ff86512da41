"""Prepare a cohort for training: split, vocabulary, reference rates, sequences, manifest.

A stage whose inputs have not changed is not run again; a dataset appears whole or not at all.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from data_schemas.cohort import CODES_FILE, EVENTS_FOLDER, SPLITS, SUBJECTS_FILE, TRAIN, Events, Subjects
from data_schemas.dataset import (
    MANIFEST_FILE,
    NO_EVENT,
    OUTCOME_ROLES,
    PAD,
    QUERY,
    REFERENCE_FILE,
    SEQUENCES_FOLDER,
    VOCABULARY_FILE,
    Vocabulary,
)
from data_schemas.errors import InputContractError, UsageError, Violation
from pipelines.assign_splits import assign_splits, count_by_split
from pipelines.build_sequences import build_sequences, count_unknown_codes
from pipelines.find_first_occurrences import find_first_occurrences
from pipelines.fit_reference_rates import fit_reference_rates
from pipelines.fit_vocabulary import fit_vocabulary
from pipelines.pair_people_with_events import pair_people_with_events
from pipelines.prepare_config import PrepareConfig
from pipelines.sequence_files import write_sequences
from pipelines.tables_on_disk import (
    event_files,
    hash_file,
    read_codes,
    read_json,
    read_subjects,
    require_file,
    scan_events,
    write_json,
    write_parquet,
)
from pipelines.whole_folders import FolderKind, refuse_other_folder, replace_folder_when_done

DATASET_FOLDER = FolderKind(
    "dataset",
    marks=(MANIFEST_FILE, VOCABULARY_FILE),
    contents=(MANIFEST_FILE, VOCABULARY_FILE, REFERENCE_FILE, SEQUENCES_FOLDER),
)
_RESERVED_CODES = (PAD, QUERY, NO_EVENT)  # tokens of our own stand in the vocabulary under these names
_FORMAT = 4  # raised when the layout of a dataset changes, so that an old one is made anew


@dataclass(frozen=True)
class PreparedDataset:
    """Where the dataset lies, whether this call made it, and its manifest."""

    folder: Path
    fresh: bool
    manifest: dict[str, Any]

    @property
    def summary_lines(self) -> list[str]:
        """Say in a few lines what the dataset holds."""
        counts = self.manifest["counts"]
        people = ", ".join(f"{n:,} {split}" for split, n in counts["people"].items())
        state = "prepared" if self.fresh else "nothing has changed since it was prepared; kept as it is"
        return [
            state,
            f"people: {people}",
            f"vocabulary: {counts['tokens']:,} tokens, {counts['outcomes']:,} outcomes",
            f"events: {counts['events']:,}, {counts['unknown_code_events']:,} with a code outside the vocabulary",
        ]


def prepare_dataset(cohort: Path, out: Path, config: PrepareConfig) -> PreparedDataset:
    """Write `out` from an imported cohort, unless it already is what this cohort and these settings give.

    Raises:
        InputContractError: the cohort is missing or incomplete, nobody falls into the training split, or a code has a
            name that is ours.
        UsageError: `out` is a folder with something else in it, or a group has a name that is ours.
    """
    refuse_other_folder(out, DATASET_FOLDER)
    source = fingerprint_cohort(cohort)
    settings = config.model_dump(mode="json")
    existing = _existing_manifest(out)
    wanted = {"format": _FORMAT, "source": source, "settings": settings}
    if existing and all(existing.get(key) == value for key, value in wanted.items()) and _is_whole(out, existing):
        return PreparedDataset(out, fresh=False, manifest=existing)
    _refuse_reserved_names(cohort, config)
    with replace_folder_when_done(out, DATASET_FOLDER) as folder:
        counts = _write_tables(cohort, folder, config)
        manifest = {
            **wanted,
            "counts": counts,
            "versions": {"deephealth": version("deephealth"), "polars": version("polars")},
            "content_sha256": _hash_folder(folder),
        }
        write_json(manifest, folder / MANIFEST_FILE)
    return PreparedDataset(out, fresh=True, manifest=manifest)


def read_manifest(dataset: Path) -> dict[str, Any]:
    """Read the manifest of a prepared dataset.

    Raises:
        InputContractError: the folder holds no dataset, or one in the layout of another version.
    """
    path = dataset / MANIFEST_FILE
    manifest: dict[str, Any] = read_json(require_file(path, "not found; make a dataset with `deephealth prepare`"))
    if manifest.get("format") != _FORMAT:
        rule = f"the dataset has layout {manifest.get('format')}, this version reads {_FORMAT}; prepare it again"
        raise InputContractError([Violation(str(path), "", rule)])
    return manifest


def fingerprint_cohort(cohort: Path) -> dict[str, str]:
    """Return the sha256 of each table of a cohort by its name inside the folder."""
    read_subjects(cohort)
    files = [cohort / SUBJECTS_FILE, *event_files(cohort), cohort / CODES_FILE]
    return {str(path.relative_to(cohort)): hash_file(path) for path in files if path.exists()}


def _existing_manifest(out: Path) -> dict[str, Any] | None:
    path = out / MANIFEST_FILE
    manifest: dict[str, Any] | None = read_json(path) if path.exists() else None
    return manifest


def _refuse_reserved_names(cohort: Path, config: PrepareConfig) -> None:
    """Refuse codes and groups that are called like a token of our own."""
    for group in config.groups:
        if group in _RESERVED_CODES:
            raise UsageError(f"the group '{group}' has a reserved name ({', '.join(_RESERVED_CODES)}); rename it")
    reserved = scan_events(cohort).filter(Events.code.col.is_in(_RESERVED_CODES))
    counts = reserved.group_by(Events.code.name).len().sort(Events.code.name).collect()
    if counts.height:
        raise InputContractError(
            [
                Violation(
                    str(cohort / EVENTS_FOLDER), Events.code.name, f"the code '{code}' is reserved; rename it", rows
                )
                for code, rows in counts.iter_rows()
            ]
        )


def _write_tables(cohort: Path, out: Path, config: PrepareConfig) -> dict[str, Any]:
    """Write every table of the dataset and return the counts that the manifest keeps."""
    subjects = assign_splits(read_subjects(cohort), config.split_seed, config.train_share, config.tuning_share)
    train = subjects.filter(Subjects.split.col == TRAIN)
    if train.is_empty():
        rule = "nobody falls into the training split; the cohort is too small or its `split` column names no train"
        raise InputContractError([Violation(str(cohort / SUBJECTS_FILE), Subjects.split.name, rule)])
    events = scan_events(cohort)
    train_events = events.join(train.lazy().select(Subjects.subject_id.name), on=Subjects.subject_id.name, how="semi")

    vocabulary = fit_vocabulary(train, train_events, read_codes(cohort), config)
    write_parquet(vocabulary, out / VOCABULARY_FILE)
    outcomes = vocabulary.filter(Vocabulary.role.col.is_in(OUTCOME_ROLES))[Vocabulary.code.name].to_list()
    firsts = find_first_occurrences(train_events, vocabulary).collect()
    write_parquet(fit_reference_rates(train, firsts, outcomes), out / REFERENCE_FILE)
    _write_splits(cohort, subjects, vocabulary, out)

    return {
        "people": count_by_split(subjects),
        "events": events.select(pl.len()).collect().item(),
        "unknown_code_events": count_unknown_codes(events, vocabulary),
        "tokens": vocabulary.height,
        "outcomes": len(outcomes),
    }


def _write_splits(cohort: Path, subjects: pl.DataFrame, vocabulary: pl.DataFrame, out: Path) -> None:
    """Write one Arrow file a split and event file."""
    for name, people, events in pair_people_with_events(cohort, subjects):
        for split in SPLITS:
            members = people.filter(Subjects.split.col == split)
            sequences = build_sequences(members, events, vocabulary)
            write_sequences(sequences, out / SEQUENCES_FOLDER / split / f"{name}.arrow")


def _is_whole(dataset: Path, manifest: dict[str, Any]) -> bool:
    """Say whether the files are still those the manifest was written for."""
    return bool(manifest["content_sha256"] == _hash_folder(dataset))


def _hash_folder(folder: Path) -> str:
    """Hash names and contents of all files but the manifest, in name order."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST_FILE]
    files = {str(path.relative_to(folder)): hash_file(path) for path in paths}
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()
