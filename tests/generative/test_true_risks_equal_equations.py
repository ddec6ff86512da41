"""True risks by simulation equal those of the forward equations of the same world, solved by an independent program.

The slow form knows every state (which of the diseases have happened) and integrates the frailty over its posterior by
quadrature; it needs 2^n states and is possible for three diseases only.
"""

import itertools

import numpy as np
import pytest
from made_up_worlds import chain_world, make_traits, plain_hazard
from scipy.integrate import quad, solve_ivp
from scipy.stats import gamma

from pipelines.synthesize.age_hazards import NEVER
from pipelines.true_risks import KnownLives, frailty_posterior, simulate_risks

N_DISEASES, DEATH = 3, 3
LANDMARK, HORIZONS = 60.0, np.array([2.0, 10.0])
HISTORIES = {"nothing": {}, "A": {0: 45.0}, "A and C": {0: 52.5, 2: 58.0}, "B, young": {1: 20.0}}
TRAITS = {"is_male": True, "bmi": 33.0, "sbp": 150.0, "smoking": 2}


def trait_factors(world):
    """Return rate × effect of the traits for each code, from the definition."""
    z = np.array([(33.0 - 27.4) / 4.8, (150.0 - 138.0) / 18.0, 0.0, 1.0])
    return world.rate_per_year[1] * np.exp(z @ world.log_ratios)


def posterior_by_integration(world, factors, history):
    """Return shape and rate of the gamma posterior, with the exposure integrated numerically."""
    exposure = 0.0
    for place in range(len(world.codes)):
        until = history.get(place, LANDMARK)
        jumps = sorted({0.0, until, *(age for age in (50.0, *history.values()) if age < until)})
        for low, high in itertools.pairwise(jumps):
            happened = {cause for cause, age in history.items() if age <= low}
            exposure += factors[place] * quad(lambda age: plain_hazard(world, place, age, happened), low, high)[0]  # noqa: B023
    prior = 1 / world.settings.frailty_variance
    return prior + len(history), prior + exposure


def risks_by_equations(world, factors, frailty, history):
    """Return the risk of each code at each horizon: [C, H]. States are sets of diseases, as bits, among the living."""
    n_states = 2**N_DISEASES

    def change(age, values):
        rates = np.zeros_like(values)
        for state in range(n_states):
            happened = {place for place in range(N_DISEASES) if state >> place & 1}
            for place in range(N_DISEASES + 1):
                if place in happened:
                    continue
                flow = frailty * factors[place] * plain_hazard(world, place, age, happened) * values[state]
                rates[state] -= flow
                rates[n_states + place] += flow  # ever happened
                if place != DEATH:
                    rates[state | 1 << place] += flow
        return rates

    values = np.zeros(n_states + N_DISEASES + 1)
    values[sum(1 << place for place in history)] = 1.0
    risks = []
    for low, high in ((0.0, HORIZONS[0]), (HORIZONS[0], 6.0), (6.0, HORIZONS[1])):  # a hazard ends at 66
        values = solve_ivp(change, (LANDMARK + low, LANDMARK + high - 1e-9), values, rtol=1e-7, atol=1e-10).y[:, -1]
        risks.append(values[n_states:].copy())
    return np.stack([risks[0], risks[2]], axis=1)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("variance", [0.0, 0.5])
def test_true_risks_equal_the_forward_equations(history, variance):
    world = chain_world(variance)
    factors = trait_factors(world)
    ages = np.full((len(world.codes), 1), NEVER)
    for place, age in history.items():
        ages[place] = age
    known = KnownLives(make_traits(1, **TRAITS), np.array([LANDMARK]), ages)
    free = [place for place in range(len(world.codes)) if place not in history]

    if variance:
        shape, rate = posterior_by_integration(world, factors, history)
        found = frailty_posterior(world, known)
        np.testing.assert_allclose([found[0][0], found[1][0]], [shape, rate], rtol=1e-6)
        shares, weights = np.polynomial.legendre.leggauss(12)
        frailties = gamma.ppf((shares + 1) / 2, shape, scale=1 / rate)
        slow = sum(
            weight / 2 * risks_by_equations(world, factors, frailty, history)
            for frailty, weight in zip(frailties, weights, strict=True)
        )
    else:
        slow = risks_by_equations(world, factors, 1.0, history)

    risk, error = simulate_risks(world, known, np.array(free), HORIZONS, n_futures=8192, seed=3)
    assert (error < 0.004).all()
    np.testing.assert_array_less(np.abs(risk[0] - slow[free]), 4 * error[0] + 2e-4)
