"""Make `numbers_oracles.json`: metrics of both tables of people by comprisk, hazardous, scikit-survival, scikit-learn.

Run it in this folder, in an environment that has these (`pip install comprisk==0.8.0 hazardous==0.2.0
scikit-survival==0.28.0 lifelines==0.30.3`): `python make_numbers_oracles.py`. Nothing of our own code is used, except
that the rule for people tied at the cut of a list (they count in part) is written out here once more. comprisk's
concordance is not among them: it differs from ours, hazardous' and pec's alike (0.52 for 0.62 at 400 days).
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from comprisk import calibration_cr, score_cr
from hazardous.metrics import brier_score_incidence, concordance_index_incidence
from lifelines import KaplanMeierFitter
from sklearn.metrics import average_precision_score, confusion_matrix, precision_score, recall_score
from sksurv.nonparametric import cumulative_incidence_competing_risks

FOLDER = Path(__file__).parent
HORIZONS = (400.0, 1000.0, 1800.0)
THRESHOLDS = (0.05, 0.2, 0.5)
TOP_SHARES = (0.05, 0.1)


def censoring_weights(time: np.ndarray, status: np.ndarray, horizon: float) -> np.ndarray:
    """Weight people by lifelines' curve of censoring, events moved half a day before censorings."""
    moved = np.where(status == 0, time, time - 0.5)
    censoring = KaplanMeierFitter().fit(moved, status == 0)
    before, at_horizon = censoring.predict(time - 0.5).to_numpy(), float(censoring.predict(horizon))
    is_known = (time > horizon) | (status != 0)
    return np.where(time > horizon, 1 / at_horizon, 1 / before) * is_known


def lists(risk: np.ndarray, is_case: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Average precision, recall and precision at the top, net benefit, by scikit-learn with sample weights."""
    known = weights > 0
    found = {"average_precision": average_precision_score(is_case[known], risk[known], sample_weight=weights[known])}
    for share in TOP_SHARES:
        cut = np.sort(risk)[::-1][int(np.ceil(share * risk.size)) - 1]
        part = (share * risk.size - (risk > cut).sum()) / (risk == cut).sum()
        # A person tied at the cut is there twice: listed with weight `part`, not listed with the rest.
        case = np.concatenate([is_case, is_case[risk == cut]])
        listed = np.concatenate([risk >= cut, np.zeros((risk == cut).sum(), bool)])
        weight = np.concatenate([weights * np.where(risk == cut, part, 1.0), weights[risk == cut] * (1 - part)])
        found[f"recall_top_{share * 100:g}pct"] = recall_score(case, listed, sample_weight=weight)
        found[f"precision_top_{share * 100:g}pct"] = precision_score(case, listed, sample_weight=weight)
    for threshold in THRESHOLDS:
        matrix = confusion_matrix(is_case, risk >= threshold, sample_weight=weights, labels=[False, True])
        found[f"net_benefit_{threshold:g}"] = (matrix[1, 1] - matrix[0, 1] * threshold / (1 - threshold)) / risk.size
    return {name: float(value) for name, value in found.items()}


def compute(people: pd.DataFrame, horizon: float) -> dict[str, object]:
    """Compute every metric at one horizon."""
    time, status, risk = people["time"].to_numpy(float), people["status"].to_numpy(), people["risk"].to_numpy()
    scored = score_cr({"risk": risk[:, None]}, time, status, np.array([horizon]), n_jobs=1)
    survival = pd.DataFrame({"event": status, "duration": time})
    days, incidence = cumulative_incidence_competing_risks(status, time)
    bins = calibration_cr({"risk": risk[:, None]}, time, status, np.array([horizon]), n_bins=4)
    return {
        "horizon_days": horizon,
        "comprisk": {
            "auc": float(scored.auc["AUC"].iloc[0]),
            "brier": float(scored.brier["Brier"].iloc[0]),
            "quarters_observed": bins["observed_freq"].tolist(),
        },
        "hazardous": {
            "brier": float(brier_score_incidence(survival, survival, risk[:, None], [horizon], event_of_interest=1)[0]),
            "concordance_ipcw": float(
                concordance_index_incidence(
                    survival, risk[:, None], survival, time_grid=[horizon], taus=[horizon], event_of_interest=1
                )[0]
            ),
        },
        "scikit-survival": {"observed_risk": float(incidence[1][days <= horizon][-1])},
        "scikit-learn": lists(risk, (status == 1) & (time <= horizon), censoring_weights(time, status, horizon)),
    }  # fmt: skip


def main() -> None:
    """Write the file."""
    packages = ("comprisk", "hazardous", "scikit-survival", "scikit-learn", "lifelines", "numpy")
    numbers: dict[str, object] = {"versions": {name: version(name) for name in packages}}
    for name in ("people", "people_with_ties"):
        people = pd.read_csv(FOLDER / f"{name}.csv")
        numbers[name] = [compute(people, horizon) for horizon in HORIZONS]
    (FOLDER / "numbers_oracles.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
