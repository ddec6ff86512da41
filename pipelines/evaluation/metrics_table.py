"""From arrays of estimates to rows of the result tables: intervals, differences, suppression of small counts.

P predictors, H horizons, N rows of the landmark, R replicates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from data_schemas.results import (
    AGE_SEX,
    AUC,
    AVERAGE_PRECISION,
    BOOTSTRAP,
    BRIER,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    COX,
    DIFFERENCE_SUFFIX,
    GRADIENT_BOOSTING,
    INFLUENCE,
    INTEGRATED_BRIER,
    MODEL,
    SCALED_BRIER,
    SMALLEST_SHOWN_COUNT,
    TRUTH,
    CalibrationCurve,
    CalibrationGroups,
    CensoringSummary,
    DecisionCurve,
    Metrics,
)
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.evaluation.bootstrap import percentile_interval
from pipelines.evaluation.estimate_metrics import Estimates
from pipelines.evaluation.influence import IDENTITY, SCALES, influence_interval, standard_error
from pipelines.evaluation.net_benefit import THRESHOLDS

COMPARED_METRICS = (
    CONCORDANCE, CONCORDANCE_IPCW, AUC, BRIER, SCALED_BRIER, INTEGRATED_BRIER, AVERAGE_PRECISION,
)  # fmt: skip
COMPARISONS = tuple((MODEL, other) for other in (COX, AGE_SEX, GRADIENT_BOOSTING, TRUTH))


@dataclass(frozen=True)
class Names:
    """What the first columns of every table say."""

    predictors: tuple[str, ...]
    landmark: str
    horizons: FloatArray  # [H]
    partial: frozenset[str] = frozenset()  # predictors of some outcomes alone: they are in no mean over outcomes

    def at_whole(self) -> list[int]:
        """Return the positions of the predictors that are asked for every outcome."""
        return [place for place, predictor in enumerate(self.predictors) if predictor not in self.partial]

    def of_whole(self) -> "Names":
        """Return the names of those predictors alone."""
        return Names(tuple(self.predictors[place] for place in self.at_whole()), self.landmark, self.horizons)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the predictors that are compared, where both are there."""
        at = {predictor: position for position, predictor in enumerate(self.predictors)}
        return [(at[a], at[b]) for a, b in COMPARISONS if a in at and b in at]

    def pair_names(self) -> list[str]:
        """Return `model-cox` for each compared pair."""
        return [f"{self.predictors[a]}-{self.predictors[b]}" for a, b in self.pairs()]


@dataclass(frozen=True)
class Block:
    """Numbers of one metric, [P, H] each (or pairs × H), with the counts [H] behind them; NaN is no number."""

    metric: str
    value: FloatArray
    error: FloatArray
    replicates: FloatArray | None = None  # [P, H, 1 + R]: the interval is then theirs


def block_rows(
    blocks: Sequence[Block], predictors: Sequence[str], names: Names, outcome: str, subgroup: str, counts: "Counts"
) -> pl.DataFrame:
    """Lay blocks out as rows of `Metrics`."""
    parts = [_rows_of_block(block, predictors, names, outcome, subgroup, counts) for block in blocks]
    return pl.concat(parts) if parts else Metrics.create_empty()


@dataclass(frozen=True)
class Counts:
    """People at risk and cases behind numbers at each horizon, two [H]."""

    people: IntArray
    cases: IntArray


