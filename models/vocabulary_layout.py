"""What a network must know of a vocabulary: sizes, which tokens are outcomes, and the rates to start from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VocabularyLayout:
    """V tokens, K outcomes in token order."""

    carries_value: tuple[bool, ...]  # [V] covariates that are measured in numbers
    outcome_tokens: tuple[int, ...]  # [K]
    death_outcome: int  # column of death among the outcomes
    log_rate_per_year: tuple[float, ...]  # [K] b_k, of the training split

    @property
    def n_tokens(self) -> int:
        """Size of the token embedding."""
        return len(self.carries_value)

    @property
    def n_outcomes(self) -> int:
        """Number of predicted causes."""
        return len(self.outcome_tokens)


def log_population_rates(n_events: Sequence[int], person_years: Sequence[float]) -> tuple[float, ...]:
    """Return b_k = log((events_k + 0.5) / (person_years_k + 0.5 / overall_rate)), per year.

    The half event keeps an outcome without cases finite; spread over the exposure that an average outcome needs for
    half an event, it pulls rare outcomes towards the overall rate, events of all causes / person-years of all causes.
    """
    all_events, all_years = sum(n_events), sum(person_years)
    overall = max(all_events, 0.5) / max(all_years, 1.0)
    return tuple(
        math.log((events + 0.5) / (years + 0.5 / overall))
        for events, years in zip(n_events, person_years, strict=True)
    )  # fmt: skip
