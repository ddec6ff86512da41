"""Two areas under the ROC curve of the Delphi benchmark, each for many outcomes at once.

P people, K outcomes, C rows of controls, M events.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import FEMALE, MALE, SEXES
from data_schemas.results import CENSORED, COMPETING_DEATH, OUTCOME
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan
from pipelines.evaluation.censoring_weights import fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc

FIRST_BAND_YEARS, BAND_YEARS, N_BANDS = 40, 5, 8  # Delphi's bands of age: 40-44, 45-49, ... 75-79
_SEXES_JUDGED = (SEXES.index(FEMALE), SEXES.index(MALE))
_FEWEST_CASES_OF_A_SEX = 2  # with fewer Delphi's protocol skips the outcome in that sex


@dataclass(frozen=True)
class Lives:
    """What became of the people judged."""

    sex: IntArray  # [P]
    exit_days: FloatArray  # [P]
    first_days: FloatArray  # [P,K] age at the first occurrence, infinite where there is none
    death_days: FloatArray  # [P]


@dataclass(frozen=True)
class LandmarkScores:
    """What a model says at one age about the years after it."""

    landmark_days: float
    person: IntArray  # [N] those observed then
    score: NDArray[np.float32]  # [N,K]


@dataclass(frozen=True)
class RowScores:
    """What a model says at rows of histories: of cases for their own outcome, of controls for all of them."""

    case_person: IntArray  # [M] one entry an event
    case_outcome: IntArray  # [M]
    case_band: IntArray  # [M] band of age at the row before the event, -1: in none
    case_score: NDArray[np.float32]  # [M]
    control_person: IntArray  # [C] one row a person and band
    control_band: IntArray  # [C]
    control_score: NDArray[np.float32]  # [C,K]


def age_band(age_days: FloatArray) -> IntArray:
    """Return the band of age, -1 for ages that lie in none."""
    band = np.floor((age_days / DAYS_PER_YEAR - FIRST_BAND_YEARS) / BAND_YEARS)
    return np.where((band >= 0) & (band < N_BANDS), band, -1).astype(np.int64)


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


def delphi_auc(lives: Lives, rows: RowScores) -> FloatArray:
    """Return the AUC of each outcome [K] by the protocol of Delphi's `evaluate_auc.py`, without a gap.

    The score is the rate at the last row before the event. Strata are sex and the 5-year band of the age at that row.
    Cases are the events. Controls are one random row of each person who never has the outcome, also not later.
    Equal scores count half; the mean over strata is not weighted; an outcome with fewer than two cases in a sex has
    no strata of that sex. NaN without strata.
    """
    ever = np.isfinite(lives.first_days)
    found: list[list[float]] = [[] for _ in range(lives.first_days.shape[1])]
    for cases, controls in _strata(lives, rows):
        order = np.argsort(rows.case_outcome[cases], kind="stable")
        outcomes, starts = np.unique(rows.case_outcome[cases][order], return_index=True)
        for k, of_cases in zip(outcomes, np.split(rows.case_score[cases][order], starts)[1:], strict=True):
            never = ~ever[rows.control_person[controls], k]
            auc = midrank_auc(of_cases, rows.control_score[controls, k][never])
            found[k] += [auc] if np.isfinite(auc) else []
    return np.array([np.mean(values) if values else np.nan for values in found])


def _strata(lives: Lives, rows: RowScores) -> Iterator[tuple[BoolArray, IntArray]]:
    """Yield the cases (a mask) and the controls (rows) of each sex and band of age."""
    n_outcomes = lives.first_days.shape[1]
    for sex in _SEXES_JUDGED:
        of_sex = lives.sex[rows.case_person] == sex
        counts = np.bincount(rows.case_outcome[of_sex], minlength=n_outcomes)
        judged = of_sex & (counts >= _FEWEST_CASES_OF_A_SEX)[rows.case_outcome]
        for band in range(N_BANDS):
            cases = judged & (rows.case_band == band)
            yield cases, np.flatnonzero((lives.sex[rows.control_person] == sex) & (rows.control_band == band))


def midrank_auc(cases: NDArray[np.floating], controls: NDArray[np.floating]) -> float:
    """Return the probability that a case scores higher than a control, half of it where they are equal."""
    if not cases.size or not controls.size:
        return float("nan")
    ordered = np.sort(controls)
    below = np.searchsorted(ordered, cases, side="left") + np.searchsorted(ordered, cases, side="right")
    return float(below.mean() / (2 * controls.size))