def _rows_of_block(
    block: Block, predictors: Sequence[str], names: Names, outcome: str, subgroup: str, counts: Counts
) -> pl.DataFrame:
    scale = SCALES.get(block.metric, IDENTITY)
    lower, upper = influence_interval(block.value, block.error, scale)
    kind = INFLUENCE
    if block.replicates is not None:
        lower, upper = percentile_interval(block.replicates)
        kind = BOOTSTRAP
    # The integral over horizons is one number, at the largest.
    horizons = slice(-1, None) if block.metric.startswith(INTEGRATED_BRIER) else slice(None)
    is_missing = np.isnan(lower[:, horizons]).ravel().tolist()
    keys = list(product(predictors, names.horizons[horizons].tolist()))
    n_rows = len(keys)

    def flat(values: FloatArray) -> pl.Series:
        return pl.Series(values[:, horizons].ravel(), dtype=pl.Float64, nan_to_null=True)

    return pl.DataFrame(
        {
            Metrics.predictor.name: [predictor for predictor, _ in keys],
            Metrics.outcome.name: [outcome] * n_rows,
            Metrics.landmark.name: [names.landmark] * n_rows,
            Metrics.horizon_days.name: [horizon for _, horizon in keys],
            Metrics.subgroup.name: [subgroup] * n_rows,
            Metrics.metric.name: [block.metric] * n_rows,
            Metrics.estimate.name: flat(block.value),
            Metrics.lower.name: flat(lower),
            Metrics.upper.name: flat(upper),
            Metrics.n.name: suppress_small(np.tile(counts.people[horizons], len(predictors))),
            Metrics.n_events.name: suppress_small(np.tile(counts.cases[horizons], len(predictors))),
            Metrics.standard_error.name: flat(np.where(np.isnan(block.value), np.nan, block.error)),
            Metrics.interval.name: [None if missing else kind for missing in is_missing],
        },
        schema=Metrics.create_empty().schema,
    )


def estimate_blocks(found: Estimates, replicates: Mapping[str, FloatArray] | None) -> list[Block]:
    """Return a block for each metric of one sample."""
    return [
        Block(metric, found.value[metric], found.error[metric], None if replicates is None else replicates.get(metric))
        for metric in found.value
    ]


def difference_blocks(
    found: Estimates, replicates: Mapping[str, FloatArray] | None, names: Names, cluster: IntArray | None
) -> list[Block]:
    """Return a block of differences between predictors for each compared metric: paired over the same people."""
    first, second = ([pair[position] for pair in names.pairs()] for position in (0, 1))
    blocks = []
    for metric in COMPARED_METRICS if first else ():
        error = standard_error(found.influence[metric][first] - found.influence[metric][second], cluster)
        resampled = None if replicates is None else replicates.get(metric)
        blocks.append(
            Block(
                metric + DIFFERENCE_SUFFIX,
                found.value[metric][first] - found.value[metric][second],
                error,
                None if resampled is None else resampled[first] - resampled[second],
            )
        )
    return blocks


def calibration_rows(found: Estimates, names: Names, outcome: str, subgroup: str) -> pl.DataFrame:
    """Lay calibration by groups of risk out as rows of `CalibrationGroups`; groups of under 10 cases are not there."""
    groups = [group for group in found.groups if group.n_cases >= SMALLEST_SHOWN_COUNT]
    return pl.DataFrame(
        {
            CalibrationGroups.predictor.name: [names.predictors[group.predictor] for group in groups],
            CalibrationGroups.outcome.name: [outcome] * len(groups),
            CalibrationGroups.landmark.name: [names.landmark] * len(groups),
            CalibrationGroups.horizon_days.name: [float(names.horizons[group.horizon]) for group in groups],
            CalibrationGroups.subgroup.name: [subgroup] * len(groups),
            CalibrationGroups.group.name: [group.group + 1 for group in groups],
            CalibrationGroups.n.name: [group.n for group in groups],
            CalibrationGroups.n_events.name: [group.n_cases for group in groups],
            CalibrationGroups.predicted.name: [group.predicted for group in groups],
            CalibrationGroups.observed.name: [group.observed for group in groups],
            CalibrationGroups.lower.name: [group.lower for group in groups],
            CalibrationGroups.upper.name: [group.upper for group in groups],
        },
        schema=CalibrationGroups.create_empty().schema,
    ).with_columns(pl.selectors.float().fill_nan(None))


