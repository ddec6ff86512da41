"""Whether acting on a risk does more good than acting on nobody or on everybody: decision curves.

n people in the order of risk, Θ thresholds.
"""

from dataclasses import dataclass

import numpy as np

from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.evaluation.array_types import FloatArray
from pipelines.evaluation.influence import NORMAL_QUANTILE
from pipelines.evaluation.ranked_people import RankedPeople

# Even on the log scale, with the percentages people use among them.
THRESHOLDS = np.array([
    0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15,
    0.2, 0.25, 0.3, 0.4, 0.5,
])  # fmt: skip


@dataclass(frozen=True)
class NetBenefit:
    """Net benefit at each threshold [Θ] with 95 % limits, and that of acting on everybody; NaN is suppressed."""

    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    treat_all: FloatArray


def net_benefit(people: RankedPeople, thresholds: FloatArray = THRESHOLDS) -> NetBenefit:
    """Return Σ_{risk ≥ p} u (y − (1 − y) p / (1 − p)) / n at thresholds p: true positives less what false ones cost.

    Acting on nobody has 0. Weighted by inverse probability of censoring; who died of something else is a false
    positive. The limits hold the censoring curve as known, which makes them a little wide. Suppressed where from 1 to
    9 people, or fewer than 10 cases among some people, are at or above the threshold.

    Vickers, Elkin 2006, Med Decis Making 26:565–574; with censoring and competing events Vickers, Cronin, Elkin, Gonen
    2008, BMC Med Inform Decis Mak 8:53, and van Geloven et al. 2022, BMJ 377:e069249.
    """
    odds = thresholds / (1.0 - thresholds)
    start = np.searchsorted(people.risk, thresholds, side="left")
    case_weight = people.case_weight
    other_weight = people.weight - case_weight
    n = max(people.n, 1)

    def above(values: FloatArray) -> FloatArray:
        summed: FloatArray = np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
        return summed

    true, false = above(case_weight), above(other_weight)
    squares_true, squares_false = above(np.square(case_weight)), above(np.square(other_weight))
    value = (true[start] - odds * false[start]) / n
    square = (squares_true[start] + np.square(odds) * squares_false[start]) / n**2
    half = NORMAL_QUANTILE * np.sqrt(np.maximum(square - np.square(value) / n, 0.0))
    n_above = people.n - start
    cases_above = above(people.is_case.astype(np.float64))[start]
    is_shown = (n_above == 0) | ((n_above >= SMALLEST_SHOWN_COUNT) & (cases_above >= SMALLEST_SHOWN_COUNT))
    shown, shown_half = np.where(is_shown, value, np.nan), np.where(is_shown, half, np.nan)
    return NetBenefit(shown, shown - shown_half, shown + shown_half, (true[0] - odds * false[0]) / n)
