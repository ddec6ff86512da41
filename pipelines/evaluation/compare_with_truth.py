"""A model beside the true risks of the same made-up people: no outcome is drawn, so nothing is left to luck.

With the true risk p_i of each person known, what a metric would be over endlessly many repetitions of their lives is a
sum over people. Numbers here therefore have no noise from who happened to fall ill, only from which people there are
and from the simulation of p.

n people × landmarks of one outcome.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from data_schemas.evaluation_tables import Subgroups, TruthComparison
from data_schemas.results import (
    CONCORDANCE,
    MACRO_MEAN,
    MODEL,
    OVERALL,
    SMALLEST_SHOWN_COUNT,
    TRUTH,
    Metrics,
    Risks,
)
from pipelines.evaluation.array_types import FloatArray

# Names in the column `metric` of `TruthComparison`.
TRUE_AUC, ORACLE_AUC, AUC_GAP = "auc_by_true_risk", "auc_of_true_risk", "auc_gap"
TRUE_BRIER, ORACLE_BRIER = "brier_by_true_risk", "brier_of_true_risk"
TRUE_OBSERVED_EXPECTED = "true_expected_ratio"
TRUE_SLOPE, TRUE_INTERCEPT = "slope_of_true_risk", "intercept_of_true_risk"
MEAN_DIFFERENCE, MEAN_ABSOLUTE_DIFFERENCE = "mean_difference", "mean_absolute_difference"
ROOT_MEAN_SQUARE_DIFFERENCE = "root_mean_square_difference"

_PERSON = (Risks.subject_id.name, Risks.landmark_age_days.name)
_KEYS = (*_PERSON, Risks.outcome.name, Risks.horizon_days.name)
_TRUE = "true_risk"
_SMALLEST_RISK = 1e-9  # predictions are kept this far from 0 and 1, where their cloglog has no value
_MOST_STEPS, _TOLERANCE = 50, 1e-10


def compare_with_truth(
    risks_by_predictor: Mapping[str, pl.DataFrame],
    truth: pl.DataFrame,
    landmark_name: str,
    subgroups: pl.DataFrame | None = None,
    at_risk: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compare each predictor with the truth on the rows where both have a risk (schema `TruthComparison`).

    - `auc_by_true_risk`, `auc_of_true_risk`, `auc_gap`: `auc_by_true_risk` of the predictor, that of the true risks
      themselves (the oracle: no score can have more), and oracle − predictor;
    - `brier_by_true_risk`, `brier_of_true_risk`: mean of p (1 − p) + (s − p)², which is E(D − s)² for D ~ Bernoulli(p),
      and its smallest value, the mean of p (1 − p);
    - `true_expected_ratio`: Σ p / Σ s, what observed/expected tends to;
    - `slope_of_true_risk`, `intercept_of_true_risk`: `regress_true_risk`, what calibration slope and intercept tend to;
    - `mean_difference` s − p, `mean_absolute_difference`, `root_mean_square_difference`. The last two include the
      noise of simulated true risks.

    `macro_mean` is the mean over the outcomes that have a number, each counting the same. Numbers on fewer than 10 rows
    are null, and so is their count.

    Args:
        risks_by_predictor: schema `Risks`.
        truth: schema `Risks`, from `true_risks`.
        landmark_name: for the column `landmark`.
        subgroups: schema `Subgroups`; besides all people together.
        at_risk: subject_id, landmark_age_days and outcome of the rows to compare; None: all with both risks.
    """
    known = truth.drop_nulls(Risks.risk.name).select(*_KEYS, Risks.risk.col.alias(_TRUE))
    if at_risk is not None:
        known = known.join(at_risk.select(*_PERSON, Risks.outcome.name), on=[*_PERSON, Risks.outcome.name], how="semi")
    rows = [
        (predictor, *row[:1], landmark_name, *row[1:])
        for predictor, risks in risks_by_predictor.items()
        for row in _compare(risks.drop_nulls(Risks.risk.name).select(*_KEYS, Risks.risk.name), known, subgroups)
    ]
    return pl.DataFrame(rows, schema=TruthComparison.create_empty().schema, orient="row").with_columns(
        TruthComparison.estimate.col.fill_nan(None)
    )


