"""Check a prepared dataset for leaks: people or groups in two splits, rows from after follow-up, codes that tell.

What no dataset may hold is an error. Codes that nearly always come on the same day as an outcome are only listed: they
may be another name of it, or be made because of it, and a person has to judge.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.cohort import SPLITS, TRAIN, Subjects
from data_schemas.dataset import GROUP, SEQUENCES_FOLDER, Sequences, Vocabulary
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.evaluation.array_types import BoolArray
from pipelines.import_cohort.row_rules import FIRST_ROWS_SHOWN
from pipelines.prepare_dataset import fingerprint_cohort, read_manifest
from pipelines.read_dataset import read_vocabulary
from pipelines.sequence_files import SequenceShard, read_shard, scan_split
from pipelines.tables_on_disk import read_subjects

SAME_DAY_SHARE = 0.9
_PERSON, _DAY, _OUTCOME = "person", "day", "outcome_token"  # working columns
_GIVEN_SPLIT = "given_split"


@dataclass(frozen=True)
class SameDayCode:
    """A code that most people who have it got first on the very day of their first occurrence of an outcome."""

    code: str
    outcome: str
    n_people: int  # training people who have the code
    share_same_day: float


@dataclass(frozen=True)
class LeakageReport:
    """What was looked at and found clean, and the codes a person has to judge."""

    people: int
    clusters: int
    events: int
    same_day_codes: tuple[SameDayCode, ...]


def check_leakage(dataset: Path, cohort: Path, *, same_day_share: float = SAME_DAY_SHARE) -> LeakageReport:
    """Check a dataset beside the cohort it was prepared from, which knows the groups that must not be torn apart.

    Raises:
        UsageError: the dataset was prepared from another cohort, or from an earlier state of it.
        InputContractError: the dataset leaks; every way in which it does is listed.
    """
    if read_manifest(dataset)["source"] != fingerprint_cohort(cohort):
        raise UsageError(f"{dataset} was not prepared from {cohort} as it is now; prepare it again")
    vocabulary = read_vocabulary(dataset)
    subjects = read_subjects(cohort)
    placed = _people_by_split(dataset)
    faults = [*_split_faults(placed, subjects, dataset), *_sequence_faults(dataset, vocabulary)]
    if faults:
        raise InputContractError(faults)
    return LeakageReport(
        people=placed.height,
        clusters=subjects[Subjects.cluster_id.name].drop_nulls().n_unique(),
        events=sum(shard.tokens.size for split in SPLITS for shard in scan_split(dataset, split)),
        same_day_codes=tuple(_find_same_day_codes(dataset, vocabulary, same_day_share)),
    )


def _people_by_split(dataset: Path) -> pl.DataFrame:
    """Return subject_id and split of every row of the sequences."""
    return pl.concat(
        pl.scan_ipc(sorted((dataset / SEQUENCES_FOLDER / split).glob("*.arrow")), glob=False)
        .select(Sequences.subject_id.col, pl.lit(split).alias(Subjects.split.name))
        .collect()
        for split in SPLITS
    )


def _split_faults(placed: pl.DataFrame, subjects: pl.DataFrame, dataset: Path) -> list[Violation]:
    """Find people and groups in more than one split, and people whose split is not the one they were given."""
    place, subject_id, split = str(dataset / SEQUENCES_FOLDER), Subjects.subject_id.name, Subjects.split.name
    known = subjects.select(subject_id, Subjects.cluster_id.name, Subjects.split.col.alias(_GIVEN_SPLIT))
    joined = placed.join(known, on=subject_id, how="left")
    clusters = joined.drop_nulls(Subjects.cluster_id.name).group_by(Subjects.cluster_id.name)
    counts = {
        (subject_id, "people are there twice, in two splits or in one"): placed.height - placed[subject_id].n_unique(),
        (subject_id, "people are not in the cohort"): placed.join(known, on=subject_id, how="anti").height,
        (subject_id, "people of the cohort are missing"): known.join(placed, on=subject_id, how="anti").height,
        (Subjects.cluster_id.name, "groups have people in more than one split"): clusters.agg(
            pl.col(split).n_unique()
        ).filter(pl.col(split) > 1).height,
        (split, "people are in another split than the cohort says"): joined.filter(
            pl.col(_GIVEN_SPLIT) != pl.col(split)
        ).height,
    }  # fmt: skip
    return [Violation(place, column, f"{n:,} {rule}") for (column, rule), n in counts.items() if n]


def _sequence_faults(dataset: Path, vocabulary: pl.DataFrame) -> Iterator[Violation]:
    """Find people with rows that a model must not see: after exit, out of order, or of no known code."""
    for split in SPLITS:
        for path in sorted((dataset / SEQUENCES_FOLDER / split).glob("*.arrow")):
            shard = read_shard(path)
            for (column, rule), is_broken in _broken(shard, vocabulary.height).items():
                people = np.flatnonzero(is_broken)
                if people.size:
                    first_rows = tuple(int(row) for row in people[:FIRST_ROWS_SHOWN])
                    yield Violation(str(path), column, rule, int(people.size), first_rows)


def _broken(shard: SequenceShard, n_tokens: int) -> dict[tuple[str, str], BoolArray]:
    """Return for each rule whether each person breaks it: [N]."""
    owner, owner_of_first = np.repeat(np.arange(len(shard)), np.diff(shard.offsets)), shard.owner_of_first()
    follows = np.diff(shard.ages_days, prepend=0.0)
    follows[shard.offsets[:-1][np.diff(shard.offsets) > 0]] = 0.0  # the first row of a person follows nothing

    def any_row(is_broken: BoolArray, rows_of: np.ndarray = owner) -> BoolArray:
        return np.bincount(rows_of[is_broken], minlength=len(shard)) > 0

    ages, first_ages = Sequences.ages_days.name, Sequences.first_ages_days.name
    return {
        (ages, "an event must not lie after exit_age_days"): any_row(shard.ages_days > shard.exit_age_days[owner]),
        (ages, "an event must not lie before birth"): any_row(shard.ages_days < 0),
        (ages, "events must be in the order of their ages"): any_row(follows < 0),
        (first_ages, "a first occurrence must not lie after exit_age_days"): any_row(
            shard.first_ages_days > shard.exit_age_days[owner_of_first], owner_of_first
        ),
        (Sequences.tokens.name, "a token must be in the vocabulary"): any_row(
            (shard.tokens < 0) | (shard.tokens >= n_tokens)
        ),
    }


def _find_same_day_codes(dataset: Path, vocabulary: pl.DataFrame, least_share: float) -> Iterator[SameDayCode]:
    """Yield codes whose first occurrence most people have on the day of an outcome's, the highest share first."""
    people_with: Counter[int] = Counter()
    same_day: Counter[tuple[int, int]] = Counter()
    for shard in scan_split(dataset, TRAIN):
        codes, outcomes = _first_days_of_codes(shard), _first_days_of_outcomes(shard)
        people_with.update(dict(codes.group_by(Vocabulary.token.name).len().iter_rows()))
        pairs = codes.join(outcomes, on=[_PERSON, _DAY]).group_by(Vocabulary.token.name, _OUTCOME).len()
        same_day.update({(code, outcome): n for code, outcome, n in pairs.iter_rows()})
    names = dict(vocabulary.select(Vocabulary.token.name, Vocabulary.code.name).iter_rows())
    trivial = _pairs_by_definition(vocabulary)
    shares = {
        pair: n / people_with[pair[0]]
        for pair, n in same_day.items()
        if pair not in trivial and people_with[pair[0]] >= SMALLEST_SHOWN_COUNT
    }
    for pair, share in sorted(shares.items(), key=lambda entry: (-entry[1], entry[0])):
        if share >= least_share:
            code, outcome = pair
            yield SameDayCode(names[code], names[outcome], people_with[code], share)


