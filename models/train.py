"""The training loop: straight code, resumable, the same weights whether or not it was interrupted."""

import copy
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from data_schemas.dataset import NO_EVENT_TOKEN, QUERY_TOKEN
from data_schemas.errors import TrainingDivergedError
from data_schemas.sequence_batch import FutureTargets, SequenceBatch, Targets
from models.checkpoints import read_tensors, write_tensors
from models.config import TrainConfig
from models.fast_arithmetic import prepare_arithmetic
from models.losses import all_future_negative_log_likelihood, next_token_negative_log_likelihood
from models.risk_model import RiskModel

STATE_FILE = "training_state.safetensors"

# The batch of one step, in parts of people whose histories are of similar length: little padding.
Parts = Sequence[tuple[SequenceBatch, Targets]]


class Batches(Protocol):
    """Where batches come from; the plan of an epoch follows from its number alone."""

    def count(self) -> int:
        """Return the number of training batches of an epoch."""

    def training(self, epoch: int, skip: int) -> Iterator[Parts]:
        """Yield the batches of an epoch, without the first `skip`."""

    def tuning(self) -> Iterator[Parts]:
        """Yield the tuning batches, the same at every call."""


@dataclass
class Progress:
    """Where training stands; everything besides tensors that a resumed run needs."""

    epoch: int = 0
    batch_in_epoch: int = 0
    step: int = 0
    epoch_loss: float = 0.0
    training_losses: list[float] = field(default_factory=list)  # one entry a finished epoch
    tuning_losses: list[float] = field(default_factory=list)
    finished: bool = False

    @property
    def best_epoch(self) -> int:
        """Return the epoch with the lowest tuning loss, the first of several."""
        return self.tuning_losses.index(min(self.tuning_losses))


@dataclass(frozen=True)
class StepRecord:
    """One step: negative log-likelihood a query or interval (nats), learning rate, speed since the last record."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    events_per_second: float


@dataclass(frozen=True)
class EpochRecord:
    """One pass over the training people, judged on the tuning people (nats a query or interval)."""

    epoch: int
    step: int
    training_loss: float
    tuning_loss: float
    is_best: bool


@dataclass(frozen=True)
class Note:
    """Something a person should know of the run, such as an option that does not work here."""

    text: str


Record = StepRecord | EpochRecord | Note


def train(config: TrainConfig, model: RiskModel, batches: Batches, folder: Path) -> Iterator[Record]:
    """Train `model` in place, yielding a record a step and an epoch; it ends with the best averaged weights.

    `folder` keeps the state of the run. Called again with the same arguments after an interruption it goes on from
    there, and ends with the very weights of an undisturbed run: query ages, batches and dropout follow from seed,
    epoch and step, not from how long the process has lived.

    Raises:
        TrainingDivergedError: the loss is no longer finite.
    """
    # 1. Optimizer, running average of the weights, and the place where an earlier call was interrupted.
    optimizer = _optimizer(model, config)
    averaged, best = copy.deepcopy(model), copy.deepcopy(model)
    networks = {"model": model, "averaged": averaged, "best": best}
    if not (folder / STATE_FILE).exists():  # interrupted before its first save, a run starts from these weights again
        _save(folder / STATE_FILE, networks, optimizer, Progress())
    progress = _restore(folder / STATE_FILE, networks, optimizer)
    total_steps = batches.count() * config.max_epochs
    device = next(model.parameters()).device
    arithmetic = prepare_arithmetic(config, model)
    yield from (Note(text) for text in arithmetic.notes)

    while not progress.finished:
        # 2. One epoch of steps.
        model.train()
        for parts in batches.training(progress.epoch, progress.batch_in_epoch):
            started = time.perf_counter()
            torch.manual_seed(_step_seed(config.seed, progress.step))
            rate = _learning_rate(config, progress.step, total_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            loss = 0.0
            for batch, targets in parts:
                seen = _hide_events(batch.to(device), config)
                with arithmetic.autocast():
                    part_loss = mean_loss(model, seen, targets.to(device))
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += part_loss.item()
            if not math.isfinite(loss):
                raise TrainingDivergedError(f"the loss is {loss} at step {progress.step}; try a lower learning rate")
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_gradient_norm)
            optimizer.step()
            _average_weights(averaged, model, config.weight_average_steps, progress.step)

            progress.step += 1
            progress.batch_in_epoch += 1
            progress.epoch_loss += loss
            speed = sum(int(batch.valid.sum()) for batch, _ in parts) / (time.perf_counter() - started)
            yield StepRecord(progress.step, progress.epoch, loss, rate, speed)
            if progress.step % config.checkpoint_every_steps == 0:
                _save(folder / STATE_FILE, networks, optimizer, progress)

        # 3. Judge the averaged weights on the tuning people; stop when nothing has improved for a while.
        progress.tuning_losses.append(evaluate_loss(averaged, batches.tuning()))
        progress.training_losses.append(progress.epoch_loss / max(progress.batch_in_epoch, 1))
        is_best = progress.best_epoch == progress.epoch
        if is_best:
            best.load_state_dict(averaged.state_dict())
        record = EpochRecord(
            progress.epoch, progress.step, progress.training_losses[-1], progress.tuning_losses[-1], is_best
        )
        waited = progress.epoch - progress.best_epoch
        progress.epoch, progress.batch_in_epoch, progress.epoch_loss = progress.epoch + 1, 0, 0.0
        progress.finished = progress.epoch >= config.max_epochs or waited >= config.patience_epochs
        _save(folder / STATE_FILE, networks, optimizer, progress)
        yield record

    # 4. The best epoch is the result, with the level of each cause set to what was observed.
    model.load_state_dict(best.state_dict())
    model.eval()
    model.head.shift_log_hazards(observed_to_expected(model, batches.training(config.max_epochs, 0)).log())


def mean_loss(model: RiskModel, batch: SequenceBatch, targets: Targets) -> Tensor:
    """Return this part's share of a step's mean negative log-likelihood, in nats a query or a row.

    The divisor does not depend on what the people of the part lived through: batches of long and of short follow-up,
    of many and of few events then add up to the likelihood of the whole.
    """
    if isinstance(targets, FutureTargets):
        losses = all_future_negative_log_likelihood(model(batch), targets) * targets.query_weight
        return torch.where(batch.query_valid, losses, 0.0).sum() / targets.divisor
    hazards = model.hazards_at(batch, targets.row)
    return next_token_negative_log_likelihood(hazards, targets).sum() / targets.divisor


@torch.no_grad()
def evaluate_loss(model: RiskModel, batches: Iterator[Parts]) -> float:
    """Return the mean negative log-likelihood a query or interval over all batches, in nats."""
    model.eval()
    device = next(model.parameters()).device
    total = count = 0.0
    for parts in batches:
        divisor = parts[0][1].divisor
        loss = sum(mean_loss(model, batch.to(device), targets.to(device)).item() for batch, targets in parts)
        total, count = total + loss * divisor, count + divisor
    return total / max(count, 1.0)


@torch.no_grad()
def observed_to_expected(model: RiskModel, batches: Iterator[Parts]) -> Tensor:
    """Return Σ events / Σ H_k(time at risk) of each cause over all queries or intervals [K].

    Adding its logarithm to the log-hazards maximises the likelihood over the level of each cause alone. The level that
    training ends with is a little off: its last steps are noisy, averaging lags, and dropout is on, which makes the
    mean of exp(η) larger than the hazard without it. Half an event on both sides keeps a cause without cases finite.
    """
    device = next(model.parameters()).device
    observed = expected = torch.full((model.layout.n_outcomes,), 0.5, dtype=torch.float64, device=device)
    for batch, targets in itertools.chain.from_iterable(batches):
        events, hazard = _events_and_hazards(model, batch.to(device), targets.to(device))
        observed, expected = observed + events, expected + hazard
    return observed / expected


def _events_and_hazards(model: RiskModel, batch: SequenceBatch, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the events [K] of a batch and the cumulative hazard [K] that it lived through."""
    if isinstance(targets, FutureTargets):
        weight = (targets.query_weight * batch.query_valid)[..., None]
        hazard = torch.where(targets.at_risk, model(batch).cumulative_hazard(targets.time_years), 0.0)
        return (targets.happened * weight).sum((0, 1)), (hazard * weight).sum((0, 1))
    lived = model.hazards_at(batch, targets.row).cumulative_hazard(targets.interval_years[:, None])
    events = torch.bincount(targets.event_outcome, minlength=model.layout.n_outcomes)
    return events, torch.where(targets.at_risk, lived, 0.0).sum(0)


