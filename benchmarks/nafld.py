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
from app.result_table import HEADLINE_HORIZON_YEARS
from app.settings import Settings
from app.tracking import open_store
from app.train_run import train_run
from data_schemas.age_units import years_to_days
from data_schemas.results import (
    AGE_SEX,
    CONCORDANCE,
    COX,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    POOLED,
    Metrics,
)
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
    metrics = found.metrics.filter(Metrics.horizon_days.col == years_to_days(HEADLINE_HORIZON_YEARS))
    figures: dict[str, Any] = {"split_seed": split_seed}
    for predictor in (MODEL, COX, AGE_SEX):
        figures[f"c_index_{predictor}"] = _row(metrics, CONCORDANCE, MACRO_MEAN, predictor)[Metrics.estimate.name]
    for reference in (COX, AGE_SEX):
        row = _row(metrics, CONCORDANCE + DIFFERENCE_SUFFIX, MACRO_MEAN, f"{MODEL}-{reference}")
        figures[f"difference_to_{reference}"] = row[Metrics.estimate.name]
        figures[f"difference_to_{reference}_lower"] = row[Metrics.lower.name]
        figures[f"difference_to_{reference}_upper"] = row[Metrics.upper.name]
    for predictor in (MODEL, COX, AGE_SEX):
        row = _row(metrics, OBSERVED_EXPECTED, POOLED, predictor)
        figures[f"observed_expected_{predictor}"] = row[Metrics.estimate.name]
    figures["training_seconds"] = round(trained_after, 1)
    figures["seconds"] = round(time.perf_counter() - started, 1)
    return figures


def _row(metrics: pl.DataFrame, metric: str, outcome: str, predictor: str) -> dict[str, Any]:
    chosen = (Metrics.metric.col == metric) & (Metrics.outcome.col == outcome) & (Metrics.predictor.col == predictor)
    return metrics.filter(chosen).row(0, named=True)


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
