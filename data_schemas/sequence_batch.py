"""What a network is given: one padded batch of histories with the ages at which risks are asked, and its targets.

B subjects, L events, Q queries, K outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SequenceBatch:
    """Right-padded histories. Ages are days since birth; a value of NaN means the event carries none.

    Values are standardised (training mean and standard deviation) and clipped. Every event lies at or before the
    subject's last query; a query sees the events at or before its own age.
    """

    tokens: torch.Tensor  # [B,L] int64, 0 is padding
    ages_days: torch.Tensor  # [B,L] float32
    values: torch.Tensor  # [B,L] float32
    valid: torch.Tensor  # [B,L] bool, True = a real event
    sex: torch.Tensor  # [B] int64: female, male, unknown
    entry_age_days: torch.Tensor  # [B] float32
    exit_age_days: torch.Tensor  # [B] float32
    query_ages_days: torch.Tensor  # [B,Q] float32
    query_valid: torch.Tensor  # [B,Q] bool

    def to(self, device: torch.device | str) -> SequenceBatch:
        """Return the same batch on another device."""
        return SequenceBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class FutureTargets:
    """What followed each query, for mode all_future: first occurrence of each outcome, or the end of observation."""

    time_years: torch.Tensor  # [B,Q,K] float32: to the first occurrence after the query, to exit or death otherwise
    happened: torch.Tensor  # [B,Q,K] bool: the outcome itself ended the time
    at_risk: torch.Tensor  # [B,Q,K] bool: entry <= query < exit and no earlier occurrence
    query_weight: torch.Tensor  # [B,Q] float32: what the query counts in the likelihood, 1 on average

    def to(self, device: torch.device | str) -> FutureTargets:
        """Return the same targets on another device."""
        return FutureTargets(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
