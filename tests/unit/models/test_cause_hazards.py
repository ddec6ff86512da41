"""Hazards and risks against calculus and closed forms: constant, Weibull and what remains of it after a wait."""

import math

import numpy as np
import pytest
import torch

from models.cause_hazards import ConstantHazards, MixedHazards, WeibullHazards

ANCHOR = WeibullHazards.ANCHOR_YEARS
CAUSE, DEATH = 0, 1
HOUR = 1 / (24 * 365.25)


def weibull(anchor_hazards, shapes, dtype=torch.float64):
    """Return hazards of a cause and death from H at the anchor and ρ, each a list of pairs."""
    return WeibullHazards(
        torch.tensor(anchor_hazards, dtype=dtype).log(), torch.tensor(shapes, dtype=dtype).log(), DEATH
    )


def draw_laws(n_rows=200, n_causes=3):
    """Return a law of every form [N,K], from small to large hazards."""
    rng = np.random.default_rng(0)
    plain = weibull(10 ** rng.uniform(-5, 1, (n_rows, n_causes)), 10 ** rng.uniform(-0.95, 0.95, (n_rows, n_causes)))
    log_rate = torch.tensor(rng.uniform(-8, 1, (n_rows, n_causes)))
    mixed, waited = MixedHazards(log_rate, plain), torch.tensor(rng.choice([0.0, 1e-5, 0.5, 30.0], (n_rows, 1)))
    return {
        "constant": ConstantHazards(log_rate, DEATH),
        "weibull": plain,
        "mixed": mixed,
        "weibull after": plain.after(waited),
        "mixed after": mixed.after(waited),
    }


LAWS = draw_laws()


@pytest.fixture(params=LAWS)
def law(request):
    return LAWS[request.param]


def at(u, n_rows=200):
    return torch.full((n_rows, 3), u, dtype=torch.float64)


