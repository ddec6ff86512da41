"""The mixer against the equations of the seed, and its initial values."""

import pytest
import torch
from torch.nn.functional import silu

from models.traj_mixer import TrajectoryMixer, initialise_mixer


@pytest.fixture
def mixer():
    torch.manual_seed(0)
    made = TrajectoryMixer(8, 32)
    initialise_mixer(made)
    return made


def test_it_equals_the_equations_in_values_and_gradients(mixer):
    mixer, scale = mixer.double(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    slots = torch.randn(8, 32, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(8, 32, 6, dtype=torch.float64)
    gate = torch.einsum("hrn,rhf->rfn", slots, mixer.gate_proj)
    value = torch.einsum("hrn,rhf->rfn", slots, mixer.value_proj)
    slow = scale * torch.einsum("rfn,rfh->hrn", silu(gate) * value, mixer.output_proj)
    fast = mixer(slots, scale)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    inputs = [slots, scale, *mixer.parameters()]
    for one, other in zip(
        torch.autograd.grad((fast * weights).sum(), inputs),
        torch.autograd.grad((slow * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_coordinates_do_not_mix_and_slots_do(mixer):
    slots, scale = torch.randn(8, 32, 1), torch.ones(())
    changed = slots.clone()
    changed[3, 5, 0] += 1
    moved = (mixer(changed, scale) - mixer(slots, scale))[..., 0].abs() > 0
    assert moved[:, 5].all()
    assert not moved[:, torch.arange(32) != 5].any()


def test_initial_values_have_the_fans_of_one_slice(mixer):
    xavier_std = (2 / (8 + 32)) ** 0.5
    assert mixer.gate_proj.std().item() == pytest.approx(xavier_std, rel=0.03)
    assert mixer.value_proj.std().item() == pytest.approx(xavier_std, rel=0.03)
    assert mixer.output_proj.std().item() == pytest.approx(1e-3, rel=0.05)
