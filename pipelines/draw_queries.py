"""Choose the ages at which a model is asked during training, and what each answer counts."""

import numpy as np
from numpy.typing import NDArray

from data_schemas.age_units import AGE_STEPS_PER_DAY


def draw_query_ages(
    rng: np.random.Generator,
    entry_age_days: NDArray[np.float64],
    exit_age_days: NDArray[np.float64],
    n_queries: int,
    *,
    first_at_entry: bool,
) -> NDArray[np.float64]:
    """Draw ages [N,Q] in entry <= age < exit, ascending: one in each of Q equal parts of the follow-up.

    Equal parts (stratified sampling) cover the follow-up better than independent draws. With `first_at_entry` the
    first query is the entry itself, the landmark that is asked for most, and the others lie in Q - 1 equal parts.
    """
    n_drawn = n_queries - 1 if first_at_entry else n_queries
    where = (np.arange(n_drawn) + rng.random((len(entry_age_days), n_drawn))) / max(n_drawn, 1)
    drawn = entry_age_days[:, None] + where * (exit_age_days - entry_age_days)[:, None]
    on_step = np.floor(drawn * AGE_STEPS_PER_DAY) / AGE_STEPS_PER_DAY
    before_exit = np.minimum(on_step, exit_age_days[:, None] - 1 / AGE_STEPS_PER_DAY)  # a draw may round up to exit
    ages = np.maximum(before_exit, entry_age_days[:, None])
    return np.concatenate([entry_age_days[:, None], ages], axis=1) if first_at_entry else ages


def weigh_queries(
    entry_age_days: NDArray[np.float64],
    exit_age_days: NDArray[np.float64],
    n_queries: int,
    *,
    first_at_entry: bool,
    entry_share: float,
) -> NDArray[np.float64]:
    """Return what each query of `draw_query_ages` counts [N,Q], mean 1: in proportion to the time it stands for.

    Everybody is asked equally often, so without weights a year of a short follow-up counts more than one of a long
    follow-up; and follow-up is short for who dies early. In a population with a constant hazard of death λ one
    unweighted query a person, uniform in the follow-up, fits 2λ. A query that stands for 1/Q of its person's
    follow-up samples person-time evenly, which the future of a person does not bias. The query at entry is unbiased
    as it is: it gets the same weight for everyone, `entry_share` of the whole.
    """
    n_drawn = n_queries - 1 if first_at_entry else n_queries
    follow_up = exit_age_days - entry_age_days
    drawn = np.repeat((follow_up / max(follow_up.mean(), 1e-9))[:, None], n_drawn, axis=1)
    if not first_at_entry:
        return drawn
    at_entry = np.full((len(follow_up), 1), entry_share * n_queries)
    return np.concatenate([at_entry, drawn * (1 - entry_share) * n_queries / max(n_drawn, 1)], axis=1)