@pytest.mark.parametrize("u", [1e-3, 0.5, 5.0, 30.0])
def test_the_hazard_is_the_derivative_of_the_cumulative_hazard(law, u):
    time = at(u).requires_grad_()
    (derivative,) = torch.autograd.grad(law.cumulative_hazard(time).sum(), time)
    torch.testing.assert_close(derivative.log(), law.log_hazard(time), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("u", [1e-3, 0.5, 30.0])
def test_hazards_by_the_logarithm_of_time_are_the_same_hazards(law, u):
    hazard, cumulative = law.at_log_time(at(math.log(u)))
    torch.testing.assert_close(hazard, u * law.log_hazard(at(u)).exp(), rtol=1e-9, atol=0)
    torch.testing.assert_close(cumulative, law.cumulative_hazard(at(u)), rtol=1e-9, atol=0)


def test_the_time_of_a_cumulative_hazard_is_late_enough_and_not_much_later(law):
    reached = law.at_log_time(law.log_time_of(30.0))[1]
    assert (reached > 30.0 * (1 - 1e-9)).all()
    assert (reached < 2 * 30.0 * (1 + 1e-9)).all()


@pytest.mark.parametrize("u", [0.5, 12.0])
def test_the_held_numbers_are_those_of_the_weibull_law(u):
    sigma, rho = 40.0, 1.7
    hazards = weibull([[(ANCHOR / sigma) ** rho] * 2], [[rho] * 2])
    time = torch.full((1, 2), u, dtype=torch.float64)
    assert hazards.cumulative_hazard(time)[0, 0].item() == pytest.approx((u / sigma) ** rho)
    assert hazards.log_hazard(time)[0, 0].exp().item() == pytest.approx(rho / sigma * (u / sigma) ** (rho - 1))


def test_one_time_for_all_causes_broadcasts(law):
    column = torch.linspace(0.1, 9.0, 200, dtype=torch.float64)[:, None]
    full = column.expand(-1, 3)
    assert torch.equal(law.log_hazard(column), law.log_hazard(full))
    assert torch.equal(law.cumulative_hazard(column), law.cumulative_hazard(full))


def test_the_total_at_risk_is_the_sum_over_the_causes_at_risk(law):
    generator = torch.Generator().manual_seed(1)
    at_risk = torch.rand(200, 3, generator=generator) < 0.6
    u = torch.rand(200, generator=generator, dtype=torch.float64) * 3
    cumulative = law.cumulative_hazard(u[:, None].expand(-1, 3))
    expected = [sum(c for c, there in zip(*row, strict=True) if there) for row in zip(cumulative, at_risk, strict=True)]
    torch.testing.assert_close(law.total_at_risk(u, at_risk), torch.tensor(expected, dtype=torch.float64))


def test_picked_pairs_follow_the_same_law(law):
    generator = torch.Generator().manual_seed(2)
    rows, causes = torch.randint(200, (50,), generator=generator), torch.randint(3, (50,), generator=generator)
    u = torch.rand(200, 3, generator=generator, dtype=torch.float64) + 0.1
    picked = law.pick(rows, causes)
    torch.testing.assert_close(picked.log_hazard(u[rows, causes]), law.log_hazard(u)[rows, causes])
    torch.testing.assert_close(picked.cumulative_hazard(u[rows, causes]), law.cumulative_hazard(u)[rows, causes])
    queries = law.map_parameters(lambda p: p.view(40, 5, 3))  # rows are numbered over subjects and queries
    torch.testing.assert_close(queries.pick(rows, causes).log_hazard(u[rows, causes]), law.log_hazard(u)[rows, causes])
    assert law.pick(rows[:0], causes[:0]).log_hazard(u[:0, 0]).shape == (0,)


@pytest.mark.parametrize("waited", [0.0, 1e-9, 0.4, 25.0])
@pytest.mark.parametrize("form", ["constant", "weibull", "mixed"])
def test_after_a_wait_the_same_hazards_go_on(form, waited):
    law, u = LAWS[form], at(2.0)
    rest = law.after(torch.full((200, 1), waited))
    torch.testing.assert_close(rest.log_hazard(u), law.log_hazard(u + waited))
    if waited:
        gone = law.cumulative_hazard(at(waited))
        torch.testing.assert_close(rest.cumulative_hazard(u) + gone, law.cumulative_hazard(u + waited))
        torch.testing.assert_close(rest.after(torch.ones(200, 1)).log_hazard(u), law.log_hazard(u + waited + 1))
    else:
        torch.testing.assert_close(rest.risk(torch.tensor([2.0])), law.risk(torch.tensor([2.0])), rtol=0, atol=1e-8)


def test_constant_hazards_remember_nothing():
    law = LAWS["constant"]
    assert law.after(torch.ones(200, 1)) is law


def test_a_short_time_after_a_long_wait_keeps_its_digits():
    law = weibull([[0.3, 0.1]], [[1.5, 0.7]], torch.float32).after(torch.tensor([[40.0]]))
    u = torch.tensor([[HOUR, HOUR]])
    expected = law.log_hazard(u).exp() * u  # so short that the hazard does not change
    torch.testing.assert_close(law.cumulative_hazard(u), expected, rtol=1e-5, atol=0)


def test_constant_hazards_have_a_closed_form():
    rate, death_rate, horizon = 0.03, 0.05, 10.0
    total = rate + death_rate
    constant = ConstantHazards(torch.tensor([[rate, death_rate]], dtype=torch.float64).log(), DEATH)
    for law in (constant, weibull([[rate * ANCHOR, death_rate * ANCHOR]], [[1.0, 1.0]])):
        risk = law.risk(torch.tensor([horizon]))[0, :, 0]
        assert risk[CAUSE].item() == pytest.approx(rate / total * -math.expm1(-total * horizon), abs=1e-12)
        assert risk[DEATH].item() == pytest.approx(-math.expm1(-death_rate * horizon), abs=1e-12)


@pytest.mark.parametrize(
    ("log_rates", "expected"),
    [
        ((-700.0, -700.0), (0.0, 0.0)),
        ((-2000.0, 2000.0), (0.0, 1.0)),
        ((2000.0, -2000.0), (1.0, 0.0)),
        ((2000.0, 2000.0), (0.5, 1.0)),
    ],
)
def test_constant_rates_without_bounds_give_risks_and_gradients_in_bounds(log_rates, expected):
    log_rate = torch.tensor([log_rates], dtype=torch.float64, requires_grad=True)
    risk = ConstantHazards(log_rate, DEATH).risk(torch.tensor([0.0, 1.0]))
    assert risk[0, :, 0].tolist() == [0.0, 0.0]
    assert risk[0, :, 1].tolist() == pytest.approx(expected, abs=1e-12)
    (gradient,) = torch.autograd.grad(risk.sum(), log_rate)
    assert gradient.isfinite().all()


def test_a_tiny_constant_risk_is_rate_times_time():
    law = ConstantHazards(torch.tensor([[-40.0, -4.0]]), DEATH)
    assert law.risk(torch.tensor([1e-3]))[0, CAUSE, 0].item() == pytest.approx(math.exp(-40) * 1e-3, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("waited", [None, 0.0, HOUR, 50.0])
@pytest.mark.parametrize("form", ["weibull", "mixed"])
def test_no_shape_scale_or_time_gives_infinities_or_undefined_gradients(form, waited, dtype):
    shape, scale = torch.cartesian_prod(torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0]), torch.tensor([HOUR, 1.0, 1e6])).T
    eta = (shape * torch.log(ANCHOR / scale)).to(dtype)[:, None].repeat(1, 2).requires_grad_()
    log_shape = shape.log().to(dtype)[:, None].repeat(1, 2).requires_grad_()
    log_rate = torch.tensor([-40.0, 10.0], dtype=dtype).expand(15, 2).clone().requires_grad_()
    law = WeibullHazards(eta, log_shape, DEATH)
    law = MixedHazards(log_rate, law) if form == "mixed" else law
    if waited is not None:
        law = law.after(torch.tensor([[waited]], dtype=dtype).expand(15, 1))
    parameters = [eta, log_shape, *([log_rate] if form == "mixed" else [])]
    for u in (0.0, HOUR, 1.0, 120.0):
        time = torch.full((15, 2), u, dtype=dtype)
        values = [law.cumulative_hazard(time)] + ([law.log_hazard(time)] if u > 0 else [])
        for value in values:
            assert value.isfinite().all()
            assert all(g is None or g.isfinite().all() for g in gradients(value, parameters))
        if u == 0:
            assert (values[0] == 0).all()
    risk = law.risk(torch.tensor([0.0, HOUR, 1.0, 120.0, 1e6]))
    assert ((risk >= 0) & (risk <= 1)).all()
    assert all(g.isfinite().all() for g in gradients(risk, parameters))


