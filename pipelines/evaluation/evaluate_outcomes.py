"""The loop over outcomes: from an iterator of arrays to result tables, in this process or shared out to several.

Outcomes are read, judged and dropped one at a time, so memory does not grow with their number. K outcomes, P
predictors, H horizons, N rows of the landmark.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeAlias

import dataframely as dy
import numpy as np
import polars as pl

from data_schemas.results import (
    CENSORED,
    COMPETING_DEATH,
    CONCORDANCE,
    OVERALL,
    SMALLEST_FOLLOWED_PROBABILITY,
    SMALLEST_SHOWN_COUNT,
    VERSUS_REST_SUFFIX,
    CalibrationCurve,
    CalibrationGroups,
    CensoringSummary,
    DecisionCurve,
    EvaluatedOutcomes,
    Metrics,
)
from pipelines.evaluation.array_types import FloatArray
from pipelines.evaluation.bootstrap import draw_person_weights
from pipelines.evaluation.bootstrap_metrics import replicate_metrics
from pipelines.evaluation.censoring_weights import fit_censoring
from pipelines.evaluation.estimate_metrics import KEPT_METRICS, Estimates, Landmark, estimate_metrics
from pipelines.evaluation.influence import standard_error
from pipelines.evaluation.macro_means import MacroSums, add_outcome, macro_rows, no_outcomes
from pipelines.evaluation.metrics_table import (
    Block,
    Counts,
    KnownAtHorizons,
    Names,
    block_rows,
    calibration_rows,
    censoring_rows,
    curve_rows,
    decision_rows,
    difference_blocks,
    estimate_blocks,
    suppress_small,
)
from pipelines.evaluation.outcome_sample import LandmarkPeople, OutcomeSample

MIN_CASES = 20
BOOTSTRAP_SEED = 20240229
PARTS_A_WORKER = 4  # smaller parts finish more evenly, larger ones carry fewer sums back

SampleSource: TypeAlias = Callable[[], OutcomeSample]


@dataclass(frozen=True)
class InMemory:
    """A source whose arrays are already there."""

    sample: OutcomeSample

    def __call__(self) -> OutcomeSample:
        """Return them."""
        return self.sample


@dataclass(frozen=True)
class EvaluationPlan:
    """What is asked of the outcomes of one landmark."""

    predictors: tuple[str, ...]
    landmark: str
    horizons_days: tuple[float, ...]
    macro_outcomes: frozenset[str] | None = None  # None: all that are judged
    partial_predictors: frozenset[str] = frozenset()  # those of some outcomes alone, which are in no macro mean
    min_cases: int = MIN_CASES
    bootstrap_outcomes: frozenset[str] = frozenset()
    n_bootstrap: int = 0
    seed: int = BOOTSTRAP_SEED


@dataclass(frozen=True)
class EvaluationResult:
    """What came out: one table each of the schemas of `data_schemas/results.py`."""

    metrics: pl.DataFrame  # `Metrics`
    calibration: pl.DataFrame  # `CalibrationGroups`
    outcomes: pl.DataFrame  # `EvaluatedOutcomes`
    calibration_curve: pl.DataFrame  # `CalibrationCurve`
    decision_curve: pl.DataFrame  # `DecisionCurve`
    censoring: pl.DataFrame  # `CensoringSummary`


def evaluate_outcomes(
    sources: Iterable[SampleSource], people: LandmarkPeople, plan: EvaluationPlan, *, n_workers: int = 1
) -> EvaluationResult:
    """Judge outcomes one by one; each source makes the arrays of one when it is called.

    With several workers sources must be picklable (a small object that knows its file), and are called there; workers
    are new processes that import what they need, so OMP_NUM_THREADS=1 should be set. Rows are in the order of sources.
    """
    if n_workers == 1:
        parts = [_evaluate_part(sources, people, plan)]
    else:
        listed = list(sources)
        n_parts = min(max(len(listed), 1), n_workers * PARTS_A_WORKER)
        shares = [listed[len(listed) * i // n_parts : len(listed) * (i + 1) // n_parts] for i in range(n_parts)]
        with ProcessPoolExecutor(
            n_workers, mp_context=get_context("spawn"), initializer=_set_up, initargs=(people, plan)
        ) as pool:
            parts = list(pool.map(_evaluate_share, shares))
    return _join_parts(parts, people, plan)


_SHARED: list[tuple[LandmarkPeople, EvaluationPlan]] = []  # of a worker process, sent once


def _set_up(people: LandmarkPeople, plan: EvaluationPlan) -> None:
    _SHARED[:] = [(people, plan)]


def _evaluate_share(sources: Sequence[SampleSource]) -> "_Part":
    return _evaluate_part(sources, *_SHARED[0])


_SCHEMAS: dict[str, type[dy.Schema]] = {
    "metrics": Metrics,
    "calibration": CalibrationGroups,
    "outcomes": EvaluatedOutcomes,
    "calibration_curve": CalibrationCurve,
    "decision_curve": DecisionCurve,
    "censoring": CensoringSummary,
}


@dataclass
class _Part:
    """Tables of some outcomes, and sums of those in the macro mean: over all people, and by subgroup."""

    tables: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: {name: [] for name in _SCHEMAS})
    macro: dict[str, MacroSums] = field(default_factory=dict)

    def add_to_macro(
        self,
        subgroup: str,
        sample: OutcomeSample,
        found: Estimates,
        names: Names,
        replicates: dict[str, FloatArray] | None = None,
        n_resampled: FloatArray | None = None,
    ) -> None:
        """Add one outcome to the sums of a subgroup."""
        _, n_horizons, n_rows = found.influence[CONCORDANCE].shape
        n_weights = 0 if n_resampled is None else n_resampled.size
        if subgroup not in self.macro:
            self.macro[subgroup] = no_outcomes(len(names.at_whole()), n_horizons, n_rows, n_weights)
        sums = self.macro[subgroup]
        add_outcome(sums, sample, found, names, replicates, n_resampled)


def _evaluate_part(sources: Iterable[SampleSource], people: LandmarkPeople, plan: EvaluationPlan) -> _Part:
    names = Names(plan.predictors, plan.landmark, np.array(plan.horizons_days), plan.partial_predictors)
    censoring = fit_censoring(people.followed_days, people.is_censored, people.stratum)
    landmark = Landmark(names.horizons, censoring, people.cluster)
    weights = None
    if plan.n_bootstrap and plan.bootstrap_outcomes:
        n_people = int(people.person.max(initial=-1)) + 1
        weights = draw_person_weights(n_people, plan.n_bootstrap, plan.seed)[:, people.person]
    part = _Part()
    for source in sources:
        sample = source()
        least = max(plan.min_cases, SMALLEST_SHOWN_COUNT)
        is_judged = sample.count_cases(names.horizons[-1]) >= least
        part.tables["outcomes"].append(_outcome_row(sample, names, is_judged=is_judged))
        part.tables["censoring"].append(censoring_rows(_known_at_horizons(sample, landmark), names, sample.outcome))
        if is_judged:
            _judge(part, sample, people, landmark, names, plan, weights)
    return part


def _judge(
    part: _Part,
    sample: OutcomeSample,
    people: LandmarkPeople,
    landmark: Landmark,
    names: Names,
    plan: EvaluationPlan,
    weights: FloatArray | None,
) -> None:
    """Add the rows of one outcome, over all people and by subgroup."""
    found = estimate_metrics(sample, landmark)
    replicates = None
    if weights is not None and sample.outcome in plan.bootstrap_outcomes:
        replicates = replicate_metrics(sample, names.horizons, people, weights)
        _check_against_lifelines(found, replicates)
    counts = _count(sample, names)
    part.tables["metrics"] += [
        block_rows(estimate_blocks(found, replicates), names.predictors, names, sample.outcome, OVERALL, counts),
        block_rows(
            difference_blocks(found, replicates, names, people.cluster),
            names.pair_names(), names, sample.outcome, OVERALL, counts,
        ),
    ]  # fmt: skip
    for table, rows in (
        ("calibration", calibration_rows), ("calibration_curve", curve_rows), ("decision_curve", decision_rows),
    ):  # fmt: skip
        part.tables[table].append(rows(found, names, sample.outcome, OVERALL))
    is_in_macro = plan.macro_outcomes is None or sample.outcome in plan.macro_outcomes
    if is_in_macro:
        n_resampled = None if weights is None else weights[:, sample.row].sum(axis=1)
        part.add_to_macro(OVERALL, sample, found, names, replicates, n_resampled)
    for subgroup, is_inside in people.subgroups.items():
        inside, rest = sample.select(is_inside[sample.row]), sample.select(~is_inside[sample.row])
        of_inside, of_rest = (estimate_metrics(some, landmark, with_curves=False) for some in (inside, rest))
        part.tables["metrics"] += _subgroup_rows(inside, rest, of_inside, of_rest, subgroup, landmark, names)
        if is_in_macro:
            part.add_to_macro(subgroup, inside, of_inside, names)


def _subgroup_rows(
    inside: OutcomeSample,
    rest: OutcomeSample,
    found: Estimates,
    other: Estimates,
    subgroup: str,
    landmark: Landmark,
    names: Names,
) -> list[pl.DataFrame]:
    """Return all metrics of the people inside, and kept ones as differences to everyone else.

    The censoring curve is that of the landmark, not of the subgroup.
    """
    counts = _count(inside, names)
    least = Counts(counts.people, np.minimum(counts.cases, _count(rest, names).cases))
    differences = [
        Block(
            metric + VERSUS_REST_SUFFIX,
            found.value[metric] - other.value[metric],
            standard_error(found.influence[metric] - other.influence[metric], landmark.cluster),
        )
        for metric in KEPT_METRICS
    ]
    return [
        block_rows(estimate_blocks(found, None), names.predictors, names, inside.outcome, subgroup, counts),
        block_rows(differences, names.predictors, names, inside.outcome, subgroup, least),
    ]


def _check_against_lifelines(found: Estimates, replicates: dict[str, FloatArray]) -> None:
    """Both forms of the concordance are the same number: ours over tables of sums, and lifelines'."""
    assert np.allclose(found.value[CONCORDANCE], replicates[CONCORDANCE][..., 0], atol=1e-9, equal_nan=True)


