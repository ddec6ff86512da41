"""Observed risk as a line and as a smooth function of predicted risk: intercept, slope, ICI, E50, E90, with influences.

All three are the same regression of who has the outcome by the horizon on x = cloglog(predicted risk), with
complementary log-log link and weights by inverse probability of censoring: x as offset (intercept), x (slope), a
restricted cubic spline of x (curve).

n people in the order of risk, k columns of the design.

Scheike, Zhang, Gerds 2008, Biometrika 95:205–220 (direct binomial regression: these weights); van Geloven et al. 2022,
BMJ 377:e069249 (link, intercept, slope); Austin, Putter, Giardiello, van Klaveren 2022, Diagn Progn Res 6:2 (the
spline of cloglog(risk) and ICI, E50, E90, there with a Fine–Gray model: the same link, fitted to all times at once).
"""

from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.array_types import BoolArray, FloatArray
from pipelines.evaluation.calibration import LARGEST_STEP, LINEAR_BOUNDS, MAX_ITERATIONS, STEP_TOLERANCE, cloglog
from pipelines.evaluation.influence import NORMAL_QUANTILE, Term
from pipelines.evaluation.ranked_people import RankedPeople

KNOT_QUANTILES = (0.05, 0.35, 0.65, 0.95)  # Harrell, Regression Modeling Strategies, 2nd ed., table 2.3
CURVE_POINTS = 40
CURVE_QUANTILES = (0.01, 0.99)
NOTHING = Term(float("nan"))


@dataclass(frozen=True)
class SmoothCurve:
    """Observed risk with pointwise 95 % limits at points of predicted risk, four arrays of one length."""

    predicted: FloatArray
    observed: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True)
class CalibrationFit:
    """What the regressions of one risk at one horizon say."""

    intercept: Term
    slope: Term
    ici: Term
    e50: Term
    e90: Term
    curve: SmoothCurve | None


@dataclass(frozen=True)
class _Regression:
    """Coefficients [k], the influence of each person on them [n, k], and their covariance by it [k, k]."""

    coefficients: FloatArray
    influence: FloatArray

    @property
    def covariance(self) -> FloatArray:
        result: FloatArray = self.influence.T @ self.influence
        return result


def fit_calibration(people: RankedPeople) -> CalibrationFit:
    """Fit intercept, slope and smooth curve; what has no solution is NaN, a curve without one is None.

    The limits of the curve hold the censoring curve as known; those of intercept, slope and ICI do not. E50 and E90,
    quantiles of an absolute value, have no standard error.
    """
    x = cloglog(people.risk)
    if not _has_both(people):
        return CalibrationFit(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, None)
    ones = np.ones((x.size, 1))
    by_intercept = _fit(ones, x, people, np.zeros(1))
    is_varied = np.ptp(x) > STEP_TOLERANCE
    centre = float(x.mean())
    start = np.array([by_intercept.coefficients[0] + centre, 1.0]) if by_intercept else np.array([centre, 1.0])
    by_slope = _fit(np.column_stack([ones, x - centre]), np.zeros(x.size), people, start) if is_varied else None
    smooth = _fit_spline(x, centre, people, by_slope) if by_slope else None
    intercept, slope = _coefficient(by_intercept, 0), _coefficient(by_slope, 1)
    if smooth is None:
        return CalibrationFit(intercept, slope, NOTHING, NOTHING, NOTHING, None)
    return CalibrationFit(intercept, slope, *_distances(people, smooth), _curve(x, smooth))


def restricted_cubic_spline(x: FloatArray, knots: FloatArray) -> FloatArray:
    """Return x and its k − 2 nonlinear columns, linear beyond the outer knots: [n, k − 1]; x alone for under 3 knots.

    ((x − t_j)₊³ − (x − t_{k−1})₊³ (t_k − t_j)/(t_k − t_{k−1}) + (x − t_k)₊³ (t_{k−1} − t_j)/(t_k − t_{k−1})) /
    (t_k − t_1)². Harrell, Regression Modeling Strategies, 2nd ed., eq. 2.25.
    """
    if knots.size < 3:
        return x[:, None]
    last, before = knots[-1], knots[-2]

    def cube(knot: float) -> FloatArray:
        above = np.maximum(x - knot, 0.0)
        return above * above * above

    of_last, of_before = cube(last), cube(before)
    columns = [
        (cube(knot) - of_before * (last - knot) / (last - before) + of_last * (before - knot) / (last - before))
        / (last - knots[0]) ** 2
        for knot in knots[:-2]
    ]
    return np.column_stack([x, *columns])


