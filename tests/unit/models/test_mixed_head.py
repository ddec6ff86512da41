"""The mixed head: a constant and a Weibull part, at its start and at its two ends."""

from dataclasses import replace

import numpy as np
import torch
from drawn_batches import LAYOUT, draw_batch, draw_model

from models.cause_hazards import ConstantHazards, MixedHazards, WeibullHazards
from models.heads import MixedHead

NO_TOKENS = torch.empty(0)  # an untied head leaves the token embedding alone


def test_it_is_a_constant_part_and_a_weibull_part():
    weibull = WeibullHazards(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.4, -0.7]]), 1)
    mixed, u = MixedHazards(torch.tensor([[-3.0, -4.0]]), weibull), torch.tensor([[0.7, 3.0]])
    rate = torch.tensor([[-3.0, -4.0]]).exp()
    torch.testing.assert_close(mixed.log_hazard(u).exp(), rate + weibull.log_hazard(u).exp())
    torch.testing.assert_close(mixed.cumulative_hazard(u), rate * u + weibull.cumulative_hazard(u))


def test_either_part_alone_is_a_special_case():
    weibull, nothing = WeibullHazards(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.4, -0.7]]), 1), torch.tensor(-80.0)
    horizons = torch.tensor([0.5, 10.0])
    no_constant = MixedHazards(nothing.expand(1, 2), weibull)
    torch.testing.assert_close(no_constant.risk(horizons), weibull.risk(horizons), rtol=0, atol=1e-8)
    no_weibull = MixedHazards(weibull.log_anchor_hazard, replace(weibull, log_anchor_hazard=nothing.expand(1, 2)))
    constant = ConstantHazards(weibull.log_anchor_hazard, 1)
    torch.testing.assert_close(no_weibull.risk(horizons), constant.risk(horizons), rtol=0, atol=1e-8)


def test_training_starts_from_the_rates_of_the_population_half_in_each_part():
    head = MixedHead(16, LAYOUT)
    hazards = head(torch.randn(3, 2, 16), NO_TOKENS)
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


def test_hazards_are_float32_under_autocast():
    head = MixedHead(16, LAYOUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hazards = head(torch.randn(2, 3, 16).bfloat16(), NO_TOKENS)
    assert hazards.log_rate.dtype == hazards.weibull.log_shape.dtype == torch.float32
