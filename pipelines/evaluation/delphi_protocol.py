"""AUC by the protocol of the Delphi paper, so that numbers compare with those printed there.

The score is the rate at the last row that lies a stated time before the event; cases and controls are compared within
sex and 5-year band of age, and the mean over these strata is not weighted. It answers another question than an AUC at
a landmark: people who die or leave are no competing event, and controls are chosen by their whole future.

Shmatko et al. 2025, Nature 647:248–256; `evaluate_auc.py` of gerstung-lab/Delphi (there the offset is in days, by
default 0.1: the row before the event).

P people, K outcomes, C rows of controls, M events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.cohort import FEMALE, MALE, SEXES, Subjects
from data_schemas.evaluation_tables import BOTH_SEXES, DelphiAuc, RatesAtRows
from data_schemas.results import SMALLEST_SHOWN_COUNT, FirstOccurrences
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray

FIRST_BAND_YEARS, BAND_YEARS, N_BANDS = 40, 5, 8  # Delphi's bands of age: 40-44, 45-49, ... 75-79
OFFSETS_YEARS = (0.1, 5.0)
CONTROL_SEED = 20  # of the random row that stands for a control
_SEXES_JUDGED = (SEXES.index(FEMALE), SEXES.index(MALE))
_FEWEST_CASES_OF_A_SEX = 2  # with fewer Delphi's protocol skips the outcome in that sex
_SUBJECT, _AGE, _OUTCOME = RatesAtRows.subject_id.name, RatesAtRows.age_days.name, RatesAtRows.outcome.name
_RATE, _SEX = RatesAtRows.rate_per_year.name, Subjects.sex.name
_UNTIL, _BAND = "until_age_days", "band"  # working columns


@dataclass(frozen=True)
class Lives:
    """What became of the people judged."""

    sex: IntArray  # [P]
    exit_days: FloatArray  # [P]
    first_days: FloatArray  # [P,K] age at the first occurrence, infinite where there is none
    death_days: FloatArray  # [P]


@dataclass(frozen=True)
class RowScores:
    """What a model says at rows of histories: of cases for their own outcome, of controls for all of them."""

    case_person: IntArray  # [M] one entry an event
    case_outcome: IntArray  # [M]
    case_band: IntArray  # [M] band of age at the row before the event, -1: in none
    case_score: NDArray[np.float32]  # [M]
    control_person: IntArray  # [C] one row a person and band
    control_band: IntArray  # [C]
    control_score: NDArray[np.float32]  # [C,K]


def age_band(age_days: FloatArray) -> IntArray:
    """Return the band of age, -1 for ages that lie in none."""
    band = np.floor((age_days / DAYS_PER_YEAR - FIRST_BAND_YEARS) / BAND_YEARS)
    return np.where((band >= 0) & (band < N_BANDS), band, -1).astype(np.int64)


def delphi_auc(lives: Lives, rows: RowScores) -> FloatArray:
    """Return the AUC of each outcome [K] by the protocol of Delphi's `evaluate_auc.py`, without a gap.

    The score is the rate at the last row before the event. Strata are sex and the 5-year band of the age at that row.
    Cases are the events. Controls are one random row of each person who never has the outcome, also not later.
    Equal scores count half; the mean over strata is not weighted; an outcome with fewer than two cases in a sex has
    no strata of that sex. NaN without strata.
    """
    ever = np.isfinite(lives.first_days)
    found: list[list[float]] = [[] for _ in range(lives.first_days.shape[1])]
    for cases, controls in _strata(lives, rows):
        order = np.argsort(rows.case_outcome[cases], kind="stable")
        outcomes, starts = np.unique(rows.case_outcome[cases][order], return_index=True)
        for k, of_cases in zip(outcomes, np.split(rows.case_score[cases][order], starts)[1:], strict=True):
            never = ~ever[rows.control_person[controls], k]
            auc = midrank_auc(of_cases, rows.control_score[controls, k][never])
            found[k] += [auc] if np.isfinite(auc) else []
    return np.array([np.mean(values) if values else np.nan for values in found])


def _strata(lives: Lives, rows: RowScores) -> Iterator[tuple[BoolArray, IntArray]]:
    """Yield the cases (a mask) and the controls (rows) of each sex and band of age."""
    n_outcomes = lives.first_days.shape[1]
    for sex in _SEXES_JUDGED:
        of_sex = lives.sex[rows.case_person] == sex
        counts = np.bincount(rows.case_outcome[of_sex], minlength=n_outcomes)
        judged = of_sex & (counts >= _FEWEST_CASES_OF_A_SEX)[rows.case_outcome]
        for band in range(N_BANDS):
            cases = judged & (rows.case_band == band)
            yield cases, np.flatnonzero((lives.sex[rows.control_person] == sex) & (rows.control_band == band))


def midrank_auc(cases: NDArray[np.floating], controls: NDArray[np.floating]) -> float:
    """Return the probability that a case scores higher than a control, half of it where they are equal."""
    if not cases.size or not controls.size:
        return float("nan")
    ordered = np.sort(controls)
    below = np.searchsorted(ordered, cases, side="left") + np.searchsorted(ordered, cases, side="right")
    return float(below.mean() / (2 * controls.size))


@dataclass(frozen=True)
class _Stratum:
    """The AUC of one outcome in one sex and band of age."""

    auc: float
    n_cases: int
    n_controls: int


def delphi_auc_at_offsets(
    rates: pl.DataFrame,
    subjects: pl.DataFrame,
    first_occurrences: pl.DataFrame,
    offsets_years: Sequence[float] = OFFSETS_YEARS,
    seed: int = CONTROL_SEED,
) -> pl.DataFrame:
    """Return the AUC of every outcome at every offset, by sex and over both (schema `DelphiAuc`).

    A case is a first occurrence under observation (entry < age ≤ exit); its score is the rate of the last row more
    than `offset` before it, its band the age at that row; a case without such a row does not count. A control never
    has the outcome, at any age. The same distance is kept: rows of a control are the last ones more than `offset`
    before each of their own rows and before exit, and one of them, drawn at random, stands for the person in a band.
    An outcome with fewer than two cases in a sex has no strata of that sex. `both` is the mean over all strata of
    either sex; people of unknown sex are left out, as there.

    Args:
        rates: schema `RatesAtRows`, every row of every person judged with all outcomes.
        subjects: subject_id, sex, entry and exit of the people judged.
        first_occurrences: schema `FirstOccurrences`, from the full history.
        offsets_years: how long before the event a model may look, at most.
        seed: of the rows of controls.
    """
    rows = rates.select(_SUBJECT, _AGE).unique().sort(_AGE, _SUBJECT)
    judged = subjects.filter(Subjects.sex.col.is_in([FEMALE, MALE]))
    found = []
    for offset in offsets_years:
        cases = _cases(rates, rows, judged, first_occurrences, years_to_days(offset))
        controls = _controls(rates, rows, judged, first_occurrences, years_to_days(offset), seed)
        strata = dict(_judge_strata(cases, controls))
        for outcome in rates[_OUTCOME].unique().sort():
            by_sex = {sex: strata.get((outcome, sex), []) for sex in (FEMALE, MALE)}
            by_sex[BOTH_SEXES] = by_sex[FEMALE] + by_sex[MALE]
            found += [_summarise(outcome, offset, sex, of_sex) for sex, of_sex in by_sex.items()]
    return pl.DataFrame(found, schema=DelphiAuc.create_empty().schema, orient="row")


def _cases(
    rates: pl.DataFrame, rows: pl.DataFrame, judged: pl.DataFrame, first: pl.DataFrame, offset_days: float
) -> pl.DataFrame:
    """Return outcome, sex, band (null: no row, or outside all bands) and rate of each case."""
    age = FirstOccurrences.first_age_days.col
    events = (
        first.join(judged, on=_SUBJECT, how="inner")
        .filter((Subjects.entry_age_days.col < age) & (age <= Subjects.exit_age_days.col))
        .select(_SUBJECT, _SEX, FirstOccurrences.outcome.col.alias(_OUTCOME), age.alias(_UNTIL))
    )
    placed = _row_before(events, rows, offset_days)
    return placed.join(rates, on=[_SUBJECT, _AGE, _OUTCOME], how="left").select(_OUTCOME, _SEX, _BAND, _RATE)


def _controls(
    rates: pl.DataFrame,
    rows: pl.DataFrame,
    judged: pl.DataFrame,
    first: pl.DataFrame,
    offset_days: float,
    seed: int,
) -> pl.DataFrame:
    """Return outcome, sex, band and rate of one random row of each person and band, for outcomes they never have."""
    ends = pl.concat(
        [rows.rename({_AGE: _UNTIL}), judged.select(_SUBJECT, Subjects.exit_age_days.col.alias(_UNTIL))]
    ).join(judged.select(_SUBJECT, _SEX), on=_SUBJECT, how="inner")
    possible = _row_before(ends, rows, offset_days).drop_nulls(_BAND).unique([_SUBJECT, _AGE])
    drawn = (
        possible.sort(_SUBJECT, _AGE)
        .sample(fraction=1.0, shuffle=True, seed=seed)
        .unique([_SUBJECT, _BAND], keep="first", maintain_order=True)
        .select(_SUBJECT, _SEX, _AGE, _BAND)
    )
    ever = first.select(_SUBJECT, FirstOccurrences.outcome.col.alias(_OUTCOME))
    return drawn.join(rates, on=[_SUBJECT, _AGE]).join(ever, on=[_SUBJECT, _OUTCOME], how="anti")


def _row_before(events: pl.DataFrame, rows: pl.DataFrame, offset_days: float) -> pl.DataFrame:
    """Add the age and band of the last row of a person more than an offset before an age; nulls where there is none."""
    limit = "limit_age_days"
    placed = (
        events.with_columns((pl.col(_UNTIL) - offset_days).alias(limit))
        .sort(limit)
        .join_asof(
            rows, left_on=limit, right_on=_AGE, by=_SUBJECT, strategy="backward", allow_exact_matches=False,
            check_sortedness=False, coalesce=False,
        )
    )  # fmt: skip
    band = age_band(placed[_AGE].fill_null(0.0).to_numpy())
    return placed.with_columns(pl.Series(_BAND, band)).with_columns(pl.col(_BAND).replace(-1, None))


def _judge_strata(cases: pl.DataFrame, controls: pl.DataFrame) -> Iterator[tuple[tuple[str, str], list[_Stratum]]]:
    """Yield the strata of each outcome and sex that hold a case and a control."""
    by_stratum = {
        key: part[_RATE].to_numpy()
        for key, part in controls.select(_OUTCOME, _SEX, _BAND, _RATE)
        .partition_by(_OUTCOME, _SEX, _BAND, as_dict=True, include_key=False)
        .items()
    }
    none = np.empty(0)
    for (outcome, sex), of_sex in cases.partition_by(_OUTCOME, _SEX, as_dict=True).items():
        if of_sex.height < _FEWEST_CASES_OF_A_SEX:
            continue
        strata = []
        known = of_sex.drop_nulls([_BAND, _RATE])
        for (band,), part in known.sort(_BAND).partition_by(_BAND, as_dict=True, maintain_order=True).items():
            of_controls = by_stratum.get((outcome, sex, band), none)
            auc = midrank_auc(part[_RATE].to_numpy(), of_controls)
            strata += [_Stratum(auc, part.height, of_controls.size)] if np.isfinite(auc) else []
        yield (str(outcome), str(sex)), strata


def _summarise(
    outcome: str, offset_years: float, sex: str, strata: Sequence[_Stratum]
) -> tuple[str, float, str, float | None, int, int | None, int | None]:
    """Return one row of `DelphiAuc`; numbers that rest on under 10 people are not shown."""
    n_cases = sum(stratum.n_cases for stratum in strata)
    n_controls = sum(stratum.n_controls for stratum in strata)
    is_shown = min(n_cases, n_controls) >= SMALLEST_SHOWN_COUNT
    auc = float(np.mean([stratum.auc for stratum in strata])) if is_shown else None
    shown = [count if count >= SMALLEST_SHOWN_COUNT else None for count in (n_cases, n_controls)]
    return outcome, offset_years, sex, auc, len(strata), shown[0], shown[1]