def _has_both(people: RankedPeople) -> bool:
    """Say whether states are known and some are cases and some are not."""
    cases = people.case_weight.sum()
    return bool(0 < cases < people.weight.sum())


def _fit(design: FloatArray, offset: FloatArray, people: RankedPeople, start: FloatArray) -> _Regression | None:
    """Maximise Σ u (y log μ + (1 − y) log(1 − μ)), μ = 1 − exp(−exp(Xβ + offset)), by Newton's method.

    None where it does not converge: cases separated from others, or columns that depend on each other.
    """
    coefficients = start.astype(np.float64)
    linear = design @ coefficients + offset
    for _ in range(MAX_ITERATIONS):
        score, information = _derivatives(linear, people.is_case, people.weight)
        hessian = design.T @ (information[:, None] * design)
        try:
            step = np.linalg.solve(hessian, design.T @ score)
        except np.linalg.LinAlgError:
            return None
        change = design @ step
        largest = float(np.abs(change).max())
        if not np.isfinite(largest):
            return None
        part = min(1.0, LARGEST_STEP / max(largest, STEP_TOLERANCE))  # a poor start must not overshoot
        coefficients += part * step
        linear += part * change
        if largest < STEP_TOLERANCE:
            return _Regression(coefficients, (score[:, None] * design) @ np.linalg.inv(hessian))
    return None


def _derivatives(linear: FloatArray, is_case: BoolArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the derivative of each person's log-likelihood by the linear predictor, and minus the second.

    With c = exp(linear) = −log(1 − μ): for others −u c and u c, for cases u s and u s (c / μ − 1), s = c (1 − μ) / μ.
    """
    cumulative = np.exp(np.clip(linear, *LINEAR_BOUNDS))
    score, information = -weight * cumulative, weight * cumulative
    own = cumulative[is_case]
    probability = -np.expm1(-own)
    score[is_case] = weight[is_case] * own * (1.0 - probability) / probability
    information[is_case] = score[is_case] * (own / probability - 1.0)
    return score, information


def _coefficient(regression: _Regression | None, position: int) -> Term:
    if regression is None:
        return NOTHING
    influence = regression.influence[:, position]
    return Term(float(regression.coefficients[position]), influence, influence)


@dataclass(frozen=True)
class _Spline:
    """A fitted spline of x − centre."""

    centre: float
    knots: FloatArray
    design: FloatArray  # [n, k]
    fitted: _Regression


def _spline_design(x: FloatArray, knots: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(x.size), restricted_cubic_spline(x, knots)])


def _fit_spline(x: FloatArray, centre: float, people: RankedPeople, line: _Regression) -> _Spline | None:
    """Fit the spline, starting from the line; a risk with few different values has fewer knots, at least a line."""
    knots = np.unique(np.quantile(x - centre, KNOT_QUANTILES))
    design = _spline_design(x - centre, knots)
    start = np.concatenate([line.coefficients, np.zeros(design.shape[1] - 2)])
    fitted = line if design.shape[1] == 2 else _fit(design, np.zeros(x.size), people, start)
    return None if fitted is None else _Spline(centre, knots, design, fitted)


def _distances(people: RankedPeople, spline: _Spline) -> tuple[Term, Term, Term]:
    """Return mean, median and 90th percentile of |observed − predicted| over people."""
    cumulative = np.exp(np.clip(spline.design @ spline.fitted.coefficients, *LINEAR_BOUNDS))
    difference = -np.expm1(-cumulative) - people.risk
    distance = np.abs(difference)
    ici = float(distance.mean())
    by_coefficients = (np.sign(difference) * cumulative * np.exp(-cumulative)) @ spline.design / people.n
    from_fit = spline.fitted.influence @ by_coefficients
    e50, e90 = np.quantile(distance, [0.5, 0.9])
    return Term(ici, (distance - ici) / people.n + from_fit, from_fit), Term(float(e50)), Term(float(e90))


def _curve(x: FloatArray, spline: _Spline) -> SmoothCurve:
    """Read the curve off between two quantiles of the predictions, limits normal on the scale of the link."""
    first, last = (float(quantile) for quantile in np.quantile(x, CURVE_QUANTILES))
    at = np.linspace(first, last, CURVE_POINTS)
    design = _spline_design(at - spline.centre, spline.knots)
    linear = design @ spline.fitted.coefficients
    half = NORMAL_QUANTILE * np.sqrt(np.einsum("nk,kl,nl->n", design, spline.fitted.covariance, design))
    on_link = (at, linear, linear - half, linear + half)
    return SmoothCurve(*(-np.expm1(-np.exp(np.minimum(values, LINEAR_BOUNDS[1]))) for values in on_link))
