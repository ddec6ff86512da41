"""Batches of a dataset behind the interface of the training loop."""

import shutil

import numpy as np
import pytest
import torch

from app.batches import DatasetBatches, history_options
from data_schemas.cohort import TRAIN
from data_schemas.dataset import NO_EVENT_TOKEN, QUERY_TOKEN
from data_schemas.errors import InputContractError
from models.config import TrainConfig
from pipelines.augment_histories import HistoryOptions
from pipelines.pad_tensors import future_targets, pad_batch
from pipelines.plan_batches import plan_future_epoch
from pipelines.read_dataset import read_vocabulary
from pipelines.sequence_files import read_split
from pipelines.token_tables import TokenTables

PLAIN = {"batch_size": 16, "queries_per_person": 3}
CHANGED = PLAIN | {
    "no_event_rows": "random", "no_event_interval_years": 1.0, "shuffle_same_day": True, "covariate_delay_years": 1.0,
}  # fmt: skip
NEXT = {"mode": "next_token", "head": "next_token"}
CONFIGS = {
    "all_future": TrainConfig(**PLAIN),
    "all_future, changed": TrainConfig(**CHANGED),
    "next_token": TrainConfig(**PLAIN, **NEXT),
    "next_token, changed and cut": TrainConfig(**CHANGED, **NEXT, max_events=8),
}


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def batches_of(dataset, config):
    return DatasetBatches(dataset, read_vocabulary(dataset), config)


@pytest.fixture(scope="module")
def batches(small_dataset, config):
    return batches_of(small_dataset, config)


def flat(steps):
    """Return every tensor and number of all parts of all steps, in order."""
    return [value for parts in steps for part in parts for side in part for value in vars(side).values()]


