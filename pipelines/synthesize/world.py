"""The parameters of a made-up world, as arrays for whoever lets people live in it.

C codes (diseases, death last), n people, 4 traits.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.truth import TrueComorbidities, TrueHazards
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.synthesize.age_hazards import AgeHazard

BMI_CODE, SBP_CODE = "bmi", "sbp"
NEVER_SMOKED, SMOKED, SMOKES = SMOKING_CODES = ("smoking//never", "smoking//previous", "smoking//current")
_LOG_RATIOS = (
    TrueHazards.log_ratio_bmi.name,
    TrueHazards.log_ratio_sbp.name,
    TrueHazards.log_ratio_smoked.name,
    TrueHazards.log_ratio_smokes.name,
)


class WorldSettings(BaseModel):
    """`truth/world.json`: what the tables do not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = Field(default=1, description="layout of the truth folder")
    frailty_variance: float = Field(ge=0, description="variance of the gamma frailty, whose mean is 1")
    bmi_mean: float = Field(default=27.4, description="body mass index (kg/m²) at which its effect is none")
    bmi_sd: float = Field(default=4.8, gt=0, description="step of body mass index (kg/m²) that the log ratios refer to")
    sbp_mean: float = Field(default=138.0, description="systolic pressure (mmHg) at which its effect is none")
    sbp_sd: float = Field(
        default=18.0, gt=0, description="step of systolic pressure (mmHg) that the log ratios refer to"
    )
    made_with: dict[str, Any] = Field(description="settings, number of people and seed the cohort was made with")


@dataclass(frozen=True)
class Traits:
    """What is known of people at entry: sex, body mass index (kg/m²), systolic pressure (mmHg), smoking; each [n].

    `smoking` is the position in `SMOKING_CODES`.
    """

    is_male: BoolArray
    bmi: FloatArray
    sbp: FloatArray
    smoking: IntArray

    def take(self, people: IntArray) -> "Traits":
        """Return the traits of some of the people."""
        return Traits(self.is_male[people], self.bmi[people], self.sbp[people], self.smoking[people])


@dataclass(frozen=True)
class World:
    """True hazards (see `TrueHazards`), codes in an order in which each depends on earlier ones alone, death last."""

    settings: WorldSettings
    codes: tuple[str, ...]  # C
    hazards: tuple[AgeHazard, ...]  # C
    rate_per_year: FloatArray  # [2, C]: women, men
    log_ratios: FloatArray  # [4, C], by trait
    causes: tuple[IntArray, ...]  # C, positions of the codes whose past multiplies the hazard
    ratios: tuple[FloatArray, ...]  # C, by how much

    @property
    def death(self) -> int:
        """The position of death."""
        return len(self.codes) - 1

    def rates(self, traits: Traits) -> FloatArray:
        """Return what multiplies f(age), without frailty and past diseases: [C, n], a year."""
        scaled = np.stack(
            [
                (traits.bmi - self.settings.bmi_mean) / self.settings.bmi_sd,
                (traits.sbp - self.settings.sbp_mean) / self.settings.sbp_sd,
                traits.smoking == SMOKING_CODES.index(SMOKED),
                traits.smoking == SMOKING_CODES.index(SMOKES),
            ]
        )
        rates: FloatArray = np.exp(self.log_ratios.T @ scaled) * self.rate_per_year[traits.is_male.astype(np.int64)].T
        return rates


def world_of(settings: WorldSettings, hazards: pl.DataFrame, comorbidities: pl.DataFrame) -> World:
    """Make a world of its tables (`TrueHazards`, `TrueComorbidities`)."""
    codes = tuple(hazards[TrueHazards.code.name])
    place = {code: position for position, code in enumerate(codes)}
    causes: list[list[int]] = [[] for _ in codes]
    ratios: list[list[float]] = [[] for _ in codes]
    for cause, effect, ratio in comorbidities.select(TrueComorbidities.column_names()).iter_rows():
        causes[place[effect]].append(place[cause])
        ratios[place[effect]].append(ratio)
    forms = hazards.select(
        TrueHazards.form.name, TrueHazards.shape.name, TrueHazards.from_years.name, TrueHazards.until_years.name
    )
    return World(
        settings=settings,
        codes=codes,
        hazards=tuple(AgeHazard(*row) for row in forms.iter_rows()),
        rate_per_year=hazards.select(
            TrueHazards.female_rate_per_year.name, TrueHazards.male_rate_per_year.name
        ).to_numpy().T,
        log_ratios=hazards.select(_LOG_RATIOS).to_numpy().T,
        causes=tuple(np.array(positions, dtype=np.int64) for positions in causes),
        ratios=tuple(np.array(factors, dtype=np.float64) for factors in ratios),
    )  # fmt: skip
