"""Attention to rows of a person by time: who sees whom, the look-up of biases by gap, and the products.

B subjects, L events, Q queries, R = L + Q rows, N rows that look, D width, H heads or slots, Dh = D/H.

The rows of TrajMixer and Delphi stand in one sequence [events | queries]. An event sees itself and what lies before it;
a query sees the events at or before its age and itself. No row ever sees a query of another, so each query gets the
very answer it would get alone, and an event's hidden state does not depend on what is asked.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, scaled_dot_product_attention, softmax

from data_schemas.sequence_batch import SequenceBatch
from models.feature_major import BLOCK_NUMBERS, works_in_blocks
from models.time_encoding import HIDDEN, GapBias, GapFeatures, TimeRotation, distinct_gaps, hiding_bias, rotate


def events_seen_by_events(batch: SequenceBatch) -> Tensor:
    """Return [B,L,L]: event l is seen by event i when it is real and (t_l < t_i or (t_l = t_i and l <= i)).

    Same-day events behind one are invisible to it: they may be its targets.
    """
    ages, place = batch.ages_days, torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    before = (ages[:, None, :] < ages[:, :, None]) | (
        (ages[:, None, :] == ages[:, :, None]) & (place[None, :] <= place[:, None])
    )
    return before & batch.valid[:, None, :]


def events_seen_by_queries(batch: SequenceBatch) -> Tensor:
    """Return [B,Q,L]: an event is seen by a query of age t_q when it is real and t_l <= t_q."""
    return (batch.ages_days[:, None, :] <= batch.query_ages_days[:, :, None]) & batch.valid[:, None, :]


def visible_rows(batch: SequenceBatch) -> Tensor:
    """Return who sees whom [B,R,R]: the first axis looks, the second is looked at; a query sees itself as well."""
    by_events, by_queries = events_seen_by_events(batch), events_seen_by_queries(batch)
    ages, n_events, n_queries = batch.ages_days, batch.tokens.shape[1], batch.query_ages_days.shape[1]
    itself = torch.eye(n_queries, dtype=torch.bool, device=ages.device).expand(len(ages), -1, -1)
    nobody = torch.zeros(len(ages), n_events, n_queries, dtype=torch.bool, device=ages.device)
    return torch.cat([torch.cat([by_events, nobody], -1), torch.cat([by_queries, itself], -1)], 1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, entry: Tensor) -> Tensor:
    """Return softmax(qᵀk/√Dh + bias)·v [H,B,Dh,N]; the weight of a hidden row is exactly zero where any is seen.

    A row that sees nothing gets a mean of what is hidden from it: the caller turns it into zero.

    Args:
        queries: [H,B,Dh,N].
        keys: [H,B,Dh,R].
        values: [H,B,Dh,R].
        bias: of each entry [H,G+1].
        entry: which bias a pair has [B,N,R].
    """
    if not works_in_blocks(queries):
        query, key, value = (rows.flatten(0, 1) for rows in (queries, keys, values))
        weights = _attention_weights(query, key, bias, entry)
        return torch.bmm(value, weights.transpose(1, 2)).view(queries.shape)
    read: Tensor = _AttendByHeads.apply(queries, keys, values, bias, entry)  # type: ignore[no-untyped-call]
    return read


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor, entry: Tensor) -> Tensor:
    """Return softmax(qᵀk/√Dh + bias) [H·B,N,R] for queries [H·B,Dh,N] and keys [H·B,Dh,R]."""
    of_pairs = bias.index_select(1, entry.flatten()).view(len(query), *entry.shape[1:])
    return softmax(torch.baddbmm(of_pairs, query.transpose(1, 2), key, alpha=query.shape[1] ** -0.5), dim=-1)


class _AttendByHeads(torch.autograd.Function):
    """The same for a few heads at a time, whose scores stay in the cache between their products."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, entry: Tensor) -> Tensor:
        read, weights_of_block = torch.empty_like(queries), []
        for heads in _head_blocks(len(bias), entry):
            query, key, value, out = (rows[heads].flatten(0, 1) for rows in (queries, keys, values, read))
            weights_of_block.append(_attention_weights(query, key, bias[heads], entry))
            torch.bmm(value, weights_of_block[-1].transpose(1, 2), out=out)
        ctx.save_for_backward(queries, keys, values, bias, entry, *weights_of_block)
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        queries, keys, values, bias, entry, *weights_of_block = ctx.saved_tensors
        of_pair, scale = entry.flatten(), queries.shape[2] ** -0.5
        grads = [torch.empty_like(rows) for rows in (queries, keys, values)]
        grad_bias = torch.zeros_like(bias)
        for heads, weights in zip(_head_blocks(len(bias), entry), weights_of_block, strict=True):
            query, key, value, grad_read = (rows[heads].flatten(0, 1) for rows in (queries, keys, values, grad))
            grad_query, grad_key, grad_value = (rows[heads].flatten(0, 1) for rows in grads)
            torch.bmm(grad_read, weights, out=grad_value)
            grad_weights = torch.bmm(grad_read.transpose(1, 2), value)
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_query.baddbmm_(key, grad_scores.transpose(1, 2), beta=0, alpha=scale)
            grad_key.baddbmm_(query, grad_scores, beta=0, alpha=scale)
            if ctx.needs_input_grad[3]:
                grad_bias[heads].index_add_(1, of_pair, grad_scores.view(-1, len(of_pair)))
        return grads[0], grads[1], grads[2], grad_bias, None


