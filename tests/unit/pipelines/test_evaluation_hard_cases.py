"""Metrics where there is little or nothing to go by: they say "no value" and never fail or invent one."""

import numpy as np
import pytest

from pipelines.evaluation.aalen_johansen import aalen_johansen
from pipelines.evaluation.array_types import person_weights
from pipelines.evaluation.bootstrap import draw_person_weights, percentile_interval
from pipelines.evaluation.brier import brier_score, scaled_brier
from pipelines.evaluation.calibration import (
    calibration_intercept,
    calibration_slope,
    cloglog,
    mean_predicted,
    observed_expected_ratio,
    risk_groups,
)
from pipelines.evaluation.censoring_weights import fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.concordance import concordance_by_lifelines, recode_for_concordance, weighted_concordance
from pipelines.evaluation.time_dependent_auc import cumulative_dynamic_auc

HORIZON = 5.0


def metrics(time: list[float], status: list[int], risk: list[float]) -> dict[str, float]:
    t, s, p = np.array(time, float), np.array(status, int), np.array(risk, float)
    known = inverse_censoring_weights(t, s, HORIZON, fit_censoring_curve(t, s == 0))
    recoded, is_event = recode_for_concordance(t, s, HORIZON)
    return {
        "observed": float(aalen_johansen(t, s, np.array([HORIZON]))[0]),
        "concordance": float(weighted_concordance(p, recoded, is_event)),
        "lifelines": concordance_by_lifelines(p, recoded, is_event),
        "auc": float(cumulative_dynamic_auc(p, t, s, HORIZON, known)),
        "brier": float(brier_score(p, t, s, HORIZON, known)),
        "intercept": float(calibration_intercept(p, t, s, HORIZON, known)),
        "slope": float(calibration_slope(p, t, s, HORIZON, known)),
    }


NAN = float("nan")


@pytest.mark.parametrize(
    ("time", "status", "risk", "expected"),
    [
        pytest.param(
            [], [], [],
            {"observed": NAN, "concordance": NAN, "lifelines": NAN, "auc": NAN, "brier": NAN, "slope": NAN},
            id="nobody",
        ),
        pytest.param([9.0], [0], [0.2], {"observed": 0.0, "auc": NAN, "brier": 0.04, "slope": NAN}, id="one person"),
        pytest.param(
            [3.0], [1], [0.2], {"observed": 1.0, "concordance": NAN, "lifelines": NAN, "auc": NAN}, id="one case"
        ),
        pytest.param(
            [9.0, 8.0, 7.0], [0, 0, 0], [0.1, 0.2, 0.3],
            {"observed": 0.0, "concordance": NAN, "lifelines": NAN, "auc": NAN, "intercept": NAN, "slope": NAN},
            id="no cases",
        ),
        pytest.param(
            [1.0, 2.0, 3.0], [1, 1, 1], [0.3, 0.2, 0.1],
            {"observed": 1.0, "concordance": 1.0, "lifelines": 1.0, "auc": NAN, "intercept": NAN, "slope": NAN},
            id="all cases",
        ),
        pytest.param(
            [1.0, 2.0], [0, 0], [0.1, 0.2],
            {"observed": NAN, "concordance": NAN, "auc": NAN, "brier": NAN, "slope": NAN},
            id="everyone censored before the horizon",
        ),
        pytest.param(
            [1.0, 2.0, 3.0], [1, 2, 0], [0.3, 0.2, 0.1],
            {"observed": NAN, "concordance": 1.0, "auc": NAN, "brier": NAN, "intercept": NAN},
            id="horizon beyond follow-up",
        ),
        pytest.param(
            [1.0, 2.0, 9.0], [1, 2, 0], [0.2, 0.2, 0.2],
            {"observed": 1 / 3, "concordance": 0.5, "lifelines": 0.5, "auc": 0.5, "slope": NAN},
            id="identical predictions",
        ),
        pytest.param(
            [2.0, 2.0, 9.0], [1, 0, 0], [0.4, 0.1, 0.2],
            {"observed": 1 / 3, "concordance": 1.0, "lifelines": 1.0, "auc": 1.0},
            id="event and censoring on one day",
        ),
        pytest.param(
            [5.0, 5.0, 9.0], [1, 0, 0], [0.4, 0.1, 0.2],
            {"observed": 1 / 3, "concordance": 1.0, "lifelines": 1.0, "auc": 1.0},
            id="event and censoring on the day of the horizon",
        ),
        pytest.param(
            [1.0, 1.0, 4.0], [2, 2, 1], [0.1, 0.4, 0.2],
            {"observed": 1 / 3, "concordance": 0.5, "lifelines": 0.5, "auc": 0.5},
            id="earlier deaths are compared with later cases",
        ),
    ],
)  # fmt: skip
def test_small_samples(time: list[float], status: list[int], risk: list[float], expected: dict[str, float]) -> None:
    found = metrics(time, status, risk)
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_zero_and_certain_risks_are_clipped_for_the_regression_alone() -> None:
    assert np.isfinite(cloglog(np.array([0.0, 1.0]))).all()
    risk = [0.0, 0.0, 0.1, 0.2, 0.6, 1.0, 0.0]
    found = metrics([9, 9, 9, 2, 3, 4, 4], [0, 0, 0, 1, 1, 2, 1], risk)
    assert all(np.isfinite(value) for value in found.values())
    assert found["brier"] == pytest.approx((0.1**2 + 0.8**2 + 0.4**2 + 1 + 1) / 7)


