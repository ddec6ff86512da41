"""The Weibull head: where it starts, what it can reach, and that it finds the law that made the data."""

import math

import numpy as np
import pytest
import torch
from drawn_batches import LAYOUT

from data_schemas.sequence_batch import FutureTargets
from models.heads import WeibullHead
from models.losses import all_future_negative_log_likelihood
from models.vocabulary_layout import VocabularyLayout


def test_training_starts_at_the_rates_of_the_population():
    head = WeibullHead(16, LAYOUT)
    hazards = head(torch.randn(4, 3, 16) * 100)
    rates = torch.tensor(LAYOUT.log_rate_per_year).exp()
    assert torch.equal(hazards.log_shape, torch.zeros(4, 3, 6))
    one_year = torch.ones(4, 3, 6)
    torch.testing.assert_close(hazards.cumulative_hazard(one_year), rates.expand(4, 3, 6), rtol=1e-6, atol=0)
    torch.testing.assert_close(hazards.log_hazard(one_year * 7).exp(), rates.expand(4, 3, 6), rtol=1e-5, atol=0)


def test_the_rates_are_kept_with_the_weights_and_are_not_trained():
    head = WeibullHead(16, LAYOUT)
    assert "log_rates_per_year" in head.state_dict()
    assert {name for name, _ in head.named_parameters()} == {
        "anchor_proj.weight", "anchor_proj.bias", "shape_proj.weight", "shape_proj.bias",
    }  # fmt: skip


@pytest.mark.parametrize(("raw", "bound"), [(1e4, 10.0), (-1e4, 0.1)])
def test_the_shape_is_bounded_smoothly(raw, bound):
    head = WeibullHead(1, LAYOUT)
    with torch.no_grad():
        head.shape_proj.weight.fill_(1.0)
    assert head(torch.tensor([[raw]])).log_shape.exp()[0, 0].item() == pytest.approx(bound, rel=1e-5)
    near = torch.tensor([[0.01]], requires_grad=True)
    (slope,) = torch.autograd.grad(head(near).log_shape[0, 0], near)
    assert slope.item() == pytest.approx(1.0, abs=1e-4)  # unbounded where it matters
    grid = head(torch.linspace(-4, 4, 50)[:, None]).log_shape[:, 0]
    assert (grid.diff() > 0).all()


def test_hazards_are_float32_under_autocast():
    head = WeibullHead(16, LAYOUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hazards = head(torch.randn(2, 3, 16).bfloat16())
    assert hazards.log_anchor_hazard.dtype == hazards.log_shape.dtype == torch.float32


@pytest.mark.parametrize(("sigma", "rho"), [(12.0, 0.7), (9.0, 2.5)])
def test_a_fitted_head_finds_the_law_that_lifelines_finds(sigma, rho):
    lifelines = pytest.importorskip("lifelines")
    rng = np.random.default_rng(1)
    death_sigma, death_rho = 15.0, 1.3
    draws = [scale * rng.weibull(shape, 3000) for scale, shape in ((sigma, rho), (death_sigma, death_rho))]
    censoring = rng.uniform(0.5, 10.0, 3000)
    times = [np.minimum(np.maximum(draw, 1e-3), censoring) for draw in draws]
    happened = [draw < censoring for draw in draws]
    layout = VocabularyLayout((False,) * 5, (3, 4), 1, (math.log(0.045), math.log(0.045)))

    head = WeibullHead(1, layout).double()
    targets = FutureTargets(
        torch.tensor(np.stack(times, -1))[:, None],
        torch.tensor(np.stack(happened, -1))[:, None],
        torch.ones(3000, 1, 2, dtype=torch.bool),
        torch.ones(3000, 1),
    )
    features = torch.ones(3000, 1, 1, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def step():
        optimizer.zero_grad()
        loss = all_future_negative_log_likelihood(head(features), targets).mean()
        loss.backward()
        return loss

    optimizer.step(step)
    with torch.no_grad():
        hazards = head(features[:1])
    for k in range(2):
        fitted = lifelines.WeibullFitter().fit(times[k], happened[k])
        shape = hazards.log_shape[0, 0, k].exp().item()
        scale = hazards.ANCHOR_YEARS * math.exp(-hazards.log_anchor_hazard[0, 0, k].item() / shape)
        assert shape == pytest.approx(fitted.rho_, rel=0.02)
        assert scale == pytest.approx(fitted.lambda_, rel=0.02)