def _head_blocks(n_heads: int, entry: Tensor) -> list[slice]:
    """Cut the H heads so that the scores of one block stay in the cache."""
    length = max(1, BLOCK_NUMBERS // max(1, entry.numel()))
    return [slice(start, min(start + length, n_heads)) for start in range(0, n_heads, length)]


@dataclass(frozen=True)
class RowTimes:
    """What all layers share of time: who sees whom and with which gap, rotation angles. The last N of R rows look."""

    entry: Tensor  # [B,N,R] which distinct gap; the last entry hides
    gap_features: Tensor | None  # [G,16] of the distinct gaps
    angles: tuple[Tensor, Tensor] | None  # cosine, sine [Dh/2,B,R]
    sees: Tensor  # [B,N] 1 where a row sees any, else 0: what such a row reads counts nothing

    def of_last(self, n_rows: int) -> "RowTimes":
        """Return the same with only the last rows looking."""
        return replace(self, entry=self.entry[:, -n_rows:].contiguous(), sees=self.sees[:, -n_rows:])


class RowClock(nn.Module):
    """Computes `RowTimes` once a forward; its learned widths of gap features are shared by all layers."""

    def __init__(self, head_width: int, *, relative_time: bool) -> None:
        """Without relative time rows see each other in order of age, and nothing more of time."""
        super().__init__()
        self.rotation = TimeRotation(head_width) if relative_time else None
        self.gap_features = GapFeatures() if relative_time else None

    def forward(self, batch: SequenceBatch, dtype: torch.dtype) -> RowTimes:
        """Compute gaps and angles of a batch."""
        visible = visible_rows(batch)
        sees = visible.any(-1).to(dtype)
        if self.rotation is None or self.gap_features is None:
            return RowTimes((~visible).long(), None, None, sees)
        ages = torch.cat([batch.ages_days, batch.query_ages_days], dim=1)
        gaps, entry = distinct_gaps(ages, ages, visible)
        return RowTimes(entry, self.gap_features(gaps), self.rotation.angles(ages, dtype), sees)


class RowAttention(nn.Module):
    """Multi-head attention without biases, with rotary time and a bias by the gap where time is relative."""

    def __init__(self, width: int, n_heads: int, *, relative_time: bool) -> None:
        """Make the four projections."""
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gap_bias = GapBias(n_heads) if relative_time else None

    def forward(self, rows: Tensor, times: RowTimes) -> Tensor:
        """Map rows [D,B,R] to what the last N of them read [D,B,N]; what a row reads that sees nothing is void."""
        n_looking = times.entry.shape[1]
        weights = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        projected = (weights @ rows.flatten(1)).view(3, self.n_heads, -1, *rows.shape[1:])  # [3,H,Dh,B,R]
        queries, keys, values = projected.unbind(0)
        queries = queries[..., -n_looking:]
        if times.angles is not None:
            cosine, sine = times.angles
            queries = rotate(queries, cosine[..., -n_looking:], sine[..., -n_looking:])
            keys = rotate(keys, cosine, sine)
        if self.gap_bias is not None and times.gap_features is not None:
            bias = self.gap_bias(times.gap_features)
        else:
            bias = hiding_bias(self.n_heads, rows)
        queries, keys, values = (part.transpose(1, 2).contiguous() for part in (queries, keys, values))  # [H,B,Dh,R]
        read = attend(queries, keys, values, bias, times.entry).transpose(1, 2)  # [H,Dh,B,N]
        return (self.o_proj.weight @ read.reshape(len(rows), -1)).view(len(rows), *times.sees.shape)


@dataclass(frozen=True)
class RowOrder:
    """Who sees whom and nothing of time. The last N of R rows look."""

    mask: Tensor | None  # [B,1,N,R] 0 where a row is seen, -1e9 where not; None: as the order of rows says
    sees: Tensor  # [B,N,1] 1 where a row sees any, else 0: what such a row reads counts nothing

    def of_last(self, n_rows: int) -> "RowOrder":
        """Return the same with only the last rows looking."""
        mask = None if self.mask is None else self.mask[:, :, -n_rows:]
        return RowOrder(mask, self.sees[:, -n_rows:])


class OrderClock(nn.Module):
    """Computes `RowOrder` once a forward."""

    def forward(self, batch: SequenceBatch, dtype: torch.dtype) -> RowOrder:
        """Find out who sees whom, and whether that is what the order of the rows says."""
        visible = visible_rows(batch)
        seen = visible.any(-1, keepdim=True)
        mask = None if _is_order_of_rows(visible, seen) else torch.where(visible, 0.0, HIDDEN).to(dtype)[:, None]
        return RowOrder(mask, seen.to(dtype))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _is_order_of_rows(visible: Tensor, seen: Tensor) -> bool:
    """Say whether each row sees exactly itself and the rows before it, or nothing at all as padding does."""
    return bool(((visible == torch.ones_like(visible[0]).tril()) | ~seen).all())


class OrderAttention(nn.Module):
    """Multi-head attention without biases of weights or of time."""

    def __init__(self, width: int, n_heads: int) -> None:
        """Make the four projections."""
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, rows: Tensor, order: RowOrder) -> Tensor:
        """Map rows [B,R,D] to what the last N of them read [B,N,D]; what a row reads that sees nothing is void."""
        weights = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        projected = linear(rows, weights).view(*rows.shape[:2], 3, self.n_heads, -1)  # [B,R,3,H,Dh]
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # [B,H,R,Dh] each
        queries = queries[:, :, -order.sees.shape[1] :]
        read = scaled_dot_product_attention(queries, keys, values, attn_mask=order.mask, is_causal=order.mask is None)
        mixed: Tensor = self.o_proj(read.transpose(1, 2).flatten(-2))
        return mixed
