"""Risks against scipy over the whole range of laws: shapes from 0.1 to 10, scales from an hour to a million years."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq

from models.cause_hazards import CauseHazards, ConstantHazards, MixedHazards, WeibullHazards
from models.risk_quadrature import COARSE_WEIGHTS, FINE_WEIGHTS, NODES

CAUSE, DEATH = 0, 1
HOUR = 1 / (24 * 365.25)
SHAPES = (0.1, 0.5, 1.0, 2.5, 10.0)
SCALES = (HOUR, 0.01, 1.0, 10.0, 1e3, 1e6)  # years
ERROR, ERROR_AFTER = 1e-8, 1e-6  # as `CauseHazards.risk` states them


@dataclass(frozen=True)
class Cause:
    """A hazard as it is written in a textbook: a rate and a Weibull law, `waited` years in."""

    shape: float
    scale: float
    rate: float = 0.0
    waited: float = 0.0

    def cumulative(self, u):
        if self.waited == 0:
            return self.rate * u + (u / self.scale) ** self.shape
        added = math.expm1(self.shape * math.log1p(u / self.waited))
        return self.rate * u + (self.waited / self.scale) ** self.shape * added

    def hazard(self, u):
        after = (self.waited + u) / self.scale
        return self.rate + self.shape / self.scale * after ** (self.shape - 1)


def reference_risk(cause, death, horizon):
    """Integrate over log u by scipy, in pieces between the times at which the cumulative hazards pass some levels."""

    def density(x):
        u = math.exp(x)
        return u * cause.hazard(u) * math.exp(-cause.cumulative(u) - death.cumulative(u))

    def time_of(law, level):
        if law.cumulative(horizon) <= level * (1 + 1e-9):
            return math.log(horizon)
        return brentq(lambda x: law.cumulative(math.exp(x)) - level, -500.0, math.log(horizon), xtol=1e-9)

    passed = [
        (law, level)
        for law, level in itertools.product((cause, death), (1e-6, 1e-3, 0.1, 1.0, 5.0, 40.0))
        if law.cumulative(horizon) > level * (1 + 1e-9)
    ]
    first = time_of(cause, 1e-18)
    last = min([math.log(horizon), *(time_of(law, level) for law, level in passed if level == 40.0)])
    between = {edge for edge in (time_of(law, level) for law, level in passed) if first < edge < last}
    pieces = itertools.pairwise(sorted({first, last} | between)) if first < last else ()
    return sum(quad(density, low, high, epsabs=1e-12, epsrel=1e-9, limit=200)[0] for low, high in pieces)


def law_of(pairs: list[tuple[Cause, Cause]], dtype=torch.float64) -> CauseHazards:
    """Return the hazards [N,2] of N pairs of a cause and death."""

    def column(name):
        return torch.tensor([[getattr(law, name) for law in pair] for pair in pairs], dtype=torch.float64)

    shape, rate, waited = column("shape"), column("rate"), column("waited")[:, :1]
    anchor = shape * torch.log(WeibullHazards.ANCHOR_YEARS / column("scale"))
    law: CauseHazards = WeibullHazards(anchor.to(dtype), shape.log().to(dtype), DEATH)
    if rate.any():
        law = MixedHazards(rate.log().to(dtype), law)
    return law.after(waited.to(dtype)) if waited.any() else law


def draw_pairs(seed, n, mixed, waits):
    """Draw from the grid, so that its corners come up; both of a pair have waited equally long."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        waited = float(rng.choice(waits))
        rates = 10 ** rng.uniform(-8, 2, 2) if mixed else (0.0, 0.0)
        pairs.append(tuple(Cause(float(rng.choice(SHAPES)), float(rng.choice(SCALES)), r, waited) for r in rates))
    return pairs


@pytest.mark.parametrize("horizon", [1 / 365.25, 5.0, 100.0, 1e4])
@pytest.mark.parametrize("mixed", [False, True], ids=["weibull", "mixed"])
def test_risks_equal_scipy_over_the_whole_grid(mixed, horizon):
    pairs = draw_pairs(int(horizon), 150, mixed, [0.0])
    expected = [reference_risk(*pair, horizon) for pair in pairs]
    found = law_of(pairs).risk(torch.tensor([horizon], dtype=torch.float64))[:, CAUSE, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=ERROR)


