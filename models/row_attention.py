"""Attention between the rows of a person: events, and behind them the queries that are asked.

B subjects, L events, Q queries, R = L + Q rows, D width, H heads, Dh = D/H.

Rows stand in one sequence [events | queries]. An event sees itself and what lies before it; a query sees the events at
or before its age and itself. No row ever sees a query of another, so each query gets the very answer it would get
alone, and an event's hidden state does not depend on what is asked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from data_schemas.sequence_batch import SequenceBatch
from models.time_encoding import GapBias, GapFeatures, TimeRotation, gaps_days, rotate

_HIDDEN = -1e9


@dataclass(frozen=True)
class RowTimes:
    """What all layers share: who sees whom, rotation angles, gap features."""

    mask: Tensor  # [B,1,R,R] 0 where a row is seen, -1e9 where not
    any_visible: Tensor  # [B,1,R,1]
    angles: tuple[Tensor, Tensor] | None  # cosine, sine [B,1,R,Dh/2]
    gap_features: Tensor | None  # [B,R,R,16]


def visible_rows(batch: SequenceBatch) -> Tensor:
    """Return who sees whom [B,R,R]: the first axis looks, the second is looked at.

    Event l is seen by event i when it is real and (t_l < t_i or (t_l = t_i and l <= i)); by a query of age t_q when it
    is real and t_l <= t_q. Same-day events behind one are invisible to it.
    """
    ages, n_events, n_queries = batch.ages_days, batch.tokens.shape[1], batch.query_ages_days.shape[1]
    place = torch.arange(n_events, device=ages.device)
    before = (ages[:, None, :] < ages[:, :, None]) | (
        (ages[:, None, :] == ages[:, :, None]) & (place[None, :] <= place[:, None])
    )
    by_events = before & batch.valid[:, None, :]
    by_queries = (ages[:, None, :] <= batch.query_ages_days[:, :, None]) & batch.valid[:, None, :]
    itself = torch.eye(n_queries, dtype=torch.bool, device=ages.device).expand(len(ages), -1, -1)
    nobody = torch.zeros(len(ages), n_events, n_queries, dtype=torch.bool, device=ages.device)
    return torch.cat([torch.cat([by_events, nobody], -1), torch.cat([by_queries, itself], -1)], 1)


class RowClock(nn.Module):
    """Computes `RowTimes` once a forward; its learned widths of gap features are shared by all layers."""

    def __init__(self, head_width: int, *, relative_time: bool) -> None:
        """Without relative time rows see each other in order of age, and nothing more of time."""
        super().__init__()
        self.rotation = TimeRotation(head_width) if relative_time else None
        self.gap_features = GapFeatures() if relative_time else None

    def forward(self, batch: SequenceBatch, dtype: torch.dtype) -> RowTimes:
        """Compute masks and time features of a batch."""
        visible = visible_rows(batch)
        mask = torch.where(visible, 0.0, _HIDDEN).to(dtype)[:, None]
        any_visible = visible.any(-1)[:, None, :, None]
        if self.rotation is None or self.gap_features is None:
            return RowTimes(mask, any_visible, None, None)
        ages = torch.cat([batch.ages_days, batch.query_ages_days], dim=1)
        cosine, sine = self.rotation.angles(ages, dtype)
        return RowTimes(mask, any_visible, (cosine[:, None], sine[:, None]), self.gap_features(gaps_days(ages, ages)))


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
        """Map rows [B,R,D] to [B,R,D]; a row that sees nothing reads zero."""
        queries, keys, values = (self._by_head(proj(rows)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if times.angles is not None:
            queries, keys = rotate(queries, *times.angles), rotate(keys, *times.angles)
        scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5 + times.mask
        if self.gap_bias is not None and times.gap_features is not None:
            scores = scores + self.gap_bias(times.gap_features).permute(0, 3, 1, 2)
        readout = torch.where(times.any_visible, softmax(scores, dim=-1) @ values, 0.0)
        mixed: Tensor = self.o_proj(readout.transpose(1, 2).flatten(-2))
        return mixed

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.n_heads, -1).transpose(1, 2)