def gradients(value, parameters):
    return torch.autograd.grad(value.sum(), parameters, retain_graph=True, allow_unused=True)


def test_risks_are_probabilities_that_grow_and_leave_room_for_death(law):
    horizons = torch.tensor([0.25, 0.5, 1.0, 2.0, 5.0, 10.0])
    risk = law.risk(horizons)
    assert ((risk >= 0) & (risk <= 1)).all()
    assert (risk.diff(dim=-1) >= 0).all()
    for h, horizon in enumerate(horizons.tolist()):
        cumulative = law.cumulative_hazard(at(horizon))
        death = cumulative[:, DEATH]
        torch.testing.assert_close(risk[:, DEATH, h], -torch.expm1(-death))
        for k in (0, 2):
            # Of three fates, the outcome, death without it and neither, the first two have these probabilities.
            either = -torch.expm1(-cumulative[:, k] - death)
            assert (risk[:, k, h] <= either + 1e-8).all()
            assert (risk[:, k, h] <= -torch.expm1(-cumulative[:, k]) + 1e-15).all()


def test_probabilities_of_the_next_event_sum_to_at_most_one():
    law, everybody = LAWS["constant"], torch.ones(200, 3, dtype=torch.bool)
    for u in (0.1, 1.0, 50.0):
        total = law.total_at_risk(torch.full((200,), u, dtype=torch.float64), everybody)
        share = law.cumulative_hazard(at(u)) / total[:, None]
        next_is = share * -torch.expm1(-total)[:, None]
        assert (next_is.sum(-1) <= 1 + 1e-12).all()
        # Competing with death alone, or with nothing, a first occurrence is likelier than being the next event.
        assert (next_is <= law.risk(torch.tensor([u]))[..., 0] + 1e-7).all()


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
    horizons = torch.tensor([1.0, 5.0])

    def risks(eta, log_rho):
        return WeibullHazards(eta, log_rho, DEATH).risk(horizons)

    assert torch.autograd.gradcheck(risks, (eta, log_rho))
    assert torch.autograd.gradcheck(lambda log_rate: ConstantHazards(log_rate, DEATH).risk(horizons), (eta,))
