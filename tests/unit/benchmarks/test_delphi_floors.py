"""The two floors: rates are counted right, hazards and their integrals agree, the likelihood is the product's own."""

import numpy as np
import polars as pl
import pytest
import torch

from benchmarks.delphi_floors import (
    AgeSexIncidence,
    LogLinearFit,
    LogLinearHazard,
    count_by_age_and_sex,
    fit_age_sex_incidence,
    fit_log_linear_hazard,
)
from benchmarks.quality_delphi import Budget, Cohort
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import TRAIN
from data_schemas.dataset import Sequences
from models.losses import next_token_negative_log_likelihood
from pipelines.sequence_files import shard_of

OUTCOME_OF_TOKEN = np.array([-1, 0, 1])
FEMALE, MALE = 0, 1


def people_of(rows):
    """Return people of (sex, exit in years, {token: age in years})."""
    return shard_of(
        pl.DataFrame(
            {
                Sequences.subject_id.name: range(len(rows)),
                Sequences.sex.name: pl.Series([sex for sex, _, _ in rows], dtype=pl.Int8),
                Sequences.entry_age_days.name: [0.0] * len(rows),
                Sequences.exit_age_days.name: [years * DAYS_PER_YEAR for _, years, _ in rows],
                **{
                    name: pl.Series(
                        [[cast(value) for value in values(had)] for _, _, had in rows], dtype=pl.List(dtype)
                    )
                    for name, dtype, cast, values in [
                        (Sequences.tokens.name, pl.Int32, int, dict.keys),
                        (Sequences.ages_days.name, pl.Float64, lambda age: age * DAYS_PER_YEAR, dict.values),
                        (Sequences.values.name, pl.Float32, lambda _: float("nan"), dict.values),
                        (Sequences.first_tokens.name, pl.Int32, int, dict.keys),
                        (Sequences.first_ages_days.name, pl.Float64, lambda age: age * DAYS_PER_YEAR, dict.values),
                    ]
                },
            }
        )
    )


@pytest.fixture(scope="module")
def cohort(delphi_source, tmp_path_factory):
    return Cohort.prepare(delphi_source, tmp_path_factory.mktemp("work"), Budget())


@pytest.fixture(scope="module")
def incidence(cohort):
    return fit_age_sex_incidence(cohort.people(TRAIN), cohort.tables.outcome_of_token)


@pytest.fixture
def log_linear(cohort, incidence):
    torch.manual_seed(0)
    model = LogLinearHazard(incidence, cohort.tables.outcome_of_token, rank=3)
    torch.nn.init.normal_(model.effects.weight, std=0.3)
    torch.nn.init.normal_(model.effects.bias, std=0.3)
    return model


def test_years_at_risk_end_with_the_first_occurrence():
    events, years = count_by_age_and_sex(people_of([(FEMALE, 3.5, {1: 1.25}), (MALE, 2.0, {2: 5.0})]), OUTCOME_OF_TOKEN)
    assert events[FEMALE, :3, 0].tolist() == [0, 1, 0]
    assert events.sum() == 1  # what lies after exit did not happen
    np.testing.assert_allclose(years[FEMALE, :4], [[1, 1], [0.25, 1], [0, 1], [0, 0.5]])
    np.testing.assert_allclose(years[MALE, :3], [[1, 1], [1, 1], [0, 0]])


def test_a_constant_rate_is_found_and_an_empty_cell_follows_the_rates_before():
    rng = np.random.default_rng(0)
    onset = rng.exponential(1 / 0.02, 4000)
    people = people_of([(FEMALE, 60.0, {1: age} if age <= 60 else {2: 59.0}) for age in onset])
    fitted = fit_age_sex_incidence(people, OUTCOME_OF_TOKEN).rate.view(3, 80, 2)
    np.testing.assert_allclose(fitted[FEMALE, 5:55, 0], 0.02, rtol=0.25)
    np.testing.assert_allclose(fitted[FEMALE, 5:55, 0].mean(), 0.02, rtol=0.03)
    assert (fitted > 0).all()


