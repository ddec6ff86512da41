"""Hazards by age with a closed cumulative hazard and a closed inverse: Gompertz and Weibull within a window of ages.

The hazards here are 1 a year at age 60 (where the window holds 60); rates multiply them. Ages are years.
"""

from dataclasses import dataclass

import numpy as np

from data_schemas.truth import GOMPERTZ, REFERENCE_AGE_YEARS
from pipelines.evaluation.array_types import FloatArray

NEVER = np.inf


@dataclass(frozen=True)
class AgeHazard:
    """f(a) = exp(shape · (a − 60)) or (a/60)^(shape − 1) for ages in [from_years, until_years), 0 outside."""

    form: str
    shape: float
    from_years: float
    until_years: float

    def cumulative(self, age: FloatArray) -> FloatArray:
        """Return F(a) = ∫₀ᵃ f; the age may be infinite."""
        integral: FloatArray = self._integral(np.clip(age, self.from_years, self.until_years)) - self._offset
        return integral

    def inverse(self, cumulative: FloatArray) -> FloatArray:
        """Return the age at which F reaches a value ≥ 0, `NEVER` where it does not."""
        reached = cumulative < self._total
        within = np.where(reached, cumulative, 0.0) + self._offset
        if self.form == GOMPERTZ:
            age = REFERENCE_AGE_YEARS + np.log(within * self.shape) / self.shape
        else:
            age = REFERENCE_AGE_YEARS * (within * (self.shape / REFERENCE_AGE_YEARS)) ** (1.0 / self.shape)
        return np.where(reached, age, NEVER)

    def _integral(self, age: FloatArray) -> FloatArray:
        if self.form == GOMPERTZ:
            return np.asarray(np.exp(self.shape * (age - REFERENCE_AGE_YEARS)) / self.shape)
        return np.asarray((REFERENCE_AGE_YEARS / self.shape) * (age / REFERENCE_AGE_YEARS) ** self.shape)

    @property
    def _offset(self) -> float:
        return float(self._integral(np.array(self.from_years)))

    @property
    def _total(self) -> float:
        return float(self._integral(np.array(self.until_years))) - self._offset
