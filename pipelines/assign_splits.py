"""Assign every person to train, tuning or held_out by a stable hash of the group they belong to."""

import hashlib

import numpy as np
import polars as pl

from data_schemas.cohort import HELD_OUT, SPLITS, TRAIN, TUNING, Subjects
from data_schemas.errors import InputContractError, Violation


def assign_splits(subjects: pl.DataFrame, seed: int, train_share: float, tuning_share: float) -> pl.DataFrame:
    """Return the subjects with `split` filled in; the rest of the people is held out.

    People of one `cluster_id` go to one split; a person without one is alone. The hash depends on the seed and the
    identifier alone, so a person keeps the split when others come or go, on every machine and version. A split that
    the cohort brings is kept.

    Raises:
        InputContractError: a cluster's given splits differ.
    """
    _refuse_divided_clusters(subjects)
    drawn = _hash_to_unit_interval(_group_keys(subjects), seed)
    split = (
        pl.when(drawn < train_share).then(pl.lit(TRAIN))
        .when(drawn < train_share + tuning_share).then(pl.lit(TUNING))
        .otherwise(pl.lit(HELD_OUT))
    )  # fmt: skip
    given_in_cluster = Subjects.split.col.drop_nulls().first().over(Subjects.cluster_id.col)
    inherited = pl.when(Subjects.cluster_id.col.is_not_null()).then(given_in_cluster)
    return subjects.with_columns(pl.coalesce(Subjects.split.col, inherited, split).alias(Subjects.split.name))


def count_by_split(subjects: pl.DataFrame) -> dict[str, int]:
    """Count the people of each split, in the order train, tuning, held_out."""
    counts = dict(subjects.group_by(Subjects.split.name).len().iter_rows())
    return {split: counts.get(split, 0) for split in SPLITS}


def _group_keys(subjects: pl.DataFrame) -> pl.Series:
    # The prefix keeps cluster 7 and the single person 7 apart.
    alone = pl.format("subject:{}", Subjects.subject_id.col)
    together = pl.format("cluster:{}", Subjects.cluster_id.col)
    return subjects.select(pl.coalesce(together, alone)).to_series()


def _hash_to_unit_interval(keys: pl.Series, seed: int) -> pl.Series:
    salt = str(seed).encode()
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8, salt=salt).digest() for key in keys)
    return pl.Series(np.frombuffer(digests, dtype=">u8").astype(np.float64) / 2**64)


def _refuse_divided_clusters(subjects: pl.DataFrame) -> None:
    divided = (
        subjects.lazy()
        .filter(Subjects.cluster_id.col.is_not_null(), Subjects.split.col.is_not_null())
        .group_by(Subjects.cluster_id.name)
        .agg(Subjects.split.col.n_unique())
        .filter(Subjects.split.col > 1)
        .collect()
    )
    if divided.height:
        rule = f"{divided.height} clusters have people in more than one given split; one cluster belongs to one split"
        raise InputContractError([Violation("subjects", Subjects.split.name, rule)])
