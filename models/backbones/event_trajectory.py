"""Event–Trajectory (seed `event_trajectory_shared_v1`): slots that read a fixed event memory in shared rounds.

B subjects, L events, Q queries, D width, H trajectory slots, Dh = D/H slot width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from data_schemas.sequence_batch import SequenceBatch
from models.config import WIDTH_OF_SIZE, TrainConfig
from models.event_embedding import EventEmbedding, initialise_event_embedding, initialise_final_norm
from models.feature_major import features_last, normalise_features
from models.row_attention import attend, events_seen_by_events, events_seen_by_queries
from models.row_backbone import run_recomputable
from models.time_encoding import AgeEncoding, GapBias, GapFeatures, TimeRotation, distinct_gaps, hiding_bias, rotate
from models.traj_mixer import TrajectoryMixer, initialise_mixer
from models.vocabulary_layout import VocabularyLayout

_PROTOTYPE_STD = 0.02


@dataclass(frozen=True)
class SizePreset:
    """One row of the seed's table of sizes."""

    d_model: int
    n_trajectory: int
    trajectory_dim: int
    traj_hidden: int


SIZES = {
    "nano": SizePreset(WIDTH_OF_SIZE["nano"], 8, 32, 32),
    "small": SizePreset(WIDTH_OF_SIZE["small"], 8, 64, 32),
    "medium": SizePreset(WIDTH_OF_SIZE["medium"], 12, 64, 48),
    "huge": SizePreset(WIDTH_OF_SIZE["huge"], 16, 64, 64),
}


@dataclass(frozen=True)
class EventMemory:
    """What every round reads and no round changes."""

    keys: Tensor  # [H,B,Dh,L], rotated in relative mode
    values: Tensor  # [H,B,Dh,L], already scaled as their readout enters the state
    bias: Tensor  # [H,G+1] of the distinct gaps; the last one hides
    entry: Tensor  # [B,Q,L] which of them a pair has
    sees: Tensor  # [B,Q] 1 where a query sees any event, else 0
    query_angles: tuple[Tensor, Tensor] | None  # cosine, sine [Dh/2,B,Q]


class SharedEventTrajectoryCore(nn.Module):
    """The one set of parameters that all rounds use: attention of slots to events, then the mixer across slots."""

    def __init__(self, size: SizePreset, n_rounds: int, dropout: float, *, relative_time: bool) -> None:
        """Start both residual scales at 1/sqrt(rounds)."""
        super().__init__()
        self.size = size
        self.norm_attention = nn.LayerNorm(size.trajectory_dim)
        self.norm_mixer = nn.LayerNorm(size.trajectory_dim)
        self.q_proj = nn.Parameter(torch.empty(size.n_trajectory, size.trajectory_dim, size.trajectory_dim))
        self.k_proj = nn.Linear(size.d_model, size.d_model, bias=False)
        self.v_proj = nn.Linear(size.d_model, size.d_model, bias=False)
        self.mixer = TrajectoryMixer(size.n_trajectory, size.trajectory_dim)
        self.attn_scale = nn.Parameter(torch.tensor(n_rounds**-0.5))
        self.mixer_scale = nn.Parameter(torch.tensor(n_rounds**-0.5))
        self.dropout = nn.Dropout(dropout)
        self.rotation = TimeRotation(size.trajectory_dim) if relative_time else None
        self.gap_features = GapFeatures() if relative_time else None
        self.gap_bias = GapBias(size.n_trajectory) if relative_time else None

    def project_event_memory(
        self, events: Tensor, event_ages_days: Tensor, query_ages_days: Tensor, visible: Tensor
    ) -> EventMemory:
        """Compute keys, values, bias and mask once; the rounds share them.

        Args:
            events: encoded events [B,L,D].
            event_ages_days: [B,L].
            query_ages_days: [B,Q].
            visible: [B,Q,L], which event each query may read.
        """
        weights = torch.cat([self.k_proj.weight, self.attn_scale * self.v_proj.weight])
        keys, values = project_to_slots(weights, events, 2 * self.size.n_trajectory).chunk(2)  # [H,Dh,B,L] each
        sees, query_angles = visible.any(-1).to(keys.dtype), None
        if self.rotation is not None and self.gap_features is not None and self.gap_bias is not None:
            gaps, entry = distinct_gaps(query_ages_days, event_ages_days, visible)
            bias = self.gap_bias(self.gap_features(gaps))
            keys = rotate(keys, *self.rotation.angles(event_ages_days, keys.dtype))
            query_angles = self.rotation.angles(query_ages_days, keys.dtype)
        else:
            bias, entry = hiding_bias(self.size.n_trajectory, keys), (~visible).long()
        keys, values = keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()
        return EventMemory(keys, values, bias, entry, sees, query_angles)

    def forward(self, state: Tensor, memory: EventMemory) -> Tensor:
        """Run one round: state [H,Dh,B,Q] → [H,Dh,B,Q]; a query that sees nothing reads zero, no mean of padding."""
        readout = self.dropout(self._read(normalise_features(state, self.norm_attention, 1), memory))
        state = torch.addcmul(state, readout, memory.sees)
        normed = normalise_features(state, self.norm_mixer, 1).flatten(2)
        mixed: Tensor = self.dropout(self.mixer(normed, self.mixer_scale)).view(state.shape)
        return state + mixed

    def _read(self, state: Tensor, memory: EventMemory) -> Tensor:
        queries = torch.bmm(self.q_proj.transpose(1, 2), state.flatten(2)).view(state.shape)
        if memory.query_angles is not None:
            queries = rotate(queries, *memory.query_angles)
        queries = queries.transpose(1, 2).contiguous()  # [H,B,Dh,Q]
        return attend(queries, memory.keys, memory.values, memory.bias, memory.entry).transpose(1, 2)


