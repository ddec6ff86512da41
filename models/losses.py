"""Likelihoods as pure functions.

B subjects, Q queries, K outcomes.
"""

import torch
from torch import Tensor

from data_schemas.sequence_batch import FutureTargets
from models.cause_hazards import CauseHazards


def all_future_negative_log_likelihood(hazards: CauseHazards, targets: FutureTargets) -> Tensor:
    """Return the negative log-likelihood of each query [B,Q], in nats, summed over the causes at risk.

    For cause k with first occurrence T_k after the query and end of observation C (exit or death):

        H_k(min(T_k, C) - t_q) - δ_k · log h_k(T_k - t_q),     δ_k = 1 when T_k <= C

    the right-censored likelihood of a cause-specific hazard (Kalbfleisch & Prentice 2002, §8.2). Causes that are not
    at risk (happened before, or the query lies outside observation) contribute exactly zero. Times in years; event
    times must be above zero.
    """
    survived = torch.where(targets.at_risk, hazards.cumulative_hazard(targets.time_years), 0.0)
    event_time = torch.where(targets.happened, targets.time_years, 1.0)
    log_hazard = torch.where(targets.happened, hazards.log_hazard(event_time), 0.0)
    return (survived - log_hazard).sum(-1)
