"""Risks of a next_token model: the hazards at the last row before the landmark, frozen, and always labelled so."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from app.batches import history_options
from app.predict_risks import ScoringModel, layout_of_vocabulary, notes_on_method, predict_risks
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, Events, Subjects
from data_schemas.results import FROZEN_HISTORY, PREVALENT, Outcomes, Risks
from models.config import TrainConfig
from models.risk_model import seeded_model
from pipelines.augment_histories import augment_histories
from pipelines.build_sequences import build_sequences
from pipelines.pad_tensors import pad_batch
from pipelines.read_dataset import read_reference_rates, read_vocabulary
from pipelines.sequence_files import shard_of
from pipelines.token_tables import TokenTables

PEOPLE = pl.DataFrame(
    {
        Subjects.subject_id.name: [1, 2, 3],
        Subjects.sex.name: ["female", "male", "unknown"],
        Subjects.entry_age_days.name: [18262.5, 18262.5, 18262.5],  # 50 years
        Subjects.exit_age_days.name: [25567.5, 25567.5, 25567.5],  # 70 years
    }
)
HISTORY = [(1, 16436.25, "angina", None), (1, 20000.0, "sbp", 140.0), (1, 23000.0, "copd", None)]
LANDMARK_DAYS, LAST_ROW_DAYS = 21915.0, 20000.0  # 60 years; what person 1 has before it


def model_of(dataset, **settings) -> ScoringModel:
    config = TrainConfig(mode="next_token", n_reasoning_rounds=1, **settings)
    vocabulary = read_vocabulary(dataset)
    network = seeded_model(config, layout_of_vocabulary(vocabulary, "next_token"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return ScoringModel(network.eval(), vocabulary, read_reference_rates(dataset), {})


def events(rows) -> pl.LazyFrame:
    types = (pl.Int64, pl.Float64, pl.String, pl.Float64)
    return pl.LazyFrame(rows, schema=dict(zip(Events.column_names(), types, strict=True)), orient="row")


def score(model, people=PEOPLE, rows=HISTORY, horizons=(1.0, 5.0)) -> pl.DataFrame:
    at = people.select(Subjects.subject_id.name, pl.lit(LANDMARK_DAYS).alias(Outcomes.landmark_age_days.name))
    return predict_risks(model, people, events(rows), at, [], horizons)


def risk_of(risks, person, outcome) -> list[float]:
    return risks.filter(Risks.subject_id.col == person, Risks.outcome.col == outcome)[Risks.risk.name].to_list()


def hazards_at_last_row(model, person):
    """Return the hazards of one person's last row before the landmark, straight from the network."""
    chosen = PEOPLE.filter(Subjects.subject_id.col == person)
    shard = shard_of(build_sequences(chosen, events([row for row in HISTORY if row[0] == person]), model.vocabulary))
    tables = TokenTables.of(model.vocabulary, "next_token")
    rows = augment_histories(shard, history_options(model.network.config), tables)
    batch = pad_batch(rows, np.array([[LANDMARK_DAYS]]), tables, 512)
    asked = replace(batch, query_ages_days=batch.query_ages_days[:, :0], query_valid=batch.query_valid[:, :0])
    return model.network(asked).map_parameters(lambda p: p[0, -1:])


@pytest.mark.parametrize("head", ["weibull", "mixed", "next_token"])
@torch.no_grad()
def test_a_risk_integrates_the_last_rows_hazard_from_the_landmark_on(small_dataset, head):
    model = model_of(small_dataset, head=head)
    risks = score(model)
    law, outcome = hazards_at_last_row(model, 1), model.outcomes.index("stroke")
    death = model.outcomes.index(DEATH_CODE)
    waited = (LANDMARK_DAYS - LAST_ROW_DAYS) / DAYS_PER_YEAR
    steps = torch.linspace(0, 5, 20_001, dtype=torch.float64)[:, None] + waited
    hazard, cumulative = law.log_hazard(steps).exp(), law.cumulative_hazard(steps)
    cumulative = cumulative - cumulative[:1]
    density = hazard[:, outcome] * torch.exp(-cumulative[:, outcome] - cumulative[:, death])
    expected = torch.trapezoid(density, steps[:, 0]).item()
    assert risk_of(risks, 1, "stroke")[1] == pytest.approx(expected, rel=1e-4)
    assert risk_of(risks, 1, DEATH_CODE)[1] == pytest.approx(1 - torch.exp(-cumulative[-1, death]).item(), rel=1e-4)


def test_every_row_says_that_the_history_is_frozen(small_dataset):
    risks = score(model_of(small_dataset))
    Risks.validate(risks)
    assert set(risks[Risks.method.name]) == {FROZEN_HISTORY}
    assert "as if no further event changed them" in notes_on_method(FROZEN_HISTORY)[0]
    assert notes_on_method("all_future") == []


def test_members_are_predicted_and_groups_are_not(small_dataset):
    model = model_of(small_dataset)
    assert "angina" in model.outcomes
    assert "any_heart" not in model.outcomes
    reasons = dict(score(model).filter(Risks.subject_id.col == 1).select("outcome", "reason").iter_rows())
    assert {outcome for outcome, reason in reasons.items() if reason == PREVALENT} == {"angina"}


@pytest.mark.parametrize("no_event_rows", ["none", "regular", "random"])
def test_neither_later_events_nor_company_change_a_risk(small_dataset, no_event_rows):
    model = model_of(small_dataset, no_event_rows=no_event_rows, no_event_interval_years=2.0)
    together = score(model)
    for person in (1, 2, 3):
        chosen = PEOPLE.filter(Subjects.subject_id.col == person)
        seen = [row for row in HISTORY if row[0] == person and row[1] <= LANDMARK_DAYS]
        alone = score(model, chosen, seen).drop("reference_risk")
        both = together.filter(Risks.subject_id.col == person).join(alone, on=["outcome", "horizon_days"])
        assert (both["risk"] - both["risk_right"]).abs().max() < 1e-6


def test_no_event_rows_are_read_in_scoring_too(small_dataset):
    plain, regular = (model_of(small_dataset, no_event_rows=rows, seed=1) for rows in ("none", "regular"))
    regular.network.load_state_dict(plain.network.state_dict())
    assert abs(risk_of(score(plain), 2, "stroke")[1] - risk_of(score(regular), 2, "stroke")[1]) > 1e-6
