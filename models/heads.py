"""From the hidden state of a query or an event to the hazards of every cause.

D width, K outcomes, V tokens; leading dimensions are free. Every head is called with the hidden states and the token
embedding, and the untied ones leave the latter alone.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.cause_hazards import ConstantHazards, MixedHazards, WeibullHazards
from models.vocabulary_layout import VocabularyLayout

_LOG_LARGEST_SHAPE = math.log(10.0)  # ρ stays within [0.1, 10]


class WeibullHead(nn.Module):
    """Two numbers a cause by an untied linear map: log cumulative hazard at the anchor, and the shape.

    The map starts at zero: ρ = 1 and σ = exp(-b_k), so training starts from the population's rates b_k.
    """

    log_rates_per_year: Tensor

    def __init__(self, width: int, layout: VocabularyLayout) -> None:
        """Keep the rates as a persistent buffer; they are data, not parameters."""
        super().__init__()
        self.death_outcome = layout.death_outcome
        self.anchor_proj = nn.Linear(width, layout.n_outcomes)
        self.shape_proj = nn.Linear(width, layout.n_outcomes)
        self.register_buffer("log_rates_per_year", torch.tensor(layout.log_rate_per_year, dtype=torch.float32))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor, _token_weight: Tensor) -> WeibullHazards:
        """Map hidden states [...,D] to hazards [...,K], float32 also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            state = hidden.to(self.anchor_proj.weight.dtype)
            start = self.log_rates_per_year + math.log(WeibullHazards.ANCHOR_YEARS)  # log H at the anchor when ρ = 1
            log_shape = _LOG_LARGEST_SHAPE * torch.tanh(self.shape_proj(state) / _LOG_LARGEST_SHAPE)
            return WeibullHazards(start + self.anchor_proj(state), log_shape, self.death_outcome)

    @torch.no_grad()
    def shift_log_hazards(self, shift: Tensor) -> None:
        """Add `shift` [K] to every log-hazard of each cause."""
        self.anchor_proj.bias.add_(shift.to(self.anchor_proj.bias))


class MixedHead(nn.Module):
    """Three numbers a cause: a constant rate and a Weibull part, each started at half the population's rate."""

    def __init__(self, width: int, layout: VocabularyLayout) -> None:
        """The map to the constant part starts at zero, as those of the Weibull part do."""
        super().__init__()
        self.weibull = WeibullHead(width, layout)
        self.rate_proj = nn.Linear(width, layout.n_outcomes)
        for parameter in self.rate_proj.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor, token_weight: Tensor) -> MixedHazards:
        """Map hidden states [...,D] to hazards [...,K], float32 also under autocast."""
        whole = self.weibull(hidden, token_weight)
        half = replace(whole, log_anchor_hazard=whole.log_anchor_hazard - math.log(2.0))
        with torch.autocast(hidden.device.type, enabled=False):
            logit = self.rate_proj(hidden.to(self.rate_proj.weight.dtype))
            return MixedHazards(logit + self.weibull.log_rates_per_year - math.log(2.0), half)

    @torch.no_grad()
    def shift_log_hazards(self, shift: Tensor) -> None:
        """Add `shift` [K] to every log-hazard of each cause: to both parts alike."""
        self.weibull.shift_log_hazards(shift)
        self.rate_proj.bias.add_(shift.to(self.rate_proj.bias))


class NextTokenHead(nn.Module):
    """A constant hazard a cause, tied to the token embedding: log λ_k = H·E_kᵀ + b_k, without parameters of its own.

    E_k is the embedding row of outcome k. Where hidden states are zero the rates are the population's.
    """

    log_rates_per_year: Tensor
    outcome_rows: Tensor

    def __init__(self, _width: int, layout: VocabularyLayout) -> None:
        """Keep the rates b_k as a persistent buffer, and which rows of the embedding are outcomes."""
        super().__init__()
        self.death_outcome = layout.death_outcome
        self.register_buffer("log_rates_per_year", torch.tensor(layout.log_rate_per_year, dtype=torch.float32))
        self.register_buffer("outcome_rows", torch.tensor(layout.outcome_tokens), persistent=False)

    def forward(self, hidden: Tensor, token_weight: Tensor) -> ConstantHazards:
        """Map hidden states [...,D] and the embedding [V,D] to hazards [...,K], float32 also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            dtype = self.log_rates_per_year.dtype
            outcomes = token_weight[self.outcome_rows].to(dtype)  # [K,D]
            log_rate = nn.functional.linear(hidden.to(dtype), outcomes, self.log_rates_per_year)
            return ConstantHazards(log_rate, self.death_outcome)

    @torch.no_grad()
    def shift_log_hazards(self, shift: Tensor) -> None:
        """Add `shift` [K] to every log-hazard of each cause.

        There is no bias to add it to but the buffer: what is kept as b_k is then the population's rate times observed
        over expected events.
        """
        self.log_rates_per_year.add_(shift.to(self.log_rates_per_year))


Head = WeibullHead | MixedHead | NextTokenHead

HEADS: dict[str, type[Head]] = {"weibull": WeibullHead, "mixed": MixedHead, "next_token": NextTokenHead}
