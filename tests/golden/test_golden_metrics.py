"""Our metrics against independent programs on fixed people (metrics/ holds numbers, scripts and versions)."""

import numpy as np
import pytest

from benchmarks.agreement import DENOMINATOR, SOLVER, TABLES, TIED_CONVENTION, Agreement, agreement, judge

# The same arithmetic agrees to rounding. Where it does not, why and by how much.
TOLERANCE = {"": 1e-12, SOLVER: 2e-6, TIED_CONVENTION: 3e-3, DENOMINATOR: 5e-6}
FEWEST_NUMBERS = 150
ROWS = agreement()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.people}-{row.horizon_days:g}-{row.metric}-{row.source}")
def test_equals_the_independent_number(row: Agreement) -> None:
    ours = row.ours
    if row.note == DENOMINATOR:  # riskRegression: standard deviation over √n; ours: √Σ squares
        n = judge(row.people, [row.horizon_days]).sample.time.size
        ours *= np.sqrt(n / (n - 1))
    assert ours == pytest.approx(row.independent, abs=TOLERANCE[row.note])


def test_every_metric_is_compared_at_every_horizon() -> None:
    compared = {(row.people, row.horizon_days, row.metric) for row in ROWS}
    assert len(compared) >= FEWEST_NUMBERS
    for table in TABLES:
        for metric in (
            "observed_risk", "auc", "auc_error", "brier", "brier_error", "null_brier", "scaled_brier", "concordance",
            "concordance_error", "concordance_ipcw", "calibration_intercept", "calibration_slope", "ici", "e50", "e90",
            "average_precision",
        ):  # fmt: skip
            assert {(table, horizon, metric) for horizon in (400.0, 1000.0, 1800.0)} <= compared
