"""Standard errors equal those of numerical derivatives by each person's weight, and sums over pairs the plain loops'.

The slow form of every metric is written out person by person with weights; the influence of a person is what changes
when that weight moves a little, censoring curve and all.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    BRIER,
    CALIBRATION_INTERCEPT,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    ICI,
    INTEGRATED_BRIER,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    PREDICTED_RISK,
    SCALED_BRIER,
)
from pipelines.evaluation.aalen_johansen import aalen_johansen, find_event_days, incidence_with_influence
from pipelines.evaluation.bootstrap_metrics import BOOTSTRAPPED_METRICS, replicate_metrics
from pipelines.evaluation.calibration import cloglog
from pipelines.evaluation.calibration_curve import fit_calibration
from pipelines.evaluation.censoring_weights import fit_censoring, fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.estimate_metrics import Estimates, Landmark, estimate_metrics
from pipelines.evaluation.net_benefit import net_benefit
from pipelines.evaluation.ordered_pairs import (
    find_cells,
    order_cases,
    sum_over_earlier_cases,
    sum_over_later_people,
)
from pipelines.evaluation.outcome_sample import LandmarkPeople, OutcomeSample
from pipelines.evaluation.ranked_people import RankedPeople, rank_sample

HORIZONS = np.array([3.0, 5.0])
STEP = 1e-5
METRICS_OF_EVERYONE = (
    AUC, BRIER, SCALED_BRIER, OBSERVED_RISK, PREDICTED_RISK, OBSERVED_EXPECTED, NULL_BRIER, CALIBRATION_SLOPE,
    CALIBRATION_INTERCEPT, AVERAGE_PRECISION, CONCORDANCE_IPCW, CONCORDANCE,
)  # fmt: skip


def draw_sample(n_rows: int, seed: int, *, with_strata: bool = False) -> tuple[LandmarkPeople, OutcomeSample]:
    """Draw few days and few different risks, so that every kind of tie occurs; some rows have had the outcome."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=n_rows)
    death = np.ceil(rng.exponential(12 * np.exp(-0.3 * factor)) * 2) / 2
    end = np.ceil(rng.uniform(0.5, 9, n_rows) * 2) / 2
    followed, is_censored = np.minimum(death, end), end < death
    onset = np.ceil(rng.exponential(5, n_rows) * np.exp(-factor) * 2) / 2
    row = np.sort(rng.permutation(n_rows)[: int(n_rows * 0.9)])
    time = np.minimum(onset, followed)[row]
    status = np.where(onset[row] <= followed[row], 1, np.where(is_censored[row], 0, 2))
    risk = [np.round(-np.expm1(-horizon / 6 * np.exp(0.7 * factor[row])), 2) for horizon in HORIZONS]
    stratum = rng.integers(0, 2, n_rows) if with_strata else None
    people = LandmarkPeople(followed, is_censored, stratum=stratum)
    return people, OutcomeSample("outcome", row, time, status, np.clip(np.array([risk]), 0.01, 0.99))


def estimate(people: LandmarkPeople, sample: OutcomeSample) -> Estimates:
    censoring = fit_censoring(people.followed_days, people.is_censored, people.stratum)
    return estimate_metrics(sample, Landmark(HORIZONS, censoring, people.cluster))


def numerical_influence(metric: Callable[[np.ndarray], np.ndarray], n_rows: int) -> np.ndarray:
    """Return the central difference of a metric of weights [N] by each weight: [..., N]."""
    moved = [
        (metric(np.ones(n_rows) + STEP * unit) - metric(np.ones(n_rows) - STEP * unit)) / (2 * STEP)
        for unit in np.eye(n_rows)
    ]
    return np.stack(moved, axis=-1)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
@example(seed=1, with_strata=True)
def test_influences_are_derivatives_by_weight(seed: int, with_strata: bool) -> None:
    people, sample = draw_sample(80, seed, with_strata=with_strata)
    found = estimate(people, sample)
    unit = np.eye(people.n_rows)
    weights = np.concatenate([np.ones((1, people.n_rows)), 1 + STEP * unit, 1 - STEP * unit])
    replicates = replicate_metrics(sample, HORIZONS, people, weights)
    for metric in BOOTSTRAPPED_METRICS:
        np.testing.assert_allclose(found.value[metric], replicates[metric][..., 0], atol=1e-10, err_msg=metric)
        plus, minus = np.split(replicates[metric][..., 1:], 2, axis=-1)
        slow = (plus - minus) / (2 * STEP)
        is_known = np.isfinite(found.value[metric])
        error = np.sqrt(np.square(slow).sum(axis=-1))
        np.testing.assert_allclose(found.error[metric][is_known], error[is_known], rtol=1e-5, err_msg=metric)
        if metric in found.influence:
            np.testing.assert_allclose(found.influence[metric][is_known], slow[is_known], atol=1e-7, err_msg=metric)


