"""The mixed head: a constant and a Weibull part, against calculus and at its start."""

import math

import numpy as np
import pytest
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model
from scipy.integrate import quad

from models.cause_hazards import MixedHazards, WeibullHazards
from models.heads import MixedHead

CAUSE, DEATH = 0, 1


def mixed(rates, anchor_hazards, shapes):
    weibull = WeibullHazards(
        torch.tensor([anchor_hazards], dtype=torch.float64).log(),
        torch.tensor([shapes], dtype=torch.float64).log(),
        DEATH,
    )
    return MixedHazards(torch.tensor([rates], dtype=torch.float64).log(), weibull)


def by_formula(u, rate, anchor_hazard, shape):
    """Return hazard and cumulative hazard of one cause as they are written."""
    cumulative = anchor_hazard * (u / 5.0) ** shape
    return rate + shape * cumulative / u, rate * u + cumulative


@pytest.mark.parametrize("shapes", [(0.4, 2.0), (1.0, 1.0), (3.0, 0.5)])
@pytest.mark.parametrize("horizon", [1.0, 10.0])
def test_risks_equal_scipy(shapes, horizon):
    rates, anchors = (0.03, 0.01), (0.2, 0.1)
    hazards = mixed(rates, anchors, shapes)

    def density(u):
        hazard, cumulative = by_formula(u, rates[CAUSE], anchors[CAUSE], shapes[CAUSE])
        return hazard * math.exp(-cumulative - by_formula(u, rates[DEATH], anchors[DEATH], shapes[DEATH])[1])

    expected = sum(quad(density, *piece, limit=400)[0] for piece in ((0.0, 1e-3), (1e-3, horizon)))
    found = hazards.risk(torch.tensor([horizon]))[0, :, 0]
    assert found[CAUSE].item() == pytest.approx(expected, abs=1e-6)
    died = by_formula(horizon, rates[DEATH], anchors[DEATH], shapes[DEATH])[1]
    assert found[DEATH].item() == pytest.approx(1 - math.exp(-died), rel=1e-12)


def test_the_hazard_is_the_derivative_of_the_cumulative_hazard_and_zero_is_safe():
    hazards = mixed((0.03, 0.01), (0.2, 0.1), (0.4, 2.0))
    u = torch.tensor([[0.7, 3.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(hazards.cumulative_hazard(u).sum(), u)
    torch.testing.assert_close(slope, hazards.log_hazard(u).exp())
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert (hazards.cumulative_hazard(zero) == 0).all()


def test_training_starts_from_the_rates_of_the_population_half_in_each_part():
    head = MixedHead(16, LAYOUT)
    hazards = head(torch.randn(3, 2, 16))
    rates = np.exp(LAYOUT.log_rate_per_year)
    for u in (0.5, 1.0, 7.0):
        cumulative = hazards.cumulative_hazard(torch.full((3, 2, len(rates)), u))
        np.testing.assert_allclose(
            cumulative.detach().numpy(), np.broadcast_to(rates * u, (3, 2, len(rates))), rtol=1e-5
        )
    np.testing.assert_allclose(hazards.log_rate[0, 0].exp().detach(), rates / 2, rtol=1e-6)


def test_shifting_the_level_multiplies_every_hazard():
    model = draw_model(head="mixed")
    batch, u = draw_batch(0), torch.full((5, 3, LAYOUT.n_outcomes), 2.0, dtype=torch.float64)
    with torch.no_grad():
        before = model(batch).log_hazard(u)
        shift = torch.linspace(-1, 1, LAYOUT.n_outcomes, dtype=torch.float64)
        model.head.shift_log_hazards(shift)
        torch.testing.assert_close(model(batch).log_hazard(u), before + shift)
