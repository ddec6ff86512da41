"""Prepare a cohort for training: split, vocabulary, reference rates, sequences, manifest.

A stage whose inputs have not changed is not run again; a dataset appears whole or not at all. Events are read file by
file, so that memory does not grow with their number; a run that was killed goes on where it stopped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from data_schemas.cohort import CODES_FILE, EVENTS_FOLDER, SPLITS, SUBJECTS_FILE, TRAIN, Events, Subjects
from data_schemas.dataset import (
    GROUP,
    MANIFEST_FILE,
    NO_EVENT,
    PAD,
    QUERY,
    REFERENCE_FILE,
    SEQUENCES_FOLDER,
    VOCABULARY_FILE,
    ReferenceRates,
    Sequences,
    Vocabulary,
)
from data_schemas.errors import InputContractError, UsageError, Violation
from pipelines.assign_splits import assign_splits, count_by_split
from pipelines.build_sequences import build_sequences
from pipelines.fit_rates_of_split import fit_rates_of_split
from pipelines.fit_vocabulary import fit_vocabulary
from pipelines.import_cohort.check_contract import raise_violations
from pipelines.outcome_groups import expand_outcome_groups
from pipelines.pair_people_with_events import pair_people_with_events
from pipelines.prepare_config import PrepareConfig
from pipelines.read_dataset import outcome_names, read_vocabulary
from pipelines.sequence_files import write_sequences
from pipelines.tables_on_disk import (
    event_files,
    hash_file,
    read_codes,
    read_json,
    read_subjects,
    require_file,
    write_json,
    write_parquet,
)
from pipelines.whole_folders import FolderKind, refuse_other_folder, replace_folder_when_done

DATASET_FOLDER = FolderKind(
    "dataset",
    marks=(MANIFEST_FILE, VOCABULARY_FILE),
    contents=(MANIFEST_FILE, VOCABULARY_FILE, REFERENCE_FILE, SEQUENCES_FOLDER),
)
PeopleWithEvents: TypeAlias = tuple[str, pl.DataFrame, pl.LazyFrame]  # of one event file, under its name
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
            *(
                f"group {name}: {n_codes:,} codes" if n_codes else f"group {name}: none of its codes is here; left out"
                for name, n_codes in counts["codes_of_group"].items()
            ),
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
    _refuse_reserved_groups(config)
    with replace_folder_when_done(out, DATASET_FOLDER, inputs=json.dumps([wanted, _versions()])) as folder:
        counts = _write_tables(cohort, folder, config)
        manifest = {
            **wanted,
            "counts": counts,
            "versions": _versions(),
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


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("deephealth", "polars")}


def _existing_manifest(out: Path) -> dict[str, Any] | None:
    path = out / MANIFEST_FILE
    manifest: dict[str, Any] | None = read_json(path) if path.exists() else None
    return manifest


def _count_codes(pairs: Sequence[PeopleWithEvents], cohort: Path) -> Counter[str]:
    """Count the rows of each code.

    Raises:
        InputContractError: a code has a name that is ours.
    """
    rows_of_code: Counter[str] = Counter()
    for _, _, events in pairs:
        rows_of_code.update(dict(events.group_by(Events.code.name).len().collect().iter_rows()))
    reserved = [
        Violation(str(cohort / EVENTS_FOLDER), Events.code.name, f"the code '{code}' is reserved; rename it", rows)
        for code, rows in sorted((code, rows_of_code[code]) for code in _RESERVED_CODES if code in rows_of_code)
    ]
    raise_violations(reserved)
    return rows_of_code


def _refuse_reserved_groups(config: PrepareConfig) -> None:
    """Refuse groups that are called like a token of our own."""
    for group in config.groups:
        if group in _RESERVED_CODES:
            raise UsageError(f"the group '{group}' has a reserved name ({', '.join(_RESERVED_CODES)}); rename it")


def _write_tables(cohort: Path, out: Path, config: PrepareConfig) -> dict[str, Any]:
    """Write every table of the dataset and return the counts that the manifest keeps; what is there is whole."""
    subjects = assign_splits(read_subjects(cohort), config.split_seed, config.train_share, config.tuning_share)
    train = subjects.filter(Subjects.split.col == TRAIN)
    if train.is_empty():
        rule = "nobody falls into the training split; the cohort is too small or its `split` column names no train"
        raise InputContractError([Violation(str(cohort / SUBJECTS_FILE), Subjects.split.name, rule)])
    pairs = list(pair_people_with_events(cohort, subjects))
    rows_of_code = _count_codes(pairs, cohort)
    if not (out / VOCABULARY_FILE).exists():
        parts = [_events_of_split(people, events, TRAIN) for _, people, events in pairs]
        write_parquet(fit_vocabulary(train, parts, read_codes(cohort), config), out / VOCABULARY_FILE)
    vocabulary = read_vocabulary(out)
    _write_splits(pairs, vocabulary, out)
    if not (out / REFERENCE_FILE).exists():
        write_parquet(ReferenceRates.validate(fit_rates_of_split(out, TRAIN, vocabulary)), out / REFERENCE_FILE)
    known = set(vocabulary[Vocabulary.code.name])
    return {
        "people": count_by_split(subjects),
        "events": rows_of_code.total(),
        "unknown_code_events": sum(rows for code, rows in rows_of_code.items() if code not in known),
        "tokens": vocabulary.height,
        "outcomes": len(outcome_names(vocabulary, "all_future")),
        "codes_of_group": _codes_of_group(vocabulary, config),
    }


def _codes_of_group(vocabulary: pl.DataFrame, config: PrepareConfig) -> dict[str, int]:
    """Return how many codes each group has; 0 for a documented one that matches no code of a training person."""
    documented = expand_outcome_groups(vocabulary[Vocabulary.code.name], config.outcome_groups).n_codes
    groups = vocabulary.filter(Vocabulary.role.col == GROUP)
    n_members = groups.select(Vocabulary.code.name, Vocabulary.members.col.list.len())
    return {**dict.fromkeys(documented, 0), **dict(n_members.iter_rows())}


def _events_of_split(people: pl.DataFrame, events: pl.LazyFrame, split: str) -> pl.LazyFrame:
    ids = people.lazy().filter(Subjects.split.col == split).select(Subjects.subject_id.name)
    return events.join(ids, on=Subjects.subject_id.name, how="semi")


def _write_splits(pairs: Sequence[PeopleWithEvents], vocabulary: pl.DataFrame, out: Path) -> None:
    """Write one Arrow file a split and event file."""
    for name, people, events in pairs:
        paths = {split: out / SEQUENCES_FOLDER / split / f"{name}.arrow" for split in SPLITS}
        if all(path.exists() for path in paths.values()):
            continue
        sequences = Sequences.validate(build_sequences(people, events, vocabulary))
        for split, path in paths.items():
            write_sequences(sequences.filter(people[Subjects.split.name] == split), path)


def _is_whole(dataset: Path, manifest: dict[str, Any]) -> bool:
    """Say whether the files are still those the manifest was written for."""
    return bool(manifest["content_sha256"] == _hash_folder(dataset))


def _hash_folder(folder: Path) -> str:
    """Hash names and contents of all files but the manifest and what only the work needed, in name order."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {
        str(name): hash_file(path)
        for name, path in paths.items()
        if path.name != MANIFEST_FILE and not name.parts[0].startswith(".")
    }
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()
