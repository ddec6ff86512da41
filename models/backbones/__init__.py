"""The backbones by the name that stands in a config: SequenceBatch → hidden states, all with the same interface."""

from models.backbones.delphi_gpt import DelphiGpt
from models.backbones.event_trajectory import EventTrajectory
from models.backbones.traj_mixer import TrajMixer

Backbone = EventTrajectory | TrajMixer | DelphiGpt

BACKBONES: dict[str, type[Backbone]] = {
    "event_trajectory_shared_v1": EventTrajectory,
    "traj_mixer_v5": TrajMixer,
    "delphi_gpt_v1": DelphiGpt,
}
