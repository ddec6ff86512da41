"""Every metric of one outcome, for all predictors and horizons, with standard errors: arrays in, arrays out.

P predictors, H horizons, n rows of one outcome, N rows of the landmark, M metrics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from data_schemas.results import (
    AUC,
    AVERAGE_PRECISION,
    BRIER,
    CALIBRATION_INTERCEPT,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    E50,
    E90,
    ICI,
    INTEGRATED_BRIER,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    PRECISION_AT,
    PREDICTED_RISK,
    RECALL_AT,
    SCALED_BRIER,
    SMALLEST_SHOWN_COUNT,
    TOP_SHARES,
)
from pipelines.evaluation.aalen_johansen import EventDays, find_event_days, incidence_with_influence
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.evaluation.brier import brier_terms
from pipelines.evaluation.calibration import risk_groups
from pipelines.evaluation.calibration_curve import SmoothCurve, fit_calibration
from pipelines.evaluation.censoring_weights import Censoring, CensoringWeights
from pipelines.evaluation.concordance import concordance_terms
from pipelines.evaluation.influence import CLOGLOG, Term, influence_interval, standard_error
from pipelines.evaluation.net_benefit import NetBenefit, net_benefit
from pipelines.evaluation.outcome_sample import OutcomeSample
from pipelines.evaluation.precision_recall import average_precision, top_of_list
from pipelines.evaluation.ranked_people import RankedPeople, rank_sample
from pipelines.evaluation.time_dependent_auc import auc_term

METRICS = (
    CONCORDANCE, CONCORDANCE_IPCW, AUC, BRIER, NULL_BRIER, SCALED_BRIER, INTEGRATED_BRIER, OBSERVED_RISK,
    PREDICTED_RISK, OBSERVED_EXPECTED, CALIBRATION_INTERCEPT, CALIBRATION_SLOPE, ICI, E50, E90, AVERAGE_PRECISION,
    *RECALL_AT.values(), *PRECISION_AT.values(),
)  # fmt: skip
# Metrics whose influences are kept for what is built on them: differences, means over outcomes, subgroups.
KEPT_METRICS = (
    CONCORDANCE, CONCORDANCE_IPCW, AUC, BRIER, SCALED_BRIER, INTEGRATED_BRIER, OBSERVED_RISK, PREDICTED_RISK,
    OBSERVED_EXPECTED, AVERAGE_PRECISION,
)  # fmt: skip


@dataclass(frozen=True)
class CalibrationGroup:
    """Observed and predicted risk of one group of one predictor at one horizon."""

    predictor: int
    horizon: int
    group: int  # from 0, lowest predicted risk first
    n: int
    n_cases: int
    predicted: float
    observed: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Estimates:
    """All numbers of one sample; NaN where there is none, and at every horizon with under 10 cases."""

    value: dict[str, FloatArray]  # metric → [P, H]
    error: dict[str, FloatArray]  # metric → [P, H] standard errors
    influence: dict[str, FloatArray]  # kept metric → [P, H, N], NaN-free
    groups: list[CalibrationGroup]
    curves: dict[tuple[int, int], SmoothCurve]  # (predictor, horizon)
    net_benefits: dict[tuple[int, int], NetBenefit]


@dataclass(frozen=True)
class Landmark:
    """What estimates of all outcomes of a landmark share."""

    horizons: FloatArray  # [H] days, rising
    censoring: Censoring
    cluster: IntArray | None  # [N]


def estimate_metrics(sample: OutcomeSample, landmark: Landmark, *, with_curves: bool = True) -> Estimates:
    """Estimate every metric of one sample. Without curves: no groups, no smooth curves, no net benefits (tables)."""
    shape = (len(sample.risks), landmark.horizons.size)
    n_rows = landmark.censoring.stratum.size
    found = Estimates(
        {metric: np.full(shape, np.nan) for metric in METRICS},
        {metric: np.full(shape, np.nan) for metric in METRICS},
        {metric: np.zeros((*shape, n_rows)) for metric in KEPT_METRICS},
        [], {}, {},
    )  # fmt: skip
    days = find_event_days(sample.time, sample.status)
    days_before = landmark.censoring.days_before(sample.time)
    for h, horizon in enumerate(landmark.horizons):
        if sample.count_cases(horizon) < SMALLEST_SHOWN_COUNT:
            continue
        known = landmark.censoring.weigh(sample.time, sample.status, horizon, sample.row, days_before)
        everyone = np.zeros(sample.time.size, dtype=np.int64)
        incidence, influence = incidence_with_influence(days, horizon, everyone, 1)
        observed = Term(float(incidence[0]), influence)
        for p in filter(sample.has_risks, range(shape[0])):
            people = rank_sample(sample, p, h, horizon, known)
            terms = {
                **_discrimination(people, sample, horizon, known),
                **_accuracy(people, observed),
                **_calibration(people, found, (p, h)),
            }
            _store(found, (p, h), terms, people, sample, known, landmark)
            if with_curves:
                found.net_benefits[p, h] = net_benefit(people)
                found.groups.extend(_groups(sample, landmark, days, (p, h)))
    _integrate_brier(found, landmark)
    return found


def _discrimination(
    people: RankedPeople, sample: OutcomeSample, horizon: float, known: CensoringWeights
) -> dict[str, Term]:
    """Return how well a risk tells people apart."""
    plain, weighted = concordance_terms(people, sample.time, sample.status, horizon, known)
    terms = {CONCORDANCE: plain, CONCORDANCE_IPCW: weighted, AUC: auc_term(people)}
    terms[AVERAGE_PRECISION] = average_precision(people)
    for share in TOP_SHARES:
        terms[RECALL_AT[share]], terms[PRECISION_AT[share]] = top_of_list(people, share)
    return terms


def _accuracy(people: RankedPeople, observed: Term) -> dict[str, Term]:
    """Return how near a risk is to what happened, person by person and on the mean."""
    assert observed.direct is not None
    in_order = Term(observed.value, observed.direct[people.order])
    brier, null, scaled = brier_terms(people, in_order)
    expected = float(people.risk.mean())
    by_expected = (people.risk - expected) / people.n
    terms = {
        BRIER: brier, NULL_BRIER: null, SCALED_BRIER: scaled, OBSERVED_RISK: in_order,
        PREDICTED_RISK: Term(expected, by_expected),
    }  # fmt: skip
    if expected > 0:  # van Geloven et al. 2022, BMJ 377:e069249; by the delta method
        ratio = observed.value / expected
        terms[OBSERVED_EXPECTED] = Term(ratio, (observed.direct[people.order] - ratio * by_expected) / expected)
    return terms


def _calibration(people: RankedPeople, found: Estimates, at: tuple[int, int]) -> dict[str, Term]:
    fitted = fit_calibration(people)
    if fitted.curve is not None:
        found.curves[at] = fitted.curve
    return {
        CALIBRATION_INTERCEPT: fitted.intercept, CALIBRATION_SLOPE: fitted.slope,
        ICI: fitted.ici, E50: fitted.e50, E90: fitted.e90,
    }  # fmt: skip


def _store(
    found: Estimates,
    at: tuple[int, int],
    terms: Mapping[str, Term],
    people: RankedPeople,
    sample: OutcomeSample,
    known: CensoringWeights,
    landmark: Landmark,
) -> None:
    """Put values, standard errors and kept influences of one predictor at one horizon [at] in their places."""
    with_error = [name for name, term in terms.items() if term.direct is not None and np.isfinite(term.value)]
    influence = influence_on_rows([terms[name] for name in with_error], people, sample, known, landmark.censoring)
    errors = standard_error(influence, landmark.cluster)
    for name, term in terms.items():
        found.value[name][at] = term.value
    for name, error, row in zip(with_error, errors, influence, strict=True):
        found.error[name][at] = error
        if name in found.influence:
            found.influence[name][at] = row


def influence_on_rows(
    terms: list[Term], people: RankedPeople, sample: OutcomeSample, known: CensoringWeights, censoring: Censoring
) -> FloatArray:
    """Return the influence of every row of the landmark on each term: [M, N]; terms are in the order of risk."""
    influence = np.zeros((len(terms), censoring.stratum.size))
    row, place = sample.row[people.order], known.place[people.order]
    for position, term in enumerate(terms):
        if term.by_censoring is not None:
            influence[position] = censoring.influence(term.by_censoring, place)
        influence[position, row] += term.direct
    return influence


def _groups(
    sample: OutcomeSample, landmark: Landmark, days: EventDays, at: tuple[int, int]
) -> Iterator[CalibrationGroup]:
    """Yield observed against predicted risk by tenths of predicted risk, merged until each holds 10 cases."""
    p, h = at
    horizon, risk = landmark.horizons[h], sample.risks[p, h]
    is_case = sample.is_case(horizon)
    group = risk_groups(risk, is_case)
    n_groups = int(group.max()) + 1
    observed, influence = incidence_with_influence(days, horizon, group, n_groups)
    cluster = None if landmark.cluster is None else landmark.cluster[sample.row]
    errors = np.array([
        standard_error(influence[inside], None if cluster is None else cluster[inside])
        for inside in (group == number for number in range(n_groups))
    ])  # fmt: skip
    lower, upper = influence_interval(observed, errors, CLOGLOG)
    n, n_cases, predicted = (np.bincount(group, weights=values) for values in (None, is_case, risk))
    for number in range(n_groups):
        yield CalibrationGroup(
            p, h, number, int(n[number]), int(n_cases[number]), float(predicted[number] / n[number]),
            float(observed[number]), float(lower[number]), float(upper[number]),
        )  # fmt: skip


def _integrate_brier(found: Estimates, landmark: Landmark) -> None:
    """Average the Brier score from the smallest to the largest horizon by the trapezoidal rule, at the largest.

    NaN with a single horizon, and where any horizon has no score. Graf et al. 1999, Stat Med 18:2529–2545.
    """
    widths = np.diff(landmark.horizons)
    if widths.size == 0:
        return
    share = (np.append(widths, 0.0) + np.append(0.0, widths)) / (2.0 * widths.sum())
    value = found.value[BRIER] @ share
    influence = np.einsum("phn,h->pn", found.influence[BRIER], share)
    found.value[INTEGRATED_BRIER][:, -1] = value
    found.influence[INTEGRATED_BRIER][:, -1] = influence
    found.error[INTEGRATED_BRIER][:, -1] = np.where(
        np.isfinite(value), standard_error(influence, landmark.cluster), np.nan
    )
