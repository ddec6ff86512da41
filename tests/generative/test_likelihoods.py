"""Likelihoods against the loops that their equations say, and their gradients against differences."""

import math

import pytest
import torch

from data_schemas.sequence_batch import FutureTargets, NextTargets
from models.cause_hazards import ConstantHazards, MixedHazards, WeibullHazards
from models.losses import all_future_negative_log_likelihood, next_token_negative_log_likelihood

SEEDS = range(4)
FORMS = ("constant", "weibull", "mixed", "weibull after", "mixed after")
DEATH = 4


def draw_parameters(seed, *leading):
    """Draw what any law of five causes needs, and the time [...,1] that has passed without an event, 0 for some."""
    generator = torch.Generator().manual_seed(seed)
    log_rate, eta, log_rho = (torch.randn(*leading, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    waited = torch.rand(*leading, 1, generator=generator, dtype=torch.float64) * 4 - 1
    return log_rate, eta, log_rho * 0.7, waited.clamp(min=0.0)


def law_of(form, log_rate, eta, log_rho, waited):
    if form == "constant":
        return ConstantHazards(log_rate, DEATH)
    weibull = WeibullHazards(eta, log_rho, DEATH)
    law = MixedHazards(log_rate, weibull) if form.startswith("mixed") else weibull
    return law.after(waited) if form.endswith("after") else law


def by_formula(form, parameters, place, cause, u):
    """Return h and H of one cause, u years after, as they are written."""
    log_rate, eta, log_rho = (parameter[(*place, cause)].item() for parameter in parameters[:3])
    rate = 0.0 if form.startswith("weibull") else math.exp(log_rate)
    if form == "constant":
        return rate, rate * u
    rho = math.exp(log_rho)
    sigma = 5.0 * math.exp(-eta / rho)
    waited = parameters[3][(*place, 0)].item() if form.endswith("after") else 0.0
    hazard = rate + rho / sigma * ((waited + u) / sigma) ** (rho - 1)
    return hazard, rate * u + ((waited + u) / sigma) ** rho - (waited / sigma) ** rho


def draw_future(seed, n_subjects=4, n_queries=3):
    generator = torch.Generator().manual_seed(seed)
    shape = (n_subjects, n_queries, 5)
    at_risk = torch.rand(shape, generator=generator) < 0.7
    at_risk[0] = False  # a person outside observation
    time = torch.where(at_risk, 0.01 + torch.rand(shape, generator=generator, dtype=torch.float64) * 3, 0.0)
    happened = at_risk & (torch.rand(shape, generator=generator) < 0.4)
    return FutureTargets(time, happened, at_risk, torch.ones(shape[:2]), float(n_subjects * n_queries))


def draw_next(seed, n_intervals=12):
    """Draw intervals that end with no event, with one, or with several of one day; every event was at risk."""
    generator = torch.Generator().manual_seed(seed)
    at_risk = torch.rand(n_intervals, 5, generator=generator) < 0.8
    ended = at_risk & (torch.rand(n_intervals, 5, generator=generator) < 0.3)
    ended[0], at_risk[1], ended[1] = False, True, True  # censored; everything at once
    interval, outcome = ended.nonzero(as_tuple=True)
    mixed_up = torch.randperm(len(interval), generator=generator)
    years = 0.01 + torch.rand(n_intervals, generator=generator, dtype=torch.float64) * 3
    row = torch.arange(n_intervals)
    return NextTargets(row, years, at_risk, interval[mixed_up], outcome[mixed_up], float(n_intervals))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_all_future_equals_a_plain_loop(form, seed):
    parameters, targets = draw_parameters(seed, 4, 3), draw_future(seed)
    found = all_future_negative_log_likelihood(law_of(form, *parameters), targets)
    assert found.shape == (4, 3)
    for b in range(4):
        for q in range(3):
            expected = 0.0
            for k in range(5):
                if targets.at_risk[b, q, k]:
                    hazard, cumulative = by_formula(form, parameters, (b, q), k, targets.time_years[b, q, k].item())
                    expected += cumulative
                    if targets.happened[b, q, k]:
                        expected -= math.log(hazard)
            assert found[b, q].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_next_token_equals_a_plain_loop(form, seed):
    parameters, targets = draw_parameters(seed, 12), draw_next(seed)
    found = next_token_negative_log_likelihood(law_of(form, *parameters), targets)
    events = list(zip(targets.event_interval.tolist(), targets.event_outcome.tolist(), strict=True))
    for n, years in enumerate(targets.interval_years.tolist()):
        expected = 0.0
        for k in range(5):
            hazard, cumulative = by_formula(form, parameters, (n,), k, years)
            if targets.at_risk[n, k]:
                expected += cumulative
            expected -= sum(math.log(hazard) for event in events if event == (n, k))
        assert found[n].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_picked_log_hazards_equal_the_dense_form(form, seed):
    law, targets = law_of(form, *draw_parameters(seed, 4, 3)), draw_future(seed)
    survived = torch.where(targets.at_risk, law.cumulative_hazard(targets.time_years), 0.0)
    event_time = torch.where(targets.happened, targets.time_years, 1.0)
    log_hazard = torch.where(targets.happened, law.log_hazard(event_time), 0.0)
    torch.testing.assert_close(all_future_negative_log_likelihood(law, targets), (survived - log_hazard).sum(-1))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_differences(form):
    *parameters, waited = draw_parameters(0, 4, 3)
    future, following = draw_future(0), draw_next(0)

    def all_future(*three):
        return all_future_negative_log_likelihood(law_of(form, *three, waited), future)

    def next_token(*three):
        law = law_of(form, *three, waited).map_parameters(lambda p: p.flatten(0, 1))
        return next_token_negative_log_likelihood(law, following)

    for parameter in parameters:
        parameter.requires_grad_()
    assert torch.autograd.gradcheck(all_future, parameters)
    assert torch.autograd.gradcheck(next_token, parameters)
