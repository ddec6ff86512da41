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
        """Return the hazards of K outcomes after each query, [B,Q,K]."""
        hidden: Tensor = self.backbone.encode(batch)
        n_subjects, n_queries = batch.query_ages_days.shape
        hazards: CauseHazards = self.head(hidden.view(n_subjects, n_queries, -1))
        return hazards


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the number of all and of trainable parameters; buffers are not counted."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trainable in sizes if trainable)


def seeded_model(config: TrainConfig, layout: VocabularyLayout) -> RiskModel:
    """Build a model whose initial weights follow from the config's seed."""
    torch.manual_seed(config.seed)
    return RiskModel(config, layout)
