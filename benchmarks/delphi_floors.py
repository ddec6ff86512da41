"""Two models that a network must beat to be worth its cost: incidence by age and sex, and a log-linear hazard.

B subjects, L events, N rows, K outcomes, A bands of one year of age, R rank, S = 3 rows of sex. Ages are in years here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import SEXES
from data_schemas.sequence_batch import NextTargets, SequenceBatch
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.sequence_files import SequenceShard

_N_BANDS = 80  # nobody is observed at 80 or later; the last rate goes on
_KNOTS_YEARS = tuple(range(0, 81, 5))  # of the age curves that the log-linear hazard adds to the incidence


@dataclass(frozen=True)
class AgeSexIncidence:
    """Incidence of each outcome by sex and year of age: a floor itself, and what the log-linear hazard starts from."""

    rate: Tensor  # [S·A,K] per year
    cumulative: Tensor  # [S·A,K] from birth to the start of the band

    @staticmethod
    def of(rate_per_year: FloatArray) -> "AgeSexIncidence":
        """Take the rates [S,A,K] and add them up from birth on."""
        cumulative = np.cumsum(rate_per_year, axis=1) - rate_per_year
        rate, total = (torch.from_numpy(table).float().flatten(0, 1) for table in (rate_per_year, cumulative))
        return AgeSexIncidence(rate, total)

    def __call__(self, batch: SequenceBatch, rows: Tensor) -> "AgeSexHazards":
        """Return the hazards after rows b·L + l [N] of a batch."""
        age_years = batch.ages_days.flatten()[rows, None] / DAYS_PER_YEAR
        sex = batch.sex[rows // batch.tokens.shape[1], None]
        n_outcomes = self.rate.shape[1]
        return AgeSexHazards(self, sex, age_years, torch.arange(n_outcomes), torch.zeros(1, n_outcomes))


@dataclass(frozen=True)
class AgeSexHazards:
    """h_k(u) = exp(score_k) · incidence of k at the age then and the sex. N rows × K outcomes, or pairs of them."""

    incidence: AgeSexIncidence
    sex: Tensor  # [N,1]
    age_years: Tensor  # [N,1] at the row
    cause: Tensor  # [K]
    score: Tensor  # [N,K], or [1,K] where it is the same for everyone

    def log_hazard(self, u_years: Tensor) -> Tensor:
        """Return log h_k(u), per year."""
        row, _ = self._band(self.age_years + u_years)
        return self.incidence.rate[row, self.cause].log() + self.score

    def cumulative_hazard(self, u_years: Tensor) -> Tensor:
        """Return H_k(u)."""
        lived = self._from_birth(self.age_years + u_years) - self._from_birth(self.age_years)
        return lived * self.score.exp()

    def total_at_risk(self, u_years: Tensor, at_risk: Tensor) -> Tensor:
        """Return Σ_k H_k(u) over the causes at risk [N], for one time a row [N]."""
        return (self.incidence_until(u_years) * self.score.exp()).mul_(at_risk).sum(-1)

    def incidence_until(self, u_years: Tensor) -> Tensor:
        """Return the cumulative hazards without the score [N,K], for one time a row [N]: a product of matrices."""
        start = self.age_years[:, 0]
        return _of_sex(_years_by_age(start, start + u_years), self.sex[:, 0]) @ self.incidence.rate

    def after(self, elapsed_years: Tensor) -> "AgeSexHazards":
        """Return the law of the time that remains when nothing has happened for some years [N,1]."""
        return replace(self, age_years=self.age_years + elapsed_years)

    def pick(self, rows: Tensor, causes: Tensor) -> "AgeSexHazards":
        """Return the law of pairs of rows and causes that broadcast."""
        score = self.score.expand(len(self.sex), -1)[rows, causes]
        return replace(self, sex=self.sex[rows, 0], age_years=self.age_years[rows, 0], cause=causes, score=score)

    def _from_birth(self, age_years: Tensor) -> Tensor:
        row, in_band = self._band(age_years)
        return self.incidence.cumulative[row, self.cause] + in_band * self.incidence.rate[row, self.cause]

    def _band(self, age_years: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of the tables and the years since the start of the band; the last band is open."""
        band = age_years.long().clamp(0, _N_BANDS - 1)
        return self.sex * _N_BANDS + band, age_years - band


