"""What a network must know of a vocabulary: sizes, which tokens are outcomes, and the rates to start from."""

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
