"""Numbers over several outcomes: means of discrimination and accuracy, and observed over expected of them all.

The influence of a row on a mean is the mean of its influences on the outcomes, so sums over outcomes are all that is
kept, and sums of parts add up to those of the whole.

P predictors that are asked for every outcome, H horizons, N rows of the landmark, R replicates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_schemas.results import (
    AUC,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OUTCOMES_AVERAGED,
    POOLED,
    PREDICTED_RISK,
    SCALED_BRIER,
)
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan
from pipelines.evaluation.estimate_metrics import Estimates
from pipelines.evaluation.influence import standard_error
from pipelines.evaluation.metrics_table import COMPARED_METRICS, Block, Counts, Names, block_rows
from pipelines.evaluation.outcome_sample import OutcomeSample

AVERAGED_METRICS = (CONCORDANCE, CONCORDANCE_IPCW, AUC, SCALED_BRIER)


@dataclass
class MacroSums:
    """Sums over the outcomes of the macro mean that have been seen, for one group of people."""

    value: dict[str, FloatArray]  # averaged metric → [P, H]
    influence: dict[str, FloatArray]  # averaged metric → [P, H, N]
    n_outcomes: dict[str, IntArray]  # averaged metric → [H]
    total: FloatArray  # [2, P, H] people with the outcome: observed, predicted
    total_influence: FloatArray  # [2, P, H, N]
    entered: BoolArray  # [H, N] rows behind an outcome that entered
    n_cases: IntArray  # [H]
    replicates: dict[str, FloatArray] | None  # averaged metric → [P, H, 1 + R]; None where any outcome had none
    total_replicates: FloatArray | None  # [2, P, H, 1 + R]

    def add(self, other: "MacroSums") -> None:
        """Add the sums of other outcomes of the same people."""
        for metric in AVERAGED_METRICS:
            self.value[metric] += other.value[metric]
            self.influence[metric] += other.influence[metric]
            self.n_outcomes[metric] += other.n_outcomes[metric]
        self.total += other.total
        self.total_influence += other.total_influence
        self.entered |= other.entered
        self.n_cases += other.n_cases
        self._add_replicates(other.replicates, other.total_replicates)

    def _add_replicates(self, other: Mapping[str, FloatArray] | None, total: FloatArray | None) -> None:
        if other is None or total is None or self.replicates is None or self.total_replicates is None:
            self.replicates, self.total_replicates = None, None
            return
        for metric in self.replicates:
            self.replicates[metric] = self.replicates[metric] + other[metric]
        self.total_replicates = self.total_replicates + total


def no_outcomes(n_predictors: int, n_horizons: int, n_rows: int, n_weights: int) -> MacroSums:
    """Return sums over no outcome; `n_weights` is 1 + R, or 0 without a bootstrap."""
    shape = (n_predictors, n_horizons)
    resampled = (CONCORDANCE, AUC, SCALED_BRIER)
    return MacroSums(
        value={metric: np.zeros(shape) for metric in AVERAGED_METRICS},
        influence={metric: np.zeros((*shape, n_rows)) for metric in AVERAGED_METRICS},
        n_outcomes={metric: np.zeros(n_horizons, dtype=np.int64) for metric in AVERAGED_METRICS},
        total=np.zeros((2, *shape)),
        total_influence=np.zeros((2, *shape, n_rows)),
        entered=np.zeros((n_horizons, n_rows), dtype=np.bool_),
        n_cases=np.zeros(n_horizons, dtype=np.int64),
        replicates={metric: np.zeros((*shape, n_weights)) for metric in resampled} if n_weights else None,
        total_replicates=np.zeros((2, *shape, n_weights)) if n_weights else None,
    )


def add_outcome(
    sums: MacroSums,
    sample: OutcomeSample,
    found: Estimates,
    names: Names,
    replicates: Mapping[str, FloatArray] | None,
    n_resampled: FloatArray | None,
) -> None:
    """Add one outcome, at each horizon where every predictor that is asked for all outcomes has an estimate.

    `n_resampled` [1 + R] is how many people of the outcome each replicate has.
    """
    at = names.at_whole()
    for metric in AVERAGED_METRICS:
        enters = _has_every_predictor(found, metric, at)
        sums.value[metric] += np.where(enters, found.value[metric][at], 0.0)
        sums.influence[metric] += np.where(enters[:, None], found.influence[metric][at], 0.0)
        sums.n_outcomes[metric] += enters
    enters = _has_every_predictor(found, OBSERVED_RISK, at)
    _add_totals(sums, sample, found, enters, at)
    for h in np.flatnonzero(enters):
        sums.entered[h, sample.row] = True
        sums.n_cases[h] += sample.count_cases(names.horizons[h])
    if replicates is None or n_resampled is None:
        sums.replicates, sums.total_replicates = None, None
    elif sums.replicates is not None and sums.total_replicates is not None:
        for metric in sums.replicates:
            is_used = _has_every_predictor(found, metric, at)[:, None]
            sums.replicates[metric] += np.where(is_used, replicates[metric][at], 0.0)
        for side, metric in enumerate((OBSERVED_RISK, PREDICTED_RISK)):
            sums.total_replicates[side] += np.where(enters[:, None], replicates[metric][at] * n_resampled, 0.0)


def _has_every_predictor(found: Estimates, metric: str, at: list[int]) -> BoolArray:
    """Say at which horizons all predictors at some positions have an estimate: [H]."""
    known: BoolArray = np.logical_and.reduce(np.isfinite(found.value[metric][at]), axis=0)
    return known


def _add_totals(sums: MacroSums, sample: OutcomeSample, found: Estimates, enters: BoolArray, at: list[int]) -> None:
    """Add n AJ(h) and n mean risk: their influences are n times those of the risks, and the risk for being there."""
    n = sample.row.size
    for side, metric in enumerate((OBSERVED_RISK, PREDICTED_RISK)):
        risk = np.where(enters, found.value[metric][at], 0.0)
        sums.total[side] += n * risk
        sums.total_influence[side] += np.where(enters[:, None], n * found.influence[metric][at], 0.0)
        sums.total_influence[side][..., sample.row] += risk[..., None]


def macro_rows(sums: MacroSums, names: Names, cluster: IntArray | None, subgroup: str) -> pl.DataFrame:
    """Return the rows of `Metrics` over outcomes: means, their differences, how many, pooled observed / expected.

    Empty where no outcome entered. The pooled ratio is Σ_k n_k AJ_k(h) / Σ_k Σ_i risk_ki(h).
    """
    names = names.of_whole()
    counts = Counts(sums.entered.sum(axis=1), sums.n_cases)
    blocks, differences = [], []
    first, second = ([pair[position] for pair in names.pairs()] for position in (0, 1))
    for metric in AVERAGED_METRICS:
        n_outcomes = sums.n_outcomes[metric]
        mean, influence = (
            divide_or_nan(sums.value[metric], n_outcomes),
            sums.influence[metric] / np.maximum(n_outcomes, 1)[:, None],
        )
        resampled = None
        if sums.replicates is not None and metric in sums.replicates:
            resampled = divide_or_nan(sums.replicates[metric], n_outcomes[:, None])
        blocks.append(Block(metric, mean, standard_error(influence, cluster), resampled))
        if first and metric in COMPARED_METRICS:
            differences.append(
                Block(
                    metric + DIFFERENCE_SUFFIX,
                    mean[first] - mean[second],
                    standard_error(influence[first] - influence[second], cluster),
                    None if resampled is None else resampled[first] - resampled[second],
                )
            )
    averaged = np.tile(sums.n_outcomes[AUC].astype(np.float64), (len(names.predictors), 1))
    blocks.append(Block(OUTCOMES_AVERAGED, averaged, np.full(averaged.shape, np.nan)))
    ratio = divide_or_nan(sums.total[0], sums.total[1])
    influence = (sums.total_influence[0] - ratio[..., None] * sums.total_influence[1]) / np.where(
        sums.total[1] > 0, sums.total[1], 1.0
    )[..., None]
    resampled = None
    if sums.total_replicates is not None:
        resampled = divide_or_nan(sums.total_replicates[0], sums.total_replicates[1])
    pooled = Block(OBSERVED_EXPECTED, ratio, standard_error(np.nan_to_num(influence), cluster), resampled)
    return pl.concat([
        block_rows(blocks, names.predictors, names, MACRO_MEAN, subgroup, counts),
        block_rows(differences, names.pair_names(), names, MACRO_MEAN, subgroup, counts),
        block_rows([pooled], names.predictors, names, POOLED, subgroup, counts),
    ])  # fmt: skip
