"""What is known at each horizon: how many had the outcome, died, were lost; how far the numbers can be trusted."""

from dataclasses import dataclass

import polars as pl

from app.report.format_numbers import NOTHING, count, counts_beside, decimals, years
from app.report.read_evaluation import CENSORING, LEFT_OUT, OVER_SEVERAL, Evaluation
from data_schemas.cohort import DEATH_CODE
from data_schemas.evaluation_tables import PeopleLeftOut
from data_schemas.results import CensoringSummary, EvaluatedOutcomes, Metrics
from pipelines.small_counts import show_count, withhold_small

N_OUTCOMES_FOLLOWED = 20


@dataclass(frozen=True)
class LandmarkFollowUp:
    """One landmark and horizon: people at risk, and the chance of being followed so long."""

    landmark: str
    horizon: str
    people: str
    followed: str
    effective: str
    is_unstable: bool


@dataclass(frozen=True)
class OutcomeFollowUp:
    """One outcome at the first landmark and horizon."""

    outcome: str
    people: str
    cases: str
    died: str
    lost: str
    followed_beyond: str


def tabulate_landmarks(evaluation: Evaluation) -> list[LandmarkFollowUp]:
    """Return a row for each landmark and horizon; people are those of the outcome with most at risk (death: all)."""
    keys = (CensoringSummary.landmark.name, CensoringSummary.horizon_days.name)
    rows = (
        evaluation[CENSORING]
        .sort(CensoringSummary.n.name, descending=True, nulls_last=True, maintain_order=True)
        .unique(keys, keep="first", maintain_order=True)
        .sort(CensoringSummary.horizon_days.name, maintain_order=True)
    )
    order = {landmark: place for place, landmark in enumerate(evaluation.landmarks)}
    found = sorted(
        rows.iter_rows(named=True), key=lambda row: order.get(row[CensoringSummary.landmark.name], len(order))
    )
    return [
        LandmarkFollowUp(
            landmark=row[CensoringSummary.landmark.name],
            horizon=years(row[CensoringSummary.horizon_days.name]),
            people=count(row[CensoringSummary.n.name]),
            followed=decimals(row[CensoringSummary.followed_probability.name]),
            effective=_whole(row[CensoringSummary.effective_sample_size.name]),
            is_unstable=row[CensoringSummary.is_unstable.name],
        )
        for row in found
    ]


def tabulate_follow_up(evaluation: Evaluation) -> list[OutcomeFollowUp]:
    """Return what became of the people at risk of each outcome by the first horizon, most cases first."""
    rows = (
        evaluation[CENSORING]
        .filter(
            CensoringSummary.landmark.col == evaluation.landmark,
            CensoringSummary.horizon_days.col == evaluation.horizon_days,
            ~CensoringSummary.outcome.col.is_in(OVER_SEVERAL),
        )
        .sort(CensoringSummary.n_events.name, descending=True, nulls_last=True, maintain_order=True)
        .head(N_OUTCOMES_FOLLOWED)
    )
    return [_outcome_row(row) for row in rows.iter_rows(named=True)]


def unstable_horizons(evaluation: Evaluation) -> list[str]:
    """Name landmarks and horizons at which few people stand for many."""
    rows = evaluation[CENSORING].filter(CensoringSummary.is_unstable.col)
    keys = (CensoringSummary.landmark.name, CensoringSummary.horizon_days.name)
    return [
        f"{years(horizon)} after {landmark}"
        for landmark, horizon in rows.select(keys).unique(maintain_order=True).rows()
    ]


def people_at_landmarks(evaluation: Evaluation) -> dict[str, str]:
    """Return the largest number at risk of any outcome at each landmark: of death, everyone who is alive."""
    rows = evaluation.metrics.filter(~Metrics.outcome.col.is_in(OVER_SEVERAL)).group_by(
        Metrics.landmark.name, maintain_order=True
    )
    return {landmark: count(n) for landmark, n in rows.agg(Metrics.n.col.max()).rows()}


def tabulate_left_out(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Return who was left out of the gap after the first landmark: outcome, gap in days, and four counts."""
    columns = (
        PeopleLeftOut.n_at_risk,
        PeopleLeftOut.n_with_outcome,
        PeopleLeftOut.n_died,
        PeopleLeftOut.n_not_followed,
    )
    rows = (
        evaluation[LEFT_OUT]
        .filter(PeopleLeftOut.landmark.col == evaluation.landmark)
        .sort(PeopleLeftOut.n_with_outcome.name, descending=True, nulls_last=True, maintain_order=True)
        .head(N_OUTCOMES_FOLLOWED)
    )
    return [
        (
            row[PeopleLeftOut.outcome.name],
            f"{row[PeopleLeftOut.gap_days.name]:g}",
            *(show_count(row[column.name]) for column in columns),
        )
        for row in rows.iter_rows(named=True)
    ]


def _outcome_row(row: dict[str, object]) -> OutcomeFollowUp:
    n, cases, died, lost = (
        _as_count(row[column])
        for column in (
            CensoringSummary.n.name,
            CensoringSummary.n_events.name,
            CensoringSummary.n_died.name,
            CensoringSummary.n_censored.name,
        )
    )
    if n is None or cases is None or died is None or lost is None:
        beyond = NOTHING  # with a count withheld, the rest would tell it
    else:
        died, lost, rest = counts_beside([died, lost, withhold_small(n - cases - died - lost)], n - cases)
        beyond = show_count(rest)
    outcome = str(row[CensoringSummary.outcome.name])
    return OutcomeFollowUp(
        outcome=outcome,
        people=count(n),
        cases=count(cases),
        died=NOTHING if outcome == DEATH_CODE else show_count(died),
        lost=show_count(lost),
        followed_beyond=beyond,
    )


def _as_count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def judged_by_landmark(outcomes: pl.DataFrame) -> list[tuple[str, int, int]]:
    """Count outcomes that were judged and that had too few cases, for each landmark."""
    grouped = outcomes.group_by(EvaluatedOutcomes.landmark.name, maintain_order=True).agg(
        EvaluatedOutcomes.is_judged.col.sum().alias("judged"), pl.len().alias("all")
    )
    return [(landmark, int(judged), int(total - judged)) for landmark, judged, total in grouped.rows()]
