"""The people of one landmark, and those at risk of one outcome among them, as arrays.

N rows of the landmark (a person, or a person × landmark where people have several), n rows of one outcome, P
predictors, H horizons.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from data_schemas.results import OUTCOME
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class LandmarkPeople:
    """What all outcomes of a landmark share: how long each row was followed, whose it is, and named parts of them."""

    followed_days: FloatArray  # [N] from the landmark to death or end of follow-up
    is_censored: BoolArray  # [N] False where death ended follow-up
    cluster: IntArray | None = None  # [N] number of the person, from 0; None: one row a person
    stratum: IntArray | None = None  # [N] censoring is estimated within; None: over all
    subgroups: dict[str, BoolArray] = field(default_factory=dict)  # name → [N]

    @property
    def n_rows(self) -> int:
        """Return N."""
        return int(self.followed_days.size)

    @property
    def person(self) -> IntArray:
        """Return the number of the person of each row: [N]."""
        return np.arange(self.n_rows) if self.cluster is None else self.cluster


@dataclass(frozen=True)
class OutcomeSample:
    """Rows at risk of one outcome that have a risk from every predictor that has any; risks of the others are NaN."""

    outcome: str
    row: IntArray  # [n] position among the rows of the landmark, each once
    time: FloatArray  # [n] days since the landmark
    status: IntArray  # [n] 0 censored, 1 outcome, 2 competing death
    risks: FloatArray  # [P, H, n]
    n_without_risk: int = 0

    def is_case(self, horizon: float) -> BoolArray:
        """Say who has the outcome up to a horizon: [n]."""
        cases: BoolArray = (self.status == OUTCOME) & (self.time <= horizon)
        return cases

    def has_risks(self, predictor: int) -> bool:
        """Say whether a predictor knows this outcome."""
        return not np.isnan(self.risks[predictor]).any()

    def count_cases(self, horizon: float) -> int:
        """Return the number of cases up to a horizon."""
        return int(np.count_nonzero(self.is_case(horizon)))

    def select(self, is_inside: BoolArray) -> "OutcomeSample":
        """Return the rows that are inside, of [n]."""
        return replace(
            self, row=self.row[is_inside], time=self.time[is_inside], status=self.status[is_inside],
            risks=self.risks[..., is_inside],
        )  # fmt: skip
