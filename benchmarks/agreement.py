"""Each metric beside the number that an independent program gives for the same people: value, difference, source.

The independent numbers lie in tests/golden/metrics with the scripts and versions that made them (R: survival, cmprsk,
riskRegression, pec, Hmisc; Python: lifelines, comprisk, hazardous, scikit-survival, scikit-learn, scipy), for 240
people without ties and 400 with many. Nothing of these programs is needed to run this.

    .venv/bin/python benchmarks/agreement.py [--json FILE] [--quick]
"""

import argparse
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from data_schemas.results import CENSORED
from pipelines.evaluation.aalen_johansen import find_event_days, incidence_with_influence
from pipelines.evaluation.censoring_weights import fit_censoring
from pipelines.evaluation.estimate_metrics import Estimates, Landmark, estimate_metrics
from pipelines.evaluation.net_benefit import net_benefit
from pipelines.evaluation.outcome_sample import OutcomeSample
from pipelines.evaluation.ranked_people import rank_sample

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "metrics"
TABLES = ("people", "people_with_ties")
ERROR_SUFFIX, NET_BENEFIT, QUARTERS = "_error", "net_benefit_", "quarters_observed"
# What R's names stand for: which package each number of numbers_r.json is from.
R_SOURCES = {
    "observed_risk": "survival", "observed_risk_error": "survival", "observed_risk_cmprsk": "cmprsk",
    "concordance": "survival", "concordance_error": "survival", "concordance_ipcw": "pec",
    "auc": "riskRegression", "auc_error": "riskRegression", "brier": "riskRegression",
    "brier_error": "riskRegression", "null_brier": "riskRegression", "scaled_brier": "riskRegression",
    "calibration_intercept": "glm", "calibration_slope": "glm", "ici": "Hmisc, glm", "e50": "Hmisc, glm",
    "e90": "Hmisc, glm",
}  # fmt: skip
TIED_CONVENTION = "another rule for ties"
DENOMINATOR = "divides by n − 1"
SOLVER = "stops within 1e-6 of the maximum"


@dataclass(frozen=True)
class Agreement:
    """One number twice. `note` says why a difference is expected."""

    people: str
    horizon_days: float
    metric: str
    ours: float
    independent: float
    source: str
    note: str

    @property
    def difference(self) -> float:
        """Return ours minus the independent number."""
        return self.ours - self.independent


@dataclass(frozen=True)
class Judged:
    """Our numbers for one table of people."""

    sample: OutcomeSample
    landmark: Landmark
    found: Estimates

    def number(self, metric: str, h: int) -> float | None:
        """Return our number under the name that the scripts use; None where it is suppressed."""
        if metric.startswith(NET_BENEFIT):
            return self._net_benefit(float(metric.removeprefix(NET_BENEFIT)), h)
        table = self.found.error if metric.endswith(ERROR_SUFFIX) else self.found.value
        value = float(table[metric.removesuffix(ERROR_SUFFIX).removesuffix("_cmprsk")][0, h])
        return value if np.isfinite(value) else None

    def quarters(self, h: int) -> list[float]:
        """Return the observed risk in quarters of predicted risk."""
        risk = self.sample.risks[0, h]
        group = np.searchsorted(np.quantile(risk, [0.25, 0.5, 0.75]), risk, side="left")
        days = find_event_days(self.sample.time, self.sample.status)
        return incidence_with_influence(days, self.landmark.horizons[h], group, 4)[0].tolist()

    def _net_benefit(self, threshold: float, h: int) -> float | None:
        sample, censoring, horizon = self.sample, self.landmark.censoring, self.landmark.horizons[h]
        known = censoring.weigh(sample.time, sample.status, horizon, sample.row, censoring.days_before(sample.time))
        value = float(net_benefit(rank_sample(sample, 0, h, horizon, known), np.array([threshold])).value[0])
        return value if np.isfinite(value) else None


def judge(table: str, horizons: list[float]) -> Judged:
    """Estimate everything for one table of people."""
    people = pl.read_csv(FOLDER / f"{table}.csv")
    time, status = people["time"].cast(pl.Float64).to_numpy(), people["status"].to_numpy()
    risks = np.tile(people["risk"].to_numpy(), (1, len(horizons), 1))
    sample = OutcomeSample("outcome", np.arange(time.size), time, status, risks)
    landmark = Landmark(np.array(horizons), fit_censoring(time, status == CENSORED), None)
    return Judged(sample, landmark, estimate_metrics(sample, landmark))


def agreement() -> list[Agreement]:
    """Return every independent number beside ours."""
    return [row for table in TABLES for row in _of_table(table)]


def _of_table(table: str) -> Iterator[Agreement]:
    of_r, of_oracles = (_read(name) for name in ("numbers_r.json", "numbers_oracles.json"))
    horizons = [float(row["horizon_days"]) for row in of_r[table]]
    ours = judge(table, horizons)
    of_plain = _read("numbers.json")
    for h, horizon in enumerate(horizons):
        found: list[tuple[str, str, float]] = []
        if table == "people":
            found += [("lifelines, scikit-learn, scipy", *item) for item in of_plain["horizons"][h].items()]
        found += [(f"R {R_SOURCES.get(name, '')}", name, value) for name, value in of_r[table][h].items()]
        for library, numbers in of_oracles[table][h].items():
            found += [(library, *item) for item in numbers.items()] if isinstance(numbers, dict) else []
        for source, metric, value in found:
            if metric == QUARTERS:
                for number, (mine, theirs) in enumerate(zip(ours.quarters(h), value, strict=True), start=1):
                    yield Agreement(table, horizon, f"observed risk, quarter {number}", mine, theirs, source, "")
            elif metric != "horizon_days" and (mine := ours.number(metric, h)) is not None:
                yield Agreement(table, horizon, metric, mine, value, source, _note(table, source, metric))


def _note(table: str, source: str, metric: str) -> str:
    """Say where a difference is known to come from."""
    if table == "people_with_ties" and (source, metric) in {
        ("R pec", "concordance_ipcw"), ("hazardous", "concordance_ipcw"), ("hazardous", "brier"),
        ("R riskRegression", "auc_error"), ("R riskRegression", "brier_error"),
    }:  # fmt: skip
        return TIED_CONVENTION
    if metric.endswith(ERROR_SUFFIX) and "riskRegression" in source:
        return DENOMINATOR
    if "calibration" in metric or metric in {"ici", "e50", "e90"}:
        return SOLVER
    return ""


def _read(name: str) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return numbers


def versions() -> str:
    """Name the programs that made the numbers."""
    found: dict[str, str] = {}
    for name in ("numbers.json", "numbers_r.json", "numbers_oracles.json"):
        found |= _read(name)["versions"]
    return ", ".join(f"{name} {number}" for name, number in found.items())


def main() -> None:
    """Print the table and, if asked, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the people without ties only")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, numpy {version('numpy')}; independent: {versions()}")
    rows = list(_of_table(TABLES[0])) if arguments.quick else agreement()
    print(f"{'people':17}{'days':>6}  {'metric':28}{'ours':>14}{'independent':>14}{'difference':>12}  source")
    for row in rows:
        note = f" ({row.note})" if row.note else ""
        print(
            f"{row.people:17}{row.horizon_days:>6g}  {row.metric:28}{row.ours:>14.9f}{row.independent:>14.9f}"
            f"{row.difference:>12.1e}  {row.source}{note}"
        )
    if arguments.json:
        found = [{**vars(row), "difference": row.difference} for row in rows]
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
