"""Settings of a model: the keys of the seed, ranges, and nothing unknown."""

import pytest
from pydantic import ValidationError

from models.config import TrainConfig


def test_defaults_are_those_of_the_seed():
    config = TrainConfig()
    assert (config.model_architecture, config.model_size) == ("event_trajectory_shared_v1", "nano")
    assert (config.n_reasoning_rounds, config.time_mode) == (12, "relative")
    assert (config.mode, config.head) == ("all_future", "weibull")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_architecture": "traj_mixer_v2"}, "model_architecture"),
        ({"model_size": "tiny"}, "model_size"),
        ({"n_reasoning_rounds": 0}, "n_reasoning_rounds"),
        ({"mlp_dropout": 1.0}, "mlp_dropout"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"lerning_rate": 1e-3}, "lerning_rate"),
        ({"queries_per_person": 1}, "query_at_entry needs queries_per_person of 2 or more"),
    ],
)
def test_what_is_out_of_range_or_unknown_is_refused_by_name(settings, said):
    with pytest.raises(ValidationError, match=said):
        TrainConfig(**settings)
