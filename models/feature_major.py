"""Arithmetic on tensors whose features lead and whose tokens trail: what the seeds' networks spend their time in.

Tokens in the last axis are contiguous, so cutting features into groups, heads or slots and exchanging these axes copies
nothing, and a product with a small matrix reads and writes long rows.

C stacked matrices, S inputs and F hidden of each, N tokens.

The networks are bound by memory, not by arithmetic. On a CPU the functions here therefore work block by block, so that
what lies between two products stays in the cache, and keep little for the way back. On other devices, under autocast
and for a compiler, which fuses on its own, they are one expression.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm, silu

BLOCK_NUMBERS = (
    1 << 18
)  # of one tensor of a block: 1 MB in float32, a few of which fit in a second- or third-level cache


def works_in_blocks(tensor: Tensor) -> bool:
    """Say whether to work block by block on the device of a tensor."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch.is_autocast_enabled("cpu")


def features_last(state: Tensor) -> Tensor:
    """Turn [D,B,N] into [B,N,D] as what follows a network wants it."""
    turned: Tensor = _FeaturesLast.apply(state)  # type: ignore[no-untyped-call]
    return turned


class _FeaturesLast(torch.autograd.Function):
    """A permutation that copies both ways: a gradient left in the other order would slow down every step backwards."""

    @staticmethod
    def forward(ctx: Any, state: Tensor) -> Tensor:
        return state.permute(1, 2, 0).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.permute(2, 0, 1).contiguous()


def normalise_features(tensor: Tensor, norm: nn.LayerNorm, dim: int) -> Tensor:
    """Apply a LayerNorm over an axis other than the last: (x - mean)/sqrt(var + eps)·weight + bias."""
    if not works_in_blocks(tensor):
        last = layer_norm(tensor.movedim(dim, -1), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return last.movedim(-1, dim)
    normed: Tensor = _FeatureNorm.apply(tensor, norm.weight, norm.bias, norm.eps, dim)  # type: ignore[no-untyped-call]
    return normed


class _FeatureNorm(torch.autograd.Function):
    """LayerNorm along one axis; keeps the normalised values for the way back and nothing else of their size.

    Means over the axis are products with a row of weights: a reduction over an axis other than the last reads the same
    numbers in twice the time, and var_mean in thirty times.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: Tensor, bias: Tensor, eps: float, dim: int) -> Tensor:
        by_feature = tensor.flatten(dim + 1)  # [...,D,N]
        mean = weight.new_full((1, len(weight)), 1 / len(weight))
        normal = by_feature - torch.matmul(mean, by_feature)
        inverse_std = torch.rsqrt(torch.matmul(mean, normal * normal) + eps)
        normal *= inverse_std
        ctx.save_for_backward(normal, inverse_std, weight)
        return torch.addcmul(bias[:, None], normal, weight[:, None]).view(tensor.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        normal, inverse_std, weight = ctx.saved_tensors
        by_feature, mean = grad.reshape(normal.shape), weight[None] / len(weight)
        by_normal = by_feature * normal
        grad_weight = by_normal.sum(-1).view(-1, len(weight)).sum(0)
        grad_bias = by_feature.sum(-1).view(-1, len(weight)).sum(0)
        result = by_feature * weight[:, None]
        result -= torch.matmul(mean, by_feature)
        result.addcmul_(normal, torch.matmul(mean, by_normal), value=-1).mul_(inverse_std)
        return result.view(grad.shape), grad_weight, grad_bias, None, None


def swiglu(tokens: Tensor, gate_proj: Tensor, value_proj: Tensor, output_proj: Tensor) -> Tensor:
    """Map [C,S,N] to [C,S,N] by (SiLU(x·Wg) ⊙ x·Wv)·Wo, with matrices [C,S,F], [C,S,F] and [C,F,S] of its own per c."""
    if not works_in_blocks(tokens):
        return _swiglu_at_once(tokens, gate_proj, value_proj, output_proj)
    out: Tensor = _BlockedSwiglu.apply(tokens, gate_proj, value_proj, output_proj)  # type: ignore[no-untyped-call]
    return out


def _swiglu_at_once(tokens: Tensor, gate_proj: Tensor, value_proj: Tensor, output_proj: Tensor) -> Tensor:
    gate = torch.bmm(gate_proj.transpose(1, 2), tokens)
    value = torch.bmm(value_proj.transpose(1, 2), tokens)
    return torch.bmm(output_proj.transpose(1, 2), silu(gate) * value)


class _BlockedSwiglu(torch.autograd.Function):
    """`_swiglu_at_once` by blocks of tokens; the hidden values are computed a second time on the way back."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, gate_proj: Tensor, value_proj: Tensor, output_proj: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, gate_proj, value_proj, output_proj)
        out = tokens.new_empty(tokens.shape[0], output_proj.shape[2], tokens.shape[2])
        for block in _blocks(tokens, gate_proj):
            part = tokens[:, :, block]
            hidden = silu(torch.bmm(gate_proj.transpose(1, 2), part), inplace=True)
            hidden.mul_(torch.bmm(value_proj.transpose(1, 2), part))
            out[:, :, block] = torch.bmm(output_proj.transpose(1, 2), hidden)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens, gate_proj, value_proj, output_proj = ctx.saved_tensors
        grad_tokens = tokens.new_empty(tokens.shape)
        grad_gate, grad_value, grad_output = (torch.zeros_like(p) for p in (gate_proj, value_proj, output_proj))
        for block in _blocks(tokens, gate_proj):
            part, grad_part = tokens[:, :, block], grad[:, :, block]
            gate = torch.bmm(gate_proj.transpose(1, 2), part)
            value = torch.bmm(value_proj.transpose(1, 2), part)
            opened, grad_hidden = silu(gate), torch.bmm(output_proj, grad_part)
            grad_output.baddbmm_(opened * value, grad_part.transpose(1, 2))
            by_value = opened.mul_(grad_hidden)
            by_gate = torch.ops.aten.silu_backward(value.mul_(grad_hidden), gate)
            grad_gate.baddbmm_(part, by_gate.transpose(1, 2))
            grad_value.baddbmm_(part, by_value.transpose(1, 2))
            grad_tokens[:, :, block] = torch.bmm(gate_proj, by_gate).baddbmm_(value_proj, by_value)
        return grad_tokens, grad_gate, grad_value, grad_output


def _blocks(tokens: Tensor, gate_proj: Tensor) -> list[slice]:
    """Cut the N tokens so that one block of hidden values stays in the cache."""
    n_tokens, length = tokens.shape[2], max(1, BLOCK_NUMBERS // (gate_proj.shape[0] * gate_proj.shape[2]))
    return [slice(start, min(start + length, n_tokens)) for start in range(0, n_tokens, length)]
