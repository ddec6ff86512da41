"""The tied head: a constant hazard a cause from the token embedding, starting from the population's rates."""

import math

import pytest
import torch
from drawn_batches import LAYOUT

from models.heads import HEADS, NextTokenHead
from models.vocabulary_layout import VocabularyLayout

SCATTERED = VocabularyLayout((False,) * 9, (2, 3, 7, 8), 1, (-3.0, -4.0, -5.0, -6.0))


def draw(width=16, layout=LAYOUT, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 3, width, generator=generator, dtype=dtype)
    return hidden, torch.randn(layout.n_tokens, width, generator=generator, dtype=dtype) * 0.1


def test_hidden_states_of_zero_give_the_rates_of_the_population():
    _, weight = draw()
    hazards = HEADS["next_token"](16, LAYOUT)(torch.zeros(4, 3, 16), weight)
    rates = torch.tensor(LAYOUT.log_rate_per_year)
    assert torch.equal(hazards.log_rate, rates.expand(4, 3, 6))
    assert hazards.death_outcome == LAYOUT.death_outcome
    torch.testing.assert_close(hazards.cumulative_hazard(torch.tensor(2.0)), 2 * rates.exp().expand(4, 3, 6))


@pytest.mark.parametrize("layout", [LAYOUT, SCATTERED], ids=["contiguous", "scattered"])
def test_a_log_rate_is_the_product_with_the_row_of_its_outcome(layout):
    hidden, weight = draw(layout=layout)
    found = NextTokenHead(16, layout)(hidden, weight).log_rate
    for k, (token, rate) in enumerate(zip(layout.outcome_tokens, layout.log_rate_per_year, strict=True)):
        expected = sum(hidden[..., d] * weight[token, d] for d in range(16)) + rate
        torch.testing.assert_close(found[..., k], expected, rtol=1e-5, atol=1e-5)


def test_it_has_no_parameters_and_keeps_only_the_rates():
    head = NextTokenHead(16, SCATTERED)
    assert list(head.parameters()) == []
    assert set(head.state_dict()) == {"log_rates_per_year"}


def test_gradients_reach_the_hidden_states_and_the_rows_of_outcomes_alone():
    hidden, weight = draw(layout=SCATTERED)
    hidden.requires_grad_()
    weight.requires_grad_()
    NextTokenHead(16, SCATTERED)(hidden, weight).log_rate.square().sum().backward()
    assert (hidden.grad != 0).all()
    outcomes = torch.tensor(SCATTERED.outcome_tokens)
    assert (weight.grad[outcomes] != 0).all()
    others = torch.ones(9, dtype=torch.bool).index_fill(0, outcomes, False)
    assert (weight.grad[others] == 0).all()


def test_hazards_are_float32_under_autocast_and_from_bfloat16():
    hidden, weight = draw()
    exact = NextTokenHead(16, LAYOUT)(hidden.bfloat16().float(), weight).log_rate
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = NextTokenHead(16, LAYOUT)(hidden.bfloat16(), weight).log_rate
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact)


def test_it_follows_the_network_into_float64():
    hidden, weight = draw(dtype=torch.float64)
    assert NextTokenHead(16, LAYOUT).double()(hidden, weight).log_rate.dtype == torch.float64


def test_shifting_the_level_multiplies_every_hazard():
    hidden, weight = draw()
    head = NextTokenHead(16, LAYOUT)
    before = head(hidden, weight).log_rate
    shift = torch.linspace(-1, 1, 6, dtype=torch.float64)
    head.shift_log_hazards(shift)
    torch.testing.assert_close(head(hidden, weight).log_rate, before + shift.float())
    kept = head.state_dict()["log_rates_per_year"]
    torch.testing.assert_close(kept, torch.tensor(LAYOUT.log_rate_per_year) + shift.float())


def test_its_risks_compete_with_death():
    hidden, weight = draw()
    risk = NextTokenHead(16, LAYOUT)(hidden, weight).risk(torch.tensor([1.0, 20.0]))
    rates = NextTokenHead(16, LAYOUT)(hidden, weight).log_rate[0, 0].double().exp()
    total = rates[2] + rates[LAYOUT.death_outcome]
    assert risk[0, 0, 2, 1].item() == pytest.approx((rates[2] / total).item() * -math.expm1(-total.item() * 20))