@pytest.mark.parametrize("horizon", [1 / 365.25, 5.0, 100.0])
@pytest.mark.parametrize("mixed", [False, True], ids=["weibull", "mixed"])
def test_risks_after_a_wait_equal_scipy(mixed, horizon):
    pairs = draw_pairs(int(horizon) + 1, 150, mixed, [0.0, 1e-9, HOUR, 0.3, 10.0])
    expected = [reference_risk(*pair, horizon) for pair in pairs]
    found = law_of(pairs).risk(torch.tensor([horizon], dtype=torch.float64))[:, CAUSE, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=ERROR_AFTER)


def test_small_risks_are_right_in_every_digit_that_counts():
    pairs = [(Cause(rho, 1e6, 1e-9), Cause(1.4, 30.0, 1e-3)) for rho in (0.9, 1.0, 2.0)]
    found = law_of(pairs).risk(torch.tensor([10.0]))[:, CAUSE, 0]
    np.testing.assert_allclose(found, [reference_risk(*pair, 10.0) for pair in pairs], rtol=1e-7)


def test_parameters_in_float32_cost_only_their_own_rounding():
    pairs = draw_pairs(5, 200, True, [0.0])
    horizon = torch.tensor([1.0, 10.0])
    found = law_of(pairs, torch.float32).risk(horizon)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, law_of(pairs).risk(horizon), rtol=0, atol=2e-5)


def test_the_horizons_may_come_in_any_number_and_order():
    law = law_of(draw_pairs(1, 100, True, [0.0, 0.2]))
    horizons = torch.tensor([10.0, 0.0, 0.5, 100.0, 0.5, 3.0], dtype=torch.float64)
    together = law.risk(horizons)
    assert together.shape == (100, 2, 6)
    assert (together[..., 1] == 0).all()
    assert torch.equal(together[..., 2], together[..., 4])
    for h in range(6):
        torch.testing.assert_close(together[..., h], law.risk(horizons[h : h + 1])[..., 0], rtol=0, atol=ERROR_AFTER)
    ordered = law.risk(horizons.sort().values)
    assert (ordered.diff(dim=-1) >= 0).all()  # exactly: each stretch adds something


def test_everybody_has_met_a_fate_after_an_endless_time():
    law = law_of([(Cause(1.3, 8.0), Cause(1.3, 4.0))])
    risk = law.risk(torch.tensor([1e6, 1e300, math.inf], dtype=torch.float64))[0]
    share = 8.0**-1.3 / (8.0**-1.3 + 4.0**-1.3)  # equal shapes: hazards are proportional
    np.testing.assert_allclose(risk[CAUSE], share, atol=ERROR)
    np.testing.assert_allclose(risk[DEATH], 1.0)


def test_constant_hazards_by_quadrature_equal_their_closed_form():
    generator = torch.Generator().manual_seed(0)
    law = ConstantHazards(torch.randn(50, 7, generator=generator, dtype=torch.float64) * 4 - 4, 3)
    horizons = torch.tensor([0.1, 1.0, 20.0])
    torch.testing.assert_close(CauseHazards.risk(law, horizons), law.risk(horizons), rtol=1e-8, atol=1e-12)


def test_many_rows_equal_the_same_rows_alone(monkeypatch):
    law = law_of(draw_pairs(2, 50, False, [0.0]))
    horizons = torch.tensor([1.0, 10.0])
    together = law.risk(horizons)
    monkeypatch.setattr("models.cause_hazards._PAIRS_AT_ONCE", 6)
    torch.testing.assert_close(law.risk(horizons), together, rtol=0, atol=1e-12)
    nobody = law.map_parameters(lambda p: p[:0])
    assert nobody.risk(horizons).shape == (0, 2, 2)
    queries = law.map_parameters(lambda p: p.view(10, 5, 2))
    torch.testing.assert_close(queries.risk(horizons).view(50, 2, 2), together, rtol=0, atol=1e-12)
    alone = law.map_parameters(lambda p: p[7])  # no leading dimension
    torch.testing.assert_close(alone.risk(horizons), together[7], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("weights", "degree"), [(COARSE_WEIGHTS, 13), (FINE_WEIGHTS, 22)])
def test_the_rules_are_exact_for_polynomials(weights, degree):
    for power in range(degree + 1):
        exact = 2 / (power + 1) if power % 2 == 0 else 0.0
        assert np.dot(weights, np.array(NODES) ** power) == pytest.approx(exact, abs=1e-14)
    one_too_many = degree + (2 if degree % 2 == 0 else 1)
    assert abs(np.dot(weights, np.array(NODES) ** one_too_many) - 2 / (one_too_many + 1)) > 1e-14
