"""How good the demo's model is beside Cox and age and sex, over several random splits of the nafld cohort.

One split is one draw of 2,600 held-out people: its macro concordance moves by 0.01 from draw to draw for every
predictor, so a comparison needs several. Each split is prepared, trained and evaluated like the demo. The seeds start
at 2: the held-out people of seed 1, the demo's, were looked at while the model was designed.

    .venv/bin/python benchmarks/nafld.py [--splits 5] [--quick] [--json FILE] [--set key=value ...]
"""

import argparse
import json
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from app.commands.demo import JUDGED, TRAIN_CONFIG
from app.config_files import read_config
from app.evaluate_model import evaluate_model
from app.predict_risks import load_risk_model
from app.result_table import headline_rows, overall_results
from app.settings import Settings
from app.tracking import open_store
from app.train_run import train_run
from data_schemas.results import MODEL, OBSERVED_EXPECTED, POOLED, Metrics
from models.config import TrainConfig
from pipelines.import_cohort.from_nafld import import_nafld
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset

_FIRST_SEED = 2
_QUICK = ("max_epochs=1", "n_reasoning_rounds=2", "batch_size=512")


def run_split(cohort: Path, folder: Path, split_seed: int, overrides: list[str], n_bootstrap: int) -> dict[str, Any]:
    """Prepare, train and evaluate one split and return its figures at 5 years after entry."""
    dataset, settings = folder / "dataset", Settings(home=folder / "home")
    started = time.perf_counter()
    prepare_dataset(cohort, dataset, read_config(PrepareConfig, None, [f"split_seed={split_seed}"]))
    trained = train_run(dataset, read_config(TrainConfig, TRAIN_CONFIG, overrides), settings, open_store(settings))
    trained_after = time.perf_counter() - started
    found = evaluate_model(
        load_risk_model(trained.checkpoint), dataset, folder / "evaluation",
        landmarks=("entry",), macro_outcomes=JUDGED, n_bootstrap=n_bootstrap,
    )  # fmt: skip
    pooled = headline_rows(found.metrics).filter(
        Metrics.metric.col == OBSERVED_EXPECTED, Metrics.outcome.col == POOLED, Metrics.predictor.col != MODEL
    )
    of_references = dict(pooled.select(Metrics.predictor.name, Metrics.estimate.name).iter_rows())
    return {
        "split_seed": split_seed,
        **overall_results(found.metrics),
        **{f"observed_expected_{reference}": ratio for reference, ratio in sorted(of_references.items())},
        "training_seconds": round(trained_after, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Run the splits and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one split, a small network, one epoch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the training configuration")
    arguments = parser.parse_args()
    splits = 1 if arguments.quick else arguments.splits
    overrides = [*_QUICK, *arguments.set] if arguments.quick else arguments.set
    print(f"{platform.processor() or platform.machine()}, torch {version('torch')}, lifelines {version('lifelines')}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        import_nafld(folder / "cohort")
        rows = []
        for seed in range(_FIRST_SEED, _FIRST_SEED + splits):
            rows.append(
                run_split(folder / "cohort", folder / str(seed), seed, overrides, 20 if arguments.quick else 200)
            )
            print(
                "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items()),
                flush=True,
            )
    table = pl.DataFrame(rows)
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=400, float_precision=4):
        print(table.mean().drop("split_seed"))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
