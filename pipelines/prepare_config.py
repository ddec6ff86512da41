"""What a person may decide about `prepare`; every field has a default that suits a first run."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PrepareConfig(BaseModel):
    """Settings of `deephealth prepare`, read from YAML; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split_seed: int = Field(
        1, ge=0, lt=10**16, description="seed of the hash that assigns people to splits; fix it before the first fit"
    )
    train_share: float = Field(0.70, gt=0, lt=1, description="share of the groups that the model is fitted on")
    tuning_share: float = Field(0.15, gt=0, lt=1, description="share for early stopping; the rest is held out")
    min_subjects: int = Field(
        10, ge=1, description="a code seen in fewer training people is left out of the vocabulary and counted"
    )
    input_only_codes: tuple[str, ...] = Field(
        (), description="codes that are read but never predicted; * stands for any characters"
    )
    groups: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="named outcomes of several codes: the first of any member"
    )
    outcome_groups: tuple[str, ...] = Field(
        (),
        description="documented groups by name (pipelines/outcome_groups.yaml), or all of them: all; "
        "one that matches no code is left out",
    )

    @model_validator(mode="after")
    def _some_are_held_out(self) -> "PrepareConfig":
        if self.train_share + self.tuning_share >= 1:
            raise ValueError("train_share + tuning_share must leave a share for held_out")
        return self
