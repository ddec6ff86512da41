"""Likelihoods as pure functions, one for each mode.

B subjects, Q queries, K outcomes, N intervals, M events.
"""

import torch
from torch import Tensor

from data_schemas.sequence_batch import FutureTargets, NextTargets
from models.cause_hazards import CauseHazards


def all_future_negative_log_likelihood(hazards: CauseHazards, targets: FutureTargets) -> Tensor:
    """Return the negative log-likelihood of each query [B,Q], in nats, summed over the causes at risk.

    For cause k with first occurrence T_k after the query and end of observation C (exit or death):

        H_k(min(T_k, C) - t_q) - δ_k · log h_k(T_k - t_q),     δ_k = 1 when T_k <= C

    the right-censored likelihood of a cause-specific hazard (Kalbfleisch & Prentice 2002, §8.2). Causes that are not
    at risk (happened before, or the query lies outside observation) contribute exactly zero. Times in years; event
    times must be above zero. Log-hazards are formed only where something happened, which is rare.
    """
    survived = torch.where(targets.at_risk, hazards.cumulative_hazard(targets.time_years), 0.0).sum(-1)  # [B,Q]
    query, cause = targets.happened.flatten(0, 1).nonzero(as_tuple=True)
    event_time = targets.time_years.flatten(0, 1)[query, cause]
    log_hazard = hazards.pick(query, cause).log_hazard(event_time)
    return survived.flatten().index_add(0, query, -log_hazard).view_as(survived)


def next_token_negative_log_likelihood(hazards: CauseHazards, targets: NextTargets) -> Tensor:
    """Return the negative log-likelihood of each interval [N], in nats, of a marked point process.

    Interval n starts at one age of a history and ends at the next, Δ_n years later, with the set S_n of diseases and
    death recorded there:

        Σ_k at risk H_k(Δ_n) - Σ_{k in S_n} log h_k(Δ_n)

    Summed over the intervals this is the likelihood of a point process whose intensities follow from its history
    (Daley & Vere-Jones 2003, §7.2–7.3), and each term is the right-censored one of Kalbfleisch & Prentice (2002,
    §8.2). The causes of one age happened together: all of S_n are read off the hazards of the same interval, and the
    order of the rows of that age does not enter. S_n is empty where only measurements or no_event rows stand at the
    end, and for the last interval, which ends with observation: they say that nothing happened, and add no log term.
    A history begins at entry (left truncation): nothing before it is an interval. A cause that is recorded once is
    not at risk after its occurrence. With constant hazards and one event it is cross-entropy plus waiting time:
    -log(h_k/Σh) - log Σh + Δ·Σh.

    Args:
        hazards: of the rows at which the intervals start [N,K], per year.
        targets: with `at_risk` [N,K] and M events; every event must lie among the causes at risk.
    """
    survived = hazards.total_at_risk(targets.interval_years, targets.at_risk)
    ended = targets.event_interval
    log_hazard = hazards.pick(ended, targets.event_outcome).log_hazard(targets.interval_years[ended])
    return survived.index_add(0, ended, -log_hazard)
