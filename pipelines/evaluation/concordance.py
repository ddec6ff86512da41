"""Wolbers' concordance for a cumulative incidence, truncated at the horizon.

Someone who died of something else never gets the outcome, so every case should rank above that person whenever it
happened. The headline number is computed by lifelines; the weighted form here is the same number for a whole
bootstrap at once.

Wolbers, Koller, Witteman, Steyerberg 2009, Epidemiology 20:555–561.
"""

from dataclasses import dataclass

import numpy as np
from lifelines.utils import concordance_index

from data_schemas.results import CENSORED, COMPETING_DEATH, OUTCOME
from pipelines.evaluation.array_types import (
    BoolArray,
    FloatArray,
    IntArray,
    divide_or_nan,
    person_weights,
    sum_by_label,
)
from pipelines.evaluation.censoring_weights import CensoringWeights
from pipelines.evaluation.influence import Term
from pipelines.evaluation.ordered_pairs import (
    OrderedCases,
    find_cells,
    order_cases,
    sum_over_earlier_cases,
    sum_over_later_people,
)
from pipelines.evaluation.ranked_people import RankedPeople

CASES_PER_BLOCK = 128  # measured: 64 to 256 are equally fast from 2,000 to 100,000 people


def recode_for_concordance(time: FloatArray, status: IntArray, horizon: float) -> tuple[FloatArray, BoolArray]:
    """Return times and event flags in which only cases up to the horizon are events.

    Follow-up beyond the horizon is censored at it; competing deaths are censored beyond it, as if the person had
    stayed free of the outcome for ever.
    """
    is_event = (status == OUTCOME) & (time <= horizon)
    recoded = np.minimum(time, horizon)
    return np.where((status == COMPETING_DEATH) & (time <= horizon), 2.0 * horizon, recoded), is_event


def concordance_by_lifelines(score: FloatArray, time: FloatArray, is_event: BoolArray) -> float:
    """Return lifelines' concordance index of a score that is higher for more risk; NaN without a comparable pair."""
    if not _has_comparable_pair(time, is_event):
        return float("nan")
    return float(concordance_index(time, -score, is_event))


def _has_comparable_pair(time: FloatArray, is_event: BoolArray) -> bool:
    """Say whether anyone is known to be free of the outcome at the first case."""
    if not is_event.any():
        return False
    first = time[is_event].min()
    return bool(((time > first) | ((time == first) & ~is_event)).any())


def weighted_concordance(
    score: FloatArray, time: FloatArray, is_event: BoolArray, weights: FloatArray | None = None
) -> FloatArray:
    """Estimate the probability that of two comparable people the earlier case has the higher score: [...].

    Σ_i Σ_j w_i w_j ([s_i > s_j] + ½ [s_i = s_j]) / Σ_i Σ_j w_i w_j over cases i and people j with T_j > T_i, or
    T_j = T_i and no event (an event comes before a censoring; two events of one day are not compared). A person drawn
    twice is not compared with its copy. NaN without a comparable pair.

    Cases are taken in blocks in order of time: for people later than the whole block, one cumulative sum over the
    scores answers all its cases; people within the block are compared one by one.
    """
    weights = person_weights(weights, time.size)
    by_score = np.argsort(score, kind="stable")
    score, time, is_event, weights = score[by_score], time[by_score], is_event[by_score], weights[..., by_score]
    cases = np.flatnonzero(is_event)
    cases = cases[np.argsort(time[cases], kind="stable")]
    concordant = np.zeros(weights.shape[:-1])
    comparable = np.zeros(weights.shape[:-1])
    for start in range(0, cases.size, CASES_PER_BLOCK):
        block = cases[start : start + CASES_PER_BLOCK]
        block_weights = weights[..., block]
        won, met = _compare_with_later(score, weights * (time > time[block[-1]]), block)
        concordant += (block_weights * won).sum(axis=-1)
        comparable += block_weights.sum(axis=-1) * met
        near = np.flatnonzero((time >= time[block[0]]) & (time <= time[block[-1]]))
        is_pair = (time[near] > time[block, None]) | ((time[near] == time[block, None]) & ~is_event[near])
        win = np.where(is_pair, (np.sign(score[block, None] - score[near]) + 1.0) / 2.0, 0.0)
        near_weights = weights[..., near]
        concordant += ((block_weights @ win) * near_weights).sum(axis=-1)
        comparable += ((block_weights @ is_pair.astype(np.float64)) * near_weights).sum(axis=-1)
    return divide_or_nan(concordant, comparable)


