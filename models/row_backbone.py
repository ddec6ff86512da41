"""What backbones share that put queries behind the events as rows of one sequence.

B subjects, L events, Q queries, R = L + Q rows, D width.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data_schemas.sequence_batch import SequenceBatch
from models.config import TrainConfig
from models.event_embedding import EventEmbedding
from models.feature_major import features_last


class RowBackbone(nn.Module):
    """Runs layers over rows and reads the hidden states of the queries off them."""

    FINGERPRINT = "d_model, n_head, n_layer"
    FEATURES_LEAD: ClassVar[bool]  # the layers work on [D,B,R] in place of [B,R,D]
    architecture_fingerprint: Tensor

    def __init__(
        self,
        config: TrainConfig,
        embedding: EventEmbedding,
        clock: nn.Module,
        layers: Sequence[nn.Module],
        final_norm: nn.LayerNorm,
    ) -> None:
        """Take the parts; the clock maps (batch, dtype) to times, each layer maps (rows, times) to the rows that look.

        The fingerprint keeps what changes no shape of the weights, so that a mismatch is found beside them.
        """
        super().__init__()
        self.config, self.width = config, config.d_model
        self.embedding = embedding
        self.clock = clock
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        fingerprint = torch.tensor([config.d_model, config.n_head, config.n_layer], dtype=torch.int64)
        self.register_buffer("architecture_fingerprint", fingerprint)

    def describe(self) -> dict[str, Any]:
        """Return what stands in `train_config.json` of the network and is compared when it is loaded."""
        return {key: getattr(self.config, key) for key in ("d_model", "n_head", "n_layer")}

    def compile_hot_loop(self) -> None:
        """Compile the layer: one program that all layers share, so that compiling takes no longer for more of them."""
        for layer in self.layers:
            layer.compile(dynamic=True)

    def encode(self, batch: SequenceBatch) -> Tensor:
        """Return final hidden states: of every event [B,L,D] in next_token, else of the queries, [B,D] for Q = 1."""
        rows = self.embedding.rows(batch)
        times = self.clock(batch, rows.dtype)
        if self.FEATURES_LEAD:
            rows = rows.permute(2, 0, 1).contiguous()
        asked = times
        if self.config.mode == "all_future":  # the last layer's events are read by nobody
            asked = times.of_last(batch.query_ages_days.shape[1])
        for number, layer in enumerate(self.layers, start=1):
            seen = asked if number == len(self.layers) else times
            rows = run_recomputable(layer, rows, seen, recompute=self.config.gradient_checkpointing)
        hidden: Tensor = self.final_norm(features_last(rows) if self.FEATURES_LEAD else rows)
        return hidden[:, 0] if hidden.shape[1] == 1 and self.config.mode == "all_future" else hidden


def run_recomputable(part: nn.Module, state: Tensor, context: Any, *, recompute: bool) -> Tensor:
    """Run one layer or round; with `recompute` its inner values are computed again on the way back, not kept.

    The same dropout is drawn again.
    """
    if recompute and torch.is_grad_enabled():
        again: Tensor = checkpoint(part, state, context, use_reentrant=False)
        return again
    result: Tensor = part(state, context)
    return result