def test_predictions_of_the_truth_are_calibrated() -> None:
    rng = np.random.default_rng(3)
    n = 40_000
    rate, death_rate = rng.uniform(0.005, 0.08, n), 0.02
    onset, death, end = rng.exponential(1 / rate), rng.exponential(1 / death_rate, n), rng.uniform(1, 20, n)
    time = np.minimum(np.minimum(onset, death), end)
    status = np.select([onset == time, death == time], [1, 2], 0)
    truth = rate / (rate + death_rate) * -np.expm1(-HORIZON * (rate + death_rate))
    known = inverse_censoring_weights(time, status, HORIZON, fit_censoring_curve(time, status == 0))
    observed = aalen_johansen(time, status, np.array([HORIZON]))[0]
    assert float(observed_expected_ratio(observed, mean_predicted(truth))) == pytest.approx(1, abs=0.04)
    assert float(calibration_intercept(truth, time, status, HORIZON, known)) == pytest.approx(0, abs=0.04)
    assert float(calibration_slope(truth, time, status, HORIZON, known)) == pytest.approx(1, abs=0.06)
    halved = 1 - (1 - truth) ** 2  # cumulative hazard doubled: log 2 on the cloglog scale
    assert float(calibration_intercept(halved, time, status, HORIZON, known)) == pytest.approx(-np.log(2), abs=0.04)
    assert float(calibration_slope(truth**2, time, status, HORIZON, known)) < 0.6


def test_slope_is_none_where_cases_are_separated_from_others() -> None:
    found = metrics([1, 2, 9, 9], [1, 1, 0, 0], [0.8, 0.7, 0.2, 0.1])
    assert np.isnan(found["slope"])
    assert np.isfinite(found["intercept"])


def test_scaled_brier_of_the_null_model_is_zero() -> None:
    assert float(scaled_brier(np.array(0.2), np.array(0.2))) == 0.0
    assert np.isnan(scaled_brier(np.array(0.0), np.array(0.0)))
    assert np.isnan(observed_expected_ratio(np.array(0.1), np.array(0.0)))


def test_replicates_differ_but_the_seed_repeats_them() -> None:
    weights = draw_person_weights(50, 20, seed=1)
    assert weights.shape == (21, 50)
    assert (weights[0] == 1).all()
    np.testing.assert_array_equal(weights, draw_person_weights(50, 20, seed=1))
    assert not np.array_equal(weights, draw_person_weights(50, 20, seed=2))


def test_interval_of_replicates() -> None:
    replicates = np.linspace(0, 1, 201)
    lower, upper = percentile_interval(np.concatenate([[0.5], replicates])[None])
    assert (float(lower[0]), float(upper[0])) == pytest.approx((0.025, 0.975))
    few_missing = np.where(np.arange(201) < 5, np.nan, replicates)
    many_missing = np.where(np.arange(201) < 50, np.nan, replicates)
    assert np.isfinite(percentile_interval(np.concatenate([[0.5], few_missing]))).all()
    assert np.isnan(percentile_interval(np.concatenate([[0.5], many_missing]))).all()
    assert np.isnan(percentile_interval(np.concatenate([[np.nan], replicates]))).all()
    assert np.isnan(percentile_interval(np.array([0.5]))).all()


def test_bootstrap_interval_of_a_proportion_is_about_right() -> None:
    time = np.where(np.arange(1000) < 200, 1.0, 9.0)
    status = np.where(np.arange(1000) < 200, 1, 0)
    weights = draw_person_weights(1000, 1000, seed=4)
    lower, upper = percentile_interval(aalen_johansen(time, status, np.array([HORIZON]), weights)[:, 0])
    standard_error = np.sqrt(0.2 * 0.8 / 1000)
    assert float(upper - lower) == pytest.approx(2 * 1.96 * standard_error, rel=0.1)


def test_groups_with_identical_predictions_and_without_people() -> None:
    assert risk_groups(np.full(50, 0.2), np.ones(50, dtype=bool)).tolist() == [0] * 50
    assert risk_groups(np.empty(0), np.empty(0, dtype=bool)).size == 0


@pytest.mark.parametrize("weights", [np.ones(3), np.ones((2, 3)), np.array(1.0)])
def test_weights_that_do_not_fit_are_refused(weights: np.ndarray) -> None:
    with pytest.raises(ValueError, match="do not fit 4 people"):
        person_weights(weights, 4)
