"""Make `people.csv` and `numbers.json`: metrics of a fixed small sample by lifelines, scikit-learn and scipy.

Run it in this folder: `python make_numbers.py`. Nothing of our own code is used. Times are all different, because
lifelines' Aalen–Johansen moves tied times apart at random; ties are the business of tests/generative.
"""

import csv
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from lifelines import AalenJohansenFitter, KaplanMeierFitter
from lifelines.utils import concordance_index
from scipy.optimize import minimize
from sklearn.metrics import brier_score_loss, roc_auc_score

FOLDER = Path(__file__).parent
N_PEOPLE = 240
HORIZONS = (400.0, 1000.0, 1800.0)


def draw_people() -> dict[str, np.ndarray]:
    """Draw people with a risk factor, death competing and follow-up that ends between day 1 and 2400."""
    rng = np.random.default_rng(17)
    factor = rng.normal(size=N_PEOPLE)
    outcome = rng.exponential(3000 * np.exp(-0.9 * factor))
    death = rng.exponential(4000 * np.exp(-0.4 * factor))
    end = rng.uniform(1, 2400, N_PEOPLE)
    time = np.ceil(np.minimum(np.minimum(outcome, death), end))
    status = np.select([(outcome < death) & (outcome < end), death < end], [1, 2], 0)
    while len(np.unique(time)) < N_PEOPLE:  # move repeats to the next free day
        order = np.argsort(time, kind="stable")
        is_repeat = np.r_[False, np.diff(time[order]) == 0]
        time[order[is_repeat]] += 1
    risk = np.round(1 - np.exp(-0.25 * np.exp(0.8 * factor)), 2)  # rounded: equal predictions occur
    return {"time": time, "status": status, "risk": np.clip(risk, 0.01, 0.99)}


def fit_cloglog(x: np.ndarray, y: np.ndarray, weights: np.ndarray, with_slope: bool) -> np.ndarray:
    """Maximise the weighted binomial likelihood with complementary log-log link."""

    def loss(beta: np.ndarray) -> float:
        cumulative = np.exp(beta[0] + (beta[1] if with_slope else 1.0) * x)
        return float(-(weights * np.where(y, np.log(-np.expm1(-cumulative)), -cumulative)).sum())

    start = np.array([0.0, 1.0]) if with_slope else np.array([0.0])
    return minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000}).x


def compute(people: dict[str, np.ndarray], horizon: float) -> dict[str, float]:
    """Compute every metric at one horizon."""
    time, status, risk = people["time"], people["status"], people["risk"]
    incidence = AalenJohansenFitter(calculate_variance=False).fit(time, status, event_of_interest=1)
    observed = float(incidence.cumulative_density_.loc[:horizon].iloc[-1, 0])
    censoring = KaplanMeierFitter().fit(time, status == 0)
    before, at_horizon = censoring.predict(time - 0.5).to_numpy(), float(censoring.predict(horizon))
    is_case = (status == 1) & (time <= horizon)
    is_known = (time > horizon) | (status != 0)
    weights = np.where(time > horizon, 1 / at_horizon, 1 / before) * is_known
    kept = weights > 0
    recoded = np.where((status == 2) & (time <= horizon), np.inf, np.minimum(time, horizon))
    to_n = weights.sum() / len(time)
    x = np.log(-np.log1p(-risk))
    return {
        "observed_risk": observed,
        "concordance": float(concordance_index(recoded, -risk, is_case)),
        "auc": float(roc_auc_score(is_case[kept], risk[kept], sample_weight=weights[kept])),
        "brier": float(brier_score_loss(is_case[kept], risk[kept], sample_weight=weights[kept])) * to_n,
        "null_brier": float(
            brier_score_loss(is_case[kept], np.full(kept.sum(), observed), sample_weight=weights[kept])
        ) * to_n,
        "observed_expected": observed / float(risk.mean()),
        "calibration_intercept": float(fit_cloglog(x, is_case, weights, with_slope=False)[0]),
        "calibration_slope": float(fit_cloglog(x, is_case, weights, with_slope=True)[1]),
    }  # fmt: skip


def main() -> None:
    """Write both files."""
    people = draw_people()
    with (FOLDER / "people.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(people)
        writer.writerows(zip(*(column.tolist() for column in people.values()), strict=True))
    numbers = {
        "versions": {name: version(name) for name in ("lifelines", "scikit-learn", "scipy", "numpy")},
        "horizons": [{"horizon_days": horizon, **compute(people, horizon)} for horizon in HORIZONS],
    }
    (FOLDER / "numbers.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
