"""Facts about a made-up model, for reports: a vocabulary of a few codes and what a checkpoint says."""

import polars as pl
from made_up_evaluation import CASES

from app.report.model_facts import ModelFacts
from data_schemas.cohort import DEATH_CODE
from data_schemas.dataset import COVARIATE, DEATH, DISEASE, GROUP, Vocabulary


def made_up_facts(**changes) -> ModelFacts:
    """Return facts as they are read from a run, with a dataset whose smallest split has 7 people."""
    facts = {
        "run_id": "0f3a",
        "trained_on": "2026-11-30",
        "tags": {"dataset": "cohort <2026>", "dataset_sha256": "ab" * 32, "method": "all_future"},
        "checkpoint": {
            "model_architecture": "event_trajectory_shared_v1", "head": "weibull", "mode": "all_future",
            "model_parameter_count": 310311, "learning_rate": 0.001, "versions": {"deephealth": "0.1.0"},
        },
        "vocabulary": made_up_vocabulary(),
        "manifest": {
            "counts": {"people": {"train": 12387, "tuning": 7, "held_out": 2571}},
            "settings": {"min_subjects": 10, "train_share": 0.7, "tuning_share": 0.15, "split_seed": 1},
        },
    }  # fmt: skip
    return ModelFacts(**{**facts, **changes})


def made_up_vocabulary() -> pl.DataFrame:
    """Return the outcomes of the made-up evaluation, a group of two of them, and a measurement."""
    rows = [(code, DEATH if code == DEATH_CODE else DISEASE, f"{code} in words", None) for code in CASES]
    rows += [("any_heart", GROUP, None, ["angina", "stroke"]), ("bmi", COVARIATE, None, None)]
    columns = (Vocabulary.code.name, Vocabulary.role.name, Vocabulary.description.name, Vocabulary.members.name)
    schema = {column: Vocabulary.create_empty().schema[column] for column in columns}
    return pl.DataFrame(rows, schema=schema, orient="row")
