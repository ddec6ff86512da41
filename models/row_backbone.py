"""What backbones share that put queries behind the events as rows of one sequence.

B subjects, L events, Q queries, R = L + Q rows, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from data_schemas.sequence_batch import SequenceBatch
from models.config import TrainConfig
from models.event_embedding import EventEmbedding
from models.row_attention import RowClock


class RowBackbone(nn.Module):
    """Runs layers over rows and reads the hidden states of the queries off them."""

    FINGERPRINT = "d_model, n_head, n_layer"
    architecture_fingerprint: Tensor

    def __init__(
        self, config: TrainConfig, embedding: EventEmbedding, layers: Sequence[nn.Module], final_norm: nn.Module
    ) -> None:
        """Take the parts; each layer maps (rows [B,R,D], RowTimes) to rows.

        The fingerprint keeps what changes no shape of the weights, so that a mismatch is found beside them.
        """
        super().__init__()
        self.config, self.width = config, config.d_model
        self.embedding = embedding
        self.clock = RowClock(config.d_model // config.n_head, relative_time=is_relative(config))
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        fingerprint = torch.tensor([config.d_model, config.n_head, config.n_layer], dtype=torch.int64)
        self.register_buffer("architecture_fingerprint", fingerprint)

    def describe(self) -> dict[str, Any]:
        """Return what stands in `train_config.json` of the network and is compared when it is loaded."""
        return {key: getattr(self.config, key) for key in ("d_model", "n_head", "n_layer")}

    def encode(self, batch: SequenceBatch) -> Tensor:
        """Return the final hidden state of each query: [B,D] for Q = 1, else [B,Q,D]."""
        rows = self.embedding.rows(batch)
        times = self.clock(batch, rows.dtype)
        for layer in self.layers:
            rows = layer(rows, times)
        hidden: Tensor = self.final_norm(rows[:, batch.tokens.shape[1] :])
        return hidden[:, 0] if hidden.shape[1] == 1 else hidden


def is_relative(config: TrainConfig) -> bool:
    """Say whether attention sees the time between rows; the Delphi reference sees their order and ages alone."""
    return config.time_mode == "relative" and config.model_architecture != "delphi_gpt_v1"
