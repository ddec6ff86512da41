"""What every network and floor of the Delphi benchmark is judged by, on the same held-out people and targets.

A model is a function from a batch of histories and rows of it to the hazards after those rows. B subjects, L events,
N intervals, K outcomes, J of them judged by an AUC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from benchmarks.delphi_auc import LandmarkScores, landmark_auc
from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.sequence_batch import NextTargets, SequenceBatch
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.evaluation.delphi_protocol import N_BANDS, Lives, RowScores, age_band, delphi_auc
from pipelines.sequence_files import SequenceShard


class Hazards(Protocol):
    """What is asked of the hazards after some rows [N,K]; `CauseHazards` of a network are such."""

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log h_k(u), per year."""

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return H_k(u)."""

    def total_at_risk(self, u_years: Tensor, at_risk: Tensor) -> Tensor:
        """Return Σ_k H_k(u) over the causes at risk [N], for one time a row [N]."""

    def after(self, elapsed_years: Tensor) -> "Hazards":
        """Return the law of the time that remains when nothing has happened for some years [N,1]."""

    def pick(self, rows: Tensor, causes: Tensor) -> Self:
        """Return the law of pairs of rows and causes that broadcast."""


Predict = Callable[[SequenceBatch, Tensor], Hazards]  # rows are numbered b·L + l
Pad = Callable[[SequenceShard], tuple[SequenceBatch, NextTargets]]

LANDMARKS_YEARS = (40, 45, 50, 55, 60, 65, 70)  # nobody is observed beyond 80
HORIZON_YEARS = 5
FEWEST_CASES = 20
_PEOPLE_AT_A_TIME = 128
_SEED = 20  # of the random row that stands for a control


@dataclass(frozen=True)
class Quality:
    """The figures of one model."""

    log_likelihood_per_event: float
    macro_auc: float
    delphi_auc: float
    death_auc: float  # by Delphi's protocol


@dataclass(frozen=True)
class _Places:
    """Where the intervals of some people start; those of one person stand together, by age."""

    person: IntArray  # [N]
    start_days: FloatArray  # [N]


@dataclass(frozen=True)
class _Scored:
    """What is kept of some people: sums, and the few rows that an AUC looks at."""

    log_likelihood: float
    n_events: int
    rows: RowScores
    landmarks: list[LandmarkScores]


def evaluate(predict: Predict, pad: Pad, people: SequenceShard, outcome_of_token: IntArray, death: int) -> Quality:
    """Judge a model on people.

    `log_likelihood_per_event`, nats: Σ log h_k at events − Σ H_k over all intervals at risk, up to exit, hazards per
    year, divided by the disease and death events. `macro_auc`: `landmark_auc` at ages 40, 45 … 70 for the 5 years
    after, mean over outcomes with 20 cases or more; the score is the cumulative hazard of those years given the history
    up to the landmark. `delphi_auc` and `death_auc`: Delphi's own protocol, mean over outcomes with 20 events or more;
    the score is the expected number in the year after the row, which orders constant hazards as their rates do.

    Args:
        predict: the model.
        pad: gives the histories of some people with all their intervals.
        people: the P people judged.
        outcome_of_token: column of the outcome of each token, -1 for none.
        death: column of death.
    """
    columns, lives = _lives(people, outcome_of_token, death)
    rng = np.random.default_rng(_SEED)
    parts = [_score(predict, pad, people, members, columns, rng) for members in _people_by_length(people)]
    n_events = sum(part.n_events for part in parts)
    by_landmark = [_join_landmarks(at) for at in zip(*(part.landmarks for part in parts), strict=True)]
    at_landmarks, n_cases = landmark_auc(lives, by_landmark, years_to_days(HORIZON_YEARS))
    at_rows = delphi_auc(lives, _join_rows([part.rows for part in parts]))
    return Quality(
        log_likelihood_per_event=sum(part.log_likelihood for part in parts) / n_events,
        macro_auc=float(np.nanmean(at_landmarks[n_cases >= FEWEST_CASES])),
        delphi_auc=float(np.nanmean(at_rows)),
        death_auc=float(at_rows[columns == death].mean()),
    )


def _lives(people: SequenceShard, outcome_of_token: IntArray, death: int) -> tuple[IntArray, Lives]:
    """Return the outcomes [J] with cases enough, and what became of everybody; an occurrence after exit is none."""
    owner, outcome = people.owner_of_first(), outcome_of_token[people.first_tokens]
    first = np.full((len(people), int(outcome_of_token.max()) + 1), np.inf)  # [P,K]
    seen = people.first_ages_days <= people.exit_age_days[owner]
    first[owner[seen], outcome[seen]] = people.first_ages_days[seen]
    is_case = np.isfinite(first) & (first > people.entry_age_days[:, None])
    columns = np.flatnonzero(is_case.sum(axis=0) >= FEWEST_CASES)
    return columns, Lives(people.sex.astype(np.int64), people.exit_age_days, first[:, columns], first[:, death])


def _people_by_length(people: SequenceShard) -> list[IntArray]:
    order = np.argsort(np.diff(people.offsets), kind="stable")
    return np.split(order, range(_PEOPLE_AT_A_TIME, len(order), _PEOPLE_AT_A_TIME))


@torch.inference_mode()
def _score(
    predict: Predict, pad: Pad, people: SequenceShard, members: IntArray, columns: IntArray, rng: np.random.Generator
) -> _Scored:
    """Score some people once; only sums and the rows that an AUC looks at are kept."""
    batch, targets = pad(people.take(members))
    hazards = predict(batch, targets.row)
    lived = hazards.total_at_risk(targets.interval_years, targets.at_risk).sum(dtype=torch.float64)
    event_years = targets.interval_years[targets.event_interval]
    of_events = hazards.pick(targets.event_interval, targets.event_outcome).log_hazard(event_years)
    place = _Places(
        person=members[(targets.row // batch.tokens.shape[1]).numpy()],
        start_days=batch.ages_days.flatten()[targets.row].double().numpy(),
    )
    return _Scored(
        log_likelihood=float(of_events.sum(dtype=torch.float64) - lived),
        n_events=len(targets.event_interval),
        rows=_row_scores(hazards, targets, place, columns, rng),
        landmarks=_landmark_scores(hazards, place, people, columns),
    )


def _row_scores(
    hazards: Hazards, targets: NextTargets, place: _Places, columns: IntArray, rng: np.random.Generator
) -> RowScores:
    """Return the scores of the events and of one random row of each person and band of age."""
    a_year, outcomes = torch.ones(1), torch.from_numpy(columns)
    judged = torch.isin(targets.event_outcome, outcomes)
    interval, outcome = targets.event_interval[judged], targets.event_outcome[judged]
    band = age_band(place.start_days)
    drawn = rng.permutation(len(band))
    drawn = drawn[band[drawn] >= 0]
    _, first = np.unique(place.person[drawn] * N_BANDS + band[drawn], return_index=True)
    control = drawn[first]
    of_controls = hazards.pick(torch.from_numpy(control)[:, None], outcomes).cumulative_hazard(a_year)
    return RowScores(
        case_person=place.person[interval.numpy()],
        case_outcome=np.searchsorted(columns, outcome.numpy()),
        case_band=band[interval.numpy()],
        case_score=hazards.pick(interval, outcome).cumulative_hazard(a_year).numpy(),
        control_person=place.person[control],
        control_band=band[control],
        control_score=of_controls.numpy(),
    )


def _landmark_scores(
    hazards: Hazards, place: _Places, people: SequenceShard, columns: IntArray
) -> list[LandmarkScores]:
    """Return the cumulative hazards of the years after each landmark, given the history up to it."""
    landmark, interval, waited_years = _landmark_rows(place, people)
    picked = hazards.pick(torch.from_numpy(interval)[:, None], torch.from_numpy(columns))
    ahead = picked.after(torch.from_numpy(waited_years)[:, None].float())
    score = ahead.cumulative_hazard(torch.tensor([float(HORIZON_YEARS)])).numpy()
    return [
        LandmarkScores(years_to_days(age), place.person[interval[landmark == number]], score[landmark == number])
        for number, age in enumerate(LANDMARKS_YEARS)
    ]


def _landmark_rows(place: _Places, people: SequenceShard) -> tuple[IntArray, IntArray, FloatArray]:
    """Return landmark, interval that holds it and years since its start, of everybody under observation then."""
    is_last = np.append(place.person[1:] != place.person[:-1], True)
    ends_days = np.where(is_last, people.exit_age_days[place.person], np.append(place.start_days[1:], np.inf))
    landmarks_days = years_to_days(1.0) * np.array(LANDMARKS_YEARS)[:, None]
    landmark, interval = np.nonzero((place.start_days <= landmarks_days) & (landmarks_days < ends_days))
    waited_days = landmarks_days[landmark, 0] - place.start_days[interval]
    return landmark, interval, waited_days / DAYS_PER_YEAR


def _join_rows(parts: Sequence[RowScores]) -> RowScores:
    names = [field.name for field in fields(RowScores)]
    return RowScores(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _join_landmarks(parts: Sequence[LandmarkScores]) -> LandmarkScores:
    return LandmarkScores(
        parts[0].landmark_days,
        np.concatenate([part.person for part in parts]),
        np.concatenate([part.score for part in parts]),
    )
