"""People of one outcome in the order of one predictor's risk at one horizon: what every metric of a risk starts from.

n people, lowest risk first.
"""

from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.evaluation.censoring_weights import CensoringWeights
from pipelines.evaluation.outcome_sample import OutcomeSample


@dataclass(frozen=True)
class RankedPeople:
    """Arrays [n] in the order of risk; equal risks share `first` and `beyond`, their range of positions."""

    order: IntArray  # position in the sample
    risk: FloatArray
    first: IntArray  # first position of the same risk
    beyond: IntArray  # one past the last
    is_case: BoolArray  # outcome at T ≤ h
    weight: FloatArray  # inverse probability of censoring weight, 0 for who is lost before

    @property
    def n(self) -> int:
        """Return the number of people."""
        return int(self.risk.size)

    @property
    def case_weight(self) -> FloatArray:
        """Return the weights of cases, 0 for others."""
        return np.where(self.is_case, self.weight, 0.0)

    def sum_below(self, values: FloatArray) -> FloatArray:
        """Return, for each person, the sum of values over people of lower risk and half of those of the same."""
        cumulative = np.concatenate([[0.0], np.cumsum(values)])
        below: FloatArray = (cumulative[self.first] + cumulative[self.beyond]) / 2.0
        return below


def rank_people(risk: FloatArray, is_case: BoolArray, known: CensoringWeights) -> RankedPeople:
    """Sort people by risk [n]."""
    order = np.argsort(risk)
    risk = risk[order]
    starts = np.flatnonzero(np.concatenate([[True], risk[1:] != risk[:-1]])) if risk.size else np.empty(0, np.int64)
    lengths = np.diff(np.append(starts, risk.size))
    return RankedPeople(
        order=order,
        risk=risk,
        first=np.repeat(starts, lengths),
        beyond=np.repeat(starts + lengths, lengths),
        is_case=is_case[order],
        weight=known.weight[order],
    )


def rank_sample(sample: OutcomeSample, predictor: int, h: int, horizon: float, known: CensoringWeights) -> RankedPeople:
    """Sort the people of a sample by one of its risks."""
    return rank_people(sample.risks[predictor, h], sample.is_case(horizon), known)
