"""The mixer of Event–Trajectory: slots exchange information, one small SwiGLU for each inner coordinate.

N tokens (B·Q), H trajectory slots, F hidden = 4H, Dh inner coordinates.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

_HIDDEN_FACTOR = 4
_OUTPUT_STD = 1e-3  # a round starts as a small update


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