def project_to_slots(weight: Tensor, vectors: Tensor, n_slots: int) -> Tensor:
    """Map [B,L,D] by a matrix [n·Dh,D] to slots [n,Dh,B,L]: in this order of factors no copy is needed."""
    return (weight @ vectors.flatten(0, 1).t()).view(n_slots, -1, *vectors.shape[:2])


class EventTrajectory(nn.Module):
    """Embeds events once, then lets the trajectory state of each query read them in `n_reasoning_rounds` rounds."""

    FINGERPRINT = "d_model, n_trajectory, n_reasoning_rounds"

    def __init__(self, config: TrainConfig, layout: VocabularyLayout) -> None:
        """Build the network of the size preset; all initial values are set in `_initialise`."""
        super().__init__()
        size = SIZES[config.model_size]
        self.size, self.n_rounds = size, config.n_reasoning_rounds
        self.width, self.mode, self.recompute = size.d_model, config.mode, config.gradient_checkpointing
        self.embedding = EventEmbedding(layout, size.d_model, AgeEncoding(size.d_model))
        self.event_proj = nn.Linear(size.d_model, size.d_model, bias=False)
        self.event_norm = nn.LayerNorm(size.d_model)
        self.query_proj = nn.Linear(size.d_model, size.d_model, bias=False)
        self.prototypes = nn.Parameter(torch.empty(size.n_trajectory, size.trajectory_dim))
        self.reasoning_core = SharedEventTrajectoryCore(
            size, self.n_rounds, config.mlp_dropout, relative_time=config.time_mode == "relative"
        )
        self.final_norm = nn.LayerNorm(size.d_model)
        # The number of rounds changes no shape: only this fingerprint in the weights' file tells a mismatch.
        fingerprint = torch.tensor([size.d_model, size.n_trajectory, self.n_rounds], dtype=torch.int64)
        self.register_buffer("architecture_fingerprint", fingerprint)
        self._initialise(config.head)

    def describe(self) -> dict[str, Any]:
        """Return what stands in `train_config.json` of the size preset and is compared when it is loaded."""
        return vars(self.size)

    def compile_hot_loop(self) -> None:
        """Compile one round: all rounds are the same program."""
        self.reasoning_core.compile(dynamic=True)

    def encode(self, batch: SequenceBatch) -> Tensor:
        """Return final hidden states: of every event [B,L,D] in next_token, else of the queries, [B,D] for Q = 1."""
        features = self.embedding.events(batch)
        events = self.event_norm(self.event_proj(features))  # [B,L,D]
        if self.mode == "next_token":  # every event is a query with its own features, Q = L
            asked, query_ages, visible = features, batch.ages_days, events_seen_by_events(batch)
        else:
            asked, query_ages = self.embedding.queries(batch), batch.query_ages_days
            visible = events_seen_by_queries(batch)
        memory = self.reasoning_core.project_event_memory(events, batch.ages_days, query_ages, visible)
        context = project_to_slots(self.query_proj.weight, asked, self.size.n_trajectory)
        state = self.prototypes[:, :, None, None] + context  # [H,Dh,B,Q]
        for _ in range(self.n_rounds):
            state = run_recomputable(self.reasoning_core, state, memory, recompute=self.recompute)
        hidden: Tensor = self.final_norm(features_last(state.flatten(0, 1)))  # [B,Q,D]
        return hidden[:, 0] if hidden.shape[1] == 1 and self.mode == "all_future" else hidden

    def _initialise(self, head: str) -> None:
        initialise_event_embedding(self.embedding)
        initialise_final_norm(self.final_norm, head)
        core = self.reasoning_core
        for linear in (self.event_proj, self.query_proj, core.k_proj, core.v_proj):
            nn.init.xavier_uniform_(linear.weight)
        for matrix in core.q_proj:
            nn.init.xavier_uniform_(matrix)
        initialise_mixer(core.mixer)
        nn.init.normal_(self.prototypes, std=_PROTOTYPE_STD)
