"""A checkpoint gives back the same model, or a refusal that says what differs."""

import json
import pickle

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, parameters_of
from safetensors.torch import load_file, save_file

from data_schemas.errors import ModelRefusedError
from models.checkpoints import CONFIG_FILE, WEIGHTS_FILE, describe_model, load_checkpoint, read_config, save_checkpoint
from models.risk_model import count_parameters


@pytest.fixture(scope="module")
def model():
    return draw_model(torch.float32, n_reasoning_rounds=3)


@pytest.fixture
def folder(model, tmp_path):
    save_checkpoint(tmp_path, model, {"vocabulary_sha256": "v"})
    return tmp_path


def change_config(folder, **changes):
    path = folder / CONFIG_FILE
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_weights(folder, change):
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


def refusal(folder):
    with pytest.raises(ModelRefusedError) as caught:
        load_checkpoint(folder, LAYOUT)
    return str(caught.value)


def test_a_checkpoint_gives_equal_outputs_and_leaves_the_generator_alone(model, folder):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    loaded = load_checkpoint(folder, LAYOUT)
    assert torch.equal(torch.rand(1), expected)
    assert not loaded.training
    assert loaded.config == model.config
    batch = draw_batch(0)
    with torch.no_grad():
        assert torch.equal(parameters_of(loaded(batch)), parameters_of(model(batch)))
    assert not list(folder.glob("*.part"))


def test_the_configuration_names_every_key_of_the_seed_and_the_facts(model, folder):
    content = read_config(folder)
    total, trainable = count_parameters(model)
    expected = {
        "model_architecture": "event_trajectory_shared_v1", "model_size": "nano", "d_model": 256, "n_trajectory": 8,
        "trajectory_dim": 32, "traj_hidden": 32, "n_reasoning_rounds": 3, "model_parameter_count": total,
        "trainable_parameter_count": trainable, "mlp_dropout": 0.0, "time_mode": "relative", "head": "weibull",
        "mode": "all_future", "vocabulary_sha256": "v",
    }  # fmt: skip
    assert {key: content[key] for key in expected} == expected
    assert describe_model(model).items() <= content.items()


def test_the_rates_come_back_from_the_file(folder):
    other = LAYOUT.__class__(LAYOUT.carries_value, LAYOUT.outcome_tokens, LAYOUT.death_outcome, (-1.0,) * 6)
    torch.testing.assert_close(
        load_checkpoint(folder, other).head.log_rates_per_year, torch.tensor(LAYOUT.log_rate_per_year)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_architecture": "traj_mixer_v2"}, "model_architecture: Input should be"),
        ({"model_size": "small"}, "d_model of size small is 512"),
        ({"model_size": "tiny"}, "model_size"),
        ({"d_model": 255}, "d_model of size nano is 256"),
        ({"n_trajectory": 4}, "n_trajectory is 4, the model has 8"),
        ({"trajectory_dim": 64}, "trajectory_dim is 64, the model has 32"),
        ({"traj_hidden": 48}, "traj_hidden is 48, the model has 32"),
        ({"n_reasoning_rounds": 4}, r"n_reasoning_rounds are [256, 8, 3] in the weights, [256, 8, 4] in"),
        ({"head": "gompertz"}, "head: Input should be"),
        ({"head": "mixed"}, "weights missing: ['head.rate_proj.bias'"),
        ({"mode": "next_token"}, "mode is next_token, the weights were saved with all_future"),
        ({"no_event_rows": "regular"}, "no_event_rows is regular, the weights were saved with none"),
        ({"max_events": 8}, "max_events is 8, the weights were saved with 512"),
        ({"time_mode": "absolute"}, "not of this model: ['backbone.reasoning_core.gap_bias.rbf_proj.weight'"),
        ({"model_parameter_count": 1}, "model_parameter_count is 1, the model has"),
        ({"trainable_parameter_count": 1}, "trainable_parameter_count is 1, the model has"),
        ({"model_parameter_count": None}, "model_parameter_count is None"),
        ({"time_mode": None, "seed": None}, "keys are missing: seed, time_mode"),
        ({"d_model": None}, "keys are missing: d_model"),
    ],
)
def test_a_changed_configuration_is_refused_and_named(folder, changes, said):
    change_config(folder, **changes)
    assert said in refusal(folder)


def drop(name):
    return lambda tensors: tensors.pop(name)


def add(name):
    return lambda tensors: tensors.update({name: torch.zeros(2)})


def test_weights_that_do_not_say_how_they_were_saved_are_refused(folder):
    change_weights(folder, lambda tensors: None)  # written again, without what was said of them
    assert "does not say with which configuration it was saved" in refusal(folder)


def rename(name, other):
    return lambda tensors: tensors.update({other: tensors.pop(name)})


