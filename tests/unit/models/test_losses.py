"""The likelihoods at their corners: who is not at risk adds nothing, and one day is one set."""

from dataclasses import replace

import pytest
import torch
from drawn_batches import draw_batch, draw_targets
from torch.nn.functional import cross_entropy

from data_schemas.sequence_batch import NextTargets
from models.cause_hazards import ConstantHazards, WeibullHazards
from models.losses import all_future_negative_log_likelihood, next_token_negative_log_likelihood


def draw_parameters(*shape):
    generator = torch.Generator().manual_seed(0)
    eta, log_rho = (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5 for _ in range(2))
    return eta.requires_grad_(), log_rho.requires_grad_()


def test_causes_not_at_risk_add_exactly_zero_and_no_gradient():
    (eta, log_rho), targets = draw_parameters(5, 3, 6), draw_targets(0, draw_batch(0))
    all_future_negative_log_likelihood(WeibullHazards(eta, log_rho, 5), targets).sum().backward()
    for gradient in (eta.grad, log_rho.grad):
        assert gradient.isfinite().all()
        assert (gradient[~targets.at_risk] == 0).all()
        assert (gradient[targets.at_risk] != 0).all()
    nothing = torch.zeros_like(targets.at_risk)
    nobody = replace(targets, at_risk=nothing, happened=nothing)  # whatever times stand there
    assert (all_future_negative_log_likelihood(WeibullHazards(eta, log_rho, 5), nobody) == 0).all()


def intervals(events, n_intervals=4, n_outcomes=6, years=(0.5, 2.0, 1e-3, 7.0)):
    """Return intervals at whose ends stand the events, each an (interval, outcome)."""
    ended = torch.tensor(events, dtype=torch.int64).view(-1, 2)
    return NextTargets(
        row=torch.arange(n_intervals),
        interval_years=torch.tensor(years, dtype=torch.float64),
        at_risk=torch.ones(n_intervals, n_outcomes, dtype=torch.bool),
        event_interval=ended[:, 0],
        event_outcome=ended[:, 1],
        divisor=float(n_intervals),
    )


def draw_constant():
    return ConstantHazards(draw_parameters(4, 6)[0], 5)


def test_with_constant_hazards_it_is_cross_entropy_plus_waiting_time():
    hazards, causes = draw_constant(), torch.tensor([3, 0, 5, 2])
    targets = intervals(list(enumerate(causes.tolist())))
    found = next_token_negative_log_likelihood(hazards, targets)
    total = hazards.log_rate.exp().sum(-1)
    waiting = targets.interval_years * total - total.log()
    torch.testing.assert_close(found, cross_entropy(hazards.log_rate, causes, reduction="none") + waiting)


def test_an_interval_that_nothing_ended_adds_its_cumulative_hazard_alone():
    hazards, targets = draw_constant(), intervals([])
    found = next_token_negative_log_likelihood(hazards, targets)
    torch.testing.assert_close(found, targets.interval_years * hazards.log_rate.exp().sum(-1))


def test_events_of_one_day_are_a_set():
    hazards = draw_constant()
    alone = next_token_negative_log_likelihood(hazards, intervals([]))
    found = next_token_negative_log_likelihood(hazards, intervals([(1, 4), (3, 0), (1, 2), (1, 0)]))
    expected = alone.clone()
    expected[1] -= hazards.log_rate[1, [0, 2, 4]].sum()
    expected[3] -= hazards.log_rate[3, 0]
    torch.testing.assert_close(found, expected)
    again = next_token_negative_log_likelihood(hazards, intervals([(1, 0), (1, 2), (1, 4), (3, 0)]))
    torch.testing.assert_close(again, found)


@pytest.mark.parametrize("form", ["constant", "weibull"])
def test_a_cause_that_left_the_risk_set_adds_nothing_and_gets_no_gradient(form):
    eta, log_rho = draw_parameters(4, 6)
    hazards = ConstantHazards(eta, 5) if form == "constant" else WeibullHazards(eta, log_rho, 5)
    targets = intervals([(0, 1), (2, 5)])
    targets.at_risk[1:, 1] = False
    found = next_token_negative_log_likelihood(hazards, targets)
    everybody = next_token_negative_log_likelihood(hazards, intervals([(0, 1), (2, 5)]))
    gone = hazards.cumulative_hazard(targets.interval_years[:, None])[:, 1] * torch.tensor([0.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(found, everybody - gone)
    found.sum().backward()
    assert (eta.grad[1:, 1] == 0).all()
    assert (eta.grad[targets.at_risk] != 0).all()


def test_a_run_away_hazard_is_a_large_loss_and_no_infinity():
    log_rate = torch.tensor([[500.0, -500.0, 0.0]] * 4, requires_grad=True)
    targets = replace(intervals([(0, 1), (1, 0)], n_outcomes=3), interval_years=torch.tensor([0.5, 2.0, 1e-3, 7.0]))
    loss = next_token_negative_log_likelihood(ConstantHazards(log_rate, 2), targets)
    assert (loss > 1e25).all()
    assert loss.isfinite().all()
    loss.sum().backward()
    assert log_rate.grad.isfinite().all()
    assert (log_rate.grad[:, 0] > 1e25).all()  # the way down is still known
