"""What the arrays' side of the code must know of a vocabulary, as arrays. V tokens, K outcomes."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data_schemas.dataset import COVARIATE, DEATH, OUTCOME_ROLES_OF_MODE, Vocabulary


@dataclass(frozen=True)
class TokenTables:
    """Scaling of values, and what each token means as an outcome of one mode."""

    mean: NDArray[np.float64]  # [V]
    std: NDArray[np.float64]  # [V], NaN where a token carries no value
    is_covariate: NDArray[np.bool_]  # [V]
    outcome_of_token: NDArray[np.int64]  # [V] column of the outcome, -1 for a token that is none
    recorded_once: NDArray[np.bool_]  # [K] leaves the risk set of mode next_token when it has happened
    death_token: int

    @property
    def n_outcomes(self) -> int:
        """Count the outcomes K."""
        return len(self.recorded_once)

    @staticmethod
    def of(vocabulary: pl.DataFrame, mode: str) -> "TokenTables":
        """Read the tables off the vocabulary; outcomes are numbered in token order. Next_token has no groups."""
        role = vocabulary[Vocabulary.role.name]
        is_outcome = role.is_in(OUTCOME_ROLES_OF_MODE[mode]).to_numpy()
        mean, std = (
            vocabulary[name].fill_null(np.nan).to_numpy() for name in (Vocabulary.mean.name, Vocabulary.std.name)
        )
        return TokenTables(
            mean=mean,
            std=std,
            is_covariate=(role == COVARIATE).to_numpy(),
            outcome_of_token=np.where(is_outcome, np.cumsum(is_outcome) - 1, -1).astype(np.int64),
            recorded_once=~vocabulary[Vocabulary.recurs.name].fill_null(False).to_numpy()[is_outcome],
            death_token=int(np.flatnonzero(role == DEATH)[0]),
        )
