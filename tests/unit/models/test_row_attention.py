"""Attention between rows and the group mixer: equal to their obvious forms, and who sees whom."""

import math
from dataclasses import replace

import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model, draw_next_batch

from models import row_attention
from models.config import TrainConfig
from models.risk_model import count_parameters, seeded_model
from models.row_attention import OrderAttention, OrderClock, RowAttention, RowClock, visible_rows
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


def moved_by_parts_of_days(batch):
    parts = torch.rand(batch.ages_days.shape, generator=torch.Generator().manual_seed(7))
    return replace(batch, ages_days=batch.ages_days + torch.floor(parts * 256) / 256 * batch.valid)


def gradients(result, inputs):
    direction = torch.randn(result.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return torch.autograd.grad((result * direction).sum(), inputs)


@pytest.mark.parametrize("parts_of_days", [False, True])
@pytest.mark.parametrize("numbers_of_a_block", [1, 60, 1 << 18])  # one head a block, all of them, all of them
def test_attention_equals_its_slow_form_in_values_and_gradients(monkeypatch, parts_of_days, numbers_of_a_block):
    monkeypatch.setattr(row_attention, "BLOCK_NUMBERS", numbers_of_a_block)
    batch = draw_batch(1, n_subjects=2, n_events=4, n_queries=2)
    batch = moved_by_parts_of_days(batch) if parts_of_days else batch
    attention = drawn(RowAttention(WIDTH, N_HEADS, relative_time=True))
    clock = drawn(RowClock(WIDTH // N_HEADS, relative_time=True))
    rows = torch.randn(2, 6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    inputs = [rows, *attention.parameters(), *clock.parameters()]
    times = clock(batch, torch.float64)
    fast = (attention(rows.permute(2, 0, 1), times) * times.sees).permute(1, 2, 0)
    slow = torch.stack([slow_attention(attention, clock, rows[b], batch, b) for b in range(2)])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for one, other in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def attention_inputs(n_heads=3, n_subjects=2, width=4, n_looking=3, n_rows=5, n_gaps=6):
    generator = torch.Generator().manual_seed(8)

    def randn(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)

    entry = torch.randint(0, n_gaps + 1, (n_subjects, n_looking, n_rows), generator=generator)
    rows = (randn(n_heads, n_subjects, width, n_looking), *(randn(n_heads, n_subjects, width, n_rows) for _ in "kv"))
    return *rows, randn(n_heads, n_gaps + 1), entry


def test_attention_by_heads_equals_all_heads_at_once_in_values_and_gradients(monkeypatch):
    *inputs, entry = attention_inputs()
    monkeypatch.setattr(row_attention, "BLOCK_NUMBERS", 2 * entry.numel())  # two heads, then one
    by_heads = row_attention.attend(*inputs, entry)
    monkeypatch.setattr(row_attention, "works_in_blocks", lambda _: False)
    at_once = row_attention.attend(*inputs, entry)
    torch.testing.assert_close(by_heads, at_once, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(by_heads, inputs), gradients(at_once, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_attention_by_heads_has_the_derivatives_of_finite_differences():
    *inputs, entry = attention_inputs()
    assert torch.autograd.gradcheck(lambda *tensors: row_attention.attend(*tensors, entry), inputs)


def test_the_last_rows_alone_read_what_they_read_among_all():
    batch = draw_batch(2)
    attention = drawn(RowAttention(WIDTH, N_HEADS, relative_time=True))
    times = drawn(RowClock(WIDTH // N_HEADS, relative_time=True))(batch, torch.float64)
    rows = torch.randn(WIDTH, 5, 10, dtype=torch.float64)
    torch.testing.assert_close(attention(rows, times.of_last(3)), attention(rows, times)[..., -3:])


def test_a_row_that_sees_nothing_counts_nothing_with_finite_gradients():
    batch = draw_batch(0)
    attention = drawn(RowAttention(WIDTH, N_HEADS, relative_time=True))
    times = drawn(RowClock(WIDTH // N_HEADS, relative_time=True))(batch, torch.float64)
    rows = torch.randn(WIDTH, 5, 10, dtype=torch.float64, requires_grad=True)
    read = attention(rows, times) * times.sees
    nobody = ~visible_rows(batch).any(-1)
    assert nobody.any()  # the last person has no event, so all rows of padding see nothing
    assert (read[:, nobody] == 0).all()
    read[:, nobody].square().sum().backward()
    assert (rows.grad == 0).all()


def slow_order_attention(attention, rows, visible):
    """One person, one head, one row at a time."""
    queries, keys, values = (proj(rows) for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
    width, out = WIDTH // N_HEADS, []
    for i in range(len(rows)):
        seen, read = visible[i].nonzero()[:, 0], []
        for part in (slice(h * width, (h + 1) * width) for h in range(N_HEADS)):
            weights = torch.softmax(keys[seen][:, part] @ queries[i, part] / math.sqrt(width), 0)
            read.append(weights @ values[seen][:, part])
        out.append(torch.cat(read))
    return attention.o_proj(torch.stack(out))


@pytest.mark.parametrize("in_order", [False, True])
def test_attention_by_order_equals_its_slow_form_in_values_and_gradients(in_order):
    batch = draw_next_batch(1, n_subjects=3)[0] if in_order else draw_batch(1, n_subjects=3, n_events=6, n_queries=2)
    attention = drawn(OrderAttention(WIDTH, N_HEADS))
    n_rows = batch.tokens.shape[1] + batch.query_ages_days.shape[1]
    rows = torch.randn(3, n_rows, WIDTH, dtype=torch.float64, requires_grad=True)
    order, visible = OrderClock()(batch, torch.float64), visible_rows(batch)
    assert (order.mask is None) == in_order
    fast = attention(rows, order) * order.sees
    slow = torch.stack([slow_order_attention(attention, rows[b], visible[b]) for b in range(3)])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    inputs = [rows, *attention.parameters()]
    for one, other in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_order_is_not_assumed_where_padding_stands_inside_or_ages_go_back():
    batch = draw_next_batch(0)[0]
    assert OrderClock()(batch, torch.float64).mask is None
    inside, back = batch.valid.clone(), batch.ages_days.clone()
    inside[0, 2] = False
    assert OrderClock()(replace(batch, valid=inside), torch.float64).mask is not None
    back[0, 2] = back[0, -1]
    assert OrderClock()(replace(batch, ages_days=back), torch.float64).mask is not None


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
    fast, slow = mixer(rows.permute(2, 0, 1)).permute(1, 2, 0), slow_mixer(mixer, rows)
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
    rows = torch.randn(120, 4, 7)
    assert (mixer(rows) - rows).square().mean().sqrt() < 3e-3  # a layer starts as almost nothing


def test_traj_mixer_has_the_parameters_of_the_seed():
    config = TrainConfig(model_architecture="traj_mixer_v5", mode="next_token", head="next_token")
    assert count_parameters(seeded_model(config, DELPHI_SIZED))[0] == 1_232_428  # the tied head adds none


@pytest.mark.parametrize("name", ["traj_mixer_v5", "delphi_gpt_v1"])
def test_a_row_network_describes_itself(name):
    model = draw_model(model_architecture=name, d_model=WIDTH, n_head=N_HEADS, n_layer=2)
    assert model.backbone.describe().items() >= {"d_model": WIDTH, "n_head": N_HEADS, "n_layer": 2}.items()
    assert model.backbone.architecture_fingerprint.tolist() == [WIDTH, N_HEADS, 2]
    assert model.backbone.encode(draw_batch(0)).shape == (5, 3, WIDTH)
    assert model.layout is LAYOUT
