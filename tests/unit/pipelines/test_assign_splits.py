"""Splits: by group, stable, of about the right size, and never against what the cohort brings."""

import polars as pl
import pytest

from data_schemas.cohort import HELD_OUT, SPLITS, TRAIN, TUNING, Subjects
from data_schemas.errors import InputContractError
from pipelines.assign_splits import assign_splits, count_by_split

SEED, TRAIN_SHARE, TUNING_SHARE = 1, 0.70, 0.15
# The first 8 bytes of blake2b (salt: the seed as text) over 2^64, from Python's hashlib, of the id with `subject:` or
# `cluster:` before it. A change here would move people of every existing dataset to another split.
HASHES = [
    (1, None, 1, 0.7742517916378513),
    (1, None, 2, 0.8666096985075058),
    ("1", None, 1, 0.7742517916378513),
    (2, None, 1, 0.8406839248309428),
    (7, "7", 1, 0.7542115065592201),
]


def subjects(ids, clusters=None, splits=None):
    n = len(ids)
    return pl.DataFrame(
        {
            Subjects.subject_id.name: ids,
            Subjects.cluster_id.name: pl.Series(clusters or [None] * n, dtype=pl.String),
            Subjects.split.name: pl.Series(splits or [None] * n, dtype=pl.String),
        }
    )


def splits_of(frame, seed=SEED):
    assigned = assign_splits(frame, seed, TRAIN_SHARE, TUNING_SHARE)
    return dict(assigned.select(Subjects.subject_id.name, Subjects.split.name).iter_rows())


@pytest.mark.parametrize(("subject_id", "cluster_id", "seed", "drawn"), HASHES)
def test_the_hash_is_pinned(subject_id, cluster_id, seed, drawn):
    person = subjects([subject_id], [cluster_id])
    for share, expected in ((drawn + 1e-12, TRAIN), (drawn - 1e-12, TUNING)):
        assert assign_splits(person, seed, share, 0.5)[Subjects.split.name].item() == expected


def test_a_cluster_is_in_one_split():
    clusters = [f"family {i // 3}" for i in range(3000)]
    assigned = assign_splits(subjects(range(3000), clusters), SEED, TRAIN_SHARE, TUNING_SHARE)
    per_cluster = assigned.group_by(Subjects.cluster_id.name).agg(pl.col(Subjects.split.name).n_unique())
    assert per_cluster[Subjects.split.name].max() == 1
    assert assigned[Subjects.split.name].n_unique() == 3


def test_a_cluster_and_a_person_of_the_same_name_are_kept_apart():
    ids = [str(i) for i in range(200)]
    alone = splits_of(subjects(ids))
    together = splits_of(subjects(ids, ids))
    assert alone != together


def test_people_keep_their_split_when_others_come_or_go():
    everyone, fewer = splits_of(subjects(range(500))), splits_of(subjects(range(400, 100, -2)))
    assert {person: everyone[person] for person in fewer} == fewer


def test_the_seed_decides():
    assert splits_of(subjects(range(200)), seed=1) != splits_of(subjects(range(200)), seed=2)


def test_shares_are_about_right():
    counts = count_by_split(assign_splits(subjects(range(20_000)), SEED, TRAIN_SHARE, TUNING_SHARE))
    assert list(counts) == list(SPLITS)
    # Five standard deviations of a binomial share of 20,000 people are under 0.017.
    assert counts[TRAIN] / 20_000 == pytest.approx(TRAIN_SHARE, abs=0.017)
    assert counts[TUNING] / 20_000 == pytest.approx(TUNING_SHARE, abs=0.017)
    assert counts[HELD_OUT] / 20_000 == pytest.approx(0.15, abs=0.017)


def test_an_empty_split_is_counted_as_zero():
    assert count_by_split(subjects([1], splits=[TRAIN])) == {TRAIN: 1, TUNING: 0, HELD_OUT: 0}


def test_a_given_split_is_kept_and_its_cluster_inherits_it():
    splits = [None, TUNING, None, HELD_OUT] * 50
    clusters = [None if i % 4 == 3 else f"c{i // 4}" for i in range(200)]
    assigned = splits_of(subjects(range(200), clusters, splits))
    for first in range(0, 200, 4):
        assert [assigned[first + i] for i in range(4)] == [TUNING, TUNING, TUNING, HELD_OUT]


def test_a_given_split_of_one_person_says_nothing_about_others_without_cluster():
    alone = splits_of(subjects(range(100)))
    beside = splits_of(subjects(range(101), splits=[None] * 100 + [HELD_OUT]))
    assert {person: beside[person] for person in alone} == alone


def test_divided_clusters_are_refused_without_naming_anybody():
    divided = subjects([1, 2, 3, 4], ["Smith", "Smith", "Lee", "Lee"], [TRAIN, HELD_OUT, TRAIN, None])
    with pytest.raises(InputContractError, match="1 clusters have people in more than one given split") as caught:
        splits_of(divided)
    assert "Smith" not in str(caught.value)
    assert caught.value.violations[0].column == Subjects.split.name
