"""Arithmetic with features in front: block by block equals one expression, and derivatives equal finite differences."""

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm

from models import feature_major
from models.feature_major import features_last, normalise_features, swiglu, works_in_blocks


def randn(*shape, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_(grad)


def matrices(c=3, s=4, f=6, back=None):
    return randn(c, s, f, seed=1), randn(c, s, f, seed=2), randn(c, f, back or s, seed=3)


def gradients(result, inputs):
    direction = torch.randn(result.shape, dtype=result.dtype, generator=torch.Generator().manual_seed(9))
    return torch.autograd.grad((result * direction).sum(), inputs)


@pytest.mark.parametrize(("shape", "dim"), [((12, 5, 3), 0), ((4, 6, 5, 3), 1), ((4, 6, 5), 1)])
def test_normalised_features_are_a_layer_norm_of_that_axis_in_values_and_gradients(shape, dim):
    norm = nn.LayerNorm(shape[dim]).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    state = (randn(*shape) * 3 + 50.0).detach().requires_grad_()  # far from zero: squares alone would lose digits
    fast = normalise_features(state, norm, dim)
    slow = layer_norm(state.movedim(dim, -1), (shape[dim],), norm.weight, norm.bias, norm.eps).movedim(-1, dim)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-11)
    inputs = [state, norm.weight, norm.bias]
    for one, other in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_normalising_has_the_derivatives_of_finite_differences():
    norm = nn.LayerNorm(5).double()
    assert torch.autograd.gradcheck(lambda x, w, b: _with(norm, x, w, b), (randn(5, 2, 3), randn(5), randn(5, seed=4)))


def _with(norm, state, weight, bias):
    return feature_major._FeatureNorm.apply(state, weight, bias, norm.eps, 0)


@pytest.mark.parametrize("n_tokens", [1, 7, 16])
@pytest.mark.parametrize("strided", [False, True])
def test_the_gated_map_by_blocks_equals_one_expression_in_values_and_gradients(monkeypatch, n_tokens, strided):
    monkeypatch.setattr(feature_major, "BLOCK_NUMBERS", 3 * 6 * 5)  # five tokens a block: the last one is shorter
    tokens, projections = randn(4, 3, n_tokens) if strided else randn(3, 4, n_tokens), matrices()
    seen = tokens.transpose(0, 1) if strided else tokens
    fast, slow = swiglu(seen, *projections), feature_major._swiglu_at_once(seen, *projections)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    inputs = [tokens, *projections]
    for one, other in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_gated_map_has_the_derivatives_of_finite_differences(monkeypatch):
    monkeypatch.setattr(feature_major, "BLOCK_NUMBERS", 3 * 6 * 2)
    assert torch.autograd.gradcheck(swiglu, (randn(3, 4, 5), *matrices()))


def test_no_token_takes_part_in_another():
    tokens, projections = randn(3, 4, 6, grad=False), matrices()
    torch.testing.assert_close(swiglu(tokens, *projections)[:, :, 2:4], swiglu(tokens[:, :, 2:4], *projections))


def test_features_last_is_a_permutation_with_a_contiguous_gradient():
    state = randn(4, 2, 3)
    turned = features_last(state)
    assert torch.equal(turned, state.permute(1, 2, 0))
    assert turned.is_contiguous()
    weights = randn(2, 3, 4, seed=5, grad=False)
    (gradient,) = torch.autograd.grad((turned * weights).sum(), state)
    assert torch.equal(gradient, weights.permute(2, 0, 1))
    assert gradient.is_contiguous()


def test_blocks_are_for_plain_arithmetic_on_a_cpu_alone():
    tensor = torch.ones(1)
    assert works_in_blocks(tensor)
    assert not works_in_blocks(torch.ones(1, device="meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not works_in_blocks(tensor)