def same(one, other):
    one, other = flat(one), flat(other)
    return len(one) == len(other) and all(
        torch.equal(a.nan_to_num(-9), b.nan_to_num(-9)) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def test_skipping_gives_the_rest_of_the_same_epoch(batches):
    everything = list(batches.training(2, 0))
    assert same(list(batches.training(2, 3)), everything[3:])
    assert list(batches.training(2, batches.count())) == []


def test_every_epoch_has_the_same_number_of_steps(batches):
    assert {len(list(batches.training(epoch, 0))) for epoch in range(4)} == {batches.count()}


def test_parts_of_a_step_share_its_divisor_and_none_is_empty(batches):
    for parts in batches.training(0, 0):
        assert len({targets.divisor for _, targets in parts}) == 1
        assert all(len(batch.sex) for batch, _ in parts)


def test_tuning_is_the_same_at_every_call(batches):
    assert same(list(batches.tuning()), list(batches.tuning()))


def test_another_seed_changes_training_and_not_tuning(small_dataset, config, batches):
    other = batches_of(small_dataset, config.model_copy(update={"seed": 5}))
    assert not same(list(other.training(0, 0))[:1], list(batches.training(0, 0))[:1])
    assert same(list(other.tuning()), list(batches.tuning()))


def test_queries_are_drawn_afresh_each_epoch(small_dataset):
    batches = batches_of(small_dataset, CONFIGS["all_future"])
    one, other = (
        torch.cat([batch.query_ages_days for parts in batches.training(epoch, 0) for batch, _ in parts]).sort(0).values
        for epoch in (0, 1)
    )
    assert not torch.equal(one, other)


def test_parts_without_changes_are_the_planned_people_padded(small_dataset):
    config = CONFIGS["all_future"]
    tables = TokenTables.of(read_vocabulary(small_dataset), "all_future")
    shards = read_split(small_dataset, TRAIN)
    plan = plan_future_epoch(
        shards, (config.seed, 2), HistoryOptions(), 16, 3, first_at_entry=True, entry_share=config.entry_query_share
    )
    steps = list(batches_of(small_dataset, config).training(2, 0))
    assert any(len(parts) > 1 for parts in steps)
    for planned, parts in zip(plan, steps, strict=True):
        people = shards[planned.shard].take(planned.rows)
        batch = pad_batch(people, planned.query_ages_days, tables, config.max_events)
        targets = future_targets(people, planned.query_ages_days, tables, planned.query_weights)
        places = {tuple(ages.tolist()): place for place, ages in enumerate(batch.query_ages_days)}
        found = []
        for part, part_targets in parts:
            rows = [places[tuple(ages.tolist())] for ages in part.query_ages_days]
            length = part.tokens.shape[1]
            assert torch.equal(part.tokens, batch.tokens[rows, :length])
            assert not batch.valid[rows, length:].any()
            for name in ("time_years", "happened", "at_risk", "query_weight"):
                assert torch.equal(getattr(part_targets, name), getattr(targets, name)[rows]), name
            assert part_targets.divisor == targets.divisor == 3 * len(planned.rows)
            found += rows
        assert sorted(found) == list(range(len(planned.rows)))


def observed(steps):
    """Return the person-years, the events and the intervals of an epoch."""
    targets = [targets for parts in steps for _, targets in parts]
    years = sum(one.interval_years.sum().item() for one in targets)
    return years, sum(len(one.event_outcome) for one in targets), sum(len(one.row) for one in targets)


def test_an_epoch_of_next_token_is_the_follow_up_of_everybody_however_it_is_cut_and_changed(small_dataset):
    shards = read_split(small_dataset, TRAIN)
    years = sum((shard.exit_age_days - shard.entry_age_days).sum() for shard in shards) / 365.25
    plain, changed = (
        [observed(batches_of(small_dataset, CONFIGS[name]).training(epoch, 0)) for epoch in (0, 1)]
        for name in ("next_token", "next_token, changed and cut")
    )
    assert plain[0] == pytest.approx(plain[1])
    for found in (*plain, *changed):
        # An event within half a day of a moved row counts as half a day; people of this cohort die at exit.
        assert found[0] == pytest.approx(years, rel=1e-3)
        assert found[1] == plain[0][1]
    assert changed[0][2] != changed[1][2]


def test_the_divisors_of_an_epoch_add_up_to_its_intervals(small_dataset):
    for name in ("next_token", "next_token, changed and cut"):
        batches = batches_of(small_dataset, CONFIGS[name])
        tuning = list(batches.tuning())
        assert sum(parts[0][1].divisor for parts in tuning) == pytest.approx(observed(tuning)[2])
        training = list(batches.training(0, 0))
        assert len({parts[0][1].divisor for parts in training}) == 1
        # Measurements that leave the age of another event, and random rows, make more intervals than were planned.
        assert sum(parts[0][1].divisor for parts in training) == pytest.approx(observed(training)[2], rel=0.15)


def test_no_batch_is_longer_than_max_events_and_all_rows_of_our_own_are_there(small_dataset):
    steps = list(batches_of(small_dataset, CONFIGS["next_token, changed and cut"]).training(0, 0))
    everything = [batch for parts in steps for batch, _ in parts]
    assert max(batch.tokens.shape[1] for batch in everything) == 8
    tokens = np.concatenate([batch.tokens.numpy().ravel() for batch in everything])
    assert (tokens == QUERY_TOKEN).sum() >= 200
    assert (tokens == NO_EVENT_TOKEN).sum() >= 200


def test_options_follow_from_the_settings_of_the_model():
    assert history_options(CONFIGS["all_future"]) == HistoryOptions()
    assert history_options(CONFIGS["next_token, changed and cut"]) == HistoryOptions(True, "random", 1.0, True, 1.0)


def test_an_empty_tuning_split_is_refused(small_dataset, tmp_path):
    dataset = shutil.copytree(small_dataset, tmp_path / "dataset")
    for path in (dataset / "sequences" / "tuning").iterdir():
        path.unlink()
    with pytest.raises(InputContractError, match="nobody falls into the tuning split"):
        batches_of(dataset, CONFIGS["all_future"])