def test_cumulative_hazards_are_integrals_of_hazards(cohort, log_linear):
    batch, targets = cohort.pad(cohort.people(TRAIN).take(np.arange(5)))
    hazards = log_linear(batch, targets.row)
    steps = (torch.arange(2000) + 0.5) / 2000 * 7.3
    slow = sum(hazards.log_hazard(torch.full((len(targets.row), 1), float(u))).exp() for u in steps) * 7.3 / 2000
    fast = hazards.cumulative_hazard(torch.full((len(targets.row), 1), 7.3))
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-6)
    total = hazards.total_at_risk(torch.full((len(targets.row),), 7.3), targets.at_risk)
    torch.testing.assert_close(total, torch.where(targets.at_risk, fast, 0.0).sum(-1), rtol=1e-4, atol=1e-6)


def test_time_that_has_passed_and_chosen_pairs(cohort, log_linear):
    batch, targets = cohort.pad(cohort.people(TRAIN).take(np.arange(5)))
    hazards = log_linear(batch, targets.row)
    rows, causes = torch.tensor([3, 0, 5]), torch.tensor([2, 1, 1])
    waited, ahead = torch.full((len(targets.row), 1), 2.5), torch.full((1, 1), 4.0)
    remaining = hazards.cumulative_hazard(waited + ahead) - hazards.cumulative_hazard(waited)
    torch.testing.assert_close(hazards.after(waited).cumulative_hazard(ahead), remaining, rtol=1e-4, atol=1e-6)
    picked = hazards.pick(rows[:, None], causes).after(waited[:3]).cumulative_hazard(ahead)
    torch.testing.assert_close(picked, remaining[rows][:, causes], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(hazards.pick(rows, causes).log_hazard(ahead[0]), hazards.log_hazard(ahead)[rows, causes])


def test_the_loss_is_the_likelihood_of_the_point_process_up_to_what_no_parameter_changes(cohort, log_linear, incidence):
    batch, targets = cohort.pad(cohort.people(TRAIN).take(np.arange(9)))
    whole = next_token_negative_log_likelihood(log_linear(batch, targets.row), targets).sum()
    of_events = incidence(batch, targets.row).pick(targets.event_interval, targets.event_outcome)
    fixed = of_events.log_hazard(targets.interval_years[targets.event_interval]).sum()
    torch.testing.assert_close(log_linear.loss(batch, targets) * len(targets.row), whole + fixed, rtol=1e-4, atol=1e-4)


def test_a_past_code_acts_from_its_own_row_on(cohort, log_linear):
    people = cohort.people(TRAIN).take(np.arange(5))
    batch, _ = cohort.pad(people)
    rows = torch.arange(batch.tokens.numel())
    before = log_linear(batch, rows).score
    with torch.no_grad():
        log_linear.codes.weight[1] += 1.0  # the first disease
    has_it = (log_linear.row_of_token[batch.tokens] == 1).cumsum(1).flatten() > 0
    assert 0 < has_it.sum() < len(has_it)
    assert ((log_linear(batch, rows).score - before).abs().amax(-1) > 1e-6).equal(has_it)


def test_fitting_finds_that_one_disease_raises_another(cohort, incidence):
    """The made-up people get the second disease about 8 years after the first."""
    people, tables = cohort.people(TRAIN), cohort.tables
    torch.manual_seed(0)
    model = LogLinearHazard(incidence, tables.outcome_of_token, rank=4)
    batch, targets = cohort.pad(people)
    before = model.loss(batch, targets).item()
    fit_log_linear_hazard(
        model, people, cohort.pad, LogLinearFit(epochs=15, batch_size=40, learning_rate=0.05, weight_decay=0.0)
    )
    assert model.loss(batch, targets).item() < before - 0.02
    effect = model.effects.weight[:, :4] @ model.codes.weight[1:].T  # [outcome, past code]
    assert effect[1, 0] > 0.5
    assert model.codes.weight[0].abs().max() == 0  # rows that are no code say nothing


def test_unknown_sex_has_rates_too():
    rate = torch.from_numpy(np.full((3, 80, 2), 0.1))
    assert AgeSexIncidence.of(rate.numpy()).rate.shape == (240, 2)
