"""From a checkpoint and people to a table of risks: the one path that evaluation, scoring and the registered model use.

N people, K outcomes, T horizons.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from app.batches import history_options
from app.checkpoint_files import REFERENCE_HASH, VOCABULARY_HASH
from data_schemas.age_units import DAYS_PER_YEAR, round_to_age_step, years_to_days
from data_schemas.cohort import DEATH_CODE, Subjects
from data_schemas.dataset import OUTCOME_ROLES_OF_MODE, REFERENCE_FILE, VOCABULARY_FILE, Vocabulary
from data_schemas.errors import ModelRefusedError, UsageError
from data_schemas.results import (
    ALL_FUTURE,
    DEAD,
    FROZEN_HISTORY,
    OUTSIDE_FOLLOW_UP,
    PREVALENT,
    Outcomes,
    Risks,
)
from data_schemas.sequence_batch import SequenceBatch
from models.cause_hazards import CauseHazards
from models.checkpoints import CONFIG_FILE, load_checkpoint, read_config, verified_config
from models.risk_model import RiskModel
from models.vocabulary_layout import VocabularyLayout
from pipelines.augment_histories import augment_histories
from pipelines.build_sequences import build_sequences
from pipelines.fit_reference_rates import reference_risk_array
from pipelines.pad_tensors import pad_batch
from pipelines.read_dataset import outcome_names, read_reference_rates, read_vocabulary
from pipelines.sequence_files import SequenceShard, shard_of
from pipelines.tables_on_disk import hash_file
from pipelines.token_tables import TokenTables

MAX_HORIZON_YEARS = 100.0
_BATCH_SIZE = 512
_NO_REASON = ""


@dataclass(frozen=True)
class ScoringModel:
    """A network with everything it needs to score: vocabulary, reference rates, and the facts of its checkpoint."""

    network: RiskModel
    vocabulary: pl.DataFrame
    reference_rates: pl.DataFrame
    facts: dict[str, Any]

    @property
    def outcomes(self) -> list[str]:
        """List the outcomes the network predicts."""
        return outcome_names(self.vocabulary, self.network.config.mode)

    @property
    def method(self) -> str:
        """Name how its risks come about: a next_token model knows the next interval, not the whole future."""
        return ALL_FUTURE if self.network.config.mode == "all_future" else FROZEN_HISTORY


def layout_of_vocabulary(vocabulary: pl.DataFrame, mode: str) -> VocabularyLayout:
    """Return what a network must know of a vocabulary in a mode."""
    outcomes = vocabulary.filter(Vocabulary.role.col.is_in(OUTCOME_ROLES_OF_MODE[mode]))
    return VocabularyLayout(
        carries_value=tuple(vocabulary[Vocabulary.std.name].is_not_null()),
        outcome_tokens=tuple(outcomes[Vocabulary.token.name]),
        death_outcome=outcomes[Vocabulary.code.name].to_list().index(DEATH_CODE),
        log_rate_per_year=tuple(outcomes[Vocabulary.log_rate_per_year.name]),
    )


def load_risk_model(checkpoint: Path) -> ScoringModel:
    """Rebuild a model from its checkpoint folder alone, verified.

    Raises:
        ModelRefusedError: says what is missing or differs.
    """
    facts = read_config(checkpoint)
    for name, key in ((VOCABULARY_FILE, VOCABULARY_HASH), (REFERENCE_FILE, REFERENCE_HASH)):
        if not (checkpoint / name).exists():
            raise ModelRefusedError(f"{checkpoint / name}: missing")
        if hash_file(checkpoint / name) != facts.get(key):
            raise ModelRefusedError(f"{checkpoint / name}: is not the file this model was trained with (sha256)")
    vocabulary = read_vocabulary(checkpoint)
    mode = verified_config(facts, checkpoint / CONFIG_FILE).mode
    network = load_checkpoint(checkpoint, layout_of_vocabulary(vocabulary, mode))
    return ScoringModel(network, vocabulary, read_reference_rates(checkpoint), facts)


def notes_on_method(method: str) -> list[str]:
    """Say what must be known of risks made by a method; nothing of those that answer the question as it was put."""
    if method != FROZEN_HISTORY:
        return []
    return [
        f"risks by {FROZEN_HISTORY}: the hazards of a next_token model at the landmark, as if no further event changed "
        "them; a quick approximation"
    ]


def predict_risks(
    model: ScoringModel,
    subjects: pl.DataFrame,
    events: pl.LazyFrame,
    landmarks: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_years: Sequence[float],
) -> pl.DataFrame:
    """Return a row for every person × outcome × horizon (`Risks`), in the order of `subjects`.

    Args:
        model: from `load_risk_model`.
        subjects: people (`Subjects`), each once.
        events: their events (`Events`), the full history; what lies after the landmark is not read.
        landmarks: subject_id and landmark_age_days (null: cannot be scored), one row a person.
        outcomes: names of outcomes; empty means all.
        horizons_years: times after the landmark.

    Raises:
        UsageError: an outcome the model does not know, or a horizon out of range.
    """
    chosen, horizons = check_request(model, outcomes, horizons_years)
    landmark = Outcomes.landmark_age_days.name
    people = subjects.join(
        landmarks.select(Subjects.subject_id.name, round_to_age_step(pl.col(landmark).cast(pl.Float64))),
        on=Subjects.subject_id.name,
        how="left",
        maintain_order="left",
    )
    shard = shard_of(build_sequences(subjects, events, model.vocabulary))
    ages = people[landmark].fill_null(np.nan).to_numpy()
    columns = np.array([model.outcomes.index(outcome) for outcome in chosen])

    reasons = _reasons(shard, ages, model, columns)  # [N,K]
    risks = _network_risks(model, shard, ages, columns, horizons)  # [N,K,T]
    risks[reasons != _NO_REASON] = np.nan
    horizons_days = [years_to_days(years) for years in horizons]
    references = reference_risk_array(model.reference_rates, people, chosen, horizons_days)
    references[reasons != _NO_REASON] = np.nan
    return _long_table(
        people.select(Subjects.subject_id.name, landmark),
        chosen,
        horizons_days,
        risks,
        references,
        reasons,
        model.method,
    )


def check_request(
    model: ScoringModel, outcomes: Sequence[str], horizons_years: Sequence[float]
) -> tuple[list[str], list[float]]:
    """Return the outcomes (all where none is named) and the horizons in order, each once.

    Raises:
        UsageError: an outcome the model does not know, or a horizon that is not above zero and at most 100 years.
    """
    unknown = sorted(set(outcomes) - set(model.outcomes))
    if unknown:
        raise UsageError(f"the model does not predict {', '.join(unknown)}; it knows: {', '.join(model.outcomes)}")
    if not horizons_years or not all(0 < years <= MAX_HORIZON_YEARS for years in horizons_years):  # NaN is neither
        raise UsageError(f"horizons are years above zero and at most {MAX_HORIZON_YEARS:g}, for example 1,5,10")
    return list(dict.fromkeys(outcomes)) or model.outcomes, sorted(set(horizons_years))


def _reasons(
    shard: SequenceShard, landmark_age_days: NDArray[np.float64], model: ScoringModel, columns: NDArray[np.int64]
) -> NDArray[np.str_]:
    """Say why a person cannot be scored for an outcome [N,K]; empty where they can.

    At the last day of observation a living person can be scored: it is today's landmark, and nothing is known after.
    """
    tables = TokenTables.of(model.vocabulary, model.network.config.mode)
    person, outcome = shard.owner_of_first(), tables.outcome_of_token[shard.first_tokens]
    before = (outcome >= 0) & (shard.first_ages_days <= landmark_age_days[person])
    prevalent = np.zeros((len(shard), tables.n_outcomes), dtype=bool)
    prevalent[person[before], outcome[before]] = True
    dead = prevalent[:, model.network.layout.death_outcome]
    observed = (landmark_age_days >= shard.entry_age_days) & (landmark_age_days <= shard.exit_age_days)
    return np.select(
        [np.broadcast_to(~observed[:, None], (len(shard), len(columns))), dead[:, None], prevalent[:, columns]],
        [OUTSIDE_FOLLOW_UP, DEAD, PREVALENT],
        _NO_REASON,
    )


@torch.inference_mode()
def _network_risks(
    model: ScoringModel,
    shard: SequenceShard,
    landmark_age_days: NDArray[np.float64],
    columns: NDArray[np.int64],
    horizons_years: Sequence[float],
) -> NDArray[np.float64]:
    """Return the risks [N,K,T]; people of similar length share a batch, so that little is padding."""
    tables, max_events = TokenTables.of(model.vocabulary, model.network.config.mode), model.network.config.max_events
    options = history_options(model.network.config)
    horizons = torch.tensor(horizons_years)
    risks = np.full((len(shard), len(columns), len(horizons_years)), np.nan)
    known = np.flatnonzero(np.isfinite(landmark_age_days))
    lengths = shard.count_events_up_to(landmark_age_days)[known]
    order = known[np.argsort(lengths, kind="stable")]
    for start in range(0, len(order), _BATCH_SIZE):
        rows = order[start : start + _BATCH_SIZE]
        people = augment_histories(shard.take(rows), options, tables)
        batch = pad_batch(people, landmark_age_days[rows, None], tables, max_events)
        risk = _hazards_at_landmark(model.network, batch).risk(horizons)  # [B,all outcomes,T]
        risks[rows] = risk.double().numpy()[:, columns].clip(0.0, 1.0)
    return risks


def _hazards_at_landmark(network: RiskModel, batch: SequenceBatch) -> CauseHazards:
    """Return the hazards [B,K] after the one query of each person.

    A next_token model has predicted at the last row before it: what is left is the law of the time from there, given
    that nothing has happened in between.
    """
    people = torch.arange(len(batch.sex))
    if network.config.mode == "all_future":
        return network.hazards_at(batch, people)
    n_rows = batch.valid.sum(1)
    last = (n_rows - 1).clamp(min=0)  # without a row nobody is under observation, and the risk is not used
    elapsed_years = (batch.query_ages_days[:, 0] - batch.ages_days[people, last]).clamp(min=0) / DAYS_PER_YEAR
    history = replace(batch, query_ages_days=batch.query_ages_days[:, :0], query_valid=batch.query_valid[:, :0])
    return network.hazards_at(history, people * batch.tokens.shape[1] + last).after(elapsed_years[:, None])


def _long_table(
    people: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_days: Sequence[float],
    risks: NDArray[np.float64],
    references: NDArray[np.float64],
    reasons: NDArray[np.str_],
    method: str,
) -> pl.DataFrame:
    wanted = pl.DataFrame({Risks.outcome.name: outcomes}).join(
        pl.DataFrame({Risks.horizon_days.name: horizons_days}), how="cross"
    )
    reason = pl.Series(Risks.reason.name, np.repeat(reasons.ravel(), len(horizons_days)), dtype=pl.String)
    return (
        people.join(wanted, how="cross")
        .with_columns(
            pl.Series(Risks.risk.name, risks.ravel(), nan_to_null=True),
            pl.Series(Risks.reference_risk.name, references.ravel(), nan_to_null=True),
            reason.replace(_NO_REASON, None),
            pl.lit(method).alias(Risks.method.name),
        )
        .select(Risks.column_names())
    )
