"""How good each backbone is on Delphi's simulated cohort, beside two floors: same data, same steps, same targets.

Every backbone is trained in mode next_token for the same number of gradient steps on batches of the same number of
people, once for each learning rate of a small grid; the tuning people choose among them, the held-out people are
looked at once. Histories carry a no_event row every 5 years for all of them, so that a hazard that is constant between
rows follows age. The floors are incidence by age and sex, and a log-linear hazard of age, sex and past codes.

`log_likelihood_per_event` is in nats, of the whole point process, hazards per year. `macro_auc` is the time-dependent
AUC at ages 40, 45 … 70 for the 5 years after. `delphi_auc` and `death_auc` follow Delphi's own protocol. How each is
computed stands in `delphi_evaluation.py`, what was made of the files in `delphi_data.py`.

    DEEPHEALTH_TEST_DATA=DIR .venv/bin/python benchmarks/quality_delphi.py [--quick] [--json FILE] [--work DIR]

With --work the trainings are kept there: called again, it goes on where it was interrupted. A training is done anew
when data, settings or the code of the networks have changed.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from app.batches import DatasetBatches, history_options
from app.code_version import hash_sources
from app.config_files import read_config
from app.predict_risks import layout_of_vocabulary
from app.train_run import TRAINING_SOURCES
from benchmarks.delphi_data import FOLDER, prepare_delphi
from benchmarks.delphi_evaluation import Predict, evaluate
from benchmarks.delphi_floors import LogLinearFit, LogLinearHazard, fit_age_sex_incidence, fit_log_linear_hazard
from data_schemas.cohort import HELD_OUT, TRAIN
from data_schemas.sequence_batch import NextTargets, SequenceBatch
from models.backbones import BACKBONES
from models.config import TrainConfig
from models.heads import HEADS
from models.risk_model import RiskModel, count_parameters, seeded_model
from models.train import EpochRecord, Parts, read_progress, train
from pipelines.augment_histories import HistoryOptions, augment_histories
from pipelines.find_intervals import cut_pieces, find_intervals
from pipelines.pad_tensors import pad_pieces
from pipelines.prepare_dataset import read_manifest
from pipelines.read_dataset import read_vocabulary
from pipelines.sequence_files import SequenceShard, read_split
from pipelines.tables_on_disk import read_json, write_json
from pipelines.token_tables import TokenTables

_MODE = "next_token"
_LONGEST_HISTORY = 512  # rows, more than anybody has
_LOOKS = 4  # times that a training is judged on the tuning people
_SECONDS_FILE = "seconds.json"


@dataclass(frozen=True)
class Budget:
    """What every network gets, and the floors in proportion."""

    steps: int = 440
    batch: int = 128
    learning_rates: tuple[float, ...] = (1e-3, 3e-3)
    log_linear_epochs: int = 12
    n_people: int | None = None  # of each file
    no_event_interval_years: float = 5.0
    overrides: tuple[str, ...] = ()  # of the settings of networks

    @property
    def histories(self) -> list[str]:
        """Return the settings that every model and floor shares: they decide which rows there are."""
        return [f"mode={_MODE}", "no_event_rows=regular", f"no_event_interval_years={self.no_event_interval_years}"]


_QUICK = Budget(steps=4, batch=16, learning_rates=(3e-3,), log_linear_epochs=2, n_people=150)


@dataclass(frozen=True)
class Trained:
    """A finished training; its seconds add up over the calls that it took."""

    model: RiskModel
    tuning_loss: float
    seconds: float


class StepsInEpochs:
    """The same number of steps an epoch, however many people there are: passes over them one after another."""

    def __init__(self, batches: DatasetBatches, steps_per_epoch: int) -> None:
        """Cut the endless row of passes over `batches` into epochs."""
        self._batches, self._steps_per_epoch = batches, steps_per_epoch

    def count(self) -> int:
        """Return the number of training steps of an epoch."""
        return self._steps_per_epoch

    def training(self, epoch: int, skip: int) -> Iterator[Parts]:
        """Yield the steps of an epoch, without the first `skip`."""
        per_pass = self._batches.count()
        wanted = self._steps_per_epoch - skip
        number, done = divmod(epoch * self._steps_per_epoch + skip, per_pass)
        while wanted > 0:
            for parts in self._batches.training(number, done):
                yield parts
                wanted -= 1
                if wanted == 0:
                    return
            number, done = number + 1, 0

    def tuning(self) -> Iterator[Parts]:
        """Yield the tuning people."""
        return self._batches.tuning()


@dataclass(frozen=True)
class Cohort:
    """The prepared data and how people of it are padded."""

    dataset: Path
    vocabulary: pl.DataFrame
    tables: TokenTables
    options: HistoryOptions

    @staticmethod
    def prepare(source: Path, folder: Path, budget: Budget) -> "Cohort":
        """Import and prepare Delphi's files below `folder`."""
        dataset = prepare_delphi(source, folder, budget.n_people)
        vocabulary = read_vocabulary(dataset)
        options = history_options(read_config(TrainConfig, None, budget.histories))
        return Cohort(dataset, vocabulary, TokenTables.of(vocabulary, _MODE), options)

    def people(self, split: str) -> SequenceShard:
        """Return the people of a split; they are few enough for one file."""
        (shard,) = read_split(self.dataset, split)
        return shard

    def pad(self, people: SequenceShard) -> tuple[SequenceBatch, NextTargets]:
        """Return whole histories with all their intervals, in the order of the people."""
        histories = augment_histories(people, self.options, self.tables)
        intervals = find_intervals(histories, self.tables)
        pieces = cut_pieces(histories, intervals, _LONGEST_HISTORY)
        assert len(pieces.person) == len(people)  # nobody's history is so long that it must be cut
        return pad_pieces(histories, intervals, pieces, np.arange(len(people)), self.tables, float(len(intervals)))

    def judge(self, predict: Predict) -> dict[str, float]:
        """Return the figures of a model on the held-out people."""
        outcome_of_token = self.tables.outcome_of_token
        death = int(outcome_of_token[self.tables.death_token])
        quality = evaluate(predict, self.pad, self.people(HELD_OUT), outcome_of_token, death)
        return {name: round(figure, 4) for name, figure in asdict(quality).items()}


