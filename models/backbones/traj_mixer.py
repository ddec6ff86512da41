"""TrajMixer (seed `traj_mixer_v5`): a causal transformer whose feed-forward is a mixer within and across groups.

B subjects, L events, Q queries, R = L + Q rows, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.config import TrainConfig
from models.event_embedding import EventEmbedding, initialise_event_embedding, initialise_final_norm
from models.feature_major import normalise_features
from models.row_attention import RowAttention, RowClock, RowTimes
from models.row_backbone import RowBackbone
from models.time_encoding import AgeEncoding
from models.traj_mixer import GroupMixer, initialise_group_mixer
from models.vocabulary_layout import VocabularyLayout

FROZEN = {
    "n_group_rule": "n_head",
    "d_group_rule": "d_model / n_group",
    "traj_mixer_norm": "layer_norm_over_n_embd",
    "intra_hidden_rule": "4 * d_group",
    "intra_gate_shape": "[n_group, d_group]",
    "intra_gate_initial_sigmoid": 0.1,
    "cross_hidden_rule": "4 * n_group",
    "group_alignment": False,
    "intra_residual": False,
    "cross_residual": False,
    "traj_mixer_outer_residual": True,
    "projection_bias": False,
    "intra_output_init": "xavier_uniform",
    "cross_output_init_std": 0.001,
}  # seed §11: written to train_config.json and compared at load


class TrajMixerLayer(nn.Module):
    """PreNorm attention with its residual, then the mixer, which holds its own norm and residual."""

    def __init__(self, width: int, n_heads: int, dropout: float, *, relative_time: bool) -> None:
        """Groups are as many as heads."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = RowAttention(width, n_heads, relative_time=relative_time)
        self.mixer = GroupMixer(width, n_heads, dropout)

    def forward(self, rows: Tensor, times: RowTimes) -> Tensor:
        """Map rows [D,B,R] to those that look [D,B,N]."""
        read = self.attention(normalise_features(rows, self.attention_norm, 0), times)
        mixed: Tensor = self.mixer(torch.addcmul(rows[..., -read.shape[-1] :], read, times.sees))
        return mixed


class TrajMixer(RowBackbone):
    """12 layers of width 120 by default; 1,232,428 parameters at a vocabulary of 1,256 with a tied head."""

    FEATURES_LEAD = True

    def __init__(self, config: TrainConfig, layout: VocabularyLayout) -> None:
        """Build embedding, layers and final norm."""
        width, relative_time = config.d_model, config.time_mode == "relative"
        layers = [
            TrajMixerLayer(width, config.n_head, config.mlp_dropout, relative_time=relative_time)
            for _ in range(config.n_layer)
        ]
        embedding = EventEmbedding(layout, width, AgeEncoding(width))
        clock = RowClock(width // config.n_head, relative_time=relative_time)
        super().__init__(config, embedding, clock, layers, nn.LayerNorm(width))
        self._initialise(layers)

    def describe(self) -> dict[str, Any]:
        """Return sizes and every rule that the seed freezes."""
        return {**super().describe(), **FROZEN}

    def _initialise(self, layers: list[TrajMixerLayer]) -> None:
        initialise_event_embedding(self.embedding)
        initialise_final_norm(self.final_norm, self.config.head)
        for layer in layers:
            for proj in (
                layer.attention.q_proj,
                layer.attention.k_proj,
                layer.attention.v_proj,
                layer.attention.o_proj,
            ):
                nn.init.xavier_uniform_(proj.weight)
            initialise_group_mixer(layer.mixer)
