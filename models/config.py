"""What a person may decide about a model and its training: one flat list of keys, spelled as in `train_config.json`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ModelSize = Literal["nano", "small", "medium", "huge"]
EVENT_TRAJECTORY = "event_trajectory_shared_v1"
WIDTH_OF_SIZE = {"nano": 256, "small": 512, "medium": 768, "huge": 1024}


class TrainConfig(BaseModel):
    """Settings of `deephealth train`, read from YAML; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # The network.
    model_architecture: Literal["event_trajectory_shared_v1", "traj_mixer_v5", "delphi_gpt_v1"] = Field(
        "event_trajectory_shared_v1", description="name of the backbone"
    )
    model_size: ModelSize = Field("nano", description="size preset of event_trajectory_shared_v1")
    d_model: int = Field(120, ge=4, description="width; that of the preset for event_trajectory_shared_v1")
    n_head: int = Field(10, ge=1, description="attention heads, and groups of traj_mixer_v5, of the other backbones")
    n_layer: int = Field(12, ge=1, description="layers of the other backbones")
    n_reasoning_rounds: int = Field(12, ge=1, le=64, description="passes through the shared core; no parameters")
    time_mode: Literal["absolute", "relative"] = Field(
        "relative", description="relative adds rotary encoding and a bias by the time between query and event"
    )
    mode: Literal["all_future", "next_token"] = Field(
        "all_future", description="predict at queries up to the end of observation, or at every row up to the next"
    )
    head: Literal["weibull", "mixed", "next_token"] = Field(
        "weibull", description="form of the hazard after the query; next_token is a constant, tied to the embedding"
    )
    mlp_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on both residual updates of a round")
    token_dropout: float = Field(0.0, ge=0, lt=1, description="share of events hidden at random during training")
    max_events: int = Field(512, ge=2, description="events of a history that are read, the latest ones")

    # What happens to histories on their way in.
    no_event_rows: Literal["none", "regular", "random"] = Field(
        "none", description="rows that say nothing was recorded up to here; only under observation"
    )
    no_event_interval_years: float = Field(5.0, gt=0, description="years from one no_event row to the next, on average")
    shuffle_same_day: bool = Field(False, description="order the events of one age at random in training")
    covariate_delay_years: float = Field(
        0.0, ge=0, description="largest random delay of each visit's measurements in training; never to an earlier age"
    )

    # The training.
    seed: int = Field(0, ge=0, description="of initial weights, query ages, batches and dropout")
    batch_size: int = Field(128, ge=1, description="people a step")
    queries_per_person: int = Field(4, ge=1, description="ages asked for each person in an epoch, drawn afresh")
    query_at_entry: bool = Field(True, description="one of them is the entry into observation")
    entry_query_share: float = Field(
        0.3, ge=0, le=1, description="of the weight of all queries that entry has, if asked"
    )
    max_epochs: int = Field(30, ge=1, description="passes over the training people")
    patience_epochs: int = Field(6, ge=1, description="epochs without a better tuning likelihood before stopping")
    learning_rate: float = Field(1e-3, gt=0, description="at the end of the warm-up; falls along a cosine")
    final_learning_rate_share: float = Field(0.05, ge=0, le=1, description="of the learning rate, at the last epoch")
    warmup_steps: int = Field(100, ge=0, description="steps of linear rise")
    weight_decay: float = Field(0.1, ge=0, description="on matrices only")
    weight_average_steps: int = Field(
        200,
        ge=1,
        description="steps over which the weights are averaged that are judged and kept; 1: those of the step",
    )
    autocast_bfloat16: bool = Field(False, description="compute matrix products in bfloat16; hazards stay float32")
    compile: bool = Field(False, description="compile the backbone with torch.compile, where that works")
    gradient_checkpointing: bool = Field(False, description="recompute rounds or layers backwards; less memory, slower")
    clip_gradient_norm: float = Field(1.0, gt=0, description="largest norm of the gradient of one step")
    checkpoint_every_steps: int = Field(500, ge=1, description="steps between saved states, besides each epoch's end")

    @model_validator(mode="before")
    @classmethod
    def _a_preset_sets_the_width(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("model_architecture", EVENT_TRAJECTORY) != EVENT_TRAJECTORY:
            return data
        size = data.get("model_size", "nano")
        width = WIDTH_OF_SIZE.get(size) if isinstance(size, str) else None
        if width and data.get("d_model", width) != width:
            raise ValueError(f"d_model of size {size} is {width}")
        return {**data, "d_model": width} if width else data

    @model_validator(mode="after")
    def _some_query_is_drawn(self) -> "TrainConfig":
        if self.query_at_entry and self.queries_per_person < 2:
            raise ValueError("query_at_entry needs queries_per_person of 2 or more, so that later ages are seen too")
        return self

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "TrainConfig":
        if self.model_architecture != EVENT_TRAJECTORY and self.d_model % (2 * self.n_head):
            raise ValueError("d_model must be a multiple of 2 * n_head: rotation turns pairs of a head's coordinates")
        return self
