"""The time-dependent AUC of the Delphi benchmark over several landmarks, for many outcomes at once.

P people, K outcomes, N people at a landmark.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_schemas.results import CENSORED, COMPETING_DEATH, OUTCOME
from pipelines.evaluation.array_types import FloatArray, IntArray, divide_or_nan
from pipelines.evaluation.censoring_weights import fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.delphi_protocol import Lives
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc


@dataclass(frozen=True)
class LandmarkScores:
    """What a model says at one age about the years after it."""

    landmark_days: float
    person: IntArray  # [N] those observed then
    score: NDArray[np.float32]  # [N,K]


def landmark_auc(lives: Lives, scores: list[LandmarkScores], horizon_days: float) -> tuple[FloatArray, IntArray]:
    """Return the time-dependent AUC of each outcome [K] over several landmarks, and the cases it rests on [K].

    At each landmark: those observed then who have not had the outcome; cases have it within the horizon, controls live
    through the horizon without it or die before; people lost before it are stood for by others (inverse probability
    of censoring weights, `cumulative_dynamic_auc`). The mean over landmarks weighs each by its cases. NaN without any.
    """
    n_outcomes = lives.first_days.shape[1]
    total, n_cases = np.zeros(n_outcomes), np.zeros(n_outcomes, dtype=np.int64)
    for at in scores:
        followed = lives.exit_days[at.person] - at.landmark_days
        died = lives.death_days[at.person] <= lives.exit_days[at.person]
        censoring = fit_censoring_curve(followed, ~died)
        for k in range(n_outcomes):
            until = lives.first_days[at.person, k] - at.landmark_days
            at_risk = until > 0
            time = np.minimum(until, followed)[at_risk]
            status = np.where(until <= followed, OUTCOME, np.where(died, COMPETING_DEATH, CENSORED))[at_risk]
            n_here = int(((status == OUTCOME) & (time <= horizon_days)).sum())
            if n_here == 0:
                continue
            known = inverse_censoring_weights(time, status, horizon_days, censoring)
            auc = cumulative_dynamic_auc(at.score[at_risk, k].astype(np.float64), time, status, horizon_days, known)
            total[k] += n_here * auc
            n_cases[k] += n_here
    return divide_or_nan(total, n_cases), n_cases
