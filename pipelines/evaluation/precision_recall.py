"""What a list of the people with the highest risks holds: average precision, and recall and precision at its top.

n people in the order of risk; u weights by inverse probability of censoring, y = 1 for cases by the horizon.
"""

import numpy as np

from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.evaluation.array_types import BoolArray, FloatArray
from pipelines.evaluation.influence import Term
from pipelines.evaluation.ranked_people import RankedPeople

# Around the cut of a list the share of cases is read off this many people, or off this part of the list if more.
FEWEST_AROUND_CUT, SHARE_AROUND_CUT = 50, 0.25


def average_precision(people: RankedPeople) -> Term:
    """Return Σ u y P / Σ u y, P = Σ_{risk ≥ own} u y / Σ_{risk ≥ own} u, the mean precision at the risks of cases.

    People of equal risk enter the list together. Cases and others are known at the horizon as for the AUC; who died of
    something else is no case. It is the area under the step-wise precision–recall curve and depends on how frequent
    the outcome is. NaN without cases or others.

    Yuan, Zhou, Li 2018, Stat Med 37:3271–3285 (time-dependent, with these weights).
    """
    case_weight = people.case_weight
    cases = case_weight.sum()
    if not 0 < cases < people.weight.sum():
        return Term(float("nan"))
    cases_above, above = _sum_at_or_above(people, case_weight), _sum_at_or_above(people, people.weight)
    inverse = np.divide(1.0, above, out=np.zeros_like(above), where=above > 0)
    precision = cases_above * inverse
    value = float(case_weight @ precision / cases)
    # A person changes the precision at every case of the same or a lower risk.
    gained = _sum_at_or_below(people, case_weight * inverse)
    diluted = _sum_at_or_below(people, case_weight * precision * inverse)
    influence = (case_weight * (precision - value + gained) - people.weight * diluted) / cases
    return Term(value, influence, influence)


def top_of_list(people: RankedPeople, share: float) -> tuple[Term, Term]:
    """Return recall and precision among the given share of people with the highest risks.

    Recall Σ_top u y / Σ u y, precision Σ_top u y / Σ_top u. People tied at the cut count in part, so that the top is
    exactly `share`. The cut moves with the people: that adds m (1{top} − share), m the share of cases at the cut, read
    off its neighbours. NaN where the list or its cases are fewer than 10, or no state is known.
    """
    is_top = _count_in_top(people, share)
    n_cases = np.count_nonzero(people.is_case & (is_top > 0))
    if share * people.n < SMALLEST_SHOWN_COUNT or n_cases < SMALLEST_SHOWN_COUNT or np.isnan(people.weight).any():
        return Term(float("nan")), Term(float("nan"))
    case_weight = people.case_weight
    cases, found, listed = case_weight.sum(), float(case_weight @ is_top), float(people.weight @ is_top)
    at_cut = _near_cut(people, share)
    weight_at_cut, cases_at_cut = people.weight[at_cut].mean(), case_weight[at_cut].mean()
    moved = is_top - share  # d(Σ_top v) = v_i 1{top} − (mean of v at the cut) (1{top} − share)

    recall, precision = found / cases, found / listed
    by_recall = case_weight * (is_top - recall) / cases
    by_precision = is_top * (case_weight - precision * people.weight) / listed
    return (
        Term(recall, by_recall - cases_at_cut * moved / cases, by_recall),
        Term(precision, by_precision - (cases_at_cut - precision * weight_at_cut) * moved / listed, by_precision),
    )


def _count_in_top(people: RankedPeople, share: float) -> FloatArray:
    """Return how much of each person is in the top: 1, 0, or a part for those tied at the cut."""
    n_top = share * people.n
    n_above = people.n - people.beyond
    tied = people.beyond - people.first
    counted: FloatArray = np.clip((n_top - n_above) / np.maximum(tied, 1), 0.0, 1.0)
    return counted


def _near_cut(people: RankedPeople, share: float) -> BoolArray:
    """Say who has about the risk at the cut: at least everyone tied there."""
    cut = min(int(people.n * (1.0 - share)), people.n - 1)
    reach = int(max(FEWEST_AROUND_CUT, SHARE_AROUND_CUT * share * people.n)) // 2
    position = np.arange(people.n)
    is_tied = (position >= people.first[cut]) & (position < people.beyond[cut])
    tied_beyond = people.beyond[cut] - people.first[cut] > 2 * reach
    near: BoolArray = is_tied if tied_beyond else (np.abs(position - cut) <= reach) | is_tied
    return near


def _sum_at_or_above(people: RankedPeople, values: FloatArray) -> FloatArray:
    from_here: FloatArray = np.cumsum(values[::-1])[::-1]
    return from_here[people.first]


def _sum_at_or_below(people: RankedPeople, values: FloatArray) -> FloatArray:
    until_here: FloatArray = np.cumsum(values)
    return until_here[people.beyond - 1]
