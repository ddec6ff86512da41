"""How fast each backbone is, as a ratio to a plain transformer in the same run.

The plain transformer is that of `plain_transformer.py`; both sides are eager, or with --compiled both are compiled,
each in its own best way. One ratio is the median over interleaved pairs of CPU seconds of one thread: seconds alone
move with whatever else the machine does, ratios of neighbours hardly. Three things are reported of each case:

- ratio_forward_backward: the backbone alone, events in, hidden states out, and back.
- ratio_training_step: with the tied head, the likelihood of the mode under constant hazards and a fused AdamW step; the
  plain side has the same head, likelihood and optimiser. `events_per_second` is that of our side.
- peak_memory_mb: what our backbone keeps between forward and backward, each stored tensor once and parameters not
  counted. That is what limits the batch; it is counted by hooks on saved tensors and depends on no allocator.

The last rows show how these grow with the length of histories (4,096 events a batch) and with the number of outcomes.
In all_future one query a person is asked, behind the history; the plain side predicts at its last row.

    .venv/bin/python benchmarks/backbones.py [--quick] [--compiled] [--pairs 5] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from benchmarks.plain_transformer import PlainTransformer
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.dataset import QUERY_TOKEN
from data_schemas.sequence_batch import FutureTargets, NextTargets, SequenceBatch, Targets
from models.cause_hazards import CauseHazards
from models.config import TrainConfig
from models.losses import all_future_negative_log_likelihood, next_token_negative_log_likelihood
from models.risk_model import RiskModel, seeded_model
from models.vocabulary_layout import VocabularyLayout

_FIRST_DISEASE = 3  # tokens 0 to 2 are padding, query and no_event
_EVENTS_A_BATCH = 4096
_ROWS = {"d_model": 120, "n_head": 10, "n_layer": 12}
BACKBONES: dict[str, dict[str, Any]] = {
    "traj_mixer_v5": {"model_architecture": "traj_mixer_v5", **_ROWS},
    "event_trajectory_shared_v1": {"model_architecture": "event_trajectory_shared_v1", "n_reasoning_rounds": 12},
    "delphi_gpt_v1": {"model_architecture": "delphi_gpt_v1", **_ROWS},
}
_SAME_DEPTH, _SAME_WIDTH_AS_NANO = (120, 10, 12), (256, 8, 4)  # width, heads, layers of the plain transformer


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    backbone: str
    mode: str
    plain: tuple[int, int, int]  # width, heads, layers
    length: int = 64
    batch: int = 64
    n_outcomes: int = 1253


def standard_cases() -> list[Case]:
    """Return each backbone in each mode, Event–Trajectory beside both plain transformers."""
    compared = [
        ("traj_mixer_v5", _SAME_DEPTH), ("event_trajectory_shared_v1", _SAME_WIDTH_AS_NANO),
        ("event_trajectory_shared_v1", _SAME_DEPTH), ("delphi_gpt_v1", _SAME_DEPTH),
    ]  # fmt: skip
    return [Case(name, mode, plain) for name, plain in compared for mode in ("next_token", "all_future")]


def quick_cases() -> list[Case]:
    """Return each backbone once, and the cheap mode of Event–Trajectory, with half the people a batch."""
    chosen = [case for case in standard_cases() if case.mode == "next_token" or "trajectory" in case.backbone]
    return [replace(case, batch=32) for case in chosen if case.plain == _plain_of(case.backbone)]


def growth_cases() -> list[Case]:
    """Return longer histories with as many events a batch, and more outcomes; next_token."""
    by_length = [
        Case(name, "next_token", _plain_of(name), length=length, batch=_EVENTS_A_BATCH // length)
        for name in BACKBONES
        for length in (32, 128, 256, 512)
    ]
    by_outcomes = [
        Case(name, "next_token", _plain_of(name), n_outcomes=n_outcomes)
        for name in BACKBONES
        for n_outcomes in (100, 500, 2500, 5000)
    ]
    return by_length + by_outcomes


def _plain_of(backbone: str) -> tuple[int, int, int]:
    return _SAME_WIDTH_AS_NANO if backbone == "event_trajectory_shared_v1" else _SAME_DEPTH


def made_up_layout(n_outcomes: int) -> VocabularyLayout:
    """Return a vocabulary of diseases, the last of which stands for death."""
    tokens = tuple(range(_FIRST_DISEASE, _FIRST_DISEASE + n_outcomes))
    return VocabularyLayout((False,) * (_FIRST_DISEASE + n_outcomes), tokens, n_outcomes - 1, (-6.0,) * n_outcomes)


def made_up_batch(case: Case, seed: int = 0) -> tuple[SequenceBatch, Targets]:
    """Return histories of whole days over 65 years without padding, the first row a query row, and what followed."""
    generator = torch.Generator().manual_seed(seed)
    shape, query_shape = (case.batch, case.length), (case.batch, 1 if case.mode == "all_future" else 0)
    ages = (5_000 + torch.rand(shape, generator=generator) * 24_000).floor().sort(-1).values
    tokens = _FIRST_DISEASE + torch.randint(case.n_outcomes, shape, generator=generator)
    tokens[:, 0] = QUERY_TOKEN
    batch = SequenceBatch(
        tokens=tokens,
        ages_days=ages,
        values=torch.full(shape, torch.nan),
        valid=torch.ones(shape, dtype=torch.bool),
        sex=torch.randint(0, 2, (case.batch,), generator=generator),
        entry_age_days=ages[:, 0],
        exit_age_days=ages[:, -1] + 1_000,
        query_ages_days=(ages[:, -1:] + 1).expand(query_shape),
        query_valid=torch.ones(query_shape, dtype=torch.bool),
    )
    return batch, _next_targets(batch, case) if case.mode == "next_token" else _future_targets(case, generator)


def _next_targets(batch: SequenceBatch, case: Case) -> NextTargets:
    """Every row starts an interval that the next row ends; the last one ends at exit without an event."""
    n_rows = batch.tokens.numel()
    ends = torch.cat([batch.ages_days[:, 1:], batch.exit_age_days[:, None]], dim=1)
    years = ((ends - batch.ages_days).clamp(min=0.5) / DAYS_PER_YEAR).flatten()
    followed = torch.arange(n_rows).view(batch.tokens.shape)[:, :-1].flatten()
    outcome = (batch.tokens[:, 1:] - _FIRST_DISEASE).flatten()
    at_risk = torch.ones(n_rows, case.n_outcomes, dtype=torch.bool)
    return NextTargets(torch.arange(n_rows), years, at_risk, followed, outcome, float(n_rows))


def _future_targets(case: Case, generator: torch.Generator) -> FutureTargets:
    shape = (case.batch, 1, case.n_outcomes)
    happened = torch.rand(shape, generator=generator) < 0.02
    years = 0.1 + 10 * torch.rand(shape, generator=generator)
    return FutureTargets(years, happened, torch.ones_like(happened), torch.ones(case.batch, 1), float(case.batch))


def likelihood(hazards: CauseHazards, targets: Targets) -> Tensor:
    """Return the mean negative log-likelihood of the mode."""
    if isinstance(targets, NextTargets):
        return next_token_negative_log_likelihood(hazards, targets).sum() / targets.divisor
    return all_future_negative_log_likelihood(hazards, targets).sum() / targets.divisor


@dataclass(frozen=True)
class Side:
    """One of the two that are compared: its work is a function of nothing."""

    encode: Callable[[], Tensor]  # hidden states of what is predicted: [N,D]
    parameters: list[nn.Parameter]
    embedding: nn.Embedding
    head: nn.Module

    def forward_backward(self) -> None:
        """Run the backbone and go back from a gradient of ones."""
        hidden = self.encode()
        hidden.backward(torch.ones_like(hidden))
        for parameter in self.parameters:
            parameter.grad = None

    def training_step(self, optimizer: torch.optim.Optimizer, targets: Targets) -> None:
        """Run backbone, head and likelihood, go back and step."""
        hidden = self.encode()
        if isinstance(targets, FutureTargets):
            hidden = hidden[:, None]  # one query a person
        likelihood(self.head(hidden, self.embedding.weight), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def our_side(case: Case, batch: SequenceBatch, *, compiled: bool) -> Side:
    """Return the backbone of a case with the tied head."""
    config = TrainConfig(mode=case.mode, head="next_token", mlp_dropout=0.0, **BACKBONES[case.backbone])
    model: RiskModel = seeded_model(config, made_up_layout(case.n_outcomes))
    backbone = model.backbone
    if compiled:
        backbone.compile_hot_loop()

    def encode() -> Tensor:
        return backbone.encode(batch).view(-1, backbone.width)

    return Side(encode, [*model.parameters()], backbone.embedding.token, model.head)


def plain_side(case: Case, batch: SequenceBatch, head: nn.Module, *, compiled: bool) -> Side:
    """Return the plain transformer of a case, with the same head reading its own embedding."""
    width, n_heads, n_layers = case.plain
    torch.manual_seed(0)
    plain = PlainTransformer(_FIRST_DISEASE + case.n_outcomes, width, n_heads, n_layers, case.length)
    run = torch.compile(plain) if compiled else plain

    def encode() -> Tensor:
        hidden: Tensor = run(batch.tokens)
        return hidden.flatten(0, 1) if case.mode == "next_token" else hidden[:, -1]

    return Side(encode, [*plain.parameters()], plain.token, head)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def paired_seconds(ours: Callable[[], object], theirs: Callable[[], object], n_pairs: int) -> list[tuple[float, float]]:
    """Time both in turn, after one call of each that is not counted."""
    ours()
    theirs()
    return [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(n_pairs)]


def median_ratio(pairs: list[tuple[float, float]]) -> float:
    """Return the median over pairs of ours/theirs."""
    return statistics.median(ours / theirs for ours, theirs in pairs)


def kept_megabytes(encode: Callable[[], Tensor], parameters: list[nn.Parameter]) -> float:
    """Return the size of all tensors that a forward pass keeps for the way back, each storage once."""
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _hidden = encode()  # held, so that no address is used twice
    return sum(kept.values()) / 1e6


def measure(case: Case, n_pairs: int, n_steps: int, *, compiled: bool) -> dict[str, Any]:
    """Return one row of the table, from so many pairs of passes and of training steps."""
    batch, targets = made_up_batch(case)
    ours = our_side(case, batch, compiled=compiled)
    theirs = plain_side(case, batch, ours.head, compiled=compiled)
    first_seconds = cpu_seconds(ours.forward_backward) if compiled else None  # with what compiling takes
    alone = paired_seconds(ours.forward_backward, theirs.forward_backward, n_pairs)
    steps = [
        partial(side.training_step, torch.optim.AdamW(side.parameters, lr=1e-4, fused=True), targets)
        for side in (ours, theirs)
    ]
    whole = paired_seconds(*steps, n_steps)
    width, _, n_layers = case.plain
    compiling = None if first_seconds is None else first_seconds - statistics.median(seconds for seconds, _ in alone)
    return {
        "backbone": case.backbone,
        "mode": case.mode,
        "length": case.length,
        "batch": case.batch,
        "n_outcomes": case.n_outcomes,
        "plain_width": width,
        "plain_layers": n_layers,
        "compiled": compiled,
        "ratio_forward_backward": round(median_ratio(alone), 3),
        "ratio_training_step": round(median_ratio(whole), 3),
        "events_per_second": round(case.batch * case.length / statistics.median(seconds for seconds, _ in whole)),
        "peak_memory_mb": round(kept_megabytes(ours.encode, ours.parameters), 1),
        "plain_peak_memory_mb": round(kept_megabytes(theirs.encode, theirs.parameters), 1),
        "compile_seconds": None if compiling is None else round(compiling, 1),
    }


def main() -> None:
    """Measure all cases and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four cases with fewer people and two pairs")
    parser.add_argument("--compiled", action="store_true", help="both sides compiled; the standard cases alone")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    n_pairs, n_steps = (2, 1) if arguments.quick else (arguments.pairs, arguments.pairs)
    cases = quick_cases() if arguments.quick else standard_cases() + ([] if arguments.compiled else growth_cases())
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {version('torch')}, float32, CPU time")
    rows = []
    for case in cases:
        rows.append(measure(case, n_pairs, n_steps, compiled=arguments.compiled))
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=250, float_precision=3, tbl_hide_column_data_types=True):
        print(pl.DataFrame(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
