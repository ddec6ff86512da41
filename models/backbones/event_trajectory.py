"""Event–Trajectory (seed `event_trajectory_shared_v1`): slots that read a fixed event memory in shared rounds.

B subjects, L events, Q queries, D width, H trajectory slots, Dh = D/H slot width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from data_schemas.sequence_batch import SequenceBatch
from models.config import WIDTH_OF_SIZE, TrainConfig
from models.event_embedding import EventEmbedding, initialise_event_embedding
from models.time_encoding import AgeEncoding, GapBias, GapFeatures, TimeRotation, gaps_days, rotate
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

    keys: Tensor  # [B,H,L,Dh], rotated in relative mode
    values: Tensor  # [B,H,L,Dh]
    bias: Tensor  # [B,H,Q,L]: gap bias, and -1e9 where a query must not look
    any_visible: Tensor  # [B,1,Q,1]
    query_angles: tuple[Tensor, Tensor] | None  # cosine, sine [B,1,Q,Dh/2]


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

    def project_event_memory(self, events: Tensor, batch: SequenceBatch) -> EventMemory:
        """Compute keys, values, bias and mask once; the rounds share them."""
        keys, values = self._by_slot(self.k_proj(events)), self._by_slot(self.v_proj(events))
        visible = batch.valid[:, None, :] & (
            batch.ages_days[:, None, :] <= batch.query_ages_days[:, :, None]
        )  # [B,Q,L]
        bias = torch.where(visible, 0.0, -1e9).to(keys.dtype)[:, None]
        query_angles = None
        if self.rotation is not None and self.gap_features is not None and self.gap_bias is not None:
            features = self.gap_features(gaps_days(batch.query_ages_days, batch.ages_days))
            bias = bias + self.gap_bias(features).permute(0, 3, 1, 2)
            cosine, sine = self.rotation.angles(batch.ages_days, keys.dtype)
            keys = rotate(keys, cosine[:, None], sine[:, None])
            cosine, sine = self.rotation.angles(batch.query_ages_days, keys.dtype)
            query_angles = cosine[:, None], sine[:, None]
        return EventMemory(keys, values, bias, visible.any(-1)[:, None, :, None], query_angles)

    def forward(self, state: Tensor, memory: EventMemory) -> Tensor:
        """Run one round: state [B,H,Q,Dh] → [B,H,Q,Dh]."""
        state = state + self.attn_scale * self.dropout(self._read(self.norm_attention(state), memory))
        mixed: Tensor = self.mixer_scale * self.dropout(self._mix(self.norm_mixer(state)))
        return state + mixed

    def _read(self, state: Tensor, memory: EventMemory) -> Tensor:
        queries = torch.einsum("bhqd,hde->bhqe", state, self.q_proj)
        if memory.query_angles is not None:
            queries = rotate(queries, *memory.query_angles)
        scores = queries @ memory.keys.transpose(-1, -2) * self.size.trajectory_dim**-0.5 + memory.bias
        readout = softmax(scores, dim=-1) @ memory.values
        return torch.where(memory.any_visible, readout, 0.0)  # nothing to read: zero, not a mean of padding

    def _mix(self, state: Tensor) -> Tensor:
        n_subjects, n_slots, n_queries, width = state.shape
        slots = state.transpose(1, 2).reshape(n_subjects * n_queries, n_slots, width)
        mixed: Tensor = self.mixer(slots)
        return mixed.view(n_subjects, n_queries, n_slots, width).transpose(1, 2)

    def _by_slot(self, vectors: Tensor) -> Tensor:
        """Cut [B,L,D] into [B,H,L,Dh]."""
        return vectors.view(*vectors.shape[:2], self.size.n_trajectory, self.size.trajectory_dim).transpose(1, 2)


class EventTrajectory(nn.Module):
    """Embeds events once, then lets the trajectory state of each query read them in `n_reasoning_rounds` rounds."""

    FINGERPRINT = "d_model, n_trajectory, n_reasoning_rounds"

    def __init__(self, config: TrainConfig, layout: VocabularyLayout) -> None:
        """Build the network of the size preset; all initial values are set in `_initialise`."""
        super().__init__()
        size = SIZES[config.model_size]
        self.size, self.n_rounds = size, config.n_reasoning_rounds
        self.width = size.d_model
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
        self._initialise()

    def describe(self) -> dict[str, Any]:
        """Return what stands in `train_config.json` of the size preset and is compared when it is loaded."""
        return vars(self.size)

    def encode(self, batch: SequenceBatch) -> Tensor:
        """Return the final hidden state of each query: [B,D] for Q = 1, else [B,Q,D]."""
        events = self.event_norm(self.event_proj(self.embedding.events(batch)))  # [B,L,D]
        memory = self.reasoning_core.project_event_memory(events, batch)
        context = self.query_proj(self.embedding.queries(batch))  # [B,Q,D]
        slots = context.view(*context.shape[:2], self.size.n_trajectory, self.size.trajectory_dim)
        state = (self.prototypes + slots).transpose(1, 2)  # [B,H,Q,Dh]
        for _ in range(self.n_rounds):
            state = self.reasoning_core(state, memory)
        hidden: Tensor = self.final_norm(state.transpose(1, 2).flatten(-2))  # [B,Q,D]
        return hidden[:, 0] if hidden.shape[1] == 1 else hidden

    def _initialise(self) -> None:
        initialise_event_embedding(self.embedding)
        core = self.reasoning_core
        for linear in (self.event_proj, self.query_proj, core.k_proj, core.v_proj):
            nn.init.xavier_uniform_(linear.weight)
        for matrix in core.q_proj:
            nn.init.xavier_uniform_(matrix)
        initialise_mixer(core.mixer)
        nn.init.normal_(self.prototypes, std=_PROTOTYPE_STD)
