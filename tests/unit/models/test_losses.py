"""The likelihood equals a plain loop, and who is not at risk adds nothing."""

import math
from dataclasses import replace

import torch
from drawn_batches import draw_batch, draw_targets

from models.cause_hazards import WeibullHazards
from models.losses import all_future_negative_log_likelihood


def drawn():
    generator = torch.Generator().manual_seed(0)
    eta, log_rho = (torch.randn(5, 3, 6, generator=generator, dtype=torch.float64) * 0.5 for _ in range(2))
    return eta.requires_grad_(), log_rho.requires_grad_(), draw_targets(0, draw_batch(0))


def test_it_equals_a_plain_loop():
    eta, log_rho, targets = drawn()
    loss = all_future_negative_log_likelihood(WeibullHazards(eta, log_rho, 5), targets)
    assert loss.shape == (5, 3)
    for b in range(5):
        for q in range(3):
            expected = 0.0
            for k in range(6):
                if not targets.at_risk[b, q, k]:
                    continue
                u, rho = targets.time_years[b, q, k].item(), math.exp(log_rho[b, q, k].item())
                sigma = 5.0 * math.exp(-eta[b, q, k].item() / rho)
                expected += (u / sigma) ** rho
                if targets.happened[b, q, k]:
                    expected -= math.log(rho / sigma * (u / sigma) ** (rho - 1))
            assert abs(loss[b, q].item() - expected) < 1e-6 * max(1.0, abs(expected))


def test_causes_not_at_risk_add_exactly_zero_and_no_gradient():
    eta, log_rho, targets = drawn()
    all_future_negative_log_likelihood(WeibullHazards(eta, log_rho, 5), targets).sum().backward()
    for gradient in (eta.grad, log_rho.grad):
        assert gradient.isfinite().all()
        assert (gradient[~targets.at_risk] == 0).all()
        assert (gradient[targets.at_risk] != 0).all()
    nothing = torch.zeros_like(targets.at_risk)
    nobody = replace(targets, at_risk=nothing, happened=nothing)  # whatever times stand there
    assert (all_future_negative_log_likelihood(WeibullHazards(eta, log_rho, 5), nobody) == 0).all()
