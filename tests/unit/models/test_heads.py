"""The Weibull head: where it starts and what it can reach."""

import pytest
import torch
from drawn_batches import LAYOUT

from models.heads import HEADS, WeibullHead

NO_TOKENS = torch.empty(0)  # an untied head leaves the token embedding alone


def test_training_starts_at_the_rates_of_the_population():
    head = WeibullHead(16, LAYOUT)
    hazards = head(torch.randn(4, 3, 16) * 100, NO_TOKENS)
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
    assert head(torch.tensor([[raw]]), NO_TOKENS).log_shape.exp()[0, 0].item() == pytest.approx(bound, rel=1e-5)
    near = torch.tensor([[0.01]], requires_grad=True)
    (slope,) = torch.autograd.grad(head(near, NO_TOKENS).log_shape[0, 0], near)
    assert slope.item() == pytest.approx(1.0, abs=1e-4)  # unbounded where it matters
    grid = head(torch.linspace(-4, 4, 50)[:, None], NO_TOKENS).log_shape[:, 0]
    assert (grid.diff() > 0).all()


def test_hazards_are_float32_under_autocast():
    head = WeibullHead(16, LAYOUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hazards = head(torch.randn(2, 3, 16).bfloat16(), NO_TOKENS)
    assert hazards.log_anchor_hazard.dtype == hazards.log_shape.dtype == torch.float32


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_hidden_states_in_bfloat16_of_any_size_give_finite_hazards_and_gradients(name, size):
    head = HEADS[name](16, LAYOUT)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    weight = torch.randn(LAYOUT.n_tokens, 16, requires_grad=True)
    hidden = (torch.randn(4, 16) * size).bfloat16().requires_grad_()
    for u in (0.0, 1 / 730.5, 100.0):
        hazards = head(hidden, weight)
        cumulative = hazards.cumulative_hazard(torch.tensor(u))
        assert cumulative.dtype == torch.float32
        assert cumulative.isfinite().all()
        wanted = [hidden, *head.parameters(), *([weight] if name == "next_token" else [])]
        gradients = torch.autograd.grad(cumulative.mean(), wanted)
        assert all(gradient.isfinite().all() for gradient in gradients)
        risk = hazards.risk(torch.tensor([0.0, 1.0, 10.0]))
        assert ((risk >= 0) & (risk <= 1)).all()
