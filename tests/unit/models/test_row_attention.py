"""Attention between rows and the group mixer: equal to their obvious forms, and who sees whom."""

import math

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model

from models.backbones import BACKBONES
from models.config import TrainConfig
from models.row_attention import RowAttention, RowClock, visible_rows
from models.traj_mixer import GroupMixer, initialise_group_mixer
from models.vocabulary_layout import VocabularyLayout

WIDTH, N_HEADS = 24, 3
DELPHI_SIZED = VocabularyLayout((False,) * 1256, tuple(range(3, 1256)), 1252, (0.0,) * 1253)


def test_who_sees_whom_is_a_plain_loop():
    batch = draw_batch(3)
    visible = visible_rows(batch)
    n_people, n_events = batch.tokens.shape
    n_queries = batch.query_ages_days.shape[1]
    for b in range(n_people):
        for i in range(n_events + n_queries):
            for j in range(n_events + n_queries):
                if j >= n_events:
                    expected = i == j
                elif i >= n_events:
                    expected = batch.valid[b, j] and batch.ages_days[b, j] <= batch.query_ages_days[b, i - n_events]
                else:
                    before = batch.ages_days[b, j] < batch.ages_days[b, i]
                    same_day = batch.ages_days[b, j] == batch.ages_days[b, i] and j <= i
                    expected = batch.valid[b, j] and (before or same_day)
                assert bool(visible[b, i, j]) == bool(expected), (b, i, j)


def drawn(module):
    """Return a module in float64 with all parameters away from their start."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.double()


def slow_attention(attention, clock, rows, batch, b):
    """One person, one head, one row at a time; rotation by complex numbers, bias by the formula."""
    visible = visible_rows(batch)[b]
    ages = torch.cat([batch.ages_days[b], batch.query_ages_days[b]]).double()
    width = WIDTH // N_HEADS
    wavelengths, out = clock.rotation.wavelengths_days, []
    queries, keys, values = (proj(rows) for proj in (attention.q_proj, attention.k_proj, attention.v_proj))

    def turned(vector, age):
        pairs = torch.complex(vector[: width // 2], vector[width // 2 :]) * torch.exp(
            1j * 2 * math.pi * age / wavelengths
        )
        return torch.cat([pairs.real, pairs.imag])

    for i in range(len(rows)):
        read = []
        for h in range(N_HEADS):
            part = slice(h * width, (h + 1) * width)
            seen = [j for j in range(len(rows)) if visible[i, j]]
            if not seen:
                read.append(torch.zeros(width, dtype=torch.float64))
                continue
            scores = []
            for j in seen:
                gap = torch.clamp(ages[i] - ages[j], min=0)
                distance = (torch.log1p(gap) - clock.gap_features.log_centres) / clock.gap_features.log_widths.exp()
                features = torch.exp(-(distance**2) / 2)
                bias = attention.gap_bias.time_bias_scale * (attention.gap_bias.rbf_proj.weight[h] @ features)
                product = turned(queries[i, part], ages[i]) @ turned(keys[j, part], ages[j])
                scores.append(product / math.sqrt(width) + bias)
            weights = torch.softmax(torch.stack(scores), 0)
            read.append(sum(weight * values[j, part] for weight, j in zip(weights, seen, strict=True)))
        out.append(torch.cat(read))
    return attention.o_proj(torch.stack(out))


def test_attention_equals_its_slow_form_in_values_and_gradients():
    batch = draw_batch(1, n_subjects=2, n_events=4, n_queries=2)
    attention = drawn(RowAttention(WIDTH, N_HEADS, relative_time=True))
    clock = drawn(RowClock(WIDTH // N_HEADS, relative_time=True))
    rows = torch.randn(2, 6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = [*attention.parameters(), *clock.parameters()]
    fast = attention(rows, clock(batch, torch.float64))
    slow = torch.stack([slow_attention(attention, clock, rows[b], batch, b) for b in range(2)])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    direction = torch.randn(fast.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for one, other in zip(
        torch.autograd.grad((fast * direction).sum(), parameters),
        torch.autograd.grad((slow * direction).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_a_row_that_sees_nothing_reads_zero_with_finite_gradients():
    batch = draw_batch(0)
    attention = drawn(RowAttention(WIDTH, N_HEADS, relative_time=True))
    clock = drawn(RowClock(WIDTH // N_HEADS, relative_time=True))
    rows = torch.randn(5, 10, WIDTH, dtype=torch.float64, requires_grad=True)
    read = attention(rows, clock(batch, torch.float64))
    nobody = ~visible_rows(batch).any(-1)
    assert nobody.any()  # the last person has no event, so all rows of padding see nothing
    assert (read[nobody] == 0).all()
    read.square().sum().backward()
    assert rows.grad.isfinite().all()


def slow_mixer(mixer, rows):
    """The seed's formulas with one einsum each, groups and coordinates as they are written."""
    groups = mixer.norm(rows).unflatten(-1, (mixer.n_groups, mixer.group_width))
    gate = torch.einsum("...gi,gih->...gh", groups, mixer.intra_gate_proj)
    value = torch.einsum("...gi,gih->...gh", groups, mixer.intra_value_proj)
    inner = torch.einsum("...gh,ghi->...gi", torch.nn.functional.silu(gate) * value, mixer.intra_output_proj)
    fused = groups + torch.sigmoid(mixer.intra_gate_logits) * inner
    gate = torch.einsum("...gr,rgh->...hr", fused, mixer.gate_proj)
    value = torch.einsum("...gr,rgh->...hr", fused, mixer.value_proj)
    update = torch.einsum("...hr,rhg->...gr", torch.nn.functional.silu(gate) * value, mixer.output_proj)
    return rows + update.flatten(-2)


