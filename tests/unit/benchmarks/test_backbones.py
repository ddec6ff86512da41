"""The parts of the speed benchmark that a number rests on: batches, targets, ratios, what is counted as kept."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softmax

from benchmarks.backbones import (
    Case,
    growth_cases,
    kept_megabytes,
    likelihood,
    made_up_batch,
    measure,
    median_ratio,
    our_side,
    plain_side,
    quick_cases,
    standard_cases,
)
from benchmarks.plain_transformer import PlainLayer

SMALL = Case("delphi_gpt_v1", "next_token", (24, 2, 2), length=6, batch=3, n_outcomes=9)


def test_every_backbone_stands_in_the_table_in_both_modes_and_at_all_sizes():
    cases = standard_cases()
    assert {(case.backbone, case.mode) for case in cases} == {
        (name, mode)
        for name in ("traj_mixer_v5", "event_trajectory_shared_v1", "delphi_gpt_v1")
        for mode in ("next_token", "all_future")
    }
    assert all((case.length, case.batch) == (64, 64) for case in cases)
    growth = growth_cases()
    assert {case.length for case in growth} == {32, 64, 128, 256, 512}  # 64: with the outcomes
    assert {case.n_outcomes for case in growth} >= {100, 5000}
    assert {case.length * case.batch for case in growth} == {4096}
    assert len(quick_cases()) == 4


@pytest.mark.parametrize("mode", ["next_token", "all_future"])
def test_both_sides_predict_the_same_and_have_a_finite_likelihood(mode):
    case = replace(SMALL, mode=mode)
    batch, targets = made_up_batch(case)
    assert (batch.ages_days.diff(dim=1) >= 0).all()
    ours = our_side(case, batch, compiled=False)
    theirs = plain_side(replace(case, plain=(120, 10, 1)), batch, ours.head, compiled=False)
    for side in (ours, theirs):
        hidden = side.encode()
        assert hidden.shape == ((18 if mode == "next_token" else 3), 120)
        hidden = hidden if mode == "next_token" else hidden[:, None]
        assert likelihood(side.head(hidden, side.embedding.weight), targets).isfinite()


def test_a_step_of_either_side_moves_its_parameters():
    batch, targets = made_up_batch(SMALL)
    ours = our_side(SMALL, batch, compiled=False)
    for side in (ours, plain_side(replace(SMALL, plain=(120, 10, 1)), batch, ours.head, compiled=False)):
        before = [parameter.detach().clone() for parameter in side.parameters]
        side.training_step(torch.optim.AdamW(side.parameters, lr=1e-3, fused=True), targets)
        moved = [not torch.equal(old, new) for old, new in zip(before, side.parameters, strict=True)]
        assert all(moved)


def test_the_ratio_is_the_median_over_pairs_and_not_that_of_medians():
    assert median_ratio([(2.0, 1.0), (30.0, 10.0), (8.0, 2.0)]) == 3.0


def test_what_is_kept_counts_each_stored_tensor_once_and_no_parameter():
    weight, rows = torch.nn.Parameter(torch.ones(50, 1000)), torch.ones(1000, 2, requires_grad=True)

    def encode():
        turned = torch.sin(rows)  # keeps `rows`
        product = weight @ turned  # keeps `turned`, and a parameter
        return product * turned[:50]  # keeps `product`, and `turned` again

    expected = (rows.nbytes + rows.nbytes + 50 * 2 * 4) / 1e6
    assert kept_megabytes(encode, [weight]) == pytest.approx(expected)


def test_a_row_has_the_promised_keys():
    row = measure(replace(SMALL, plain=(120, 10, 1)), 1, 1, compiled=False)
    assert row.keys() >= {
        "backbone", "mode", "length", "batch", "ratio_forward_backward", "ratio_training_step", "events_per_second",
        "peak_memory_mb",
    }  # fmt: skip
    assert row["ratio_forward_backward"] > 0
    assert row["compile_seconds"] is None


def test_the_plain_layer_is_causal_attention_and_a_gelu_of_four_times_the_width():
    layer, rows = PlainLayer(8, 2).double(), torch.randn(3, 5, 8, dtype=torch.float64)
    queries, keys, values = (layer.attention_norm(rows) @ layer.qkv_proj.weight.T).split(8, dim=-1)
    read = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = queries[..., part] @ keys[..., part].transpose(1, 2) / 2.0
        scores = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
        read.append(softmax(scores, -1) @ values[..., part])
    between = rows + torch.cat(read, -1) @ layer.o_proj.weight.T
    inner = torch.nn.functional.gelu(layer.feed_forward_norm(between) @ layer.up_proj.weight.T)
    torch.testing.assert_close(layer(rows), between + inner @ layer.down_proj.weight.T)
