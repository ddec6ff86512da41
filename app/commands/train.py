"""`deephealth train`: a dataset into a tracked run with a stored model."""

from pathlib import Path

from app.config_files import Overrides, read_config
from app.settings import InjectedSettings
from app.terminal import Report


def train(
    dataset: Path, /, *, config: Path | None = None, overrides: Overrides = (), settings: InjectedSettings
) -> Report:
    """Train a model on a dataset and track it as an MLflow run.

    Interrupted, it goes on from its last saved state when called again, and ends with the same weights. The same
    dataset and settings are not trained twice. The last line is the id of the run.

    Example: deephealth train datasets/2026 --config app/configs/nafld_train.yaml --set max_epochs=20

    Args:
        dataset: Folder written by `deephealth prepare`.
        config: YAML file of settings; without it the defaults hold.
        overrides: One setting on top of the file, as key=value; may be repeated.
    """
    from app.tracking import open_store
    from app.train_run import train_run
    from models.config import TrainConfig

    chosen = read_config(TrainConfig, config, overrides)
    trained = train_run(dataset, chosen, settings, open_store(settings))
    state = "trained" if trained.fresh else "had been trained before; it is not trained again"
    unit = "a query" if chosen.mode == "all_future" else "an interval"
    return Report(
        last_line=trained.run_id,
        facts={
            "run_id": trained.run_id,
            "fresh": trained.fresh,
            "checkpoint": trained.checkpoint,
            "best_tuning_loss": trained.best_tuning_loss,
            "model_parameter_count": trained.parameters,
        },
        lines=[
            f"{chosen.model_architecture} {chosen.head} {chosen.mode}: {trained.parameters:,} parameters, {state}",
            f"best tuning negative log-likelihood: {trained.best_tuning_loss:.4f} nats {unit}",
            f"checkpoint: {trained.checkpoint}",
            "run id:",
        ],
    )