def test_the_group_mixer_equals_its_slow_form_in_values_and_gradients():
    mixer = drawn(GroupMixer(WIDTH, N_HEADS, 0.0))
    rows = torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4), requires_grad=True)
    fast, slow = mixer(rows), slow_mixer(mixer, rows)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-12)
    inputs = [rows, *mixer.parameters()]
    for one, other in zip(
        torch.autograd.grad(fast.square().sum(), inputs), torch.autograd.grad(slow.square().sum(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_mixer_has_the_parameters_and_the_start_of_the_seed():
    mixer = GroupMixer(120, 10, 0.0)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 32_040
    initialise_group_mixer(mixer)
    torch.testing.assert_close(torch.sigmoid(mixer.intra_gate_logits), torch.full((10, 12), 0.1))
    for stack in (mixer.intra_gate_proj, mixer.intra_output_proj, mixer.gate_proj):
        fan_in, fan_out = stack.shape[1:]
        # Xavier uniform of one slice: limit √(6 / (in + out)), standard deviation limit / √3
        assert stack.std().item() == pytest.approx(math.sqrt(2 / (fan_in + fan_out)), rel=0.05)
    assert mixer.output_proj.std().item() == pytest.approx(1e-3, rel=0.05)
    rows = torch.randn(4, 7, 120)
    assert (mixer(rows) - rows).square().mean().sqrt() < 3e-3  # a layer starts as almost nothing


def test_traj_mixer_has_the_parameters_of_the_seed():
    config = TrainConfig(model_architecture="traj_mixer_v5")
    backbone = BACKBONES[config.model_architecture](config, DELPHI_SIZED)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == 1_232_428


@pytest.mark.parametrize("name", ["traj_mixer_v5", "delphi_gpt_v1"])
def test_a_row_network_describes_itself(name):
    model = draw_model(model_architecture=name, d_model=WIDTH, n_head=N_HEADS, n_layer=2)
    assert model.backbone.describe().items() >= {"d_model": WIDTH, "n_head": N_HEADS, "n_layer": 2}.items()
    assert model.backbone.architecture_fingerprint.tolist() == [WIDTH, N_HEADS, 2]
    assert model.backbone.encode(draw_batch(0)).shape == (5, 3, WIDTH)
    assert model.layout is LAYOUT