def fit_age_sex_incidence(
    people: SequenceShard, outcome_of_token: IntArray, *, smoothing_years: float = 3.0, prior_events: float = 1.0
) -> AgeSexIncidence:
    """Fit occurrence/exposure rates, smoothed over age and shrunk where events are few.

    D events and Y person-years at risk (up to the first occurrence) by sex s, year b and outcome k, both summed over
    neighbouring years with a Gaussian kernel. Each step adds α = `prior_events` events at the rate of the step before:
    rate of k at all ages and in both sexes, bent by the age curve of all outcomes → of k at b → times the ratio of
    s to both → of k at b in s:

        rate = (D + α) / (Y + α / rate before)

    Args:
        people: the training people.
        outcome_of_token: column of the outcome of each token, -1 for none.
        smoothing_years: standard deviation of the kernel.
        prior_events: α. Both were chosen by the likelihood of the tuning people, among 1 to 8 years and 0.2 to 30.
    """
    events, years = count_by_age_and_sex(people, outcome_of_token)
    distance = np.subtract.outer(np.arange(_N_BANDS), np.arange(_N_BANDS))
    kernel = np.exp(-0.5 * (distance / smoothing_years) ** 2)  # [A,A]
    near_events, near_years = kernel @ events, kernel @ years  # [S,A,K]

    overall = events.sum() / years.sum()
    rate = (events.sum((0, 1)) + 0.5) / (years.sum((0, 1)) + 0.5 / overall)  # [K]
    of_age = near_events.sum((0, 2)) / np.maximum((near_years * rate).sum((0, 2)), 1e-9)  # [A]
    rate = _shrink(near_events.sum(0), near_years.sum(0), rate * of_age[:, None], prior_events)  # [A,K]
    ratio = (events.sum(1) + prior_events) / ((years * rate).sum(1) + prior_events)  # [S,K]
    return AgeSexIncidence.of(_shrink(near_events, near_years, rate * ratio[:, None], prior_events))