def _count(sample: OutcomeSample, names: Names) -> Counts:
    cases = np.array([sample.count_cases(horizon) for horizon in names.horizons], dtype=np.int64)
    return Counts(np.full(cases.size, sample.row.size, dtype=np.int64), cases)


def _known_at_horizons(sample: OutcomeSample, landmark: Landmark) -> KnownAtHorizons:
    before = sample.time <= landmark.horizons[:, None]
    days_before = landmark.censoring.days_before(sample.time)
    probability, size = [], []
    for horizon in landmark.horizons:
        known = landmark.censoring.weigh(sample.time, sample.status, horizon, sample.row, days_before)
        probability.append(landmark.censoring.followed_beyond(horizon, sample.row))
        squares = float(np.square(known.weight).sum())
        size.append(float(known.weight.sum()) ** 2 / squares if squares > 0 else np.nan)
    followed = np.array(probability)
    return KnownAtHorizons(
        n=np.full(landmark.horizons.size, sample.row.size, dtype=np.int64),
        n_events=np.array([sample.count_cases(horizon) for horizon in landmark.horizons], dtype=np.int64),
        n_died=np.count_nonzero(before & (sample.status == COMPETING_DEATH), axis=1),
        n_censored=np.count_nonzero(before & (sample.status == CENSORED), axis=1),
        followed_probability=followed,
        effective_sample_size=np.array(size),
        is_unstable=followed < SMALLEST_FOLLOWED_PROBABILITY,
    )


