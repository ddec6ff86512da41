"""Event–Trajectory: its parts as the seed counts them, and the fast form against the slow, obvious one."""

import math

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, draw_next_batch
from torch import nn
from torch.nn.functional import layer_norm, silu, softmax

from models.backbones import event_trajectory
from models.backbones.event_trajectory import SIZES, EventTrajectory, SharedEventTrajectoryCore
from models.config import TrainConfig
from models.risk_model import seeded_model

BACKBONE_PARAMETERS = 296_467  # of nano, the embedding not counted: specs/backbones.md §7


def backbone(**settings):
    torch.manual_seed(0)
    return EventTrajectory(TrainConfig(**settings), LAYOUT)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_nano_has_the_promised_number_of_parameters_for_any_number_of_rounds():
    for rounds in (1, 12):
        model = backbone(n_reasoning_rounds=rounds)
        assert count(model) - count(model.embedding) == BACKBONE_PARAMETERS


@pytest.mark.parametrize(
    ("size", "preset"),
    [
        ("nano", (256, 8, 32, 32)),
        ("small", (512, 8, 64, 32)),
        ("medium", (768, 12, 64, 48)),
        ("huge", (1024, 16, 64, 64)),
    ],
)
def test_sizes_are_those_of_the_seed(size, preset):
    row = SIZES[size]
    assert (row.d_model, row.n_trajectory, row.trajectory_dim, row.traj_hidden) == preset
    assert row.d_model == row.n_trajectory * row.trajectory_dim
    core = SharedEventTrajectoryCore(row, n_rounds=1, dropout=0.0, relative_time=True)
    d, h, dh, hidden = preset
    assert core.q_proj.shape == (h, dh, dh)
    assert core.mixer.gate_proj.shape == core.mixer.value_proj.shape == (dh, h, hidden)
    assert core.mixer.output_proj.shape == (dh, hidden, h)
    assert core.k_proj.weight.shape == (d, d)


@pytest.mark.parametrize("rounds", [1, 4, 12])
def test_residual_scales_start_at_one_over_the_root_of_the_rounds(rounds):
    core = backbone(n_reasoning_rounds=rounds).reasoning_core
    assert core.attn_scale.item() == pytest.approx(rounds**-0.5)
    assert core.mixer_scale.item() == pytest.approx(rounds**-0.5)


def test_there_is_one_reasoning_core_and_no_bias_in_projections():
    names = [name for name, _ in backbone().named_parameters()]
    assert sum(name.endswith("q_proj") for name in names) == 1
    biased = [name for name in names if name.endswith(".bias") and "norm" not in name]
    assert biased == []


def test_the_fingerprint_is_kept_with_the_weights():
    state = backbone(n_reasoning_rounds=5).state_dict()
    assert state["architecture_fingerprint"].tolist() == [256, 8, 5]


def test_the_time_bias_is_zero_at_the_start_and_its_map_learns_from_the_first_step():
    model = seeded_model(TrainConfig(n_reasoning_rounds=2), LAYOUT)
    core, batch = model.backbone.reasoning_core, draw_batch(0)
    bias = core.gap_bias
    assert (bias(core.gap_features(torch.arange(30_000.0)))[:, :-1] == 0).all()
    nn.init.normal_(model.head.anchor_proj.weight, std=0.1)  # a head of zeros would let no gradient through
    hazards = model(batch)
    hazards.log_anchor_hazard.square().sum().backward()
    assert bias.rbf_proj.weight.grad.abs().max() > 0
    assert bias.time_bias_scale.grad == 0
    assert (core.gap_features.log_widths.grad == 0).all()


def test_absolute_time_has_neither_rotation_nor_bias():
    core = backbone(time_mode="absolute").reasoning_core
    assert core.rotation is None
    assert core.gap_bias is None
    assert not any("gap_bias" in name for name, _ in core.named_parameters())


def test_event_memory_is_projected_once_a_forward(monkeypatch):
    model, calls = draw_model(n_reasoning_rounds=6), []
    core, project = model.backbone.reasoning_core, event_trajectory.project_to_slots
    monkeypatch.setattr(
        event_trajectory, "project_to_slots", lambda *given: (calls.append("projection"), project(*given))[1]
    )
    for module in (model.backbone.event_proj, core.gap_bias.rbf_proj, core):
        module.register_forward_hook(lambda module, *_: calls.append(module))
    model(draw_batch(0))
    assert calls.count(core) == 6
    assert calls.count("projection") == 2  # keys and values; the queries' context
    assert len(calls) == 6 + 2 + 2


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    one, two, other = (seeded_model(TrainConfig(seed=seed, n_reasoning_rounds=1), LAYOUT) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.backbone.prototypes, other.backbone.prototypes)


# The slow form: one query of one person at a time, every sum written out. It knows the parameters, not the code.


def slow_age_encoding(age, embedding):
    years = age.item() / 365.25
    x = 2 * years / 100 - 1
    polynomials = [1.0, x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    width = embedding.legendre_proj.weight.shape[0] // 2
    waves = [0.5 * (200 / 0.5) ** (i / (width - 1)) for i in range(width)]
    angles = [2 * math.pi * years / wave for wave in waves]
    sinusoids = 0.1 * torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
    return embedding.legendre_proj.weight @ torch.tensor(polynomials, dtype=torch.float64) + sinusoids


def slow_event(batch, b, i, embedding):
    token = batch.tokens[b, i]
    vector = embedding.token.weight[token] + slow_age_encoding(batch.ages_days[b, i], embedding.age)
    vector = vector + embedding.sex.weight[batch.sex[b]]
    if LAYOUT.carries_value[token]:
        row = sum(LAYOUT.carries_value[:token])
        z = batch.values[b, i].double()
        vector = vector + (embedding.missing_value if z.isnan() else z * embedding.value.weight[row])
    return vector


def slow_rotate(vector, age):
    """Turn pairs (i, i + width/2), as complex numbers."""
    half = len(vector) // 2
    waves = [60 * (120 * 365.25 / 60) ** (i / (half - 1)) for i in range(half)]
    turns = torch.tensor([2 * math.pi * age.item() / wave for wave in waves], dtype=torch.float64)
    turned = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(turns), turns)
    return torch.cat([turned.real, turned.imag])