def replace_by(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("backbone.event_norm.weight"), "weights missing: ['backbone.event_norm.weight']"),
        (add("backbone.reasoning_core_2.q_proj"), "not of this model: ['backbone.reasoning_core_2.q_proj']"),
        (
            rename("backbone.reasoning_core.q_proj", "backbone.reasoning_core.query_proj"),
            "weights missing: ['backbone.reasoning_core.q_proj']; "
            "not of this model: ['backbone.reasoning_core.query_proj']",
        ),
        (
            replace_by("backbone.prototypes", torch.zeros(8, 31)),
            "backbone.prototypes is float32 [8, 31], expected float32 [8, 32]",
        ),
        (
            replace_by("backbone.prototypes", torch.zeros(8, 32).double()),
            "backbone.prototypes is float64 [8, 32], expected float32 [8, 32]",
        ),
        (
            replace_by("backbone.architecture_fingerprint", torch.tensor([256, 8, 12])),
            "d_model, n_trajectory, n_reasoning_rounds are [256, 8, 12] in the weights, [256, 8, 3] in",
        ),
        (drop("backbone.architecture_fingerprint"), "weights missing: ['backbone.architecture_fingerprint']"),
        (drop("head.log_rates_per_year"), "weights missing: ['head.log_rates_per_year']"),
    ],
)
def test_changed_weights_are_refused_and_named(folder, change, said):
    change_weights(folder, change)
    assert said in refusal(folder)


def test_a_vocabulary_of_another_size_is_refused_and_named(folder):
    longer = LAYOUT.__class__((*LAYOUT.carries_value, False), *(getattr(LAYOUT, name) for name in (
        "outcome_tokens", "death_outcome", "log_rate_per_year",
    )))  # fmt: skip
    with pytest.raises(
        ModelRefusedError, match=r"embedding\.token\.weight is float32 \[12, 256\], expected float32 \[13, 256\]"
    ):
        load_checkpoint(folder, longer)


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        return (open, (str(self.touched), "w"))


def test_a_pickle_in_place_of_the_weights_is_refused_and_not_run(folder, tmp_path):
    (folder / WEIGHTS_FILE).write_bytes(pickle.dumps(Trap(tmp_path / "touched")))
    assert "missing, truncated or no safetensors file" in refusal(folder)
    torch.save({"backbone.prototypes": torch.zeros(8, 32)}, folder / WEIGHTS_FILE)
    assert "missing, truncated or no safetensors file" in refusal(folder)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights_are_refused(folder, share):
    content = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(content[: int(len(content) * share)])
    assert f"{WEIGHTS_FILE}: missing, truncated or no safetensors file" in refusal(folder)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"model_size": "nano"', "cannot be read as JSON (JSONDecodeError)"),
        (b"\xff\xfe", "cannot be read as JSON (UnicodeDecodeError)"),
        (b"[1, 2]", "expected a JSON object"),
        (b"{}", "keys are missing: autocast_bfloat16"),
    ],
)
def test_a_broken_configuration_is_refused(folder, content, said):
    (folder / CONFIG_FILE).write_bytes(content)
    assert said in refusal(folder)


ROW_NETWORK = {"d_model": 24, "n_head": 3, "n_layer": 2}


@pytest.fixture(params=["traj_mixer_v5", "delphi_gpt_v1"])
def row_folder(request, tmp_path):
    save_checkpoint(tmp_path / "rows", draw_model(torch.float32, model_architecture=request.param, **ROW_NETWORK), {})
    return tmp_path / "rows"


def test_a_row_network_is_rebuilt_from_its_files(row_folder):
    model = load_checkpoint(row_folder, LAYOUT)
    saved = load_file(row_folder / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    config = json.loads((row_folder / "train_config.json").read_text())
    assert config.items() >= ROW_NETWORK.items()


def test_the_number_of_heads_changes_no_shape_and_is_found_all_the_same(tmp_path):
    save_checkpoint(tmp_path, draw_model(torch.float32, model_architecture="delphi_gpt_v1", **ROW_NETWORK), {})
    change_config(tmp_path, n_head=2)
    assert "d_model, n_head, n_layer are [24, 3, 2] in the weights, [24, 2, 2] in" in refusal(tmp_path)


@pytest.mark.parametrize("earlier", ["traj_mixer_v4", "traj_mixer_v3", "traj_mixer_v2", "traj_mixer"])
def test_earlier_mixers_are_refused(row_folder, earlier):
    change_config(row_folder, model_architecture=earlier)
    assert "model_architecture: Input should be" in refusal(row_folder)


def test_a_rule_that_the_seed_freezes_may_not_differ(tmp_path):
    save_checkpoint(tmp_path, draw_model(torch.float32, model_architecture="traj_mixer_v5", **ROW_NETWORK), {})
    change_config(tmp_path, cross_residual=True)
    assert "cross_residual is True, the model has False" in refusal(tmp_path)
