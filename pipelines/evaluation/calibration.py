"""Whether predicted risks are as large as what happened: ratio, intercept and slope, and groups of equal risk.

n people, R replicates.
"""

import math

import numpy as np

from data_schemas.results import OUTCOME, SMALLEST_SHOWN_COUNT
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan, person_weights

# Predictions outside are moved to these bounds before cloglog, which has no value at 0 and 1.
SMALLEST_RISK, LARGEST_RISK = 1e-6, 1 - 1e-6
N_GROUPS = 10
MAX_ITERATIONS = 50
STEP_TOLERANCE = 1e-8
LARGEST_STEP = 2.0  # on the cloglog scale; keeps the first steps of a poor start from overshooting
LINEAR_BOUNDS = (-35.0, 3.5)  # exp(−exp(3.5)) = 4e-15: beyond, the fitted probability is 0 or 1 in float64


def cloglog(risk: FloatArray) -> FloatArray:
    """Return log(−log(1 − risk)), after clipping the risk to [1e-6, 1 − 1e-6]."""
    clipped = np.clip(risk, SMALLEST_RISK, LARGEST_RISK)
    result: FloatArray = np.log(-np.log1p(-clipped))
    return result


def mean_predicted(risk: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """Return the weighted mean of the predictions [n]: [...]."""
    weights = person_weights(weights, risk.size)
    return divide_or_nan(weights @ risk, weights.sum(axis=-1))


def observed_expected_ratio(observed: FloatArray, expected: FloatArray) -> FloatArray:
    """Return observed / expected, the Aalen–Johansen risk over the mean prediction; NaN where nothing is expected.

    van Geloven et al. 2022, BMJ 377:e069249.
    """
    return divide_or_nan(observed, expected)


def calibration_intercept(
    risk: FloatArray, time: FloatArray, status: IntArray, horizon: float, known_weights: FloatArray
) -> FloatArray:
    """Estimate a in cloglog P(outcome by h) = a + cloglog(risk): [...]; 0 is right, below 0 predicts too much.

    Binomial regression with complementary log-log link of what is known at the horizon, weighted by inverse
    probability of censoring (`known_weights` [..., n]). NaN where cases or others are missing.

    van Geloven et al. 2022, BMJ 377:e069249 (link and offset; pseudo-values there, weights here); Scheike, Zhang, Gerds
    2008, Biometrika 95:205–220 (direct binomial regression with these weights).
    """
    fitted = _fit_cloglog(cloglog(risk), _is_case(time, status, horizon), known_weights, with_slope=False)
    return fitted[..., 0]


def calibration_slope(
    risk: FloatArray, time: FloatArray, status: IntArray, horizon: float, known_weights: FloatArray
) -> FloatArray:
    """Estimate b in cloglog P(outcome by h) = a + b cloglog(risk): [...]; below 1 the predictions are too extreme.

    Same regression as `calibration_intercept`, with the slope free. NaN also for predictions that are all equal.
    """
    fitted = _fit_cloglog(cloglog(risk), _is_case(time, status, horizon), known_weights, with_slope=True)
    return fitted[..., 1]


def _is_case(time: FloatArray, status: IntArray, horizon: float) -> BoolArray:
    is_case: BoolArray = (time <= horizon) & (status == OUTCOME)
    return is_case


def _fit_cloglog(x: FloatArray, is_case: BoolArray, known_weights: FloatArray, *, with_slope: bool) -> FloatArray:
    """Maximise Σ u (y log μ + (1 − y) log(1 − μ)), μ = 1 − exp(−exp(a + b x)), by Newton's method: [..., 2] of (a, b).

    All rows of weights are iterated together; each starts from the solution of the first, which is near. The
    likelihood is concave in (a, b). Rows without a solution are NaN.
    """
    flat = known_weights.reshape(math.prod(known_weights.shape[:-1]), x.size)
    result = np.full((len(flat), 2), np.nan)
    case_weight = flat @ is_case
    is_solvable = np.isfinite(case_weight) & (case_weight > 0) & (flat @ ~is_case > 0)
    if with_slope and (x.size == 0 or np.ptp(x) < STEP_TOLERANCE):
        is_solvable[:] = False
    rows = np.flatnonzero(is_solvable)
    if rows.size:
        centre = x.mean() if with_slope else 0.0  # intercept and slope hardly depend on each other around the mean
        start = np.array([[centre, 1.0]])
        first = _iterate_cloglog(x - centre, is_case, flat[rows[:1]], start, with_slope=with_slope)
        start = first if np.isfinite(first).all() else start
        everyone = np.repeat(start, rows.size, axis=0)
        solved = _iterate_cloglog(x - centre, is_case, flat[rows], everyone, with_slope=with_slope)
        solved[:, 0] -= solved[:, 1] * centre
        result[rows] = solved
    return result.reshape(*known_weights.shape[:-1], 2)


def _iterate_cloglog(
    x: FloatArray, is_case: BoolArray, weights: FloatArray, coefficients: FloatArray, *, with_slope: bool
) -> FloatArray:
    """Newton steps from given coefficients [R, 2] under weights [R, n]; rows that do not converge are NaN.

    With c = exp(a + b x) = −log(1 − μ): others add −u c to the score and u c to the information, cases u s and
    u s (c / μ − 1), s = c (1 − μ) / μ.
    """
    powers = np.stack([np.ones_like(x), x, np.square(x)], axis=1)  # [n, 3]
    case_weights, other_weights = weights[:, is_case], weights[:, ~is_case]
    coefficients = coefficients.copy()
    is_converged = np.zeros(len(coefficients), dtype=bool)
    for _ in range(MAX_ITERATIONS):
        linear = np.clip(coefficients[:, :1] + coefficients[:, 1:] * x, *LINEAR_BOUNDS)
        of_others = (other_weights * np.exp(linear[:, ~is_case])) @ powers[~is_case]
        cumulative = np.exp(linear[:, is_case])
        probability = -np.expm1(-cumulative)
        case_score = case_weights * cumulative * (1.0 - probability) / probability
        score = case_score @ powers[is_case][:, :2] - of_others[:, :2]
        information = (case_score * (cumulative / probability - 1.0)) @ powers[is_case] + of_others
        step = _newton_step(score, information, with_slope=with_slope)
        coefficients += np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        is_converged = np.abs(step).max(axis=1) < STEP_TOLERANCE
        if (is_converged | np.isnan(step).any(axis=1)).all():
            break
    coefficients[~is_converged] = np.nan
    return coefficients


def _newton_step(score: FloatArray, information: FloatArray, *, with_slope: bool) -> FloatArray:
    """Solve the 2 × 2 system of each row, or its first equation alone where the slope stays fixed."""
    if not with_slope:
        return np.stack([divide_or_nan(score[:, 0], information[:, 0]), np.zeros(len(score))], axis=1)
    determinant = information[:, 0] * information[:, 2] - np.square(information[:, 1])
    intercept = information[:, 2] * score[:, 0] - information[:, 1] * score[:, 1]
    slope = information[:, 0] * score[:, 1] - information[:, 1] * score[:, 0]
    return divide_or_nan(np.stack([intercept, slope], axis=1), determinant[:, None])


def risk_groups(risk: FloatArray, is_case: BoolArray, n_groups: int = N_GROUPS) -> IntArray:
    """Assign people to tenths of predicted risk, neighbours merged until each has 10 cases: [n], counted from 0.

    People of equal risk stay together. Merging goes upwards from the lowest risk; what remains at the top joins the
    group below. With fewer than 10 cases in all, everyone is in group 0: such a table must not be shown.
    """
    if risk.size == 0:
        return np.empty(0, dtype=np.int64)
    edges = np.quantile(risk, np.arange(1, n_groups) / n_groups)
    tenth = np.searchsorted(edges, risk, side="left")
    cases = np.bincount(tenth, weights=is_case, minlength=n_groups)
    merged = np.zeros(n_groups, dtype=np.int64)
    group, cases_in_group = 0, 0
    for position in range(n_groups):
        if cases_in_group >= SMALLEST_SHOWN_COUNT and cases[position:].sum() >= SMALLEST_SHOWN_COUNT:
            group, cases_in_group = group + 1, 0
        merged[position] = group
        cases_in_group += int(cases[position])
    return merged[tenth]
