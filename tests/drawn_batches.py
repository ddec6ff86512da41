"""Networks and batches drawn at random, for tests of tensors that need no cohort.

B subjects, L events, Q queries, K outcomes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from data_schemas.age_units import AGE_STEPS_PER_DAY
from data_schemas.sequence_batch import FutureTargets, SequenceBatch
from models.cause_hazards import WeibullHazards
from models.config import TrainConfig
from models.risk_model import RiskModel, seeded_model
from models.vocabulary_layout import VocabularyLayout

# Tokens 0–2 special, 3–6 diseases, 7 a group, 8 death, 9–10 measurements with values, 11 a category.
LAYOUT = VocabularyLayout(
    carries_value=tuple(token in {9, 10} for token in range(12)),
    outcome_tokens=(3, 4, 5, 6, 7, 8),
    death_outcome=5,
    log_rate_per_year=(-4.0, -5.0, -3.5, -6.0, -4.2, -3.0),
)
MEASURED_FROM = 9


def draw_model(dtype: torch.dtype = torch.float64, spread: float = 0.05, **settings) -> RiskModel:
    """Return a nano network of two rounds whose parameters are all away from their starting values, in eval mode."""
    model = seeded_model(TrainConfig(**{"n_reasoning_rounds": 2, "mlp_dropout": 0.0} | settings), LAYOUT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    # Only ever upwards: `to(float32)` would round the float64 wavelengths of the time encodings.
    return (model.double() if dtype == torch.float64 else model).eval()


def draw_batch(seed: int, n_subjects: int = 5, n_events: int = 7, n_queries: int = 3) -> SequenceBatch:
    """Draw people of different lengths: ages ascending with ties on one day; the last person has no event."""
    generator = torch.Generator().manual_seed(seed)
    entry = torch.randint(14000, 20000, (n_subjects,), generator=generator).float()
    exit_ = entry + torch.randint(1000, 4000, (n_subjects,), generator=generator)
    share = torch.rand(n_subjects, n_queries, generator=generator).sort(-1).values
    queries = torch.floor((entry[:, None] + share * (exit_ - entry)[:, None]) * AGE_STEPS_PER_DAY) / AGE_STEPS_PER_DAY
    length = torch.randint(1, n_events + 1, (n_subjects,), generator=generator)
    length[0], length[-1] = n_events, 0
    valid = torch.arange(n_events) < length[:, None]
    share = torch.rand(n_subjects, n_events, generator=generator)
    ages = torch.floor(8000 + share * (queries[:, -1:] - 8000)).sort(-1).values
    ages[:, 1::3] = ages[:, 0::3][:, : ages[:, 1::3].shape[1]]  # ties
    tokens = torch.randint(3, LAYOUT.n_tokens, (n_subjects, n_events), generator=generator)
    values = torch.randn(n_subjects, n_events, generator=generator).clamp(-5, 5)
    has_value = (tokens >= MEASURED_FROM) & (torch.rand(tokens.shape, generator=generator) < 0.7)
    return SequenceBatch(
        tokens=torch.where(valid, tokens, 0),
        ages_days=torch.where(valid, ages, 0.0),
        values=torch.where(valid & has_value, values, torch.nan),
        valid=valid,
        sex=torch.randint(0, 3, (n_subjects,), generator=generator),
        entry_age_days=entry,
        exit_age_days=exit_,
        query_ages_days=queries,
        query_valid=torch.ones_like(queries, dtype=torch.bool),
    )


def draw_targets(seed: int, batch: SequenceBatch) -> FutureTargets:
    """Draw what followed: sooner for people with more events, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch.query_ages_days.shape, LAYOUT.n_outcomes)
    rate = 0.05 * (1 + batch.valid.sum(-1))[:, None, None]
    time = (-torch.log(torch.rand(shape, generator=generator)) / rate).clamp(0.01, 8.0)
    at_risk = torch.rand(shape, generator=generator) < 0.8
    weight = 0.5 + torch.rand(batch.query_ages_days.shape, generator=generator)
    return FutureTargets(torch.where(at_risk, time, 0.0), (time < 8.0) & at_risk, at_risk, weight)


@dataclass(frozen=True)
class DrawnBatches:
    """The interface that the training loop asks for, over batches drawn anew from their number."""

    n_batches: int = 4
    n_subjects: int = 6

    def count(self) -> int:
        """Return the number of training batches of an epoch."""
        return self.n_batches

    def training(self, epoch: int, skip: int) -> Iterator[tuple[SequenceBatch, FutureTargets]]:
        """Yield the batches of an epoch, without the first `skip`."""
        return (self._draw(1000 * (epoch + 1) + number) for number in range(skip, self.n_batches))

    def tuning(self) -> Iterator[tuple[SequenceBatch, FutureTargets]]:
        """Yield the tuning batches, the same at every call."""
        return (self._draw(number) for number in range(2))

    def _draw(self, seed: int) -> tuple[SequenceBatch, FutureTargets]:
        batch = draw_batch(seed, self.n_subjects, 5, 2)
        return batch, draw_targets(seed, batch)


def parameters_of(hazards: WeibullHazards) -> torch.Tensor:
    """Return both parameters of every cause side by side [...,2K], for comparisons."""
    return torch.cat([hazards.log_anchor_hazard, hazards.log_shape], dim=-1)
