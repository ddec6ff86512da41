"""How much there is to learn from a made-up cohort: the true risks beside those of people of the same age and sex.

Synthesizes a population, fits the reference rates of age and sex on most of it, and judges both on the people left,
5 and 10 years after entry: macro concordance over the outcomes with enough cases, and observed over expected cases of
all outcomes together. The true risks know everything but the frailty, so no model can be better but by luck.

    .venv/bin/python benchmarks/oracle.py [--subjects 30000] [--judged 6000] [--quick] [--json FILE]
"""

import argparse
import json
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from data_schemas.age_units import years_to_days
from data_schemas.cohort import DEATH_CODE, DISEASE, Codes, Events, Subjects
from data_schemas.results import (
    AGE_SEX,
    CONCORDANCE,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    OUTCOMES_AVERAGED,
    POOLED,
    FirstOccurrences,
    Metrics,
    Risks,
)
from pipelines.evaluation.evaluate_risks import evaluate_risks
from pipelines.find_outcomes import find_outcomes, landmarks_at
from pipelines.fit_reference_rates import fit_reference_rates, reference_risks
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.synthesize_cohort import synthesize_cohort
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events
from pipelines.true_risks import STANDARD_ERROR, true_risks

_HORIZONS_YEARS = (5.0, 10.0)
_LANDMARK = "entry"
_SEED = 11


def compare(
    config: SynthesizeConfig, folder: Path, n_subjects: int, n_judged: int, n_futures: int, n_bootstrap: int
) -> list[dict[str, Any]]:
    """Synthesize, judge both predictors on the last people, and return one row a horizon."""
    started = time.perf_counter()
    synthesize_cohort(folder, n_subjects, _SEED, config)
    synthesized = time.perf_counter() - started
    everyone, codes = read_subjects(folder), read_codes(folder)
    outcomes = [*codes.filter(Codes.kind.col == DISEASE)[Codes.code.name], DEATH_CODE]
    first = (
        scan_events(folder)
        .filter(Events.code.col.is_in(outcomes))
        .select(
            Events.subject_id.col,
            Events.code.col.alias(FirstOccurrences.outcome.name),
            Events.age_days.col.alias(FirstOccurrences.first_age_days.name),
        )
        .collect()
    )
    people, judged = everyone.head(n_subjects - n_judged), everyone.tail(n_judged)
    rates = fit_reference_rates(people, first, outcomes)
    landmarks = landmarks_at(judged, _LANDMARK)
    horizons = [years_to_days(years) for years in _HORIZONS_YEARS]
    started = time.perf_counter()
    truth = true_risks(folder, landmarks, outcomes, horizons, n_futures=n_futures)
    of_truth = time.perf_counter() - started
    with_sex = landmarks.join(judged.select(Subjects.subject_id.name, Subjects.sex.name), on=Subjects.subject_id.name)
    references = reference_risks(rates, with_sex, outcomes, horizons)
    found = evaluate_risks(
        find_outcomes(judged, first, landmarks, outcomes),
        {MODEL: truth.select(Risks.column_names()), AGE_SEX: references},
        _LANDMARK,
        horizons,
        n_bootstrap=n_bootstrap,
    ).metrics
    relative_error = truth.filter(Risks.risk.col > 0).select(
        Risks.horizon_days.name, (pl.col(STANDARD_ERROR) / Risks.risk.col).alias(STANDARD_ERROR)
    )
    return [
        {
            "horizon_years": years,
            "judged_people": n_judged,
            "outcomes": int(_estimate(found, OUTCOMES_AVERAGED, MACRO_MEAN, MODEL, days)[0]),
            **_with_interval("concordance_truth", _estimate(found, CONCORDANCE, MACRO_MEAN, MODEL, days)),
            **_with_interval("concordance_age_sex", _estimate(found, CONCORDANCE, MACRO_MEAN, AGE_SEX, days)),
            **_with_interval(
                "difference",
                _estimate(found, f"{CONCORDANCE}_difference", MACRO_MEAN, f"{MODEL}-{AGE_SEX}", days),
            ),
            **_with_interval("observed_expected_truth", _estimate(found, OBSERVED_EXPECTED, POOLED, MODEL, days)),
            "relative_standard_error_median": relative_error.filter(Risks.horizon_days.col == days)[
                STANDARD_ERROR
            ].median(),
            "synthesize_seconds": round(synthesized, 1),
            "true_risks_seconds": round(of_truth, 1),
        }
        for years, days in zip(_HORIZONS_YEARS, horizons, strict=True)
    ]


def _estimate(metrics: pl.DataFrame, metric: str, outcome: str, predictor: str, days: float) -> tuple[float, ...]:
    rows = metrics.filter(
        Metrics.metric.col == metric,
        Metrics.outcome.col == outcome,
        Metrics.predictor.col == predictor,
        Metrics.horizon_days.col == days,
    )
    return rows.select(Metrics.estimate.name, Metrics.lower.name, Metrics.upper.name).row(0)


def _with_interval(name: str, numbers: tuple[float, ...]) -> dict[str, float]:
    return {name: numbers[0], f"{name}_lower": numbers[1], f"{name}_upper": numbers[2]}


def main() -> None:
    """Compare and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=30_000)
    parser.add_argument("--judged", type=int, default=6_000)
    parser.add_argument("--futures", type=int, default=16, help="futures drawn for each true risk")
    parser.add_argument("--quick", action="store_true", help="4,000 people, 1,500 of them judged, 100 codes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = SynthesizeConfig(n_codes=100) if arguments.quick else SynthesizeConfig()
    sizes = (4_000, 1_500, 16, 20) if arguments.quick else (arguments.subjects, arguments.judged, arguments.futures, 50)
    print(f"{platform.processor() or platform.machine()}, numpy {version('numpy')}, polars {version('polars')}")
    with tempfile.TemporaryDirectory() as temporary:
        rows = compare(config, Path(temporary) / "cohort", *sizes)
    for name in rows[0]:
        print(f"{name:34}", *(f"{row[name]:>12.4f}" for row in rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