def known_weights(people: LandmarkPeople, sample: OutcomeSample, horizon: float, weights: np.ndarray) -> np.ndarray:
    curve = fit_censoring_curve(people.followed_days, people.is_censored, weights)
    return inverse_censoring_weights(sample.time, sample.status, horizon, curve, weights[sample.row])


def concordance_ipcw_slowly(people: LandmarkPeople, sample: OutcomeSample, h: int, weights: np.ndarray) -> np.ndarray:
    curve = fit_censoring_curve(people.followed_days, people.is_censored, weights)
    inverse, own = 1 / curve.just_before(sample.time), weights[sample.row]
    risk, concordant, comparable = sample.risks[0, h], 0.0, 0.0
    for i in np.flatnonzero(sample.is_case(HORIZONS[h])):
        for j in range(risk.size):
            later = sample.time[j] > sample.time[i] or (sample.time[j] == sample.time[i] and sample.status[j] == 0)
            died = sample.status[j] == 2 and sample.time[j] <= sample.time[i]
            if later or died:
                pair = own[i] * own[j] * inverse[i] * (inverse[i] if later else inverse[j])
                concordant += pair * (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
                comparable += pair
    return np.array(concordant / comparable)


def average_precision_slowly(people: LandmarkPeople, sample: OutcomeSample, h: int, weights: np.ndarray) -> np.ndarray:
    known = known_weights(people, sample, HORIZONS[h], weights)
    risk, case = sample.risks[0, h], sample.is_case(HORIZONS[h])
    precision = np.array([known[case & (risk >= r)].sum() / known[risk >= r].sum() for r in risk[case]])
    return np.array((known[case] * precision).sum() / known[case].sum())


def ici_slowly(people: LandmarkPeople, sample: OutcomeSample, h: int, weights: np.ndarray) -> np.ndarray:
    """Fit the same spline (knots held) with other weights, and average the distance with them."""
    known, own = known_weights(people, sample, HORIZONS[h], weights), weights[sample.row]
    x, case = cloglog(sample.risks[0, h]), sample.is_case(HORIZONS[h])
    centred = x - x.mean()
    knots = np.unique(np.quantile(centred, [0.05, 0.35, 0.65, 0.95]))
    last, before = knots[-1], knots[-2]
    columns = [np.ones(x.size), centred]
    for knot in knots[:-2]:
        bend = np.maximum(centred - knot, 0) ** 3
        bend -= np.maximum(centred - before, 0) ** 3 * (last - knot) / (last - before)
        bend += np.maximum(centred - last, 0) ** 3 * (before - knot) / (last - before)
        columns.append(bend / (last - knots[0]) ** 2)
    design, beta = np.column_stack(columns), np.eye(len(columns))[1]
    for _ in range(60):
        cumulative = np.exp(design @ beta)
        probability = -np.expm1(-cumulative)
        score = np.where(case, cumulative * (1 - probability) / probability, -cumulative)
        curvature = np.where(case, score * (cumulative / probability - 1), cumulative)
        step = np.linalg.solve(design.T @ ((known * curvature)[:, None] * design), design.T @ (known * score))
        beta = beta + step * min(1.0, 1.0 / np.abs(design @ step).max())
    distance = np.abs(-np.expm1(-np.exp(design @ beta)) - sample.risks[0, h])
    return np.array((own * distance).sum() / own.sum())


@pytest.mark.parametrize("seed", [3, 8])
@pytest.mark.parametrize(
    ("metric", "slow"),
    [(CONCORDANCE_IPCW, concordance_ipcw_slowly), (AVERAGE_PRECISION, average_precision_slowly), (ICI, ici_slowly)],
)
def test_metrics_without_a_weighted_form(metric: str, slow: Callable[..., np.ndarray], seed: int) -> None:
    people, sample = draw_sample(60, seed)
    found = estimate(people, sample)
    for h in range(HORIZONS.size):
        assert found.value[metric][0, h] == pytest.approx(slow(people, sample, h, np.ones(people.n_rows)), abs=1e-9)
        influence = numerical_influence(lambda w, h=h: slow(people, sample, h, w), people.n_rows)
        assert found.error[metric][0, h] == pytest.approx(np.sqrt(np.square(influence).sum()), rel=1e-4)


def test_integrated_brier_is_the_area_under_brier() -> None:
    people, sample = draw_sample(80, 2)
    found = estimate(people, sample)
    assert found.value[INTEGRATED_BRIER][0, 1] == pytest.approx(found.value[BRIER][0].mean())
    influence = found.influence[BRIER][0].mean(axis=0)
    assert found.error[INTEGRATED_BRIER][0, 1] == pytest.approx(np.sqrt(np.square(influence).sum()))


def test_rows_of_one_person_are_summed_before_they_are_squared() -> None:
    people, sample = draw_sample(90, 4)
    twice = LandmarkPeople(
        np.tile(people.followed_days, 2), np.tile(people.is_censored, 2), cluster=np.tile(np.arange(90), 2)
    )
    doubled = OutcomeSample(
        "outcome", np.concatenate([sample.row, sample.row + 90]), np.tile(sample.time, 2), np.tile(sample.status, 2),
        np.tile(sample.risks, (1, 1, 2)),
    )  # fmt: skip
    once, again = estimate(people, sample), estimate(twice, doubled)
    for metric in METRICS_OF_EVERYONE:
        np.testing.assert_allclose(again.value[metric], once.value[metric], rtol=1e-9, err_msg=metric)
        np.testing.assert_allclose(again.error[metric], once.error[metric], rtol=1e-6, err_msg=metric)


def ranked(sample: OutcomeSample, people: LandmarkPeople, h: int) -> RankedPeople:
    censoring = fit_censoring(people.followed_days, people.is_censored)
    known = censoring.weigh(sample.time, sample.status, HORIZONS[h], sample.row, censoring.days_before(sample.time))
    return rank_sample(sample, 0, h, HORIZONS[h], known)


def test_net_benefit_is_its_definition() -> None:
    people, sample = draw_sample(300, 6)
    known = known_weights(people, sample, HORIZONS[1], np.ones(people.n_rows))
    thresholds = np.array([0.1, 0.3, 0.5, 0.995])
    found = net_benefit(ranked(sample, people, 1), thresholds)
    case, risk = sample.is_case(HORIZONS[1]), sample.risks[0, 1]
    for position, threshold in enumerate(thresholds[:3]):
        acted = risk >= threshold
        share = known * acted * np.where(case, 1.0, -threshold / (1 - threshold))
        assert found.value[position] == pytest.approx(share.sum() / risk.size)
        half = 1.96 * np.sqrt(np.square(share).sum() - share.sum() ** 2 / risk.size) / risk.size
        assert found.upper[position] - found.value[position] == pytest.approx(half, rel=1e-4)
        everyone = known * np.where(case, 1.0, -threshold / (1 - threshold))
        assert found.treat_all[position] == pytest.approx(everyone.sum() / risk.size)
    assert found.value[3] == 0.0  # nobody has such a risk


def test_smooth_curve_lies_at_the_truth_within_its_limits() -> None:
    rng = np.random.default_rng(1)
    n = 6_000
    truth = rng.uniform(0.05, 0.6, n)
    is_case = rng.random(n) < truth
    predicted = truth**1.5
    sample = OutcomeSample(
        "outcome", np.arange(n), np.where(is_case, 1.0, 9.0), is_case.astype(np.int64), np.tile(predicted, (1, 2, 1))
    )
    people = LandmarkPeople(np.full(n, 9.0), np.ones(n, dtype=bool))
    curve = fit_calibration(ranked(sample, people, 0)).curve
    assert curve is not None
    expected = curve.predicted ** (1 / 1.5)
    assert np.abs(curve.observed - expected).max() < 0.04
    assert ((curve.lower <= expected) & (expected <= curve.upper)).mean() > 0.8


pair_sums = st.integers(1, 150).flatmap(
    lambda m: st.tuples(
        st.permutations(range(m)),
        st.lists(st.tuples(st.integers(0, m), st.integers(0, m), st.integers(0, 3)), min_size=1, max_size=20),
    )
)


@settings(max_examples=80, deadline=None)
@given(pair_sums, st.sampled_from([2, 3, 32]))
@example(([0], [(1, 0, 1), (0, 0, 1), (1, 1, 1)]), 2)
@example((list(range(8)), [(8, 0, 1), (4, 2, 1), (8, 8, 1)]), 2)
def test_sums_over_pairs(drawn: tuple[list[int], list[tuple[int, int, int]]], fan_out: int) -> None:
    place = np.array(drawn[0])
    k, r, weight = (np.array(column) for column in zip(*drawn[1], strict=True))
    values = np.arange(1.0, place.size + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.evaluation.ordered_pairs.FAN_OUT", fan_out)
        cases = order_cases(place)
        cells = find_cells(cases, k, r)
        by_person = sum_over_earlier_cases(cases, values, cells)
        by_case = sum_over_later_people(cases, weight.astype(float), cells)
    is_pair = (np.arange(place.size) < k[:, None]) & (place >= r[:, None])
    np.testing.assert_allclose(by_person, is_pair @ values)
    np.testing.assert_allclose(by_case, weight @ is_pair)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([0.2, 2.0, 5.0, 30.0]))
def test_incidence_within_groups_is_that_of_each_alone(seed: int, n_groups: int, horizon: float) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    time, status = np.ceil(rng.uniform(0, 6, n)), rng.integers(0, 3, n)
    group = rng.integers(0, n_groups, n)
    fast, influence = incidence_with_influence(find_event_days(time, status), horizon, group, n_groups)
    for number in range(n_groups):
        inside = group == number
        slow = aalen_johansen(time[inside], status[inside], np.array([horizon]))[0]
        np.testing.assert_allclose(fast[number], slow, atol=1e-12)
        if np.isfinite(slow):
            derivative = numerical_influence(
                lambda w, inside=inside: aalen_johansen(time[inside], status[inside], np.array([horizon]), w)[0],
                int(inside.sum()),
            )
            np.testing.assert_allclose(influence[inside], derivative, atol=1e-6)
