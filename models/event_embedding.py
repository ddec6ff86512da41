"""From a batch of events to vectors: what happened + when + sex, and for measurements how much.

B subjects, L events, Q queries, D width.
"""

import torch
from torch import Tensor, nn

from data_schemas.cohort import SEXES
from data_schemas.dataset import QUERY_TOKEN
from data_schemas.sequence_batch import SequenceBatch
from models.time_encoding import TOKEN_STD
from models.vocabulary_layout import VocabularyLayout

_TIED_GAIN = 0.1


class EventEmbedding(nn.Module):
    """Token embedding + age encoding + sex; a measurement adds z·V_code, or a learned vector where z is missing.

    The parameters of measurements exist only where the vocabulary has some.
    """

    measured_row: Tensor

    def __init__(self, layout: VocabularyLayout, width: int, age_encoding: nn.Module) -> None:
        """Make the tables of tokens, sex and measured codes; `age_encoding` maps ages [...] in days to [...,D]."""
        super().__init__()
        self.token = nn.Embedding(layout.n_tokens, width)
        self.age = age_encoding
        self.sex = nn.Embedding(len(SEXES), width)
        n_measured = sum(layout.carries_value)
        if n_measured:
            self.value = nn.Embedding(n_measured, width)
            self.missing_value = nn.Parameter(torch.empty(width))
            carries = torch.tensor(layout.carries_value)
            self.register_buffer("measured_row", torch.where(carries, carries.cumsum(0) - 1, -1), persistent=False)
        self.measures = n_measured > 0

    def events(self, batch: SequenceBatch) -> Tensor:
        """Return the event features [B,L,D]."""
        features: Tensor = self.token(batch.tokens) + self.age(batch.ages_days) + self.sex(batch.sex)[:, None]
        return features + self._measurements(batch) if self.measures else features

    def queries(self, batch: SequenceBatch) -> Tensor:
        """Return the query features [B,Q,D]: the query token, the age that is asked for, and sex."""
        features: Tensor = (
            self.token.weight[QUERY_TOKEN] + self.age(batch.query_ages_days) + self.sex(batch.sex)[:, None]
        )
        return features

    def rows(self, batch: SequenceBatch) -> Tensor:
        """Return events and queries as rows of one sequence [B,L+Q,D]."""
        return torch.cat([self.events(batch), self.queries(batch)], dim=1)

    def _measurements(self, batch: SequenceBatch) -> Tensor:
        row = self.measured_row[batch.tokens]  # [B,L]
        measured, known = (row >= 0)[..., None], ~batch.values.isnan()[..., None]
        z = torch.where(known, batch.values[..., None], 0.0)
        contribution = torch.where(known, z * self.value(row.clamp(min=0)), self.missing_value)
        return torch.where(measured, contribution, 0.0)


def initialise_event_embedding(embedding: EventEmbedding) -> None:
    """Draw every table from N(0, TOKEN_STD²); the map of the age polynomials likewise."""
    for name, parameter in embedding.named_parameters():
        nn.init.normal_(parameter, std=TOKEN_STD)
        if name == "missing_value":
            nn.init.zeros_(parameter)


def initialise_final_norm(norm: nn.LayerNorm, head: str) -> None:
    """Start the gain of the final norm small where the tied head reads it, else at one.

    A logit of the tied head is a product with an embedding of std TOKEN_STD: with a gain of one it would scatter by
    TOKEN_STD·√D, about 1, around the population's log-rates from which training is to start.
    """
    if head == "next_token":
        nn.init.constant_(norm.weight, _TIED_GAIN)
