"""Our metrics against lifelines, scikit-learn and scipy on fixed people (metrics/make_numbers.py made the numbers)."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data_schemas.results import (
    AUC,
    BRIER,
    CALIBRATION_INTERCEPT,
    CALIBRATION_SLOPE,
    CENSORED,
    CONCORDANCE,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
)
from pipelines.evaluation.censoring_weights import fit_censoring_curve
from pipelines.evaluation.estimate_metrics import OutcomeSample, estimate_metrics

FOLDER = Path(__file__).parent / "metrics"
NUMBERS = json.loads((FOLDER / "numbers.json").read_text(encoding="utf-8"))["horizons"]
# scipy's simplex search stops within about 1e-6 of the maximum; everything else is the same arithmetic.
TOLERANCE = {CALIBRATION_INTERCEPT: 1e-5, CALIBRATION_SLOPE: 1e-5}


@pytest.fixture(scope="module")
def estimates() -> dict[str, np.ndarray]:
    people = pl.read_csv(FOLDER / "people.csv")
    time, status = people["time"].to_numpy(), people["status"].to_numpy()
    horizons = np.array([row["horizon_days"] for row in NUMBERS])
    risks = np.tile(people["risk"].to_numpy(), (1, horizons.size, 1))
    sample = OutcomeSample("outcome", np.arange(time.size), time, status, risks, n_without_risk=0)
    weights = np.ones((1, time.size))
    return estimate_metrics(sample, horizons, fit_censoring_curve(time, status == CENSORED, weights), weights)


@pytest.mark.parametrize("position", range(len(NUMBERS)))
@pytest.mark.parametrize(
    "metric",
    [
        OBSERVED_RISK, CONCORDANCE, AUC, BRIER, NULL_BRIER, OBSERVED_EXPECTED, CALIBRATION_INTERCEPT,
        CALIBRATION_SLOPE,
    ],
)  # fmt: skip
def test_equals_the_independent_number(estimates: dict[str, np.ndarray], metric: str, position: int) -> None:
    expected = NUMBERS[position][metric]
    assert estimates[metric][0, position, 0] == pytest.approx(expected, abs=TOLERANCE.get(metric, 1e-12))