def count_by_age_and_sex(people: SequenceShard, outcome_of_token: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return first occurrences under observation and person-years at risk of each outcome [S,A,K]."""
    shape = (len(SEXES), _N_BANDS, int(outcome_of_token.max()) + 1)
    owner, outcome = people.owner_of_first(), outcome_of_token[people.first_tokens]
    sex, first = people.sex.astype(np.int64)[owner], people.first_ages_days
    entry, exit_ = people.entry_age_days[owner], people.exit_age_days[owner]
    happened = (first > entry) & (first <= exit_)
    band = np.clip((first / DAYS_PER_YEAR).astype(np.int64), 0, _N_BANDS - 1)
    events = np.zeros(shape)
    np.add.at(events, (sex[happened], band[happened], outcome[happened]), 1.0)

    followed = np.zeros(shape[:2])
    np.add.at(followed, people.sex.astype(np.int64), _observed_years(people.entry_age_days, people.exit_age_days))
    lost = np.zeros((shape[0], shape[2], shape[1]))
    np.add.at(lost, (sex, outcome), _observed_years(np.clip(first, entry, exit_), exit_))
    return events, followed[..., None] - lost.transpose(0, 2, 1)


class LogLinearHazard(nn.Module):
    """log h_k = log incidence_k(age, sex) + f_k(age, sex) + Σ over past codes c of W[c,k], with W = U·V of rank R.

    f is a piecewise linear curve of age for each sex: knowing the history changes what age itself says.
    """

    def __init__(self, incidence: AgeSexIncidence, outcome_of_token: IntArray, rank: int = 48) -> None:
        """V and f start at zero, so that fitting starts from the incidence by age and sex."""
        super().__init__()
        n_outcomes = incidence.rate.shape[1]
        self.incidence = incidence
        self.row_of_token = torch.from_numpy(outcome_of_token) + 1  # of the table of codes; 0 is no code
        self.codes = nn.Embedding(n_outcomes + 1, rank, padding_idx=0)  # U
        self.effects = nn.Linear(rank + len(SEXES) * len(_KNOTS_YEARS), n_outcomes)  # V and f
        nn.init.normal_(self.codes.weight, std=1 / math.sqrt(rank))
        nn.init.zeros_(self.effects.weight)
        nn.init.zeros_(self.effects.bias)
        with torch.no_grad():
            self.codes.weight[0] = 0.0

    def forward(self, batch: SequenceBatch, rows: Tensor) -> AgeSexHazards:
        """Return the hazards after rows b·L + l [N] of a batch; a row's own code counts as past."""
        start, features = self._features(batch, rows)
        return replace(start, score=self.effects(features))

    def loss(self, batch: SequenceBatch, targets: NextTargets) -> Tensor:
        """Return the mean negative log-likelihood of an interval, but for the log-hazards of the incidence itself.

        These have no parameters; the rest is that of `next_token_negative_log_likelihood` in fewer passes over [N,K].
        """
        start, features = self._features(batch, targets.row)
        lived = start.incidence_until(targets.interval_years).mul_(targets.at_risk)
        expected = (self.effects(features).exp() * lived).sum()
        of_events = features[targets.event_interval] * self.effects.weight[targets.event_outcome]
        observed = of_events.sum() + self.effects.bias[targets.event_outcome].sum()
        mean: Tensor = (expected - observed) / len(targets.row)
        return mean

    def _features(self, batch: SequenceBatch, rows: Tensor) -> tuple[AgeSexHazards, Tensor]:
        start = self.incidence(batch, rows)
        past = self.codes(self.row_of_token[batch.tokens]).cumsum(1).flatten(0, 1)[rows]  # [N,R]
        return start, torch.cat([past, _of_sex(_age_curves(start.age_years), start.sex[:, 0])], dim=1)


@dataclass(frozen=True)
class LogLinearFit:
    """Settings of the log-linear fit, chosen by the likelihood of the tuning people."""

    epochs: int = 12
    batch_size: int = 256
    learning_rate: float = 8e-3  # falls along a cosine
    weight_decay: float = 2.0
    seed: int = 0  # of the order of people

    def count_steps(self, n_people: int) -> int:
        """Return the number of gradient steps."""
        return self.epochs * math.ceil(n_people / self.batch_size)


def fit_log_linear_hazard(
    model: LogLinearHazard,
    people: SequenceShard,
    pad: Callable[[SequenceShard], tuple[SequenceBatch, NextTargets]],
    settings: LogLinearFit,
) -> None:
    """Fit in place by the likelihood of the point process: AdamW, whose decoupled decay is the L2."""
    rng = np.random.default_rng(settings.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.count_steps(len(people)))
    for _ in range(settings.epochs):
        order = rng.permutation(len(people))
        for members in np.split(order, range(settings.batch_size, len(order), settings.batch_size)):
            loss = model.loss(*pad(people.take(members)))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def _shrink(events: FloatArray, years: FloatArray, rate_before: FloatArray, prior_events: float) -> FloatArray:
    rate: FloatArray = (events + prior_events) / (years + prior_events / rate_before)
    return rate


def _observed_years(from_days: FloatArray, to_days: FloatArray) -> FloatArray:
    """Return the years [N,A] between two ages in days."""
    start, end = (torch.from_numpy(days / DAYS_PER_YEAR) for days in (from_days, to_days))
    years: FloatArray = _years_by_age(start, end).numpy()
    return years


def _years_by_age(from_years: Tensor, to_years: Tensor) -> Tensor:
    """Return the years between two ages [N] that lie in each year of age [N,A]; the last band is open."""
    band = torch.arange(_N_BANDS)
    width = torch.ones(_N_BANDS)
    width[-1] = torch.inf
    start, end = ((age[:, None] - band).clamp(min=0.0).minimum(width) for age in (from_years, to_years))
    return end - start


def _age_curves(age_years: Tensor) -> Tensor:
    """Return the weight of each knot [N,knots] at ages [N,1]: 1 at its own age, 0 from the neighbours on."""
    knots = torch.tensor(_KNOTS_YEARS, dtype=torch.float32)
    return (1 - (age_years - knots).abs() / (knots[1] - knots[0])).clamp(min=0.0)


def _of_sex(columns: Tensor, sex: Tensor) -> Tensor:
    """Return columns [N,C] at the place of the person's sex among zeros [N,S·C]."""
    return (one_hot(sex, len(SEXES))[:, :, None] * columns[:, None, :]).flatten(1)