def read_progress(folder: Path) -> Progress | None:
    """Return where a run stands, or None where it has not saved anything yet."""
    path = folder / STATE_FILE
    return Progress(**json.loads(read_tensors(path)[1]["progress"])) if path.exists() else None


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019); norms, biases, scales and single vectors do not decay."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99), fused=True)


def _learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """Linear warm-up, then half a cosine down to the final share."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(total_steps - config.warmup_steps, 1)
    low = config.final_learning_rate_share
    return config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


@torch.no_grad()
def _average_weights(averaged: nn.Module, model: nn.Module, n_steps: int, step: int) -> None:
    """Move the exponential running average towards the weights of this step; it forgets over about `n_steps`.

    Averaged weights lie nearer to the bottom of the valley that noisy steps jump about in (Polyak & Juditsky 1992);
    the first steps are forgotten sooner, so that the starting weights do not linger.
    """
    kept = min(1 - 1 / n_steps, step / (10 + step))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - kept)


def _hide_events(batch: SequenceBatch, config: TrainConfig) -> SequenceBatch:
    """Hide a random share of the events from the network.

    In next_token a prediction is made at every row, so a hidden event stays as a row that says nothing but its age.
    """
    if config.token_dropout == 0:
        return batch
    hidden = torch.rand(batch.valid.shape, device=batch.valid.device) < config.token_dropout
    if config.mode == "all_future":
        return replace(batch, valid=batch.valid & ~hidden)
    hidden &= batch.valid & (batch.tokens != QUERY_TOKEN)
    return replace(
        batch,
        tokens=torch.where(hidden, NO_EVENT_TOKEN, batch.tokens),
        values=torch.where(hidden, torch.nan, batch.values),
    )


def _step_seed(seed: int, step: int) -> int:
    """Give every step dropout of its own, whether or not the run was interrupted before it."""
    return (seed * 1_000_003 + step + 1) % 2**63


def _save(path: Path, networks: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    tensors = {
        f"{role}.{name}": tensor for role, network in networks.items() for name, tensor in network.state_dict().items()
    }
    for name, parameter in networks["model"].named_parameters():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {"progress": json.dumps(asdict(progress))})


def _restore(path: Path, networks: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer) -> Progress:
    tensors, metadata = read_tensors(path)
    for role, network in networks.items():
        network.load_state_dict({name: tensors[f"{role}.{name}"] for name in network.state_dict()})
    for name, parameter in networks["model"].named_parameters():
        prefix = f"optimizer.{name}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if state:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    return Progress(**json.loads(metadata["progress"]))
