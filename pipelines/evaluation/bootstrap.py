"""Resampling of people: one weight matrix for all outcomes, models and metrics, so that differences are paired."""

import numpy as np

from pipelines.evaluation.array_types import FloatArray

CONFIDENCE = 0.95
# A replicate can lack cases; an interval is given while no more than this share of them does.
LARGEST_MISSING_SHARE = 0.05


def draw_person_weights(n_people: int, n_replicates: int, seed: int) -> FloatArray:
    """Draw how often each person counts, row 0 once each (the estimate itself): [1 + R, n].

    Counts are Poisson with mean one, the bootstrap that needs no fixed sum: Hanley, MacGibbon 2006, Comput Methods
    Programs Biomed 83:57–62. The same seed gives the same weights.
    """
    counts = np.random.default_rng(seed).poisson(1.0, size=(n_replicates, n_people))
    return np.concatenate([np.ones((1, n_people)), counts.astype(np.float64)])


def percentile_interval(estimates: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the 2.5 and 97.5 percentiles of the replicates [..., 1 + R], whose entry 0 is the estimate.

    NaN where the estimate is missing, where there is no replicate, or where too many replicates have no value.
    """
    replicates = estimates[..., 1:]
    if replicates.size == 0:
        nothing = np.full(estimates.shape[:-1], np.nan)
        return nothing, nothing.copy()
    is_usable = (np.isnan(replicates).mean(axis=-1) <= LARGEST_MISSING_SHARE) & ~np.isnan(estimates[..., 0])
    filled = np.where(is_usable[..., None], replicates, 0.0)  # rows without an interval must not warn
    tail = 100 * (1 - CONFIDENCE) / 2
    lower, upper = np.nanpercentile(filled, [tail, 100 - tail], axis=-1)
    return np.where(is_usable, lower, np.nan), np.where(is_usable, upper, np.nan)
