"""Cause-specific cumulative/dynamic AUC: who gets the outcome by the horizon, against everyone who does not."""

import numpy as np

from data_schemas.results import OUTCOME
from pipelines.evaluation.array_types import FloatArray, IntArray, divide_or_nan
from pipelines.evaluation.influence import Term
from pipelines.evaluation.ranked_people import RankedPeople


def cumulative_dynamic_auc(
    score: FloatArray, time: FloatArray, status: IntArray, horizon: float, known_weights: FloatArray
) -> FloatArray:
    """Estimate the probability that a case by the horizon has a higher score than a control: [...].

    Cases have the outcome at T ≤ h. Controls are event-free at h or died of something else before: the question is
    "will this person get it by h", and who died did not (definition ii of the paper).
    AUC = Σ_i Σ_j u_i u_j [s_i > s_j] / Σ_i Σ_j u_i u_j, cases i, controls j, equal scores count half.
    `known_weights` [..., n] are those of `inverse_censoring_weights`: 1/G(T−) for cases and earlier deaths, 1/G(h) for
    the rest, 0 for people censored before h. NaN without cases or without controls.

    Blanche, Dartigues, Jacqmin-Gadda 2013, Stat Med 32:5381–5397.
    """
    is_case = (time <= horizon) & (status == OUTCOME)
    order = np.argsort(score, kind="stable")
    score, is_case, known_weights = score[order], is_case[order], known_weights[..., order]
    control_weights = np.where(is_case, 0.0, known_weights)
    below = np.concatenate([np.zeros((*control_weights.shape[:-1], 1)), np.cumsum(control_weights, axis=-1)], axis=-1)
    lower = below[..., np.searchsorted(score, score[is_case], side="left")]
    lower_or_equal = below[..., np.searchsorted(score, score[is_case], side="right")]
    case_weights = known_weights[..., is_case]
    concordant = (case_weights * (lower + lower_or_equal) / 2.0).sum(axis=-1)
    return divide_or_nan(concordant, case_weights.sum(axis=-1) * below[..., -1])


def auc_term(people: RankedPeople) -> Term:
    """Return `cumulative_dynamic_auc` with the influence of each person.

    dAUC/du_i · u_i is u_i (share of controls below − AUC) / Σ u_cases for a case and u_i (share of cases above − AUC) /
    Σ u_controls for a control: the placements of DeLong, DeLong, Clarke-Pearson 1988, Biometrics 44:837–845, with
    weights; Blanche, Dartigues, Jacqmin-Gadda 2013, web appendix.
    """
    case_weight = people.case_weight
    control_weight = people.weight - case_weight
    cases, controls = case_weight.sum(), control_weight.sum()
    if not (cases > 0 and controls > 0):
        return Term(float("nan"))
    share_below = people.sum_below(control_weight) / controls
    share_above = 1.0 - people.sum_below(case_weight) / cases
    auc = float(case_weight @ share_below / cases)
    influence = case_weight * (share_below - auc) / cases + control_weight * (share_above - auc) / controls
    return Term(auc, influence, influence)
