"""All metrics of one outcome where there is little to go by: a number, or none, and never an error or a warning."""

import numpy as np
import pytest

from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    BRIER,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    ICI,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    PRECISION_AT,
    RECALL_AT,
    SCALED_BRIER,
)
from pipelines.evaluation.censoring_weights import fit_censoring
from pipelines.evaluation.estimate_metrics import METRICS, Estimates, Landmark, estimate_metrics
from pipelines.evaluation.influence import IDENTITY, LOG, LOGIT, influence_interval, standard_error
from pipelines.evaluation.outcome_sample import OutcomeSample

HORIZON = 5.0


def estimates(time: list[float], status: list[int], risk: list[float]) -> Estimates:
    days, kinds = np.array(time, dtype=float), np.array(status, dtype=np.int64)
    sample = OutcomeSample("outcome", np.arange(days.size), days, kinds, np.array([[risk]], dtype=float))
    return estimate_metrics(sample, Landmark(np.array([HORIZON]), fit_censoring(days, kinds == 0), None))


def known(found: Estimates) -> set[str]:
    return {metric for metric in METRICS if np.isfinite(found.value[metric][0, 0])}


SPREAD = np.linspace(0.05, 0.6, 30).tolist()


@pytest.mark.parametrize(
    ("time", "status", "risk"),
    [
        pytest.param([], [], [], id="nobody"),
        pytest.param([3.0], [1], [0.2], id="one person"),
        pytest.param([9.0] * 30, [0] * 30, SPREAD, id="no cases"),
        pytest.param([1.0] * 30, [0] * 30, SPREAD, id="everyone censored"),
        pytest.param([1.0] * 9 + [9.0] * 21, [1] * 9 + [0] * 21, SPREAD, id="nine cases"),
    ],
)
def test_no_number_without_ten_cases(time: list[float], status: list[int], risk: list[float]) -> None:
    found = estimates(time, status, risk)
    assert known(found) == set()
    assert found.groups == []
    assert found.curves == {}
    assert found.net_benefits == {}


def test_everyone_a_case() -> None:
    found = estimates(np.linspace(0.5, 4.5, 30).tolist(), [1] * 30, SPREAD)
    assert found.value[OBSERVED_RISK][0, 0] == pytest.approx(1.0)
    assert found.value[CONCORDANCE][0, 0] == 0.0  # the later, the higher
    assert known(found).isdisjoint({AUC, AVERAGE_PRECISION, CALIBRATION_SLOPE, ICI})


def test_horizon_beyond_follow_up() -> None:
    found = estimates([1.0] * 15 + [2.0] * 15, [1] * 15 + [0] * 15, SPREAD)
    assert np.isfinite(found.value[CONCORDANCE][0, 0])  # whom it compares are all known
    assert known(found).isdisjoint({AUC, BRIER, SCALED_BRIER, OBSERVED_RISK, OBSERVED_EXPECTED, CONCORDANCE_IPCW, ICI})
    assert np.isnan(found.error[AUC][0, 0])


def test_events_and_censorings_of_one_day() -> None:
    found = estimates([5.0] * 24 + [9.0] * 6, [0, 1] * 12 + [0] * 6, SPREAD)
    assert found.value[OBSERVED_RISK][0, 0] == pytest.approx(12 / 30)  # nobody was lost before a case
    assert found.value[CONCORDANCE_IPCW][0, 0] == pytest.approx(found.value[CONCORDANCE][0, 0])


def test_identical_predictions() -> None:
    found = estimates([1.0] * 12 + [9.0] * 18, [1] * 12 + [0] * 18, [0.3] * 30)
    for metric in (AUC, CONCORDANCE, CONCORDANCE_IPCW):
        assert found.value[metric][0, 0] == pytest.approx(0.5)
        assert found.error[metric][0, 0] == pytest.approx(0.0, abs=1e-12)
    assert known(found).isdisjoint({CALIBRATION_SLOPE, ICI})
    assert len(found.groups) == 1


def test_perfect_order_has_no_interval_on_the_scale_of_odds() -> None:
    found = estimates([1.0] * 15 + [9.0] * 15, [1] * 15 + [0] * 15, SPREAD[::-1])
    assert found.value[AUC][0, 0] == 1.0
    assert np.isnan(influence_interval(found.value[AUC], found.error[AUC], LOGIT)).all()
    assert CALIBRATION_SLOPE not in known(found)


def test_weights_that_explode_stay_numbers() -> None:
    rng = np.random.default_rng(2)
    time, risk = rng.uniform(0.1, 4.9, 400), rng.uniform(0.1, 0.6, 400)
    status = (rng.random(400) < 0.15).astype(int)
    time[:2], status[:2] = 9.0, 0  # two people stand for everyone who was lost
    found = estimates(time.tolist(), status.tolist(), risk.tolist())
    assert {AUC, BRIER, CONCORDANCE_IPCW, OBSERVED_RISK, CALIBRATION_SLOPE} <= known(found)
    complete = estimates(np.where(status == 0, 9.0, time).tolist(), status.tolist(), risk.tolist())
    assert found.error[BRIER][0, 0] > 2 * complete.error[BRIER][0, 0]  # and say how little they are worth


def test_top_of_a_list_is_exactly_its_share() -> None:
    n = 1000
    status = np.tile([1, 0, 0, 0, 0], n // 5)
    time = np.where(status == 1, 1.0, 9.0)
    risk = np.full(n, 0.2)
    risk[:50] = 0.9  # half of the top tenth; the other half is drawn from all the rest
    found = estimates(time.tolist(), status.tolist(), risk.tolist())
    expected = 10 + 190 * 50 / 950
    assert found.value[RECALL_AT[0.1]][0, 0] == pytest.approx(expected / 200)
    assert found.value[PRECISION_AT[0.1]][0, 0] == pytest.approx(expected / 100)


def test_standard_errors_at_the_top_are_those_of_resampled_people() -> None:
    rng = np.random.default_rng(7)
    n = 3000
    risk = rng.beta(1, 8, n)
    status = (rng.random(n) < risk).astype(int)
    found = estimates(np.where(status == 1, 1.0, 9.0).tolist(), status.tolist(), risk.tolist())
    recalls, precisions = [], []
    for _ in range(400):
        who = rng.integers(0, n, n)
        top = who[np.argsort(-risk[who])[: n // 10]]
        recalls.append(status[top].sum() / status[who].sum())
        precisions.append(status[top].mean())
    assert found.error[RECALL_AT[0.1]][0, 0] == pytest.approx(np.std(recalls), rel=0.15)
    assert found.error[PRECISION_AT[0.1]][0, 0] == pytest.approx(np.std(precisions), rel=0.15)


def test_intervals_on_scales() -> None:
    value, error = np.array([0.8, np.nan]), np.array([0.05, 0.05])
    for scale in (IDENTITY, LOG, LOGIT):
        lower, upper = influence_interval(value, error, scale)
        assert upper[0] - lower[0] == pytest.approx(2 * 1.96 * 0.05, rel=0.05)
        assert np.isnan([lower[1], upper[1]]).all()
    assert influence_interval(np.array([0.99]), np.array([0.02]), LOGIT)[1][0] < 1


def test_standard_error_sums_clusters() -> None:
    influence = np.array([[1.0, 2.0, -1.0, 3.0]])
    assert standard_error(influence, None)[0] == pytest.approx(np.sqrt(15))
    assert standard_error(influence, np.array([0, 1, 0, 1]))[0] == pytest.approx(5.0)
