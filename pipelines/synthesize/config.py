"""What a person may decide about a made-up population; every field has a default that resembles a large biobank."""

from datetime import date

from pydantic import BaseModel, ConfigDict, Field, model_validator

LARGEST_N_CODES = 1000


class SynthesizeConfig(BaseModel):
    """Settings of `deephealth cohort synthesize`, read from YAML; unknown keys are refused.

    `world_seed`, `n_codes`, `frailty_variance`, `causes_per_code` and `incidence_scale` make the world; the others and
    the number and seed of the command say who is seen of it, and for how long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    world_seed: int = Field(
        0, ge=0, lt=2**63, description="seed of the true hazards; populations of one world differ by the command's seed"
    )
    n_codes: int = Field(300, ge=2, le=LARGEST_N_CODES, description="number of diseases (three-character ICD-10 codes)")
    frailty_variance: float = Field(
        0.3, ge=0, le=2, description="variance of the gamma frailty that multiplies all hazards of a person (mean 1)"
    )
    causes_per_code: float = Field(
        1.5, ge=0, le=5, description="mean number of causes drawn for each disease, besides the comorbidities known"
    )
    incidence_scale: float = Field(1.0, gt=0, le=10, description="factor on the hazards of all diseases, not of death")
    entry_from_years: int = Field(40, ge=1, le=80, description="youngest age at recruitment (years)")
    entry_until_years: int = Field(70, ge=2, le=80, description="age at recruitment that nobody reaches (years)")
    recruited_from: date = Field(date(2006, 3, 13), description="first day of recruitment")
    recruited_until: date = Field(date(2010, 9, 30), description="last day of recruitment")
    censored_on: date = Field(date(2022, 10, 31), description="day on which follow-up of everyone ends")
    loss_per_year: float = Field(
        0.002, ge=0, le=1, description="rate at which people are lost to follow-up, whatever their health"
    )

    @model_validator(mode="after")
    def _ages_and_dates_ascend(self) -> "SynthesizeConfig":
        if self.entry_from_years >= self.entry_until_years:
            raise ValueError("entry_from_years must be below entry_until_years")
        if not self.recruited_from <= self.recruited_until < self.censored_on:
            raise ValueError("recruited_from, recruited_until and censored_on must ascend")
        if (self.censored_on - self.recruited_from).days > 365 * 40 or self.recruited_from.year < 1900:
            raise ValueError("recruitment must be after 1900 and follow-up at most 40 years")
        return self
