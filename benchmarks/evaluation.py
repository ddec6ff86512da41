"""How long, and in how much memory, a thousand outcomes are evaluated; beside the route through libraries.

Made-up people: a few factors drive a thousand outcomes of very different frequency, death and follow-up compete, times
are whole days. Risks lie on disk as float32, one file an outcome, as scoring would leave them, and are read one outcome
at a time (memory-mapped). Every metric of `estimate_metrics` but no bootstrap, with all tables written, in two
processes with one thread each.

The library route is scikit-survival where it is installed: Harrell's and Uno's concordance, AUC and Brier score at the
horizons (one cause: deaths are censored there), with lifelines' calibration; without it lifelines' concordance,
Aalen–Johansen and calibration alone. It gives fewer numbers and no standard errors. It runs on a sample of the outcomes
in the same run, in one process, and its time is extrapolated to all of them and two processes.

    .venv/bin/python benchmarks/evaluation.py [--outcomes K] [--people N] [--predictors P] [--workers W] [--quick]
        [--library-outcomes S] [--json FILE]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy; processes that are started take it over

import matplotlib as mpl
import numpy as np
import pandas as pd
from lifelines import AalenJohansenFitter, CoxPHFitter
from lifelines.calibration import survival_probability_calibration
from lifelines.utils import concordance_index

from data_schemas.results import CENSORED, COMPETING_DEATH, MODEL, OUTCOME
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.evaluation.evaluate_outcomes import EvaluationPlan, evaluate_outcomes
from pipelines.evaluation.outcome_sample import LandmarkPeople, OutcomeSample
from pipelines.tables_on_disk import write_parquet

OUTCOMES, PEOPLE, PREDICTORS, LIBRARY_OUTCOMES = 1_000, 100_000, 1, 3
QUICK_OUTCOMES, QUICK_PEOPLE, QUICK_LIBRARY_OUTCOMES = 12, 10_000, 1
HORIZONS_DAYS = (365.25, 1826.25, 3652.5)
N_FACTORS = 5
N_WORKERS = 2
RAREST, COMMONEST = 3e-4, 0.15  # share of people with the outcome within ten years
KIB_PER_MIB = 1024
SEED = 1


@dataclass(frozen=True)
class OutcomeFiles:
    """The arrays of one outcome on disk."""

    folder: Path
    number: int

    def __call__(self) -> OutcomeSample:
        """Read them; risks stay mapped until they are used."""
        times = np.load(self._path("times"))
        risks = np.load(self._path("risks"), mmap_mode="r")
        row = times["row"].astype(np.int64)
        return OutcomeSample(
            f"outcome {self.number}", row, times["time"].astype(np.float64), times["status"].astype(np.int64),
            np.asarray(risks, dtype=np.float64),
        )  # fmt: skip

    def _path(self, what: str) -> Path:
        return self.folder / f"{what}_{self.number}.npy"

    def write(self, row: IntArray, time_days: FloatArray, status: IntArray, risks: FloatArray) -> None:
        """Write them as small as they are."""
        times = np.empty(row.size, dtype=[("row", np.int32), ("time", np.float32), ("status", np.int8)])
        times["row"], times["time"], times["status"] = row, time_days, status
        np.save(self._path("times"), times)
        np.save(self._path("risks"), risks.astype(np.float32))


def draw_people(n_people: int) -> tuple[FloatArray, LandmarkPeople]:
    """Draw factors [F, N] and follow-up in whole days: 15 years at most, half of it lost, one in ten dies."""
    rng = np.random.default_rng(SEED)
    factors = rng.normal(size=(N_FACTORS, n_people))
    death = np.ceil(rng.exponential(40_000 * np.exp(-0.5 * factors[0])))
    end = np.ceil(rng.uniform(400, 5_500, n_people))
    return factors, LandmarkPeople(np.minimum(death, end), end < death)


def write_outcomes(
    folder: Path, n_outcomes: int, n_predictors: int, factors: FloatArray, people: LandmarkPeople
) -> None:
    """Draw each outcome from the factors, frequencies even on the log scale; predictors know it more or less well."""
    horizons = np.array(HORIZONS_DAYS)
    shares = np.geomspace(RAREST, COMMONEST, n_outcomes)
    for number, share in enumerate(shares):
        rng = np.random.default_rng([SEED, number])
        linear = rng.normal(scale=0.4, size=N_FACTORS) @ factors
        rate = -np.log1p(-share) / horizons[-1] * np.exp(linear)
        onset = np.ceil(rng.exponential(1 / rate))
        is_prevalent = rng.random(people.n_rows) < share / 2
        row = np.flatnonzero(~is_prevalent)
        happened = onset <= people.followed_days
        status = np.where(happened, OUTCOME, np.where(people.is_censored, CENSORED, COMPETING_DEATH))
        noise = rng.normal(scale=0.3, size=(n_predictors, 1, row.size))
        risks = -np.expm1(-rate[row] * np.exp(noise) * horizons[:, None])
        OutcomeFiles(folder, number).write(row, np.minimum(onset, people.followed_days)[row], status[row], risks)


# ---- ours ----


def evaluate_ours(folder: Path, n_outcomes: int, n_predictors: int, people: LandmarkPeople, n_workers: int) -> int:
    """Evaluate all outcomes, write all tables, and return how many numbers there are."""
    predictors = (MODEL, *(f"predictor {number}" for number in range(1, n_predictors)))
    sources = [OutcomeFiles(folder, number) for number in range(n_outcomes)]
    found = evaluate_outcomes(sources, people, EvaluationPlan(predictors, "entry", HORIZONS_DAYS), n_workers=n_workers)
    for name, table in vars(found).items():
        write_parquet(table, folder / "found" / f"{name}.parquet")
    return found.metrics.height


# ---- the libraries ----


def evaluate_with_libraries(sample: OutcomeSample) -> str:
    """Do what the libraries offer for one outcome, and return what that was."""
    warnings.simplefilter("ignore")
    mpl.use("Agg")  # lifelines' calibration draws
    done = [_with_lifelines(sample)]
    if _is_installed("scikit-survival"):
        done.append(_with_scikit_survival(sample))
    return "; ".join(done)


def _with_lifelines(sample: OutcomeSample) -> str:
    for h, horizon in enumerate(HORIZONS_DAYS):
        risk = sample.risks[0, h]
        concordance_index(np.minimum(sample.time, horizon), -risk, sample.is_case(horizon))
        for tenth in np.array_split(np.argsort(risk), 10):
            AalenJohansenFitter(calculate_variance=True).fit(sample.time[tenth], sample.status[tenth], OUTCOME)
        frame = pd.DataFrame({
            "x": np.log(-np.log1p(-np.clip(risk, 1e-9, 1 - 1e-9))), "time": sample.time,
            "event": sample.status == OUTCOME,
        })  # fmt: skip
        model = CoxPHFitter().fit(frame, "time", "event")
        try:
            survival_probability_calibration(model, frame, horizon)
        except Exception as failure:  # it does fail with rare events; what it took is counted
            print(f"  lifelines' calibration failed: {type(failure).__name__}", flush=True)
    return "lifelines: concordance, Aalen–Johansen of tenths, calibration of a Cox model of the risk"


def _with_scikit_survival(sample: OutcomeSample) -> str:
    metrics, surv = import_module("sksurv.metrics"), import_module("sksurv.util").Surv
    truth = surv.from_arrays(sample.status == OUTCOME, sample.time)
    for h, horizon in enumerate(HORIZONS_DAYS):
        risk = sample.risks[0, h]
        metrics.concordance_index_censored(truth["event"], truth["time"], risk)
        metrics.concordance_index_ipcw(truth, truth, risk, tau=horizon)
        metrics.cumulative_dynamic_auc(truth, truth, risk, [horizon])
        metrics.brier_score(truth, truth, 1.0 - risk[:, None], [horizon])
    return "scikit-survival: Harrell's and Uno's concordance, AUC, Brier score"


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


# ---- measuring ----


def measure(form: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one form in this process and return its seconds and peak memory, that of its own processes added."""
    _, people = draw_people(arguments.people)
    started = time.perf_counter()
    if form == "ours":
        what = f"{evaluate_ours(folder, arguments.outcomes, arguments.predictors, people, arguments.workers):,} numbers"
    else:
        n = arguments.library_outcomes
        spread = [arguments.outcomes * (2 * position + 1) // (2 * n) for position in range(n)]
        what = {evaluate_with_libraries(OutcomeFiles(folder, number)()) for number in spread}.pop()
    seconds = time.perf_counter() - started
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    n_children = arguments.workers if form == "ours" and arguments.workers > 1 else 0
    return {"seconds": seconds, "peak_memory_mb": (own + n_children * largest_child) / KIB_PER_MIB, "what": what}


def measure_in_child(form: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """Run one form in a process of its own and return what `measure` does."""
    command = [sys.executable, __file__, "--child", form, str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{form} failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both forms and return a row each."""
    factors, people = draw_people(arguments.people)
    write_outcomes(folder, arguments.outcomes, arguments.predictors, factors, people)
    del factors, people
    options = [
        "--outcomes", str(arguments.outcomes), "--people", str(arguments.people), "--predictors",
        str(arguments.predictors), "--workers", str(arguments.workers), "--library-outcomes",
        str(arguments.library_outcomes),
    ]  # fmt: skip
    ours = measure_in_child("ours", folder, options)
    libraries = measure_in_child("libraries", folder, options)
    an_outcome = libraries["seconds"] / arguments.library_outcomes
    extrapolated = an_outcome * arguments.outcomes * arguments.predictors / arguments.workers
    size = {"outcomes": arguments.outcomes, "people": arguments.people, "horizons": len(HORIZONS_DAYS)}
    print(f"ours: {ours['what']}; {ours['seconds']:.1f} s measured, {arguments.workers} processes")
    print(f"libraries: {libraries['what']}")
    print(
        f"libraries: {an_outcome:.2f} s an outcome and predictor, measured on {arguments.library_outcomes}; "
        f"{extrapolated:,.0f} s extrapolated to all, shared by {arguments.workers} processes"
    )
    return [
        {
            "what": f"ours, {arguments.predictors} predictors, {arguments.workers} processes", **size,
            "seconds": round(ours["seconds"], 2), "peak_memory_mb": round(ours["peak_memory_mb"]),
            "ratio": round(extrapolated / ours["seconds"], 1),
        },
        {
            "what": f"libraries, extrapolated from {arguments.library_outcomes} outcomes", **size,
            "seconds": round(extrapolated, 2), "peak_memory_mb": round(libraries["peak_memory_mb"]), "ratio": 1.0,
        },
    ]  # fmt: skip


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=int)
    parser.add_argument("--people", type=int)
    parser.add_argument("--predictors", type=int, default=PREDICTORS)
    parser.add_argument("--workers", type=int, default=N_WORKERS)
    parser.add_argument("--library-outcomes", type=int, help="outcomes that the libraries are measured on")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_OUTCOMES} outcomes, {QUICK_PEOPLE} people")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("FORM", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = (QUICK_OUTCOMES, QUICK_PEOPLE, QUICK_LIBRARY_OUTCOMES) if arguments.quick else (
        OUTCOMES, PEOPLE, LIBRARY_OUTCOMES
    )  # fmt: skip
    for name, size in zip(("outcomes", "people", "library_outcomes"), sizes, strict=True):
        setattr(arguments, name, getattr(arguments, name) or size)
    if arguments.child:
        form, folder = arguments.child
        print(json.dumps(measure(form, Path(folder), arguments)))
        return
    packages = [name for name in ("lifelines", "scikit-survival") if _is_installed(name)]
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {version('numpy')}, "
        + ", ".join(f"{name} {version(name)}" for name in packages)
    )
    with tempfile.TemporaryDirectory() as temporary:
        rows = compare(Path(temporary), arguments)
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
