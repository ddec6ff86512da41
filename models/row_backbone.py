"""What backbones share that put queries behind the events as rows of one sequence.

B subjects, L events, Q queries, R = L + Q rows, D width.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from data_schemas.sequence_batch import SequenceBatch
from models.config import TrainConfig


class RowBackbone(nn.Module, ABC):
    """Reads the hidden states of the queries off a network that treats rows alike."""

    FINGERPRINT = "d_model, n_head, n_layer"
    architecture_fingerprint: Tensor

    def __init__(self, config: TrainConfig) -> None:
        """Keep what changes no shape of the weights where a mismatch is found: beside the weights."""
        super().__init__()
        self.config, self.width = config, config.d_model
        fingerprint = torch.tensor([config.d_model, config.n_head, config.n_layer], dtype=torch.int64)
        self.register_buffer("architecture_fingerprint", fingerprint)

    def describe(self) -> dict[str, Any]:
        """Return what stands in `train_config.json` of the network and is compared when it is loaded."""
        return {key: getattr(self.config, key) for key in ("d_model", "n_head", "n_layer")}

    def encode(self, batch: SequenceBatch) -> Tensor:
        """Return the final hidden state of each query: [B,D] for Q = 1, else [B,Q,D]."""
        queries = self.rows(batch)[:, batch.tokens.shape[1] :]
        return queries[:, 0] if queries.shape[1] == 1 else queries

    @abstractmethod
    def rows(self, batch: SequenceBatch) -> Tensor:
        """Return the hidden states of all rows [B,R,D]."""
