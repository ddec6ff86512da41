"""Lives drawn for all people at once equal the definition: the hazard along each life adds up to the threshold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_worlds import hazard_row, make_world, plain_integral

from data_schemas.cohort import DEATH_CODE
from pipelines.synthesize.age_hazards import NEVER, AgeHazard
from pipelines.synthesize.draw_first_ages import cumulative_between, draw_first_ages

FORMS = st.sampled_from(["gompertz", "weibull"])
RATIOS = st.sampled_from([0.3, 0.8, 1.5, 4.0])


@st.composite
def worlds(draw):
    n = draw(st.integers(1, 4))
    codes = [*"ABCD"[:n], DEATH_CODE]
    rows, edges = [], []
    for place, code in enumerate(codes):
        form = draw(FORMS)
        shape = draw(st.sampled_from([0.02, 0.1] if form == "gompertz" else [0.7, 1.0, 3.0]))
        low = draw(st.sampled_from([0.0, 15.0, 40.0]))
        high = draw(st.sampled_from([120.0, 60.0]))
        rows.append(hazard_row(code, form, shape, draw(st.sampled_from([0.0, 0.01, 0.2])), window=(low, high)))
        edges += [(cause, code, draw(RATIOS)) for cause in codes[:place] if draw(st.booleans())]
    return make_world(rows, edges)


@settings(max_examples=30, deadline=None)
@given(world=worlds(), seed=st.integers(0, 2**16), start=st.sampled_from([0.0, 30.0, 55.0]))
def test_the_hazard_up_to_each_first_age_is_the_threshold(world, seed, start):
    rng = np.random.default_rng(seed)
    n = 2
    thresholds = rng.standard_exponential((len(world.codes), n))
    rates = np.repeat(world.rate_per_year[:1].T, n, axis=1)
    known = np.full(thresholds.shape, NEVER)
    if start:  # some have happened before
        happened = rng.random(known.shape) < 0.3
        happened[-1] = False
        known[happened] = rng.uniform(0, start, happened.sum())
    starts = np.full(n, start)
    ages = draw_first_ages(world, rates, thresholds, starts, known)
    assert (ages[np.isfinite(known)] == known[np.isfinite(known)]).all()
    for place in range(len(world.codes)):
        for person in range(n):
            if np.isfinite(known[place, person]):
                continue
            age = ages[place, person]
            reached = plain_integral(world, place, ages[:, person], start, min(age, 120.0))
            added = rates[place, person] * reached
            if np.isfinite(age):
                assert age > start
                assert added == pytest.approx(thresholds[place, person], rel=2e-3)
            else:
                assert added <= thresholds[place, person] * (1 + 2e-3)


@settings(max_examples=30, deadline=None)
@given(world=worlds(), seed=st.integers(0, 2**16), start=st.sampled_from([0.0, 45.0, 70.0]))
def test_the_hazard_between_two_ages_is_the_integral(world, seed, start):
    rng = np.random.default_rng(seed)
    ages = np.where(rng.random((len(world.codes), 2)) < 0.6, rng.uniform(0, 100, (len(world.codes), 2)), NEVER)
    stops = start + np.array([[0.0, 0.0], [3.0, 40.0], [-5.0, 10.0]])
    for place in range(len(world.codes)):
        found = cumulative_between(world, place, ages[world.causes[place]], np.full(2, start), stops)
        for stop, person in np.ndindex(3, 2):
            until = stops[stop, person]
            slow = plain_integral(world, place, ages[:, person], start, until) if until > start else 0.0
            assert found[stop, person] == pytest.approx(slow, rel=2e-3, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    form=FORMS,
    shape=st.floats(0.01, 4.0),
    window=st.sampled_from([(0.0, 120.0), (20.0, 50.0)]),
    ages=st.lists(st.floats(0.5, 119.0), min_size=1, max_size=5),
)
def test_the_inverse_of_a_cumulative_hazard_gives_the_age_back(form, shape, window, ages):
    hazard = AgeHazard(form, shape if form == "weibull" else shape / 20, *window)
    inside = np.clip(np.array(ages), window[0] + 1e-3, window[1] - 1e-3)
    np.testing.assert_allclose(hazard.inverse(hazard.cumulative(inside)), inside, rtol=1e-6)
    assert hazard.cumulative(np.array([0.0]))[0] == 0
    assert hazard.inverse(hazard.cumulative(np.array([np.inf])) * (1 + 1e-9) + 1e-9)[0] == NEVER