def run_floors(cohort: Cohort, budget: Budget) -> Iterator[dict[str, Any]]:
    """Fit and judge incidence by age and sex, then the log-linear hazard on top of it."""
    people, started = cohort.people(TRAIN), time.perf_counter()
    incidence = fit_age_sex_incidence(people, cohort.tables.outcome_of_token)
    seconds = time.perf_counter() - started
    yield {
        **_row("age_sex", None, seconds, cohort.judge(incidence)),
        "parameters": incidence.rate.numel(),
    }
    started = time.perf_counter()
    torch.manual_seed(0)
    floor = LogLinearHazard(incidence, cohort.tables.outcome_of_token)
    fit = LogLinearFit(epochs=budget.log_linear_epochs)
    fit_log_linear_hazard(floor, people, cohort.pad, fit)
    seconds = time.perf_counter() - started
    yield {
        **_row("log_linear", None, seconds, cohort.judge(floor)),
        "steps": fit.count_steps(len(people)),
        "batch": fit.batch_size,
        "learning_rate": fit.learning_rate,
        "parameters": sum(parameter.numel() for parameter in floor.parameters()),
    }


def run_backbone(cohort: Cohort, work: Path, backbone: str, head: str, budget: Budget) -> dict[str, Any]:
    """Train once for each learning rate and judge the one that the tuning people prefer."""
    configs = [config_of(backbone, head, rate, budget) for rate in budget.learning_rates]
    trained = [train_once(cohort, work, config, _steps_per_look(budget)) for config in configs]
    chosen = min(trained, key=lambda candidate: candidate.tuning_loss)
    return {
        **_row(backbone, head, chosen.seconds, cohort.judge(chosen.model.hazards_at)),
        "steps": _LOOKS * _steps_per_look(budget),
        "batch": budget.batch,
        "learning_rate": chosen.model.config.learning_rate,
        "parameters": count_parameters(chosen.model)[0],
    }


