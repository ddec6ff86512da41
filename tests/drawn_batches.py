"""Networks and batches drawn at random, for tests of tensors that need no cohort.

B subjects, L events, Q queries, K outcomes, N intervals.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from data_schemas.age_units import AGE_STEPS_PER_DAY, DAYS_PER_YEAR
from data_schemas.dataset import QUERY_TOKEN
from data_schemas.sequence_batch import FutureTargets, NextTargets, SequenceBatch, Targets
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
# The same tokens for mode next_token, which predicts no group.
NEXT_LAYOUT = VocabularyLayout(
    carries_value=LAYOUT.carries_value,
    outcome_tokens=(3, 4, 5, 6, 8),
    death_outcome=4,
    log_rate_per_year=(-4.0, -5.0, -3.5, -6.0, -3.0),
)
RECURRENT_TOKEN, DEATH_TOKEN = 3, 8  # every disease but the first is recorded once


def draw_model(dtype: torch.dtype = torch.float64, spread: float = 0.05, **settings) -> RiskModel:
    """Return a nano network of two rounds whose parameters are all away from their starting values, in eval mode."""
    config = TrainConfig(**{"n_reasoning_rounds": 2, "mlp_dropout": 0.0} | settings)
    model = seeded_model(config, NEXT_LAYOUT if config.mode == "next_token" else LAYOUT)
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
    happened, n_queries = (time < 8.0) & at_risk, float(batch.query_valid.sum())
    return FutureTargets(torch.where(at_risk, time, 0.0), happened, at_risk, weight, n_queries)


def draw_next_batch(seed: int, n_subjects: int = 5, n_events: int = 7) -> tuple[SequenceBatch, NextTargets]:
    """Draw whole histories with a query row at entry, for mode next_token; the last person has that row alone.

    Ages are whole days around entry and up to exit, with ties; every third person dies at exit.
    """
    generator = torch.Generator().manual_seed(seed)
    entry = torch.randint(14000, 20000, (n_subjects,), generator=generator).float()
    exit_ = entry + torch.randint(1000, 4000, (n_subjects,), generator=generator)
    histories = []
    for person in range(n_subjects):
        share = torch.rand(n_events, generator=generator)
        ages = torch.floor(entry[person] - 2000 + share * (exit_[person] - entry[person] + 2000)).sort().values
        ages[1::3] = ages[0::3][: len(ages[1::3])]  # ties
        choice = [token for token in range(3, LAYOUT.n_tokens) if token not in {7, DEATH_TOKEN}]
        tokens = [choice[i] for i in torch.randint(len(choice), (n_events,), generator=generator).tolist()]
        n_kept = n_events if person == 0 else int(torch.randint(1, n_events + 1, (), generator=generator))
        rows = list(zip(ages.tolist(), tokens, strict=True))[: 0 if person == n_subjects - 1 else n_kept]
        if rows and person % 3 == 0:
            rows.append((exit_[person].item(), DEATH_TOKEN))
        n_before = sum(age <= entry[person] for age, _ in rows)
        histories.append([*rows[:n_before], (entry[person].item(), QUERY_TOKEN), *rows[n_before:]])

    length = torch.tensor([len(rows) for rows in histories])
    valid = torch.arange(int(length.max())) < length[:, None]
    tokens, ages_days = torch.zeros(valid.shape, dtype=torch.int64), torch.zeros(valid.shape)
    tokens[valid] = torch.tensor([token for rows in histories for _, token in rows])
    ages_days[valid] = torch.tensor([age for rows in histories for age, _ in rows])
    has_value = (tokens >= MEASURED_FROM) & (torch.rand(valid.shape, generator=generator) < 0.7)
    batch = SequenceBatch(
        tokens=tokens,
        ages_days=ages_days,
        values=torch.where(has_value, torch.randn(valid.shape, generator=generator).clamp(-5, 5), torch.nan),
        valid=valid,
        sex=torch.randint(0, 3, (n_subjects,), generator=generator),
        entry_age_days=entry,
        exit_age_days=exit_,
        query_ages_days=torch.zeros(n_subjects, 0),
        query_valid=torch.zeros(n_subjects, 0, dtype=torch.bool),
    )
    return batch, next_targets_of(batch)


def next_targets_of(batch: SequenceBatch) -> NextTargets:
    """Read the intervals off a batch of whole histories, one person and one age after the other."""
    n_rows = batch.tokens.shape[1]
    row, years, at_risk, event_interval, event_outcome = [], [], [], [], []
    for person, (entry, exit_) in enumerate(zip(batch.entry_age_days, batch.exit_age_days, strict=True)):
        valid = batch.valid[person]
        ages, tokens = batch.ages_days[person][valid].tolist(), batch.tokens[person][valid].tolist()
        starts = sorted({age for age in ages if entry <= age < exit_})
        for start, end in pairwise([*starts, exit_.item()]):
            seen = {token for age, token in zip(ages, tokens, strict=True) if age <= start} - {RECURRENT_TOKEN}
            new = {token for age, token in zip(ages, tokens, strict=True) if age == end and token not in seen}
            events = sorted(new.intersection(NEXT_LAYOUT.outcome_tokens))
            event_interval += [len(row)] * len(events)
            event_outcome += [NEXT_LAYOUT.outcome_tokens.index(token) for token in events]
            at_risk.append([token not in seen for token in NEXT_LAYOUT.outcome_tokens])
            years.append((end - start) / DAYS_PER_YEAR)
            row.append(person * n_rows + max(place for place, age in enumerate(ages) if age == start))
    return NextTargets(
        row=torch.tensor(row),
        interval_years=torch.tensor(years),
        at_risk=torch.tensor(at_risk),
        event_interval=torch.tensor(event_interval, dtype=torch.int64),
        event_outcome=torch.tensor(event_outcome, dtype=torch.int64),
        divisor=float(len(row)),
    )


@dataclass(frozen=True)
class DrawnBatches:
    """The interface that the training loop asks for: steps of a few parts, drawn anew from their number."""

    n_batches: int = 4
    n_subjects: int = 6  # of a step, divided evenly among its parts
    n_parts: int = 1
    mode: str = "all_future"

    def count(self) -> int:
        """Return the number of training steps of an epoch."""
        return self.n_batches

    def training(self, epoch: int, skip: int) -> Iterator[list[tuple[SequenceBatch, Targets]]]:
        """Yield the parts of each step of an epoch, without the first `skip` steps."""
        return (self._draw(1000 * (epoch + 1) + number) for number in range(skip, self.n_batches))

    def tuning(self) -> Iterator[list[tuple[SequenceBatch, Targets]]]:
        """Yield the tuning people, the same at every call."""
        return (self._draw(number) for number in range(2))

    def _draw(self, seed: int) -> list[tuple[SequenceBatch, Targets]]:
        parts = [self._draw_part(seed + 100_000 * part) for part in range(self.n_parts)]
        divisor = sum(targets.divisor for _, targets in parts)  # that of the whole step
        return [(batch, replace(targets, divisor=divisor)) for batch, targets in parts]

    def _draw_part(self, seed: int) -> tuple[SequenceBatch, Targets]:
        n_subjects = self.n_subjects // self.n_parts
        if self.mode == "next_token":
            return draw_next_batch(seed, n_subjects, 5)
        batch = draw_batch(seed, n_subjects, 5, 2)
        return batch, draw_targets(seed, batch)


def parameters_of(hazards: WeibullHazards) -> torch.Tensor:
    """Return both parameters of every cause side by side [...,2K], for comparisons."""
    return torch.cat([hazards.log_anchor_hazard, hazards.log_shape], dim=-1)