def _first_days_of_codes(shard: SequenceShard) -> pl.DataFrame:
    """Return person, token and day of the first row of each code."""
    rows = pl.DataFrame(
        {
            _PERSON: np.repeat(np.arange(len(shard)), np.diff(shard.offsets)),
            Vocabulary.token.name: shard.tokens,
            _DAY: np.floor(shard.ages_days),
        }
    )
    return rows.group_by(_PERSON, Vocabulary.token.name).agg(pl.col(_DAY).min())


def _first_days_of_outcomes(shard: SequenceShard) -> pl.DataFrame:
    return pl.DataFrame(
        {
            _PERSON: shard.owner_of_first(),
            _OUTCOME: shard.first_tokens,
            _DAY: np.floor(shard.first_ages_days),
        }
    )


def _pairs_by_definition(vocabulary: pl.DataFrame) -> set[tuple[int, int]]:
    """Return pairs that share a day because they are one thing: a code and itself, a member and its group."""
    tokens = dict(vocabulary.select(Vocabulary.code.name, Vocabulary.token.name).iter_rows())
    groups = vocabulary.filter(Vocabulary.role.col == GROUP).select(Vocabulary.token.name, Vocabulary.members.name)
    of_groups = {
        (tokens[member], group) for group, members in groups.iter_rows() for member in members if member in tokens
    }
    return {(token, token) for token in tokens.values()} | of_groups
