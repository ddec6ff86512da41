"""A made-up evaluation on disk: every table a report reads, with small cells that must not be seen.

The numbers are arbitrary but of the right kind: what a report does with them is tested, not what they say.
"""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.age_units import years_to_days
from data_schemas.results import (
    AGE_SEX,
    AUC,
    BOOTSTRAP,
    BRIER,
    CALIBRATION_SLOPE,
    CONCORDANCE_IPCW,
    COX,
    DIFFERENCE_SUFFIX,
    ICI,
    MACRO_MEAN,
    MODEL,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OUTCOMES_AVERAGED,
    OVERALL,
    POOLED,
    SCALED_BRIER,
    VERSUS_REST_SUFFIX,
    CalibrationCurve,
    CalibrationGroups,
    CensoringSummary,
    DecisionCurve,
    EvaluatedOutcomes,
    Metrics,
)

LANDMARKS = ("entry", "entry+5y")
HORIZONS_YEARS = (1.0, 5.0, 10.0)
EVIL = "<script>alert(1)</script>"
# Cases within 5 years; one within a year has a fifth of them, so small outcomes have no number there.
CASES = {"stroke": 432, "angina": 151, "DEATH": 617, EVIL: 40}
FEW = "porphyria"  # listed, not judged
PEOPLE = 2571
PREDICTORS = (MODEL, COX, AGE_SEX)
# Shares of everyone. Of 432 cases of stroke 7 are of unknown sex: to be withheld, and not to be found by subtraction.
SUBGROUPS = {"sex=female": 0.52, "sex=male": 0.464, "sex=unknown": 0.016, "age=40-59": 0.55, "age=60-79": 0.45}
_AUC = {MODEL: 0.781, COX: 0.772, AGE_SEX: 0.703}


