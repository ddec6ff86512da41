"""Metrics over sorted arrays equal the definitions written out person by person, with ties and weights."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from scipy.optimize import minimize_scalar

from pipelines.evaluation.aalen_johansen import aalen_johansen
from pipelines.evaluation.brier import brier_score
from pipelines.evaluation.calibration import calibration_intercept, calibration_slope, cloglog, risk_groups
from pipelines.evaluation.censoring_weights import fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.concordance import (
    concordance_by_lifelines,
    recode_for_concordance,
    weighted_concordance,
)
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc

HORIZON = 4.0
# (time, status, risk, weight): few different values, so that every kind of tie occurs.
Person = tuple[float, int, float, int]
person = st.tuples(
    st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.9]),
    st.sampled_from([0, 1, 2, 3]),
)
samples = st.lists(person, min_size=1, max_size=14)
ONE_CENSORED: list[Person] = [(1.0, 0, 0.1, 1)]
ONE_CASE: list[Person] = [(1.0, 1, 0.1, 1)]
ALL_TIED: list[Person] = [(4.0, 0, 0.1, 1), (4.0, 1, 0.1, 1), (4.0, 2, 0.1, 1), (5.0, 0, 0.1, 2)]
NOBODY_COUNTS: list[Person] = [(1.0, 1, 0.1, 0), (5.0, 0, 0.1, 0)]

drawn = settings(max_examples=150, deadline=None)


def columns(people: list[Person]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    time, status, risk, weight = (np.array(column) for column in zip(*people, strict=True))
    return time, status, risk, weight.astype(float)


def incidence_slowly(people: list[Person], horizon: float) -> float:
    event_free, incidence = 1.0, 0.0
    for day in sorted({time for time, *_ in people if time <= horizon}):
        at_risk = sum(w for time, _, _, w in people if time >= day)
        if at_risk == 0:
            continue
        cases = sum(w for time, status, _, w in people if time == day and status == 1)
        deaths = sum(w for time, status, _, w in people if time == day and status == 2)
        incidence += event_free * cases / at_risk
        event_free *= 1 - (cases + deaths) / at_risk
    is_followed = sum(w for time, _, _, w in people if time >= horizon) > 0
    has_people = sum(w for *_, w in people) > 0
    return incidence if has_people and (is_followed or event_free <= 0) else np.nan


def followed_slowly(people: list[Person], day: float, *, including: bool) -> float:
    probability = 1.0
    for earlier in sorted({time for time, *_ in people if time < day or (including and time == day)}):
        lost = sum(w for time, status, _, w in people if time == earlier and status == 0)
        events = sum(w for time, status, _, w in people if time == earlier and status != 0)
        at_risk = sum(w for time, _, _, w in people if time >= earlier)
        if at_risk > events:
            probability *= 1 - lost / (at_risk - events)
    return probability


def known_weights_slowly(people: list[Person]) -> list[float]:
    beyond = followed_slowly(people, HORIZON, including=True)
    if beyond <= 0:
        return [np.nan] * len(people)
    inverse = []
    for time, status, _, w in people:
        before = followed_slowly(people, time, including=False)
        if time > HORIZON:
            inverse.append(w / beyond)
        elif status == 0:
            inverse.append(0.0)
        else:
            inverse.append(w / before if before > 0 else np.nan)
    return inverse


def win(score: float, other: float) -> float:
    return 1.0 if score > other else 0.5 if score == other else 0.0


def auc_slowly(people: list[Person]) -> float:
    known = known_weights_slowly(people)
    numerator = denominator = 0.0
    for i, j in product(range(len(people)), repeat=2):
        is_case_i, is_case_j = (people[k][1] == 1 and people[k][0] <= HORIZON for k in (i, j))
        if is_case_i and not is_case_j:
            numerator += known[i] * known[j] * win(people[i][2], people[j][2])
            denominator += known[i] * known[j]
    return numerator / denominator if denominator > 0 else np.nan


def concordance_slowly(people: list[Person]) -> float:
    numerator = denominator = 0.0
    for (time_i, status_i, risk_i, w_i), (time_j, status_j, risk_j, w_j) in product(people, repeat=2):
        if status_i != 1 or time_i > HORIZON:
            continue
        dies_first = status_j == 2 and time_j <= HORIZON
        is_same_day = time_j == time_i and status_j == 0
        if dies_first or time_j > time_i or is_same_day:
            numerator += w_i * w_j * win(risk_i, risk_j)
            denominator += w_i * w_j
    return numerator / denominator if denominator > 0 else np.nan


@drawn
@given(samples, st.sampled_from([0.5, 3.0, 4.0, 9.0]))
@example(ONE_CENSORED, 9.0)
@example(ONE_CASE, 9.0)
@example(ALL_TIED, 4.0)
@example(NOBODY_COUNTS, 3.0)
def test_aalen_johansen(people: list[Person], horizon: float) -> None:
    time, status, _, weight = columns(people)
    fast = aalen_johansen(time, status, np.array([horizon]), weight)
    np.testing.assert_allclose(fast, [incidence_slowly(people, horizon)], atol=1e-12)


@drawn
@given(samples)
@example(ONE_CENSORED)
@example(ALL_TIED)
@example(NOBODY_COUNTS)
def test_censoring_weights(people: list[Person]) -> None:
    time, status, _, weight = columns(people)
    curve = fit_censoring_curve(time, status == 0, weight)
    fast = inverse_censoring_weights(time, status, HORIZON, curve, weight)
    np.testing.assert_allclose(fast, known_weights_slowly(people), atol=1e-12)


@drawn
@given(samples)
def test_censoring_curve_is_lifelines_with_events_moved_before_censorings(people: list[Person]) -> None:
    time, status, _, _ = columns(people)
    moved = np.where(status == 0, time, time - 0.25)
    lifelines_curve = KaplanMeierFitter().fit(moved, status == 0)
    curve = fit_censoring_curve(time, status == 0)
    ours = [float(curve.at(day)) for day in range(1, 7)]
    np.testing.assert_allclose(ours, lifelines_curve.predict(np.arange(1, 7)), atol=1e-12)


@drawn
@given(samples)
@example(ONE_CASE)
@example(ALL_TIED)
def test_auc_and_brier(people: list[Person]) -> None:
    time, status, risk, weight = columns(people)
    known = np.array(known_weights_slowly(people))
    np.testing.assert_allclose(
        cumulative_dynamic_auc(risk, time, status, HORIZON, known), auc_slowly(people), atol=1e-12
    )
    squared = [
        u * ((status_ == 1 and time_ <= HORIZON) - risk_) ** 2
        for u, (time_, status_, risk_, _) in zip(known, people, strict=True)
    ]
    expected = sum(squared) / weight.sum() if weight.sum() > 0 else np.nan
    np.testing.assert_allclose(brier_score(risk, time, status, HORIZON, known, weights=weight), expected, atol=1e-12)


@drawn
@given(samples, st.sampled_from([1, 2, 128]))
@example(ONE_CASE, 128)
@example(ALL_TIED, 1)
def test_concordance(people: list[Person], cases_per_block: int) -> None:
    time, status, risk, weight = columns(people)
    recoded, is_event = recode_for_concordance(time, status, HORIZON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.evaluation.concordance.CASES_PER_BLOCK", cases_per_block)
        fast = weighted_concordance(risk, recoded, is_event, weight)
    np.testing.assert_allclose(fast, concordance_slowly(people), atol=1e-12)


@drawn
@given(samples)
@example(ONE_CASE)
@example(ONE_CENSORED)
def test_concordance_weighted_by_counts_is_lifelines_on_repeated_people(people: list[Person]) -> None:
    time, status, risk, weight = columns(people)
    repeats = weight.astype(int)
    recoded, is_event = recode_for_concordance(time, status, HORIZON)
    lifelines_value = concordance_by_lifelines(
        np.repeat(risk, repeats), np.repeat(recoded, repeats), np.repeat(is_event, repeats)
    )
    np.testing.assert_allclose(weighted_concordance(risk, recoded, is_event, weight), lifelines_value, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(samples, st.integers(0, 1000))
@example(ALL_TIED, 1)
def test_rows_of_a_weight_matrix_are_computed_one_by_one(people: list[Person], seed: int) -> None:
    time, status, risk, _ = columns(people)
    weights = np.random.default_rng(seed).poisson(1.0, size=(5, time.size)).astype(float)

    def everything(weights: np.ndarray) -> np.ndarray:
        curve = fit_censoring_curve(time, status == 0, weights)
        known = inverse_censoring_weights(time, status, HORIZON, curve, weights)
        recoded, is_event = recode_for_concordance(time, status, HORIZON)
        return np.stack([
            aalen_johansen(time, status, np.array([HORIZON]), weights)[..., 0],
            weighted_concordance(risk, recoded, is_event, weights),
            cumulative_dynamic_auc(risk, time, status, HORIZON, known),
            brier_score(risk, time, status, HORIZON, known, weights=weights),
        ])  # fmt: skip

    together = everything(weights)
    for row in range(len(weights)):
        np.testing.assert_allclose(together[:, row], everything(weights[row]), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.8]), st.booleans(), st.sampled_from([0.5, 1.0, 2.0])),
        min_size=6,
        max_size=40,
    )
)
def test_calibration_solves_its_likelihood_equations(people: list[tuple[float, bool, float]]) -> None:
    risk, is_case, weight = (np.array(column) for column in zip(*people, strict=True))
    time, status = np.where(is_case, 1.0, 9.0), is_case.astype(int)
    intercept = float(calibration_intercept(risk, time, status, HORIZON, weight))
    slope = float(calibration_slope(risk, time, status, HORIZON, weight))
    if is_case.all() or not is_case.any():
        assert np.isnan(intercept)
        assert np.isnan(slope)
        return

    def log_likelihood(linear: np.ndarray) -> float:
        return float((weight * np.where(is_case, np.log(-np.expm1(-np.exp(linear))), -np.exp(linear))).sum())

    def profile(slope: float) -> float:
        found = minimize_scalar(lambda a: -log_likelihood(a + slope * x), bounds=(-30, 30), method="bounded")
        return -float(found.fun)

    x = cloglog(risk)
    best = log_likelihood(intercept + x)
    assert all(log_likelihood(intercept + step + x) < best for step in (-1e-3, 1e-3))
    if not np.isnan(slope):
        assert profile(slope) >= max(profile(slope - 0.1), profile(slope + 0.1)) - 1e-7


@drawn
@given(st.lists(st.tuples(st.sampled_from(np.linspace(0, 1, 30).tolist()), st.booleans()), min_size=1, max_size=300))
def test_groups_of_risk_are_ordered_and_hold_ten_cases(people: list[tuple[float, bool]]) -> None:
    risk, is_case = (np.array(column) for column in zip(*people, strict=True))
    group = risk_groups(risk, is_case)
    assert (np.diff(group[np.argsort(risk, kind="stable")]) >= 0).all()
    for value in np.unique(risk):
        assert len(set(group[risk == value])) == 1
    assert set(group) == set(range(group.max() + 1))
    if is_case.sum() >= 10:
        assert np.bincount(group, weights=is_case).min() >= 10
    else:
        assert group.max() == 0
