"""What may be switched on without another result: recomputation on the way back, bfloat16, a compiled hot loop."""

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, draw_next_batch

from models.config import TrainConfig
from models.risk_model import seeded_model
from models.row_backbone import RowBackbone

_SMALL_ROWS = {"d_model": 24, "n_head": 3, "n_layer": 3}
NETWORKS = {
    "event_trajectory": {"n_reasoning_rounds": 3},
    "event_trajectory absolute": {"n_reasoning_rounds": 3, "time_mode": "absolute"},
    "traj_mixer": {"model_architecture": "traj_mixer_v5", **_SMALL_ROWS},
    "traj_mixer absolute": {"model_architecture": "traj_mixer_v5", "time_mode": "absolute", **_SMALL_ROWS},
    "delphi_gpt": {"model_architecture": "delphi_gpt_v1", **_SMALL_ROWS},
}
every_network = pytest.mark.parametrize("network", NETWORKS)
both_modes = pytest.mark.parametrize("mode", ["all_future", "next_token"])


def draw(mode, seed=0):
    return draw_batch(seed) if mode == "all_future" else draw_next_batch(seed)[0]


def values_and_gradients(backbone, batch, seed=0):
    torch.manual_seed(seed)  # of the dropout
    backbone.zero_grad()
    hidden = backbone.encode(batch)
    hidden.float().pow(3).sum().backward()
    return hidden.detach(), {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


@every_network
@both_modes
def test_recomputing_changes_neither_values_nor_gradients_also_with_dropout(network, mode):
    batch, found = draw(mode), []
    for recompute in (False, True):
        model = draw_model(gradient_checkpointing=recompute, mode=mode, mlp_dropout=0.3, **NETWORKS[network])
        found.append(values_and_gradients(model.backbone.train(), batch))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=1e-12, atol=1e-12, msg=name)
    other = values_and_gradients(model.backbone, batch, seed=1)
    assert not torch.equal(other[0], found[0][0])  # dropout was at work


def saved_bytes(backbone, batch):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t):
        backbone.encode(batch)
    return sum(saved)


@every_network
def test_recomputing_keeps_less(network):
    batch, settings = draw("next_token"), {"mode": "next_token", **NETWORKS[network]}
    plain = saved_bytes(draw_model(**settings).backbone, batch)
    assert saved_bytes(draw_model(gradient_checkpointing=True, **settings).backbone, batch) < 0.7 * plain


@every_network
@both_modes
def test_bfloat16_gives_nearly_the_same_finite_values_and_gradients(network, mode):
    backbone, batch = draw_model(torch.float32, mode=mode, **NETWORKS[network]).backbone, draw(mode)
    exact, gradients = values_and_gradients(backbone, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough, rough_gradients = values_and_gradients(backbone, batch)
    assert rough.isfinite().all()
    assert (rough.float() - exact).square().mean() < 0.05**2 * exact.square().mean()
    exactly, roughly = (torch.cat([g.flatten() for g in found.values()]) for found in (gradients, rough_gradients))
    assert torch.dist(roughly, exactly) < 0.1 * exactly.norm()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo's look
@pytest.mark.parametrize("network", ["event_trajectory", "traj_mixer", "delphi_gpt"])
def test_the_hot_loop_is_one_graph_that_computes_the_same(network):
    backbone, batch = draw_model(mode="next_token", **NETWORKS[network]).backbone, draw("next_token")
    plain, gradients = values_and_gradients(backbone, batch)
    torch.compiler.reset()
    for part in backbone.layers if isinstance(backbone, RowBackbone) else [backbone.reasoning_core]:
        part.compile(backend="aot_eager", fullgraph=True)  # traced both ways, but without a C++ compiler
    compiled, compiled_gradients = values_and_gradients(backbone, batch)
    torch.compiler.reset()
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-10)
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled_gradients[name], gradient, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("network", ["event_trajectory", "traj_mixer"])
def test_compiling_is_asked_of_the_parts_that_repeat(network, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part, **options: compiled.append((part, options)))
    backbone = draw_model(**NETWORKS[network]).backbone
    backbone.compile_hot_loop()
    parts = [*backbone.layers] if network == "traj_mixer" else [backbone.reasoning_core]
    assert [part for part, _ in compiled] == parts
    assert all(options == {"dynamic": True} for _, options in compiled)


@pytest.mark.parametrize("head", ["weibull", "mixed", "next_token"])
@every_network
def test_training_starts_near_the_rates_of_the_population(network, head):
    model = seeded_model(TrainConfig(head=head, **NETWORKS[network]), LAYOUT).eval()
    with torch.no_grad():
        hazards = model(draw_batch(0))
        log_hazard = hazards.log_hazard(torch.ones(5, 3, LAYOUT.n_outcomes))
    departure = log_hazard - torch.tensor(LAYOUT.log_rate_per_year)
    assert departure.std() < 0.25
    assert (departure.abs().max() == 0) == (head != "next_token") or departure.abs().max() < 1e-5
