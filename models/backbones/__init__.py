"""The backbones by the name that stands in a config: SequenceBatch → hidden states, all with the same interface."""

from models.backbones.event_trajectory import EventTrajectory

BACKBONES = {"event_trajectory_shared_v1": EventTrajectory}