def _compare_with_later(score: FloatArray, later_weights: FloatArray, block: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return, for each case of a block, the weight of later people it outranks [..., m], and their weight [...]."""
    below = np.concatenate([np.zeros((*later_weights.shape[:-1], 1)), np.cumsum(later_weights, axis=-1)], axis=-1)
    lower = below[..., np.searchsorted(score, score[block], side="left")]
    lower_or_equal = below[..., np.searchsorted(score, score[block], side="right")]
    return (lower + lower_or_equal) / 2.0, below[..., -1]


def concordance_terms(
    people: RankedPeople, time: FloatArray, status: IntArray, horizon: float, known: CensoringWeights
) -> tuple[Term, Term]:
    """Return Wolbers' concordance up to the horizon without and with weights for censoring, with influences.

    Without: `weighted_concordance` of `recode_for_concordance`; its limit depends on how long people were followed.
    With: pairs of a case i (T_i ≤ h) and a person j who is later (T_j > T_i, or T_j = T_i and lost on that day) count
    1 / G(T_i−)², pairs with someone who died before, or on that day, 1 / (G(T_i−) G(T_j−)); NaN where nobody is
    followed to the horizon. Equal risks count half. `time`, `status` [n] and `known` are in the order of the sample.

    Wolbers, Blanche, Koller, Witteman, Gerds 2014, Biostatistics 15:526–539, eq. 8 (its G(T_i) G(T_i−) is G(T_i−)²
    here, as on one day events come before censoring); without death Uno et al. 2011, Stat Med 30:1105–1117.
    """
    if not people.is_case.any():
        return Term(float("nan")), Term(float("nan"))
    pairs = _find_pairs(people, time[people.order], status[people.order], horizon)
    inverse = known.at_own_time[people.order]
    is_weighted = not np.isnan(people.weight).any()
    return _compare(pairs, inverse if is_weighted else None)


@dataclass(frozen=True)
class _People:
    """Some people in order of risk, and where they stand among the cases; those tied with a case count twice, half."""

    cases: OrderedCases
    who: IntArray  # [d] positions
    n_earlier: IntArray  # [d] cases before a person's own time
    rank: IntArray  # [q] cases of lower (or equal) risk, of each question
    asks: IntArray  # [q] which of the people
    share: FloatArray  # [q] 1, or a half for each of two questions
    cells: list[IntArray]

    def above(self, values: FloatArray) -> FloatArray:
        """Return values [m] summed over a person's earlier cases of higher risk, equal risks half: [d]."""
        return self._sum_answers(sum_over_earlier_cases(self.cases, values, self.cells))

    def below(self, values: FloatArray) -> FloatArray:
        """Return, for each case, values [d] summed over later people of lower risk, equal risks half: [m]."""
        return sum_over_later_people(self.cases, values[self.asks] * self.share, self.cells)

    def above_of_all(self, values_by_risk: FloatArray) -> FloatArray:
        """Return values [m] of cases in order of risk, summed over all of higher risk, equal risks half: [d]."""
        from_here = np.concatenate([np.cumsum(values_by_risk[::-1])[::-1], [0.0]])
        return self._sum_answers(from_here[self.rank])

    def below_of_all(self, values: FloatArray) -> FloatArray:
        """Return, for each case in order of risk, values [d] of people of lower risk, equal risks half: [m]."""
        by_rank = sum_by_label(self.rank, values[self.asks] * self.share, self.cases.n_cases + 1)
        below: FloatArray = np.cumsum(by_rank)[: self.cases.n_cases]
        return below

    def after_each_case(self, values: FloatArray) -> FloatArray:
        """Return, for each case, values [d] of all who come after it, whatever their risk: [m]."""
        by_count = sum_by_label(self.n_earlier, values, self.cases.n_cases + 1)
        later: FloatArray = np.cumsum(by_count[::-1])[::-1][1:]
        return later

    def _sum_answers(self, answers: FloatArray) -> FloatArray:
        return sum_by_label(self.asks, answers * self.share, self.who.size)


@dataclass(frozen=True)
class _Pairs:
    """Cases against everyone, and against who died of something else by the horizon."""

    case: IntArray  # [m] position of each case in the order of risk, in order of time
    by_time: IntArray  # [m] place of each among cases in order of risk
    everyone: _People
    died: _People


def _find_pairs(people: RankedPeople, time: FloatArray, status: IntArray, horizon: float) -> _Pairs:
    in_order_of_risk = np.flatnonzero(people.is_case)
    by_time = np.argsort(time[in_order_of_risk], kind="stable")
    case_times = time[in_order_of_risk][by_time]
    n_earlier = np.full(people.n, by_time.size)
    within = np.flatnonzero(time <= horizon)
    is_event = status[within] != CENSORED
    n_earlier[within] = np.where(
        is_event,
        np.searchsorted(case_times, time[within], side="left"),
        np.searchsorted(case_times, time[within], side="right"),
    )
    cases = order_cases(by_time)
    n_cases_until = np.concatenate([[0], np.cumsum(people.is_case)])
    lower, lower_or_equal = n_cases_until[people.first], n_cases_until[people.beyond]

    def ask(who: IntArray) -> _People:
        is_tied = lower[who] < lower_or_equal[who]
        tied = np.flatnonzero(is_tied)
        asks = np.concatenate([np.arange(who.size), tied])
        share = np.concatenate([np.where(is_tied, 0.5, 1.0), np.full(tied.size, 0.5)])
        rank = np.concatenate([lower_or_equal[who], lower[who][tied]])
        cells = find_cells(cases, n_earlier[who][asks], rank)
        return _People(cases, who, n_earlier[who], rank, asks, share, cells)

    died = within[status[within] == COMPETING_DEATH]
    return _Pairs(in_order_of_risk[by_time], by_time, ask(np.arange(people.n)), ask(died))


def _compare(pairs: _Pairs, inverse: FloatArray | None) -> tuple[Term, Term]:
    """Sum pairs both ways, for each case and for each person, without and with weights 1 / G [n] (None: no weights)."""
    everyone, died = pairs.everyone, pairs.died
    of_living = np.ones(everyone.who.size)
    of_living[died.who] = 0.0
    won_over_living = everyone.below(of_living)
    met_living = everyone.after_each_case(of_living)
    plain = _plain_concordance(pairs, won_over_living, met_living)
    if inverse is None:
        return plain, Term(float("nan"))
    ones = np.ones(died.who.size)
    won, met = won_over_living + died.below(ones), met_living + died.after_each_case(ones)
    return plain, _weighted_for_censoring(pairs, inverse, won, met)


def _plain_concordance(pairs: _Pairs, won_over_living: FloatArray, met_living: FloatArray) -> Term:
    """Count every pair once; who died never gets the outcome and comes after every case."""
    everyone, died, m = pairs.everyone, pairs.died, pairs.case.size
    lost, met = everyone.above(np.ones(m)), everyone.n_earlier.astype(np.float64)
    lost[died.who], met[died.who] = died.above_of_all(np.ones(m)), m
    total = met.sum()
    if total == 0:
        return Term(float("nan"))
    won = won_over_living + died.below_of_all(np.ones(died.who.size))[pairs.by_time]
    value = float(won.sum() / total)
    influence = lost - value * met
    influence[pairs.case] += won - value * (met_living + died.who.size)
    return Term(value, influence / total)


def _weighted_for_censoring(pairs: _Pairs, inverse: FloatArray, won: FloatArray, met: FloatArray) -> Term:
    """Weight pairs with later people by 1 / G² of the case, and pairs with earlier deaths by 1 / G of both.

    `won`, `met` [m]: later people of lower risk, and all later people, of each case.
    """
    everyone, died = pairs.everyone, pairs.died
    of_case, of_died = inverse[pairs.case], inverse[died.who]
    square = np.square(of_case)
    until = np.concatenate([[0.0], np.cumsum(square)])
    linear = np.concatenate([[0.0], np.cumsum(of_case)])
    by_risk = np.empty(of_case.size)
    by_risk[pairs.by_time] = of_case

    lost, met_earlier = everyone.above(square), until[everyone.n_earlier]
    lost_to_later, met_later = died.above_of_all(by_risk) - died.above(of_case), linear[-1] - linear[died.n_earlier]
    won_over_died = died.below_of_all(of_died)[pairs.by_time] - died.below(of_died)
    met_died = of_died.sum() - died.after_each_case(of_died)

    total = met_earlier.sum() + of_died @ met_later
    if not total > 0:
        return Term(float("nan"))
    value = float((lost.sum() + of_died @ lost_to_later) / total)
    by_later = square * (won - value * met) / total
    by_died = of_case * (won_over_died - value * met_died) / total
    from_died = of_died * (lost_to_later - value * met_later) / total
    direct = (lost - value * met_earlier) / total
    direct[pairs.case] += by_later + by_died
    direct[died.who] += from_died
    by_censoring = np.zeros(everyone.who.size)
    by_censoring[pairs.case] = 2.0 * by_later + by_died
    by_censoring[died.who] = from_died
    return Term(value, direct, by_censoring)
