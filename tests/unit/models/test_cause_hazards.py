"""Hazards and risks against calculus: derivatives by autograd, integrals by scipy, closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from models.cause_hazards import WeibullHazards

ANCHOR = WeibullHazards.ANCHOR_YEARS
CAUSE, DEATH = 0, 1
HORIZONS = (1.0, 10.0)
SHAPES = (0.2, 0.5, 1.0, 2.0, 5.0)
HAZARDS = (1e-6, 1e-2, 1.0, 30.0)  # cumulative, at the horizon


def weibull(anchor_hazards, shapes, dtype=torch.float64):
    """Return hazards of a cause and death from H at the anchor and ρ, each a list of pairs."""
    return WeibullHazards(
        torch.tensor(anchor_hazards, dtype=dtype).log(), torch.tensor(shapes, dtype=dtype).log(), DEATH
    )


def risk_by_quadrature(cumulative, shape, death_cumulative, death_shape, horizon):
    """Integrate h·exp(-H - H_death) over log u, split where the integrand bends; H given at the horizon."""

    def density(log_x):
        hazard = cumulative * math.exp(shape * log_x)
        return shape * hazard * math.exp(-hazard - death_cumulative * math.exp(death_shape * log_x))

    lowest = min(-40.0, -math.log(cumulative) - 40.0) / shape
    bends = [-math.log(cumulative) / shape, -math.log(death_cumulative) / death_shape, -1.0 / death_shape]
    edges = sorted({lowest, 0.0, *(bend for bend in bends if lowest < bend < 0)})
    pieces = (quad(density, low, high, epsabs=1e-12, limit=400)[0] for low, high in itertools.pairwise(edges))
    return sum(pieces)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 2e-6)])
def test_risks_equal_scipy_over_shapes_and_sizes_of_hazards(dtype, tolerance):
    cases = list(itertools.product(SHAPES, HAZARDS, SHAPES, HAZARDS))
    for horizon in HORIZONS:
        scale = ANCHOR / horizon
        hazards = weibull(
            [[H * scale**rho, H_death * scale**rho_death] for rho, H, rho_death, H_death in cases],
            [[rho, rho_death] for rho, _, rho_death, _ in cases],
            dtype,
        )
        found = hazards.risk(torch.tensor([horizon]))[:, CAUSE, 0].numpy()
        expected = np.array([risk_by_quadrature(H, rho, D, rho_death, horizon) for rho, H, rho_death, D in cases])
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_ends_of_the_range_of_shapes_are_finite_and_close(dtype):
    cases = list(itertools.product((0.1, 10.0), (1e-3, 1.0, 30.0), (0.1, 10.0), (1e-3, 1.0, 30.0)))
    hazards = weibull([[H, D] for _, H, _, D in cases], [[rho, rho_death] for rho, _, rho_death, _ in cases], dtype)
    found = hazards.risk(torch.tensor([ANCHOR]))[:, CAUSE, 0].numpy()
    expected = np.array([risk_by_quadrature(H, rho, D, rho_death, ANCHOR) for rho, H, rho_death, D in cases])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_constant_hazards_have_a_closed_form():
    rate, death_rate, horizon = 0.03, 0.05, 10.0
    hazards = weibull([[rate * ANCHOR, death_rate * ANCHOR]], [[1.0, 1.0]])
    total = rate + death_rate
    risk = hazards.risk(torch.tensor([horizon]))[0, :, 0]
    assert risk[CAUSE].item() == pytest.approx(rate / total * -math.expm1(-total * horizon), abs=1e-12)
    assert risk[DEATH].item() == pytest.approx(-math.expm1(-death_rate * horizon), abs=1e-12)


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    return weibull(10 ** rng.uniform(-5, 1, (200, 3)), 10 ** rng.uniform(-0.95, 0.95, (200, 3)))


def at(u, hazards):
    return torch.full_like(hazards.log_shape, u).requires_grad_()


@pytest.mark.parametrize("u", [1e-3, 0.5, 5.0, 30.0])
def test_the_hazard_is_the_derivative_of_the_cumulative_hazard(drawn, u):
    time = at(u, drawn)
    (derivative,) = torch.autograd.grad(drawn.cumulative_hazard(time).sum(), time)
    torch.testing.assert_close(derivative.log(), drawn.log_hazard(time), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("u", [0.5, 12.0])
def test_the_held_numbers_are_those_of_the_weibull_law(u):
    sigma, rho = 40.0, 1.7
    hazards = weibull([[(ANCHOR / sigma) ** rho] * 2], [[rho] * 2])
    time = torch.full((1, 2), u, dtype=torch.float64)
    assert hazards.cumulative_hazard(time)[0, 0].item() == pytest.approx((u / sigma) ** rho)
    assert hazards.log_hazard(time)[0, 0].exp().item() == pytest.approx(rho / sigma * (u / sigma) ** (rho - 1))


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0, 3.0])
def test_nothing_has_happened_at_time_zero_and_gradients_there_are_finite(rho):
    eta = torch.tensor([[0.3, -2.0]], requires_grad=True)
    log_rho = torch.full((1, 2), math.log(rho), requires_grad=True)
    time = torch.zeros(1, 2, requires_grad=True)
    cumulative = WeibullHazards(eta, log_rho, DEATH).cumulative_hazard(time)
    assert cumulative.tolist() == [[0.0, 0.0]]
    for gradient in torch.autograd.grad(cumulative.sum(), (eta, log_rho, time)):
        assert gradient.isfinite().all()


def test_risks_are_probabilities_that_grow_and_leave_room_for_death(drawn):
    horizons = torch.tensor([0.25, 0.5, 1.0, 2.0, 5.0, 10.0])
    risk = drawn.risk(horizons)
    assert ((risk >= 0) & (risk <= 1)).all()
    assert (risk.diff(dim=-1) >= -1e-6).all()
    for h, horizon in enumerate(horizons.tolist()):
        cumulative = drawn.cumulative_hazard(at(horizon, drawn))
        death = cumulative[:, drawn.death_outcome]
        torch.testing.assert_close(risk[:, drawn.death_outcome, h], -torch.expm1(-death))
        for k in (0, 2):
            # Of three fates, the outcome, death without it and neither, the first two have these probabilities.
            either = -torch.expm1(-cumulative[:, k] - death)
            assert (risk[:, k, h] <= either + 1e-6).all()
            assert (risk[:, k, h] <= -torch.expm1(-cumulative[:, k])).all()


def test_risk_and_death_without_the_outcome_make_up_either():
    hazards = weibull([[0.8, 0.5]], [[1.4, 2.2]])
    mirrored = weibull([[0.5, 0.8]], [[2.2, 1.4]])  # death first, the outcome competing
    horizon = torch.tensor([8.0])
    both = hazards.risk(horizon)[0, CAUSE, 0] + mirrored.risk(horizon)[0, CAUSE, 0]
    cumulative = hazards.cumulative_hazard(torch.full((1, 2), 8.0, dtype=torch.float64)).sum()
    assert both.item() == pytest.approx(-math.expm1(-cumulative.item()), abs=1e-9)


def test_risks_have_gradients():
    eta = torch.tensor([[-1.0, -2.0, -1.5]], dtype=torch.float64, requires_grad=True)
    log_rho = torch.tensor([[0.2, -0.3, 0.5]], dtype=torch.float64, requires_grad=True)

    def risks(eta, log_rho):
        return WeibullHazards(eta, log_rho, DEATH).risk(torch.tensor([1.0, 5.0]))

    assert torch.autograd.gradcheck(risks, (eta, log_rho))