def config_of(backbone: str, head: str, learning_rate: float, budget: Budget) -> TrainConfig:
    """Return the settings of one training; a tenth of the steps warm up, and weights are averaged over a tenth."""
    tenth = max(budget.steps // 10, 1)
    overrides = (
        f"model_architecture={backbone}",
        f"head={head}",
        f"batch_size={budget.batch}",
        f"learning_rate={learning_rate}",
        f"max_epochs={_LOOKS}",
        f"patience_epochs={_LOOKS}",
        f"warmup_steps={tenth}",
        f"weight_average_steps={tenth}",
    )
    return read_config(TrainConfig, None, [*overrides, *budget.overrides, *budget.histories])


def train_once(cohort: Cohort, work: Path, config: TrainConfig, steps_per_look: int) -> Trained:
    """Train, or go on where an earlier call was interrupted, or find it done."""
    folder = work / "training" / _training_key(cohort.dataset, config, steps_per_look)
    model = seeded_model(config, layout_of_vocabulary(cohort.vocabulary, config.mode))
    batches = StepsInEpochs(DatasetBatches(cohort.dataset, cohort.vocabulary, config), steps_per_look)
    spent = folder / _SECONDS_FILE
    seconds = read_json(spent)["seconds"] if spent.exists() else 0.0
    started = time.perf_counter()
    for record in train(config, model, batches, folder):
        if isinstance(record, EpochRecord):
            total = seconds + time.perf_counter() - started
            write_json({"seconds": total}, spent)
            _say(
                f"{config.model_architecture} at {config.learning_rate:g}, {record.step} steps, {total:.0f} s: "
                f"training {record.training_loss:.4f}, tuning {record.tuning_loss:.4f} nats an interval"
            )
    progress = read_progress(folder)
    assert progress is not None  # the loop saves it at the end of every epoch
    return Trained(model, min(progress.tuning_losses), read_json(spent)["seconds"])


def main(arguments: Sequence[str]) -> int:
    """Run the comparison and print one table."""
    options = _parser().parse_args(arguments)
    source = Path(os.environ.get("DEEPHEALTH_TEST_DATA", "")) / FOLDER
    if not (source / "train.bin").is_file():
        print(f"{source}: not found; set DEEPHEALTH_TEST_DATA to the folder that holds {FOLDER}", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    budget = _budget(options)
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {options.threads} threads, torch {version('torch')}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        cohort = Cohort.prepare(source, work, budget)
        rows = []
        for row in _rows(cohort, work, budget, options):
            rows.append(row)
            _say("  ".join(f"{name} {value}" for name, value in row.items()))
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=400, float_precision=4, fmt_str_lengths=40):
        print(pl.DataFrame(rows, infer_schema_length=None))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _rows(cohort: Cohort, work: Path, budget: Budget, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.floors:
        yield from run_floors(cohort, budget)
    for backbone in options.backbones:
        for head in options.heads:
            yield run_backbone(cohort, work, backbone, head, budget)


def _budget(options: argparse.Namespace) -> Budget:
    shared = {"no_event_interval_years": options.no_event_years, "overrides": tuple(options.set)}
    if options.quick:
        return replace(_QUICK, **shared)
    return Budget(options.steps, options.batch, tuple(options.learning_rates), **shared)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=Budget.steps, help="gradient steps of each training, rounded up to a multiple of 4"
    )
    parser.add_argument("--batch", type=int, default=Budget.batch, help="people a step")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=Budget.learning_rates)
    parser.add_argument("--backbones", nargs="+", choices=list(BACKBONES), default=list(BACKBONES))
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=["next_token"])
    parser.add_argument("--floors", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--no-event-years", type=float, default=5.0, help="years between no_event rows, for all models")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the training configuration, key=value")
    parser.add_argument(
        "--quick", action="store_true", help="150 people of each file, 4 steps; says nothing of quality"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder that keeps data and trainings; default: a temporary one")
    parser.add_argument("--json", type=Path)
    return parser


def _steps_per_look(budget: Budget) -> int:
    return math.ceil(budget.steps / _LOOKS)


def _training_key(dataset: Path, config: TrainConfig, steps_per_look: int) -> str:
    """Name a training by what decides its weights."""
    code = hash_sources(TRAINING_SOURCES)
    facts = [read_manifest(dataset)["content_sha256"], config.model_dump(mode="json"), steps_per_look, code]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.model_architecture}-{config.head}-{key}"


def _row(backbone: str, head: str | None, seconds: float, figures: dict[str, float]) -> dict[str, Any]:
    """Return one row of the table; a floor has no head, and what it lacks is null."""
    unknown = dict.fromkeys(("steps", "batch", "learning_rate", "parameters"))
    return {"backbone": backbone, "head": head, **unknown, "seconds": round(seconds, 1), **figures}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