def curve_rows(found: Estimates, names: Names, outcome: str, subgroup: str) -> pl.DataFrame:
    """Lay smooth calibration curves out as rows of `CalibrationCurve`."""
    parts = [
        pl.DataFrame(
            {
                **_keys(names, outcome, subgroup, p, h, curve.predicted.size),
                CalibrationCurve.predicted.name: curve.predicted,
                CalibrationCurve.observed.name: curve.observed,
                CalibrationCurve.lower.name: curve.lower,
                CalibrationCurve.upper.name: curve.upper,
            }
        )
        for (p, h), curve in found.curves.items()
    ]
    return pl.concat([CalibrationCurve.create_empty(), *parts])


def decision_rows(found: Estimates, names: Names, outcome: str, subgroup: str) -> pl.DataFrame:
    """Lay decision curves out as rows of `DecisionCurve`."""
    parts = [
        pl.DataFrame(
            {
                **_keys(names, outcome, subgroup, p, h, THRESHOLDS.size),
                DecisionCurve.threshold.name: THRESHOLDS,
                DecisionCurve.net_benefit.name: benefit.value,
                DecisionCurve.lower.name: benefit.lower,
                DecisionCurve.upper.name: benefit.upper,
                DecisionCurve.treat_all.name: benefit.treat_all,
            }
        )
        for (p, h), benefit in found.net_benefits.items()
    ]
    return pl.concat([DecisionCurve.create_empty(), *parts]).with_columns(pl.selectors.float().fill_nan(None))


def _keys(names: Names, outcome: str, subgroup: str, p: int, h: int, n_rows: int) -> dict[str, list[str] | list[float]]:
    return {
        DecisionCurve.predictor.name: [names.predictors[p]] * n_rows,
        DecisionCurve.outcome.name: [outcome] * n_rows,
        DecisionCurve.landmark.name: [names.landmark] * n_rows,
        DecisionCurve.horizon_days.name: [float(names.horizons[h])] * n_rows,
        DecisionCurve.subgroup.name: [subgroup] * n_rows,
    }


@dataclass(frozen=True)
class KnownAtHorizons:
    """What is known of one outcome at each horizon, arrays [H]."""

    n: IntArray
    n_events: IntArray
    n_died: IntArray
    n_censored: IntArray
    followed_probability: FloatArray
    effective_sample_size: FloatArray
    is_unstable: BoolArray


def censoring_rows(known: KnownAtHorizons, names: Names, outcome: str) -> pl.DataFrame:
    """Lay what is known at the horizons out as rows of `CensoringSummary`."""
    n_rows = names.horizons.size
    size = np.where(known.n >= SMALLEST_SHOWN_COUNT, known.effective_sample_size, np.nan)
    return pl.DataFrame(
        {
            CensoringSummary.outcome.name: [outcome] * n_rows,
            CensoringSummary.landmark.name: [names.landmark] * n_rows,
            CensoringSummary.horizon_days.name: names.horizons,
            CensoringSummary.n.name: suppress_small(known.n),
            CensoringSummary.n_events.name: suppress_small(known.n_events, zero_is_shown=True),
            CensoringSummary.n_died.name: suppress_small(known.n_died, zero_is_shown=True),
            CensoringSummary.n_censored.name: suppress_small(known.n_censored, zero_is_shown=True),
            CensoringSummary.followed_probability.name: known.followed_probability,
            CensoringSummary.effective_sample_size.name: pl.Series(size, nan_to_null=True),
            CensoringSummary.is_unstable.name: known.is_unstable,
        },
        schema=CensoringSummary.create_empty().schema,
    )


def suppress_small(counts: IntArray, *, zero_is_shown: bool = False) -> list[int | None]:
    """Replace counts under 10 by null, but for 0 where that may be shown."""
    return [
        None if count < SMALLEST_SHOWN_COUNT and not (zero_is_shown and count == 0) else int(count) for count in counts
    ]