def slow_gap_bias(gap_days, core):
    bias = core.gap_bias
    centres = [0.0] + [(80 * 365.25) ** (i / 14) for i in range(15)]
    logs = torch.log1p(torch.tensor(centres, dtype=torch.float64))
    features = torch.exp(-(((math.log1p(gap_days) - logs) / core.gap_features.log_widths.exp()) ** 2) / 2)
    return bias.time_bias_scale * (bias.rbf_proj.weight @ features)  # [H]


def slow_round(state, query_age, events, ages, core):
    n_slots, width = state.shape
    normed = layer_norm(state, (width,), core.norm_attention.weight, core.norm_attention.bias)
    readout = []
    for h in range(n_slots):
        if not events:
            readout.append(torch.zeros(width, dtype=torch.float64))
            continue
        own = slice(h * width, (h + 1) * width)
        query = normed[h] @ core.q_proj[h]
        scores, values = [], []
        for event, age in zip(events, ages, strict=True):
            key = (core.k_proj.weight @ event)[own]
            score = 0.0
            if core.gap_bias is not None:
                score = slow_gap_bias((query_age - age).item(), core)[h]
                score = score + slow_rotate(query, query_age) @ slow_rotate(key, age) / math.sqrt(width)
            else:
                score = query @ key / math.sqrt(width)
            scores.append(score)
            values.append((core.v_proj.weight @ event)[own])
        readout.append(softmax(torch.stack(scores), 0) @ torch.stack(values))
    state = state + core.attn_scale * torch.stack(readout)
    return state + core.mixer_scale * slow_mix(
        layer_norm(state, (width,), core.norm_mixer.weight, core.norm_mixer.bias), core.mixer
    )


def slow_mix(slots, mixer):
    """Map [H,Dh] to [H,Dh], coordinate by coordinate."""
    columns = []
    for r in range(slots.shape[1]):
        u = slots[:, r]
        columns.append((silu(u @ mixer.gate_proj[r]) * (u @ mixer.value_proj[r])) @ mixer.output_proj[r])
    return torch.stack(columns, dim=1)


def slow_encode(model, batch):
    size, core = model.size, model.reasoning_core
    n_subjects, n_events = batch.tokens.shape
    by_event = model.mode == "next_token"
    rows = []
    for b in range(n_subjects):
        for q in range(n_events if by_event else batch.query_ages_days.shape[1]):
            query_age = batch.ages_days[b, q] if by_event else batch.query_ages_days[b, q]
            seen = [i for i in range(n_events) if batch.valid[b, i] and batch.ages_days[b, i] <= query_age]
            if by_event:
                seen = [i for i in seen if batch.ages_days[b, i] < query_age or i <= q]
                features = slow_event(batch, b, q, model.embedding)
            else:
                features = model.embedding.token.weight[1] + slow_age_encoding(query_age, model.embedding.age)
                features = features + model.embedding.sex.weight[batch.sex[b]]
            raw = [model.event_proj.weight @ slow_event(batch, b, i, model.embedding) for i in seen]
            events = [layer_norm(x, (size.d_model,), model.event_norm.weight, model.event_norm.bias) for x in raw]
            context = (model.query_proj.weight @ features).view(size.n_trajectory, size.trajectory_dim)
            state = model.prototypes + context
            for _ in range(model.n_rounds):
                state = slow_round(state, query_age, events, [batch.ages_days[b, i] for i in seen], core)
            rows.append(layer_norm(state.flatten(), (size.d_model,), model.final_norm.weight, model.final_norm.bias))
    return torch.stack(rows).view(n_subjects, -1, size.d_model)


@pytest.mark.parametrize("mode", ["all_future", "next_token"])
@pytest.mark.parametrize("time_mode", ["relative", "absolute"])
def test_the_fast_form_equals_the_slow_one_in_values_and_gradients(time_mode, mode):
    model = draw_model(time_mode=time_mode, mode=mode).backbone
    all_future = mode == "all_future"
    batch = draw_batch(0, n_subjects=3, n_events=5, n_queries=2) if all_future else draw_next_batch(16, 2, 3)[0]
    weights = torch.randn(*model.encode(batch).shape, dtype=torch.float64)
    found = {}
    for name, form in (("fast", model.encode), ("slow", lambda drawn: slow_encode(model, drawn))):
        model.zero_grad()
        hidden = form(batch)
        (hidden * weights).sum().backward()
        found[name] = (
            hidden.detach(),
            {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None},
        )
    torch.testing.assert_close(found["fast"][0], found["slow"][0], rtol=1e-10, atol=1e-10)
    assert found["fast"][1].keys() == found["slow"][1].keys()
    for key, gradient in found["slow"][1].items():
        torch.testing.assert_close(found["fast"][1][key], gradient, rtol=1e-8, atol=1e-9, msg=key)
