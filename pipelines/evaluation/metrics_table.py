"""From arrays of estimates to the long table `Metrics`: outcomes, differences, means over outcomes, pooled ratio.

K outcomes, P predictors, H horizons, R replicates; estimates are [K, P, H, 1 + R].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from data_schemas.results import (
    AGE_SEX,
    AUC,
    BRIER,
    CONCORDANCE,
    COX,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OUTCOMES_AVERAGED,
    OVERALL,
    POOLED,
    PREDICTED_RISK,
    SMALLEST_SHOWN_COUNT,
    Metrics,
)
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray, divide_or_nan
from pipelines.evaluation.bootstrap import percentile_interval
from pipelines.evaluation.calibration import observed_expected_ratio
from pipelines.evaluation.estimate_metrics import OutcomeSample

AVERAGED_METRICS = (CONCORDANCE, AUC)
COMPARED_METRICS = (CONCORDANCE, AUC, BRIER)
COMPARISONS = ((MODEL, COX), (MODEL, AGE_SEX))


@dataclass(frozen=True)
class Counts:
    """People at risk and cases behind a number, two [K, H]."""

    people: IntArray
    cases: IntArray


@dataclass(frozen=True)
class MetricsTable:
    """Turns estimates of the samples of one landmark into rows; `weights` [1 + R, all people] made the replicates."""

    samples: Sequence[OutcomeSample]
    predictors: Sequence[str]
    landmark: str
    horizons: FloatArray
    weights: FloatArray

    def build(self, estimates: Mapping[str, FloatArray], is_in_macro: BoolArray) -> pl.DataFrame:
        """Return all rows: each outcome, its differences, macro means and theirs, the pooled ratio."""
        outcomes = [sample.outcome for sample in self.samples]
        shape = (len(outcomes), self.horizons.size)
        cases = [[sample.count_cases(horizon) for horizon in self.horizons] for sample in self.samples]
        people = np.array([sample.person.size for sample in self.samples], dtype=np.int64)
        counts = Counts(np.broadcast_to(people[:, None], shape), np.array(cases, dtype=np.int64).reshape(shape))
        parts = [
            *(self._rows(metric, outcomes, self.predictors, values, counts) for metric, values in estimates.items()),
            *(self._differences(metric, outcomes, estimates[metric], counts) for metric in COMPARED_METRICS),
        ]
        if is_in_macro.any():
            parts += self._macro_rows(estimates, is_in_macro)
            parts.append(self._pooled_rows(estimates, is_in_macro))
        return pl.concat(parts)

    def _macro_rows(self, estimates: Mapping[str, FloatArray], is_in_macro: BoolArray) -> list[pl.DataFrame]:
        """Average discrimination over outcomes, replicate by replicate, with differences between predictors."""
        parts = []
        for metric in AVERAGED_METRICS:
            # An outcome enters at a horizon where every predictor has an estimate.
            enters = has_value(estimates[metric]) & is_in_macro[:, None]
            mean = mean_over_outcomes(estimates[metric], enters)[None]
            counts = self._count_over(enters)
            parts.append(self._rows(metric, [MACRO_MEAN], self.predictors, mean, counts))
            parts.append(self._differences(metric, [MACRO_MEAN], mean, counts))
        n_averaged = np.tile(enters.sum(axis=0).astype(np.float64)[:, None], (1, len(self.predictors), 1, 1))
        parts.append(self._rows(OUTCOMES_AVERAGED, [MACRO_MEAN], self.predictors, n_averaged, counts))
        return parts

    def _pooled_rows(self, estimates: Mapping[str, FloatArray], is_in_macro: BoolArray) -> pl.DataFrame:
        """Sum what was observed and what was expected over the outcomes of the macro mean, in people."""
        people = np.stack([self.weights[:, sample.person].sum(axis=1) for sample in self.samples])[:, None, None]
        observed, predicted = estimates[OBSERVED_RISK], estimates[PREDICTED_RISK]
        enters = has_value(observed) & has_value(predicted) & is_in_macro[:, None]
        is_used = enters[:, None, :, None]
        ratio = observed_expected_ratio(
            np.where(is_used, observed * people, 0.0).sum(axis=0),
            np.where(is_used, predicted * people, 0.0).sum(axis=0),
        )
        return self._rows(OBSERVED_EXPECTED, [POOLED], self.predictors, ratio[None], self._count_over(enters))

    def _count_over(self, enters: BoolArray) -> Counts:
        """Return people, each once, and cases over the outcomes that enter at each horizon."""
        people, cases = [], []
        for h, horizon in enumerate(self.horizons):
            used = [sample for sample, is_used in zip(self.samples, enters[:, h], strict=True) if is_used]
            people.append(np.unique(np.concatenate([sample.person for sample in used])).size if used else 0)
            cases.append(sum(sample.count_cases(horizon) for sample in used))
        return Counts(np.array([people], dtype=np.int64), np.array([cases], dtype=np.int64))

    def _differences(self, metric: str, outcomes: Sequence[str], values: FloatArray, counts: Counts) -> pl.DataFrame:
        """Subtract predictors that are both there, replicate by replicate."""
        at = {predictor: position for position, predictor in enumerate(self.predictors)}
        pairs = [(a, b) for a, b in COMPARISONS if a in at and b in at]
        difference = values[:, [at[a] for a, _ in pairs]] - values[:, [at[b] for _, b in pairs]]
        names = [f"{a}-{b}" for a, b in pairs]
        return self._rows(metric + DIFFERENCE_SUFFIX, outcomes, names, difference, counts)

    def _rows(
        self, metric: str, outcomes: Sequence[str], predictors: Sequence[str], values: FloatArray, counts: Counts
    ) -> pl.DataFrame:
        """Lay estimates [K, P, H, 1 + R] out as rows; counts under 10 become null."""
        lower, upper = percentile_interval(values)
        keys = list(product(outcomes, predictors, self.horizons.tolist()))
        shape = values.shape[:-1]
        return pl.DataFrame(
            {
                Metrics.predictor.name: [predictor for _, predictor, _ in keys],
                Metrics.outcome.name: [outcome for outcome, _, _ in keys],
                Metrics.landmark.name: [self.landmark] * len(keys),
                Metrics.horizon_days.name: [horizon for _, _, horizon in keys],
                Metrics.subgroup.name: [OVERALL] * len(keys),
                Metrics.metric.name: [metric] * len(keys),
                Metrics.estimate.name: _null_if_nan(values[..., 0]),
                Metrics.lower.name: _null_if_nan(lower),
                Metrics.upper.name: _null_if_nan(upper),
                Metrics.n.name: suppress_small(np.broadcast_to(counts.people[:, None], shape).ravel()),
                Metrics.n_events.name: suppress_small(np.broadcast_to(counts.cases[:, None], shape).ravel()),
            },
            schema=Metrics.create_empty().schema,
        )


def has_value(estimates: FloatArray) -> BoolArray:
    """Say at which horizons an outcome has an estimate from every predictor: [K, H]."""
    known: BoolArray = np.logical_and.reduce(np.isfinite(estimates[..., 0]), axis=1)
    return known


def mean_over_outcomes(estimates: FloatArray, enters: BoolArray) -> FloatArray:
    """Average [K, P, H, 1 + R] over the outcomes that enter [K, H], each counting the same: [P, H, 1 + R]."""
    summed = np.where(enters[:, None, :, None], estimates, 0.0).sum(axis=0)
    return divide_or_nan(summed, enters.sum(axis=0)[:, None])


def suppress_small(counts: IntArray) -> list[int | None]:
    """Replace counts under 10 by null."""
    return [None if count < SMALLEST_SHOWN_COUNT else int(count) for count in counts]


def _null_if_nan(values: FloatArray) -> pl.Series:
    return pl.Series(values.ravel(), dtype=pl.Float64, nan_to_null=True)