def _outcome_row(sample: OutcomeSample, names: Names, *, is_judged: bool) -> pl.DataFrame:
    def shown(count: int, *, zero: bool = False) -> list[int | None]:
        return suppress_small(np.array([count]), zero_is_shown=zero)

    return pl.DataFrame(
        {
            EvaluatedOutcomes.outcome.name: [sample.outcome],
            EvaluatedOutcomes.landmark.name: [names.landmark],
            EvaluatedOutcomes.n.name: shown(sample.row.size),
            EvaluatedOutcomes.n_without_risk.name: shown(sample.n_without_risk, zero=True),
            EvaluatedOutcomes.n_events.name: shown(sample.count_cases(names.horizons[-1])),
            EvaluatedOutcomes.is_judged.name: [is_judged],
        },
        schema=EvaluatedOutcomes.create_empty().schema,
    )


def _join_parts(parts: Iterable[_Part], people: LandmarkPeople, plan: EvaluationPlan) -> EvaluationResult:
    """Put the tables of all parts together and finish what is over several outcomes."""
    names = Names(plan.predictors, plan.landmark, np.array(plan.horizons_days), plan.partial_predictors)
    tables: dict[str, list[pl.DataFrame]] = {name: [schema.create_empty()] for name, schema in _SCHEMAS.items()}
    macro: dict[str, MacroSums] = {}
    for part in parts:
        for name, frames in part.tables.items():
            tables[name] += frames
        for subgroup, sums in part.macro.items():
            if subgroup in macro:
                macro[subgroup].add(sums)
            else:
                macro[subgroup] = sums
    tables["metrics"] += [macro_rows(sums, names, people.cluster, subgroup) for subgroup, sums in macro.items()]
    return EvaluationResult(**{name: pl.concat(frames) for name, frames in tables.items()})
