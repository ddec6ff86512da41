"""The reference to beat: a pre-norm GPT whose positions are ages, after the public description of Delphi-2M.

Shmatko et al. 2025 (Nature 647:248–256). Ours, written from that description: 12 layers, width 120, 12 heads, GELU of
four times the width, no biases; age enters as sinusoids through a linear map.

B subjects, L events, Q queries, R = L + Q rows, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from models.config import TrainConfig
from models.event_embedding import EventEmbedding, initialise_event_embedding, initialise_final_norm
from models.row_attention import OrderAttention, OrderClock, RowOrder
from models.row_backbone import RowBackbone
from models.time_encoding import SinusoidalAge
from models.vocabulary_layout import VocabularyLayout

_FEED_FORWARD_FACTOR = 4
_WEIGHT_STD = 0.02


class GptLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        """Make one layer without biases."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = OrderAttention(width, n_heads)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.up_proj = nn.Linear(width, _FEED_FORWARD_FACTOR * width, bias=False)
        self.down_proj = nn.Linear(_FEED_FORWARD_FACTOR * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor, order: RowOrder) -> Tensor:
        """Map rows [B,R,D] to those that look [B,N,D]."""
        read = self.dropout(self.attention(self.attention_norm(rows), order))
        rows = torch.addcmul(rows[:, -read.shape[1] :], read, order.sees)
        update: Tensor = self.dropout(self.down_proj(gelu(self.up_proj(self.feed_forward_norm(rows)))))
        return rows + update


class DelphiGpt(RowBackbone):
    """GPT over events in order of age; time beyond that order enters through the age encoding alone."""

    FEATURES_LEAD = False

    def __init__(self, config: TrainConfig, layout: VocabularyLayout) -> None:
        """Build embedding, layers and final norm."""
        width = config.d_model
        layers = [GptLayer(width, config.n_head, config.mlp_dropout) for _ in range(config.n_layer)]
        embedding = EventEmbedding(layout, width, SinusoidalAge(width))
        super().__init__(config, embedding, OrderClock(), layers, nn.LayerNorm(width, bias=False))
        self._initialise(layers)

    def _initialise(self, layers: list[GptLayer]) -> None:
        """N(0, 0.02²) everywhere, the two maps into the residual smaller by √(2·layers), as in GPT-2."""
        initialise_event_embedding(self.embedding)
        initialise_final_norm(self.final_norm, self.config.head)
        residual_std = _WEIGHT_STD * (2 * len(layers)) ** -0.5
        for layer in layers:
            for proj in (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj, layer.up_proj):
                nn.init.normal_(proj.weight, std=_WEIGHT_STD)
            for proj in (layer.attention.o_proj, layer.down_proj):
                nn.init.normal_(proj.weight, std=residual_std)
