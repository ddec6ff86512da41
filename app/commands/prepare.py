"""`deephealth prepare`: a cohort into the dataset that a model is trained on."""

from pathlib import Path

from app.config_files import Overrides, read_config
from app.terminal import Report, show_progress


def prepare(cohort: Path, /, *, out: Path, config: Path | None = None, overrides: Overrides = ()) -> Report:
    """Turn a cohort into a dataset: splits, vocabulary and sequences.

    Everything that learns from people learns from the training split only. A second run with nothing changed does
    nothing and says so.

    Example: deephealth prepare cohorts/2026 --out datasets/2026 --set split_seed=7

    Args:
        cohort: Folder written by `deephealth cohort import`.
        out: Folder of the dataset; written whole or not at all.
        config: YAML file of settings; without it the defaults hold.
        overrides: One setting on top of the file, as key=value; may be repeated.
    """
    from pipelines.prepare_config import PrepareConfig
    from pipelines.prepare_dataset import prepare_dataset

    settings = read_config(PrepareConfig, config, overrides)
    with show_progress(f"preparing {cohort}"):
        dataset = prepare_dataset(cohort, out, settings)
    return Report(
        last_line=f"dataset written to {out}" if dataset.fresh else f"dataset in {out} is up to date; nothing was done",
        facts={"dataset": out, "fresh": dataset.fresh, "manifest": dataset.manifest},
        lines=dataset.summary_lines,
    )
