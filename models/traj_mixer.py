"""The mixers of the seeds: trajectory slots (Event–Trajectory) and groups of features (TrajMixer v5).

N tokens (B·Q), H trajectory slots, F hidden = 4H, Dh inner coordinates; D width, n groups of dg coordinates. Features
lead: a state is [features, tokens].
"""

import math

import torch
from torch import Tensor, nn

from models.feature_major import normalise_features, swiglu

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

    def forward(self, slots: Tensor, scale: Tensor) -> Tensor:
        """Map [H,Dh,N] to scale·Y [H,Dh,N]; the scale of the update is folded into the output matrices."""
        by_coordinate = slots.transpose(0, 1)  # [Dh,H,N]
        return swiglu(by_coordinate, self.gate_proj, self.value_proj, self.output_proj * scale).transpose(0, 1)


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
        """Map [D,B,R] to [D,B,R], the residual included; the gate is folded into the output matrices within groups."""
        normed = normalise_features(rows, self.norm, 0).view(self.n_groups, self.group_width, -1)  # [n,dg,N]
        gated_output = self.intra_output_proj * torch.sigmoid(self.intra_gate_logits)[:, None]
        fused = normed + swiglu(normed, self.intra_gate_proj, self.intra_value_proj, gated_output)
        update = swiglu(fused.transpose(0, 1), self.gate_proj, self.value_proj, self.output_proj)  # [dg,n,N]
        residual: Tensor = self.dropout(update.transpose(0, 1).reshape(rows.shape))
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
