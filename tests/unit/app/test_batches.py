"""Batches of a dataset behind the interface of the training loop."""

import shutil

import pytest
import torch

from app.batches import DatasetBatches
from data_schemas.errors import InputContractError
from models.config import TrainConfig
from pipelines.read_dataset import read_vocabulary

CONFIG = TrainConfig(batch_size=16, queries_per_person=3)


@pytest.fixture(scope="module")
def batches(small_dataset):
    return DatasetBatches(small_dataset, read_vocabulary(small_dataset), CONFIG)


def same(one, other):
    pairs = [(vars(a), vars(b)) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)]
    return all(torch.equal(a[name].nan_to_num(-9), b[name].nan_to_num(-9)) for a, b in pairs for name in a)


def test_skipping_gives_the_rest_of_the_same_epoch(batches):
    everything = list(batches.training(2, 0))
    assert len(everything) == batches.count() == len(list(batches.training(5, 0)))
    assert same(list(batches.training(2, 3)), everything[3:])
    assert list(batches.training(2, batches.count())) == []


def test_queries_are_drawn_afresh_each_epoch_and_never_for_tuning(batches):
    assert not torch.equal(
        torch.cat([batch.query_ages_days.sort(0).values for batch, _ in batches.training(0, 0)]).sort(0).values,
        torch.cat([batch.query_ages_days.sort(0).values for batch, _ in batches.training(1, 0)]).sort(0).values,
    )
    assert same(list(batches.tuning()), list(batches.tuning()))


def test_another_seed_changes_training_and_not_tuning(small_dataset, batches):
    other = DatasetBatches(small_dataset, read_vocabulary(small_dataset), CONFIG.model_copy(update={"seed": 5}))
    assert not same(list(other.training(0, 0))[:1], list(batches.training(0, 0))[:1])
    assert same(list(other.tuning()), list(batches.tuning()))


def test_an_empty_tuning_split_is_refused(small_dataset, tmp_path):
    dataset = shutil.copytree(small_dataset, tmp_path / "dataset")
    for path in (dataset / "sequences" / "tuning").iterdir():
        path.unlink()
    with pytest.raises(InputContractError, match="nobody falls into the tuning split"):
        DatasetBatches(dataset, read_vocabulary(dataset), CONFIG)
