"""Time inside the network: polynomials, rotations and the bias by gap, against their formulas."""

import math

import numpy as np
import pytest
import torch

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_DAYS
from models.time_encoding import AgeEncoding, GapBias, GapFeatures, TimeRotation, distinct_gaps, rotate


def test_age_is_legendre_of_a_century_plus_fixed_sinusoids():
    encoding = AgeEncoding(64).double()
    ages = torch.tensor([0.0, 18_262.5, 36_525.0, 43_000.0], dtype=torch.float64)
    x = 2 * (ages / DAYS_PER_YEAR) / 100 - 1
    polynomials = np.polynomial.legendre.legvander(x.numpy(), 4)
    expected = torch.tensor(polynomials) @ encoding.legendre_proj.weight.T
    with torch.no_grad():
        found = encoding(ages)
        sinusoids = found - expected
        encoding.legendre_proj.weight.zero_()
        torch.testing.assert_close(encoding(ages), sinusoids, rtol=1e-12, atol=1e-12)
    assert sinusoids.abs().max() <= 0.1 + 1e-12
    torch.testing.assert_close(sinusoids[0], torch.cat([torch.zeros(32), torch.full((32,), 0.1)]).double())
    assert sum(p.numel() for p in encoding.parameters()) == 5 * 64


def test_ages_a_day_apart_differ_in_float32_at_the_end_of_life():
    encoding = AgeEncoding(256)
    ages = torch.tensor([MAX_AGE_DAYS - 1, MAX_AGE_DAYS])
    assert (encoding(ages)[0] - encoding(ages)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("shift_days", [0.5, 10_000.0])
def test_rotated_products_see_the_difference_of_times_only(shift_days):
    rotation = TimeRotation(32)
    torch.manual_seed(0)
    query, key = torch.randn(32, dtype=torch.float64), torch.randn(32, dtype=torch.float64)

    def product(query_age, key_age):
        turned = [
            rotate(vector[None], *rotation.angles(torch.tensor(age, dtype=torch.float64), torch.float64))[0]
            for vector, age in ((query, query_age), (key, key_age))
        ]
        return (turned[0] @ turned[1]).item()

    assert product(20_000.0 + shift_days, 15_000.0 + shift_days) == pytest.approx(product(20_000.0, 15_000.0), abs=1e-9)
    assert product(20_000.0, 15_000.0) != pytest.approx(product(20_000.0, 14_000.0), abs=1e-3)
    assert product(15_000.0, 15_000.0) == pytest.approx((query @ key).item())


def test_rotation_turns_half_split_pairs_with_log_spaced_wavelengths():
    rotation = TimeRotation(8)
    ratios = rotation.wavelengths_days[1:] / rotation.wavelengths_days[:-1]
    assert rotation.wavelengths_days[0].item() == pytest.approx(60.0)
    assert rotation.wavelengths_days[-1].item() == pytest.approx(120 * DAYS_PER_YEAR)
    torch.testing.assert_close(ratios, ratios[:1].expand(3))
    quarter = torch.tensor(15.0)  # a quarter of 60 days
    first = torch.zeros(8).index_fill(0, torch.tensor([0]), 1.0)
    turned = rotate(first[None], *rotation.angles(quarter, torch.float32))[0]
    assert turned[4].item() == pytest.approx(1.0)
    assert turned[[1, 2, 3, 5, 6, 7]].abs().max() == 0


def test_the_gap_bias_is_gaussian_in_log_days():
    features, bias = GapFeatures().double(), GapBias(3).double()
    torch.nn.init.normal_(bias.rbf_proj.weight)
    torch.nn.init.normal_(features.log_widths, std=0.3)
    torch.nn.init.constant_(bias.time_bias_scale, 0.7)
    gaps = torch.tensor([0.0, 1.0, 93.0, 29_000.0], dtype=torch.float64)
    found = bias(features(gaps)).detach().numpy()
    assert found.shape == (3, 5)
    assert (found[:, 4] == -1e9).all()  # the last entry hides
    centres = np.concatenate([[0.0], np.geomspace(1, 80 * DAYS_PER_YEAR, 15)])
    for entry, gap in enumerate(gaps.tolist()):
        distance = (math.log1p(gap) - np.log1p(centres)) / features.log_widths.exp().detach().numpy()
        expected = 0.7 * bias.rbf_proj.weight.detach().numpy() @ np.exp(-(distance**2) / 2)
        np.testing.assert_allclose(found[:, entry], expected, rtol=1e-10)


AGES = {
    "whole days": [[100.0, 103.0, 103.0, 110.0], [0.0, 5.0, 6.0, 7.0]],
    "days far apart": [[100.0, 103.0, 103.0, 36_871.0], [0.0, 5.0, 6.0, 7.0]],  # a day table would be longer than pairs
    "parts of days": [[100.0, 103.25, 103.25, 110.0], [0.0, 5.5, 6.0, 7.0]],
}


@pytest.mark.parametrize("ages", AGES)
def test_a_look_up_gives_each_visible_pair_its_own_gap(ages):
    rows = torch.tensor(AGES[ages])
    visible = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    gaps, entry = distinct_gaps(rows, rows, visible)
    assert gaps.dtype == torch.float64
    assert len(gaps) <= rows.shape[0] * rows.shape[1] ** 2  # never longer than one number a pair
    assert len(gaps.unique()) == len(gaps)
    for b in range(2):
        for i in range(4):
            for j in range(4):
                if visible[b, i, j]:
                    assert gaps[entry[b, i, j]] == max(rows[b, i].item() - rows[b, j].item(), 0.0)
                else:
                    assert entry[b, i, j] == len(gaps)


def test_hidden_pairs_do_not_lengthen_the_table_of_gaps():
    rows, visible = torch.tensor([[100.0, 101.0, 36_900.5]]), torch.ones(1, 3, 3, dtype=torch.bool)
    visible[:, 2], visible[:, :, 2] = False, False
    gaps, entry = distinct_gaps(rows, rows, visible)
    assert gaps.tolist() == [0.0, 1.0]
    assert (entry[:, 2] == 2).all()


def test_the_widths_start_at_the_mean_spacing_of_the_centres():
    features = GapFeatures()
    spacing = math.log1p(80 * DAYS_PER_YEAR) / 15
    torch.testing.assert_close(features.log_widths.exp(), torch.full((16,), spacing))
