"""What a network is given: one padded batch of histories with the ages at which risks are asked, and its targets.

B subjects, L events, Q queries, K outcomes, N intervals, M events that ended one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SequenceBatch:
    """Right-padded histories. Ages are days since birth; a value of NaN means the event carries none.

    Values are standardised (training mean and standard deviation) and clipped. In mode all_future every event lies at
    or before the subject's last query, and a query sees the events at or before its own age. In mode next_token Q is
    0: a prediction is made at every row, and a `query` row stands at entry behind the events of that age.
    """

    tokens: torch.Tensor  # [B,L] int64, 0 is padding
    ages_days: torch.Tensor  # [B,L] float32
    values: torch.Tensor  # [B,L] float32
    valid: torch.Tensor  # [B,L] bool, True = a real event
    sex: torch.Tensor  # [B] int64: female, male, unknown
    entry_age_days: torch.Tensor  # [B] float32
    exit_age_days: torch.Tensor  # [B] float32
    query_ages_days: torch.Tensor  # [B,Q] float32, ascending; Q = 0 in mode next_token
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
    divisor: float  # what the sum over this batch is divided by: the queries of the whole step

    def to(self, device: torch.device | str) -> FutureTargets:
        """Return the same targets on another device."""
        return _moved(self, device)


@dataclass(frozen=True)
class NextTargets:
    """What followed each age of a history, for mode next_token: the intervals of a point process.

    An interval starts at an age from entry on and ends at the next age of any row, the last one at exit or death. An
    age with only measurements or no_event rows ends it as censoring.
    """

    row: torch.Tensor  # [N] int64: the last row of the age at which it starts, as b·L + l of the padded batch
    interval_years: torch.Tensor  # [N] float32, above zero; at least half a day where an event ended it
    at_risk: torch.Tensor  # [N,K] bool: a cause that is recorded once leaves with its occurrence
    event_interval: torch.Tensor  # [M] int64: the interval that an event ended
    event_outcome: torch.Tensor  # [M] int64: its column; on one day several may end the same interval
    divisor: float  # what the sum over this batch is divided by: the intervals of an average step

    def to(self, device: torch.device | str) -> NextTargets:
        """Return the same targets on another device."""
        return _moved(self, device)


Targets = FutureTargets | NextTargets
AnyTargets = TypeVar("AnyTargets", FutureTargets, NextTargets)


def _moved(targets: AnyTargets, device: torch.device | str) -> AnyTargets:
    content = {field.name: getattr(targets, field.name) for field in fields(targets)}
    return type(targets)(**{name: part if name == "divisor" else part.to(device) for name, part in content.items()})
