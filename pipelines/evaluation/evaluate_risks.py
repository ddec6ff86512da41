"""Judge predictors of risk on the same people at one landmark: tables in, tables out.

K outcomes, P predictors, H horizons, n people of one outcome, R replicates.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from data_schemas.errors import InputContractError, Violation
from data_schemas.evaluation_tables import Subgroups
from data_schemas.results import CENSORED, Outcomes, Risks
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.evaluation.evaluate_outcomes import (
    BOOTSTRAP_SEED,
    MIN_CASES,
    EvaluationPlan,
    EvaluationResult,
    InMemory,
    evaluate_outcomes,
)
from pipelines.evaluation.outcome_sample import LandmarkPeople, OutcomeSample

__all__ = ["MIN_CASES", "N_BOOTSTRAP", "EvaluationResult", "evaluate_risks"]

N_BOOTSTRAP = 200
N_HEADLINE_OUTCOMES = 20

_LANDMARK_KEYS = (Outcomes.subject_id.name, Outcomes.landmark_age_days.name)
_KEYS = (*_LANDMARK_KEYS, Outcomes.outcome.name)
_ROW = "row"  # position among the rows of the landmark
_STRATUM = "stratum"  # a number for each stratum of censoring


def evaluate_risks(
    outcomes: pl.DataFrame,
    risks_by_predictor: Mapping[str, pl.DataFrame],
    landmark_name: str,
    horizons_days: Sequence[float],
    *,
    macro_outcomes: Sequence[str] | None = None,
    partial_predictors: Sequence[str] = (),
    min_cases: int = MIN_CASES,
    subgroups: pl.DataFrame | None = None,
    censoring_strata: pl.DataFrame | None = None,
    n_bootstrap: int = 0,
    bootstrap_outcomes: Sequence[str] | None = None,
    seed: int = BOOTSTRAP_SEED,
    n_workers: int = 1,
) -> EvaluationResult:
    """Judge every predictor on exactly the same people, at one landmark and several horizons.

    `outcomes` (schema `Outcomes`) are the people at risk, `risks_by_predictor` (schema `Risks`) what each predictor
    said; people without a risk from any predictor that knows the outcome are left out of it and counted. A person may
    have several landmarks: their rows count as one cluster. Outcomes with fewer than `min_cases` cases up to the
    largest horizon are left out and listed; where one has fewer than 10 cases up to a smaller horizon its estimates
    there are null.

    Intervals are from influence functions, for differences (`model-cox`, `model-age_sex`, …) and means over outcomes
    as well: what is compared is on the same people. With `n_bootstrap` replicates they are percentiles over resampled
    people for `bootstrap_outcomes` (default: the 20 judged outcomes with most cases), one weight matrix for all, and
    for macro means if all their outcomes are among these. The macro mean is over `macro_outcomes` (default: all that
    are judged) that have an estimate at the horizon, and so is the pooled observed/expected ratio; predictors that
    were asked for some outcomes alone (`partial_predictors`) are in neither.

    `subgroups` (schema `Subgroups`) names parts of the people, a person can be in several; each gets rows of its own,
    and rows `…_versus_rest`. `censoring_strata` has subject_id, landmark_age_days and `stratum`: the censoring curve
    is then estimated within strata. Everyone at risk must have one.

    Raises InputContractError where a predictor has two risks for one person, outcome and horizon, or none at all for
    these people and landmarks, and where a stratum is missing.
    """
    horizons = np.array(sorted(horizons_days), dtype=np.float64)
    rows = outcomes.select(_LANDMARK_KEYS).unique(maintain_order=True).with_row_index(_ROW)
    joined = outcomes.join(rows, on=_LANDMARK_KEYS, how="left", maintain_order="left")
    people = _describe_people(joined, rows, subgroups, censoring_strata)
    samples = list(_join_samples(joined, risks_by_predictor, horizons))
    if bootstrap_outcomes is None:
        by_cases = sorted(samples, key=lambda sample: -sample.count_cases(horizons[-1]))
        bootstrap_outcomes = [sample.outcome for sample in by_cases[:N_HEADLINE_OUTCOMES]]
    plan = EvaluationPlan(
        predictors=tuple(risks_by_predictor),
        landmark=landmark_name,
        horizons_days=tuple(horizons.tolist()),
        macro_outcomes=None if macro_outcomes is None else frozenset(macro_outcomes),
        partial_predictors=frozenset(partial_predictors),
        min_cases=min_cases,
        bootstrap_outcomes=frozenset(bootstrap_outcomes),
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    return evaluate_outcomes(map(InMemory, samples), people, plan, n_workers=n_workers)


def _describe_people(
    joined: pl.DataFrame, rows: pl.DataFrame, subgroups: pl.DataFrame | None, strata: pl.DataFrame | None
) -> LandmarkPeople:
    """Return how long each row is followed, from its longest outcome: the end is the same for all outcomes.

    The row of death runs to exit or death, and so does that of any outcome the person did not get.
    """
    longest = (
        joined.sort(Outcomes.time_days.name, Outcomes.status.name, descending=[True, False])
        .unique(_ROW, keep="first", maintain_order=True)
        .sort(_ROW)
    )
    person = rows.select(pl.col(Outcomes.subject_id.name).rank("dense")).to_series().to_numpy().astype(np.int64) - 1
    has_several = person.size > 0 and int(person.max()) + 1 < person.size
    return LandmarkPeople(
        followed_days=longest[Outcomes.time_days.name].to_numpy(),
        is_censored=(longest[Outcomes.status.name] == CENSORED).to_numpy(),
        cluster=person if has_several else None,
        stratum=None if strata is None else _number_strata(rows, strata),
        subgroups={} if subgroups is None else _mark_subgroups(rows, subgroups),
    )


def _number_strata(rows: pl.DataFrame, strata: pl.DataFrame) -> IntArray:
    found = rows.join(strata.unique(_LANDMARK_KEYS), on=_LANDMARK_KEYS, how="left", maintain_order="left")[_STRATUM]
    if found.null_count():
        rule = "somebody at risk has no stratum of censoring"
        raise InputContractError([Violation("censoring strata", _STRATUM, rule, found.null_count())])
    return found.rank("dense").to_numpy().astype(np.int64) - 1


def _mark_subgroups(rows: pl.DataFrame, subgroups: pl.DataFrame) -> dict[str, BoolArray]:
    """Say for each subgroup, by name, which rows are in it."""
    members = subgroups.join(rows, on=_LANDMARK_KEYS, how="inner")
    marked = {}
    for name in subgroups[Subgroups.subgroup.name].unique().sort():
        is_inside = np.zeros(rows.height, dtype=np.bool_)
        is_inside[members.filter(Subgroups.subgroup.col == name)[_ROW].to_numpy()] = True
        marked[str(name)] = is_inside
    return marked


def _join_samples(
    people: pl.DataFrame, risks_by_predictor: Mapping[str, pl.DataFrame], horizons: FloatArray
) -> Iterator[OutcomeSample]:
    """Yield the people of each outcome who have a risk from every predictor at every horizon, outcomes by name."""
    joined = people
    columns: dict[str, list[str]] = {}
    for predictor, risks in risks_by_predictor.items():
        wanted = risks.select(*_KEYS, Risks.horizon_days.name, Risks.risk.col.fill_nan(None)).join(
            people.select(_KEYS), on=_KEYS, how="semi"
        )
        _check_risks(wanted, predictor, is_needed=not people.is_empty())
        for horizon in horizons:
            column = f"{predictor} {horizon}"
            columns.setdefault(predictor, []).append(column)
            at_horizon = wanted.filter(Risks.horizon_days.col == horizon).select(*_KEYS, Risks.risk.col.alias(column))
            joined = joined.join(at_horizon, on=_KEYS, how="left", maintain_order="left")
    for key, rows in joined.sort(Outcomes.outcome.name, maintain_order=True).group_by(
        Outcomes.outcome.name, maintain_order=True
    ):
        known = [name for names in columns.values() if _is_any_known(rows.select(names)) for name in names]
        complete = rows.drop_nulls(known) if known else rows.clear()
        every = [name for names in columns.values() for name in names]
        risks_array = np.ascontiguousarray(complete.select(pl.col(every).fill_null(np.nan)).to_numpy().T)
        yield OutcomeSample(
            outcome=str(key[0]),
            row=complete[_ROW].to_numpy().astype(np.int64),
            time=complete[Outcomes.time_days.name].to_numpy(),
            status=complete[Outcomes.status.name].to_numpy().astype(np.int64),
            risks=risks_array.reshape(len(risks_by_predictor), horizons.size, complete.height),
            n_without_risk=rows.height - complete.height,
        )


def _is_any_known(risks: pl.DataFrame) -> bool:
    return risks.null_count().sum_horizontal().sum() < risks.width * risks.height


def _check_risks(risks: pl.DataFrame, predictor: str, *, is_needed: bool) -> None:
    """Raise where a risk is given twice, or where nothing fits the outcomes: both are errors of who made the table."""
    table = f"risks of '{predictor}'"
    if is_needed and risks.is_empty():
        rule = "no risk is for a person, landmark and outcome that is evaluated"
        raise InputContractError([Violation(table, Risks.landmark_age_days.name, rule)])
    is_repeated = risks.select(*_KEYS, Risks.horizon_days.name).is_duplicated()
    if is_repeated.any():
        rule = "more than one risk for a person, landmark, outcome and horizon"
        raise InputContractError([Violation(table, Risks.risk.name, rule, int(is_repeated.sum()))])