def _compare(
    risks: pl.DataFrame, known: pl.DataFrame, subgroups: pl.DataFrame | None
) -> Iterator[tuple[str, float, str, str, float | None, int | None]]:
    """Yield outcome, horizon, subgroup, metric, estimate, n."""
    joined = known.join(risks, on=_KEYS, how="inner")
    parts = [joined.with_columns(pl.lit(OVERALL).alias(Subgroups.subgroup.name))]
    if subgroups is not None and not subgroups.is_empty():
        parts.append(joined.join(subgroups, on=_PERSON, how="inner"))
    grouped = pl.concat([part.select(*_KEYS, _TRUE, Risks.risk.name, Subgroups.subgroup.name) for part in parts])
    cells = grouped.sort(Risks.outcome.name).partition_by(
        Risks.horizon_days.name, Subgroups.subgroup.name, as_dict=True, maintain_order=True
    )
    for (horizon, subgroup), cell in sorted(cells.items()):
        by_outcome = {
            str(outcome): measure_against_truth(rows[Risks.risk.name].to_numpy(), rows[_TRUE].to_numpy())
            for (outcome,), rows in cell.partition_by(Risks.outcome.name, as_dict=True, maintain_order=True).items()
            if rows.height >= SMALLEST_SHOWN_COUNT
        }
        sizes = dict(cell.group_by(Risks.outcome.name, maintain_order=True).len().iter_rows())
        n_people = cell.select(_PERSON).n_unique()
        for metric in _MEASURES:
            for outcome, n in sizes.items():
                found = by_outcome.get(outcome)
                shown = n if n >= SMALLEST_SHOWN_COUNT else None
                yield outcome, horizon, subgroup, metric, None if found is None else found[metric], shown
            values = np.array([found[metric] for found in by_outcome.values()])
            values = values[np.isfinite(values)]
            mean = float(values.mean()) if values.size else None
            yield MACRO_MEAN, horizon, subgroup, metric, mean, n_people if values.size else None


def measure_against_truth(risk: FloatArray, true: FloatArray) -> dict[str, float]:
    """Return every measure of one outcome at one horizon, NaN where it does not exist; `risk` and `true` are [n]."""
    slope, intercept = regress_true_risk(risk, true)
    auc, oracle = auc_by_true_risk(risk, true), auc_by_true_risk(true, true)
    least = float((true * (1.0 - true)).mean())
    difference = risk - true
    return {
        TRUE_AUC: auc,
        ORACLE_AUC: oracle,
        AUC_GAP: oracle - auc,
        TRUE_BRIER: least + float((difference**2).mean()),
        ORACLE_BRIER: least,
        TRUE_OBSERVED_EXPECTED: float(true.sum() / risk.sum()) if risk.sum() > 0 else float("nan"),
        TRUE_SLOPE: slope,
        TRUE_INTERCEPT: intercept,
        MEAN_DIFFERENCE: float(difference.mean()),
        MEAN_ABSOLUTE_DIFFERENCE: float(np.abs(difference).mean()),
        ROOT_MEAN_SQUARE_DIFFERENCE: float(np.sqrt((difference**2).mean())),
    }


_MEASURES = (
    TRUE_AUC, ORACLE_AUC, AUC_GAP, TRUE_BRIER, ORACLE_BRIER, TRUE_OBSERVED_EXPECTED, TRUE_SLOPE, TRUE_INTERCEPT,
    MEAN_DIFFERENCE, MEAN_ABSOLUTE_DIFFERENCE, ROOT_MEAN_SQUARE_DIFFERENCE,
)  # fmt: skip


def auc_by_true_risk(score: FloatArray, true: FloatArray) -> float:
    """Return the cumulative/dynamic AUC that a score would have over all lives these people might lead.

    Σ_i Σ_{j≠i} p_i (1 − p_j) ([s_i > s_j] + ½ [s_i = s_j]) / Σ_i Σ_{j≠i} p_i (1 − p_j): person i is a case with
    probability p_i, and a control (free of the outcome at the horizon, or died without it) with 1 − p_i. NaN where
    there is no pair of a case and a control. O(n log n).

    van Klaveren, Gönen, Steyerberg, Vergouwe 2016, Stat Med 35:4136–4152 (model-based concordance), with true risks.
    """
    order = np.argsort(score, kind="stable")
    score, case = score[order], true[order]
    control = 1.0 - case
    below = np.concatenate([[0.0], np.cumsum(control)])
    lower = below[np.searchsorted(score, score, side="left")]
    lower_or_equal = below[np.searchsorted(score, score, side="right")]
    of_oneself = case * control
    pairs = case.sum() * control.sum() - of_oneself.sum()
    concordant = (case * (lower + lower_or_equal)).sum() / 2.0 - of_oneself.sum() / 2.0
    return float(concordant / pairs) if pairs > 0 else float("nan")


