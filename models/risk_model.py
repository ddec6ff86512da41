"""The whole network: backbone and head, one call from a batch to hazards."""

import torch
from torch import Tensor, nn

from data_schemas.sequence_batch import SequenceBatch
from models.backbones import BACKBONES
from models.cause_hazards import CauseHazards
from models.config import TrainConfig
from models.heads import HEADS
from models.vocabulary_layout import VocabularyLayout


class RiskModel(nn.Module):
    """Backbone + head of a config, for the outcomes of a vocabulary."""

    def __init__(self, config: TrainConfig, layout: VocabularyLayout) -> None:
        """Build the network named in the config; weights are drawn from torch's generator."""
        super().__init__()
        self.config, self.layout = config, layout
        self.backbone = BACKBONES[config.model_architecture](config, layout)
        self.head = HEADS[config.head](self.backbone.width, layout)

    def forward(self, batch: SequenceBatch) -> CauseHazards:
        """Return the hazards of K outcomes after each query [B,Q,K], in next_token after each event [B,L,K]."""
        return self._hazards(self.backbone.encode(batch).view(len(batch.sex), -1, self.backbone.width))

    def hazards_at(self, batch: SequenceBatch, rows: Tensor) -> CauseHazards:
        """Return the hazards [N,K] of some queries or events, numbered b·Q + q or b·L + l [N]: the others cost nothing.

        Padding and rows that predict nothing are not worth a row of K outcomes.
        """
        return self._hazards(self.backbone.encode(batch).view(-1, self.backbone.width)[rows])

    def _hazards(self, hidden: Tensor) -> CauseHazards:
        hazards: CauseHazards = self.head(hidden, self.backbone.embedding.token.weight)
        return hazards


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the number of all and of trainable parameters; buffers are not counted."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trainable in sizes if trainable)


def seeded_model(config: TrainConfig, layout: VocabularyLayout) -> RiskModel:
    """Build a model whose initial weights follow from the config's seed."""
    torch.manual_seed(config.seed)
    return RiskModel(config, layout)
