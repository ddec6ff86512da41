"""Make `loss_curve.json`: the losses of a few dozen steps from a fixed seed on the small made-up cohort.

Run `python tests/golden/make_loss_curve.py` after a change that is meant to alter training, and say in the commit why
the curve moved. A refactor reproduces it.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_cohort import write_small_cohort

from app.batches import DatasetBatches
from app.predict_risks import layout_of_vocabulary
from models.config import TrainConfig
from models.risk_model import seeded_model
from models.train import EpochRecord, StepRecord, train
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.read_dataset import read_vocabulary

NUMBERS = Path(__file__).with_name("loss_curve.json")
CONFIG = TrainConfig(
    n_reasoning_rounds=2,
    batch_size=32,
    queries_per_person=3,
    max_epochs=8,
    warmup_steps=10,
    token_dropout=0.05,
    learning_rate=5e-4,
    patience_epochs=8,
    seed=1,
)


def loss_curve(folder: Path) -> dict[str, list[float]]:
    """Return the training loss of each step and the tuning loss of each epoch, in nats a query."""
    cohort = write_small_cohort(folder / "cohort", n_subjects=200, seed=3, n_event_files=2)
    prepare_dataset(cohort, folder / "dataset", PrepareConfig())
    vocabulary = read_vocabulary(folder / "dataset")
    model = seeded_model(CONFIG, layout_of_vocabulary(vocabulary, "all_future"))
    batches = DatasetBatches(folder / "dataset", vocabulary, CONFIG)
    curve: dict[str, list[float]] = {"training_loss": [], "tuning_loss": []}
    for record in train(CONFIG, model, batches, folder / "run"):
        if isinstance(record, EpochRecord):
            curve["tuning_loss"].append(round(record.tuning_loss, 6))
        elif isinstance(record, StepRecord):
            curve["training_loss"].append(round(record.loss, 6))
    return curve


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        numbers = {"torch": torch.__version__, **loss_curve(Path(made))}
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