def regress_true_risk(risk: FloatArray, true: FloatArray) -> tuple[float, float]:
    """Return slope and intercept of true on predicted risk: what the calibration of a model tends to.

    Slope: b of cloglog(E p) = a + b · cloglog(s), fitted to the true risk p as a fractional outcome by the quasi-score
    of the binomial (Papke, Wooldridge 1996, J Appl Econom 11:619–632), so that true risks of 0 count and the noise of
    simulated ones does not bend the line. Intercept: a with b fixed at 1. They are the limits of calibration slope and
    intercept (van Geloven et al. 2022, BMJ 377:e069249) as the number of people grows. NaN where the predictions do not
    vary (slope), nobody can or everybody must have the outcome, or the fit does not converge.
    """
    z = _cloglog(np.clip(risk, _SMALLEST_RISK, 1.0 - _SMALLEST_RISK))
    if z.size == 0 or not 0.0 < true.mean() < 1.0:
        return float("nan"), float("nan")
    intercept = _fit_fractional(np.ones((z.size, 1)), true, z)
    if np.ptp(z) == 0:
        return float("nan"), float(intercept[0])
    slope = _fit_fractional(np.column_stack([np.ones(z.size), z]), true, np.zeros(z.size))
    return float(slope[1]), float(intercept[0])


def _cloglog(risk: FloatArray) -> FloatArray:
    result: FloatArray = np.log(-np.log1p(-risk))
    return result


def _fit_fractional(x: FloatArray, y: FloatArray, offset: FloatArray) -> FloatArray:
    """Solve Σ x (y − μ) μ' / (μ (1 − μ)) = 0 with μ = 1 − exp(−exp(xβ + offset)) by Fisher scoring; NaN: no solution.

    The linear part is kept within [−30, 3] and a step within 5: beyond, a risk is 0 or 1 to the last digit.
    """
    beta = np.zeros(x.shape[1])
    if x.shape[1] == 2:
        beta[1] = 1.0
    for _ in range(_MOST_STEPS):
        hazard = np.exp(np.clip(x @ beta + offset, -30.0, 3.0))
        mean = -np.expm1(-hazard)
        ratio = hazard / mean  # μ' / (μ (1 − μ)), with μ' = exp(η) (1 − μ)
        score = x.T @ (ratio * (y - mean))
        information = x.T @ ((ratio * hazard * (1.0 - mean))[:, None] * x)
        try:
            step = np.linalg.solve(information, score)
        except np.linalg.LinAlgError:
            break
        largest = np.abs(step).max()
        beta = beta + step * min(1.0, 5.0 / largest if largest > 0 else 1.0)
        if largest < _TOLERANCE:
            return beta
    return np.full(x.shape[1], np.nan)


def concordance_gap(metrics: pl.DataFrame, predictor: str = MODEL) -> pl.DataFrame:
    """Return landmark, horizon_days, C of the predictor, C of the truth and the gap, means over the same outcomes.

    `metrics` (schema `Metrics`) is an evaluation in which the true risks were judged as a predictor of their own,
    named `truth`. Averaged are the outcomes that have the concordance of both; `n_outcomes` counts them.
    """
    rows = metrics.filter(
        Metrics.metric.col == CONCORDANCE, Metrics.subgroup.col == OVERALL, Metrics.outcome.col != MACRO_MEAN
    ).drop_nulls(Metrics.estimate.name)
    keys = [Metrics.landmark.name, Metrics.horizon_days.name, Metrics.outcome.name]
    both = [
        rows.filter(Metrics.predictor.col == name).select(*keys, Metrics.estimate.col.alias(name))
        for name in (predictor, TRUTH)
    ]
    return (
        both[0]
        .join(both[1], on=keys)
        .group_by(keys[:2], maintain_order=True)
        .agg(pl.col(predictor).mean(), pl.col(TRUTH).mean(), (pl.col(TRUTH) - pl.col(predictor)).mean().alias("gap"),
             pl.len().cast(pl.Int64).alias("n_outcomes"))
        .sort(keys[:2])
    )  # fmt: skip