def write_made_up_evaluation(folder: Path, leave_out: Iterable[str] = ()) -> Path:
    """Write the tables of an evaluation, except those named."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "metrics": _metrics(),
        "outcomes": _outcomes(),
        "censoring": _censoring(),
        "calibration": _calibration(),
        "calibration_curve": _calibration_curve(),
        "decision_curve": _decision_curve(),
    }
    for name, table in tables.items():
        if name not in set(leave_out):
            table.write_parquet(folder / f"{name}.parquet")
    return folder


def cases_within(outcome: str, horizon_years: float, subgroup: str = OVERALL) -> int:
    """Return the true number of cases, small ones too."""
    share = 1.0 if subgroup == OVERALL else SUBGROUPS[subgroup]
    return round(CASES[outcome] * min(horizon_years, 8.0) / 5.0 * share)


def _shown(count: int) -> int | None:
    return count if count >= 10 else None


def _metrics() -> pl.DataFrame:
    rows = []
    for place in product(LANDMARKS, HORIZONS_YEARS):
        for outcome in CASES:
            rows += _numbers_of(outcome, *place, OVERALL)
        rows += _overall_numbers(*place)
    for outcome, subgroup in product(CASES, SUBGROUPS):
        rows += _numbers_of(outcome, "entry", 5.0, subgroup)
    return pl.DataFrame(rows, schema=Metrics.create_empty().schema, orient="row")


def _numbers_of(outcome: str, landmark: str, horizon_years: float, subgroup: str) -> list[tuple]:
    cases = cases_within(outcome, horizon_years, subgroup)
    shift = 0.0005 * (len(outcome) + len(subgroup)) + 0.002 * horizon_years
    where = (outcome, landmark, years_to_days(horizon_years), subgroup)
    n = PEOPLE if subgroup == OVERALL else round(PEOPLE * SUBGROUPS[subgroup])
    rows = []
    for predictor in PREDICTORS:
        values = {
            AUC: _AUC[predictor] - shift, CONCORDANCE_IPCW: _AUC[predictor] - shift - 0.004, BRIER: 0.0412,
            NULL_BRIER: 0.0455, SCALED_BRIER: 0.0945, OBSERVED_EXPECTED: 1.04 + shift, CALIBRATION_SLOPE: 0.97,
            ICI: 0.0072,
        }  # fmt: skip
        rows += [_row(predictor, where, metric, value, n, cases) for metric, value in values.items()]
    for reference in PREDICTORS[1:]:
        value = _AUC[MODEL] - _AUC[reference]
        rows.append(_row(f"{MODEL}-{reference}", where, AUC + DIFFERENCE_SUFFIX, value, n, cases))
    if subgroup != OVERALL:
        rows.append(_row(MODEL, where, AUC + VERSUS_REST_SUFFIX, -0.012, n, cases))
    return rows


def _overall_numbers(landmark: str, horizon_years: float) -> list[tuple]:
    cases = sum(cases_within(outcome, horizon_years) for outcome in CASES)
    mean, pooled = ((outcome, landmark, years_to_days(horizon_years), OVERALL) for outcome in (MACRO_MEAN, POOLED))
    rows = [_row(predictor, mean, AUC, _AUC[predictor], PEOPLE, cases) for predictor in PREDICTORS]
    rows += [_row(predictor, pooled, OBSERVED_EXPECTED, 1.03, PEOPLE, cases) for predictor in PREDICTORS]
    rows += [
        _row(f"{MODEL}-{reference}", mean, AUC + DIFFERENCE_SUFFIX, _AUC[MODEL] - _AUC[reference], PEOPLE, cases)
        for reference in PREDICTORS[1:]
    ]
    return [*rows, _row(MODEL, mean, OUTCOMES_AVERAGED, float(len(CASES)), PEOPLE, cases)]


def _row(predictor: str, where: tuple, metric: str, value: float, n: int, cases: int) -> tuple:
    """Return a row as an evaluation writes it: nothing where there are fewer than 10 cases."""
    known = cases >= 10
    number = (value, value - 0.018, value + 0.018) if known else (None, None, None)
    return (predictor, *where, metric, *number, _shown(n), _shown(cases), 0.009 if known else None, BOOTSTRAP)


def _outcomes() -> pl.DataFrame:
    rows = [
        (outcome, landmark, PEOPLE, 0, cases_within(outcome, 10.0), True)
        for landmark, outcome in product(LANDMARKS, CASES)
    ]
    rows += [(FEW, landmark, PEOPLE, None, None, False) for landmark in LANDMARKS]
    return pl.DataFrame(rows, schema=EvaluatedOutcomes.create_empty().schema, orient="row")


def _censoring() -> pl.DataFrame:
    rows = []
    for landmark, horizon, outcome in product(LANDMARKS, HORIZONS_YEARS, CASES):
        cases = cases_within(outcome, horizon)
        died = 0 if outcome == "DEATH" else round(30 * horizon)
        lost = PEOPLE - cases - died - 6 if (outcome, horizon) == ("angina", 5.0) else round(90 * horizon)
        followed = 1.0 - 0.085 * horizon
        rows.append(
            (outcome, landmark, years_to_days(horizon), PEOPLE, _shown(cases), died, lost, followed, 2000.0 * followed,
             followed < 0.2)
        )  # fmt: skip
    return pl.DataFrame(rows, schema=CensoringSummary.create_empty().schema, orient="row")


def _places() -> Iterable[tuple]:
    for predictor, outcome in product(PREDICTORS, CASES):
        yield (predictor, outcome, "entry", years_to_days(5.0), OVERALL)


def _calibration() -> pl.DataFrame:
    rows = [
        (*place, group + 1, 257, 12 + group, risk, risk * 1.04, risk * 0.8, risk * 1.3)
        for place in _places()
        for group, risk in enumerate(np.linspace(0.02, 0.3, 6).tolist())
    ]
    return pl.DataFrame(rows, schema=CalibrationGroups.create_empty().schema, orient="row")


def _calibration_curve() -> pl.DataFrame:
    rows = [
        (*place, risk, risk**1.05, risk * 0.85, risk * 1.2)
        for place in _places()
        for risk in np.linspace(0.01, 0.32, 40).tolist()
    ]
    return pl.DataFrame(rows, schema=CalibrationCurve.create_empty().schema, orient="row")


def _decision_curve() -> pl.DataFrame:
    rows = []
    for place, threshold in product(_places(), np.linspace(0.01, 0.3, 30).tolist()):
        benefit = 0.08 * (1 - threshold / 0.3) * _AUC[place[0]]
        everyone = 0.07 - threshold / (1 - threshold) * 0.9
        rows.append(
            (*place, threshold, None if threshold > 0.28 else benefit, benefit - 0.01, benefit + 0.01, everyone)
        )
    return pl.DataFrame(rows, schema=DecisionCurve.create_empty().schema, orient="row")
