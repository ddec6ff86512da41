"""The mixers of the seeds: trajectory slots (Event–Trajectory) and groups of features (TrajMixer v5).

N tokens (B·Q), H trajectory slots, F hidden = 4H, Dh inner coordinates.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

_HIDDEN_FACTOR = 4
_OUTPUT_STD = 1e-3  # a round or layer starts as a small update
_INITIAL_GATE = 0.1


class TrajectoryMixer(nn.Module):
    """Y_r = (SiLU(U_r·Wg_r) ⊙ U_r·Wv_r)·Wo_r for every coordinate r (seed §6): no mixing of coordinates, no bias."""

    def __init__(self, n_slots: int, slot_width: int) -> None:
        """Make gate, value and output of each coordinate."""
        super().__init__()
        hidden = _HIDDEN_FACTOR * n_slots
        self.gate_proj = nn.Parameter(torch.empty(slot_width, n_slots, hidden))
        self.value_proj = nn.Parameter(torch.empty(slot_width, n_slots, hidden))
        self.output_proj = nn.Parameter(torch.empty(slot_width, hidden, n_slots))

    def forward(self, slots: Tensor) -> Tensor:
        """Map [N,H,Dh] to [N,H,Dh]; coordinates lead inside, so that each projection is one batched product."""
        by_coordinate = slots.permute(2, 0, 1)  # [Dh,N,H]
        gate = torch.bmm(by_coordinate, self.gate_proj)
        value = torch.bmm(by_coordinate, self.value_proj)
        return torch.bmm(silu(gate) * value, self.output_proj).permute(1, 2, 0)


def initialise_mixer(mixer: TrajectoryMixer) -> None:
    """Xavier slice by slice (on the whole tensor the fans would be wrong); the output small."""
    for stack in (mixer.gate_proj, mixer.value_proj):
        for matrix in stack:
            nn.init.xavier_uniform_(matrix)
    nn.init.normal_(mixer.output_proj, std=_OUTPUT_STD)


class GroupMixer(nn.Module):
    """TrajMixer v5 (seed §2–§8): within groups, static gate, across groups; one norm, one residual.

    N = LN(X) cut into n groups of dg; P = SwiGLU within each group; U = N + σ(Θ) ⊙ P; Δ = SwiGLU across groups for each
    inner coordinate; X + Dropout(Δ).
    """

    def __init__(self, width: int, n_groups: int, dropout: float) -> None:
        """Make the projections; `width` must be a multiple of `n_groups`."""
        super().__init__()
        self.n_groups, self.group_width = n_groups, width // n_groups
        inner, across = _HIDDEN_FACTOR * self.group_width, _HIDDEN_FACTOR * n_groups
        self.norm = nn.LayerNorm(width)
        self.intra_gate_proj = nn.Parameter(torch.empty(n_groups, self.group_width, inner))
        self.intra_value_proj = nn.Parameter(torch.empty(n_groups, self.group_width, inner))
        self.intra_output_proj = nn.Parameter(torch.empty(n_groups, inner, self.group_width))
        self.intra_gate_logits = nn.Parameter(torch.empty(n_groups, self.group_width))
        self.gate_proj = nn.Parameter(torch.empty(self.group_width, n_groups, across))
        self.value_proj = nn.Parameter(torch.empty(self.group_width, n_groups, across))
        self.output_proj = nn.Parameter(torch.empty(self.group_width, across, n_groups))
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        """Map [...,D] to [...,D], the residual included.

        Features lead and tokens trail inside ([n, dg, N]): the exchange of groups and coordinates is then a change of
        strides and no copy, and the gate is folded into the output matrix.
        """
        normed = self.norm(rows).flatten(0, -2).t().reshape(self.n_groups, self.group_width, -1)  # [n,dg,N]
        gate = torch.bmm(self.intra_gate_proj.transpose(1, 2), normed)
        value = torch.bmm(self.intra_value_proj.transpose(1, 2), normed)
        gated_output = (self.intra_output_proj * torch.sigmoid(self.intra_gate_logits)[:, None]).transpose(1, 2)
        fused = torch.baddbmm(normed, gated_output, silu(gate) * value).transpose(0, 1)  # [dg,n,N]
        gate = torch.bmm(self.gate_proj.transpose(1, 2), fused)
        value = torch.bmm(self.value_proj.transpose(1, 2), fused)
        update = torch.bmm(self.output_proj.transpose(1, 2), silu(gate) * value)  # [dg,n,N]
        residual: Tensor = self.dropout(update.permute(2, 1, 0).reshape(rows.shape))
        return rows + residual


def initialise_group_mixer(mixer: GroupMixer) -> None:
    """Xavier for each matrix of each stack, gate 0.1, output of the exchange across groups N(0, 10⁻³) (seed §9)."""
    for stack in (
        mixer.intra_gate_proj, mixer.intra_value_proj, mixer.intra_output_proj, mixer.gate_proj, mixer.value_proj,
    ):  # fmt: skip
        for matrix in stack:
            nn.init.xavier_uniform_(matrix)
    nn.init.constant_(mixer.intra_gate_logits, math.log(_INITIAL_GATE / (1 - _INITIAL_GATE)))
    nn.init.normal_(mixer.output_proj, std=_OUTPUT_STD)
