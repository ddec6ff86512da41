"""How far a model is from what can be known: a made-up population, a model trained on it, and the true risks.

Synthesizes people, prepares and trains as a person would, and evaluates on the held-out people beside the true risks,
which know everything but the frailty. Printed are means over outcomes, by horizon: concordance of model and truth on
what happened and the gap, and without luck (from the true risks themselves) the gap in AUC, the slope of true on
predicted risk, and the differences between them, for everyone, by sex and by age.

    .venv/bin/python benchmarks/oracle_gap.py --subjects 50000 --model app/configs/nafld_train.yaml [--json FILE]
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.config_files import read_config
from app.evaluate_model import evaluate_model
from app.predict_risks import load_risk_model
from app.settings import Settings
from app.tracking import open_store
from app.train_run import train_run
from app.truth_table import format_truth, truth_results
from models.config import TrainConfig
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.synthesize_cohort import synthesize_cohort

_SEED = 11
_QUICK_SUBJECTS, _QUICK_CODES = 2_000, 40
_QUICK_OVERRIDES = ("max_epochs=1", "n_reasoning_rounds=1", "warmup_steps=2")


def measure_gap(
    folder: Path,
    n_subjects: int,
    world: SynthesizeConfig,
    train_config: Path | None,
    overrides: Sequence[str],
    landmarks: Sequence[str],
    horizons_years: Sequence[float],
    n_futures: int,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Go the whole way under `folder` and return rows for a machine and lines for a person.

    What is already there is kept: prepare and train do nothing twice, so a run that was stopped goes on.
    """
    cohort, dataset, settings = folder / "cohort", folder / "dataset", Settings(home=folder / "home")
    seconds: dict[str, float] = {}
    started = time.perf_counter()
    if not (cohort / "subjects.parquet").exists():
        synthesize_cohort(cohort, n_subjects, _SEED, world)
    prepare_dataset(cohort, dataset, PrepareConfig())
    seconds["data_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    trained = train_run(dataset, read_config(TrainConfig, train_config, overrides), settings, open_store(settings))
    seconds["training_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    found = evaluate_model(
        load_risk_model(trained.checkpoint), dataset, folder / "evaluation", landmarks=landmarks,
        horizons_years=horizons_years, truth=cohort, n_bootstrap=0, n_futures=n_futures,
    )  # fmt: skip
    seconds["evaluation_seconds"] = time.perf_counter() - started
    facts = {"subjects": n_subjects, "parameters": trained.parameters, "futures": n_futures}
    rows = [
        {**row, **facts, **{name: round(value, 1) for name, value in seconds.items()}}
        for row in truth_results(found.metrics, found.truth)
    ]
    return rows, format_truth(found.metrics, found.truth)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=50_000)
    parser.add_argument("--model", type=Path, help="YAML file of training settings; without it the defaults hold")
    parser.add_argument("--set", nargs="*", default=[], help="settings on top of the file, key=value")
    parser.add_argument("--landmarks", nargs="*", default=["entry"])
    parser.add_argument("--horizons", nargs="*", type=float, default=[1.0, 5.0, 10.0], help="years")
    parser.add_argument("--futures", type=int, default=64, help="futures drawn for each true risk")
    parser.add_argument("--codes", type=int, default=SynthesizeConfig().n_codes, help="diseases of the world")
    parser.add_argument("--folder", type=Path, help="where to work; kept, and taken up again")
    parser.add_argument("--quick", action="store_true", help="2,000 people, 40 diseases, one small epoch")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    n_subjects, n_codes, overrides = given.subjects, given.codes, given.set
    if given.quick:
        n_subjects, n_codes, overrides = _QUICK_SUBJECTS, _QUICK_CODES, [*given.set, *_QUICK_OVERRIDES]
    print(f"{platform.processor() or platform.machine()}, torch {version('torch')}, polars {version('polars')}")
    with tempfile.TemporaryDirectory() as temporary:
        rows, lines = measure_gap(
            given.folder or Path(temporary), n_subjects, SynthesizeConfig(n_codes=n_codes), given.model, overrides,
            given.landmarks, given.horizons, given.futures,
        )  # fmt: skip
    print("\n".join(lines))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
