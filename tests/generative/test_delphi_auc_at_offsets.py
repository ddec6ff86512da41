"""Delphi's AUC from a table of rates equals the protocol written out person by person."""

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.evaluation_tables import BOTH_SEXES, DelphiAuc, RatesAtRows
from data_schemas.results import FirstOccurrences
from pipelines.evaluation import delphi_protocol
from pipelines.evaluation.delphi_protocol import delphi_auc_at_offsets

ENTRY, EXIT = 40.0, 70.0  # years
OUTCOMES = ("A", "B")
OFFSETS = (0.0, 0.1, 5.0)


def draw(rng, n_people):
    """Draw rows at whole years, few different rates (ties), and outcomes at some of the ages."""
    lives = []
    for person in range(n_people):
        ages = sorted(rng.choice(np.arange(36, 72), size=rng.integers(1, 8), replace=False).tolist())
        first = {k: float(rng.choice([*ages, 55.0, 75.0])) for k in OUTCOMES if rng.random() < 0.5}
        lives.append((person, [FEMALE, MALE, UNKNOWN][rng.choice(3, p=[0.45, 0.45, 0.1])], ages, first))
    rates = {
        (person, age, k): float(rng.integers(1, 5)) for person, _, ages, _ in lives for age in ages for k in OUTCOMES
    }
    return lives, rates


def tables(lives, rates):
    subjects = pl.DataFrame(
        [(person, sex, ENTRY * DAYS_PER_YEAR, EXIT * DAYS_PER_YEAR) for person, sex, _, _ in lives],
        schema=[Subjects.subject_id.name, Subjects.sex.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name],
        orient="row",
    )
    first = pl.DataFrame(
        [(person, k, age * DAYS_PER_YEAR) for person, _, _, ever in lives for k, age in ever.items()],
        schema={**FirstOccurrences.create_empty().schema, FirstOccurrences.subject_id.name: pl.Int64},
        orient="row",
    )
    table = pl.DataFrame(
        [(person, age * DAYS_PER_YEAR, k, rate) for (person, age, k), rate in rates.items()],
        schema={**RatesAtRows.create_empty().schema, RatesAtRows.subject_id.name: pl.Int64},
        orient="row",
    )
    return table, subjects, first


def row_before(ages, until, offset):
    rows = [age for age in ages if age * DAYS_PER_YEAR < until * DAYS_PER_YEAR - offset * DAYS_PER_YEAR]
    return max(rows, default=None)


def band_of(age):
    return None if age is None or not 40 <= age < 80 else int((age - 40) // 5)


def strata_slowly(lives, rates, outcome, offset, sex):
    """Return the AUC of each band in one sex, or None where a control could be one of several rows."""
    of_sex = [life for life in lives if life[1] == sex]
    cases = [life for life in of_sex if outcome in life[3] and ENTRY < life[3][outcome] <= EXIT]
    found = []
    for band in range(8):
        case_scores, control_scores = [], []
        for person, _, ages, ever in cases:
            age = row_before(ages, ever[outcome], offset)
            if band_of(age) == band:
                case_scores.append(rates[person, age, outcome])
        for person, _, ages, ever in of_sex:
            possible = {row_before(ages, until, offset) for until in [*ages, EXIT]}
            possible = [age for age in possible if band_of(age) == band]
            if outcome not in ever and possible:
                values = {rates[person, age, outcome] for age in possible}
                control_scores.append(values)
        if len(cases) >= 2 and case_scores and control_scores:
            found.append((case_scores, control_scores))
    return found


def bounds(case_scores, control_scores):
    """Return the smallest and largest AUC over all choices of the controls' rows."""

    def auc(pick):
        pairs = [(c > pick(v)) + 0.5 * (c == pick(v)) for c in case_scores for v in control_scores]
        return sum(pairs) / len(pairs)

    return auc(max), auc(min)


@pytest.fixture(autouse=True)
def show_all(monkeypatch):
    monkeypatch.setattr(delphi_protocol, "SMALLEST_SHOWN_COUNT", 1)


@settings(max_examples=40, deadline=None)
@example(0, 1)
@example(3, 40)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_equals_the_protocol_written_out(seed, n_people):
    lives, rates = draw(np.random.default_rng(seed), n_people)
    found = delphi_auc_at_offsets(*tables(lives, rates), OFFSETS, seed=seed)
    DelphiAuc.validate(found)
    assert found.height == len(OFFSETS) * len(OUTCOMES) * 3
    for row in found.iter_rows(named=True):
        sexes = (FEMALE, MALE) if row["sex"] == BOTH_SEXES else (row["sex"],)
        strata = [s for sex in sexes for s in strata_slowly(lives, rates, row["outcome"], row["offset_years"], sex)]
        assert row["n_strata"] == len(strata)
        if not strata:
            assert row["auc"] is None
            continue
        assert row["n_cases"] == sum(len(cases) for cases, _ in strata)
        assert row["n_controls"] == sum(len(controls) for _, controls in strata)
        low, high = (np.mean([bounds(*stratum)[side] for stratum in strata]) for side in (0, 1))
        assert low - 1e-12 <= row["auc"] <= high + 1e-12


def test_one_row_a_band_gives_the_auc_itself():
    """Every person has one row, so that nothing is drawn: the AUC is known."""
    lives = [(0, FEMALE, [50], {"A": 60.0}), (1, FEMALE, [51], {"A": 61.0})]
    lives += [(2 + i, FEMALE, [52], {}) for i in range(4)]
    scores = dict(enumerate([3.0, 1.0, 2.0, 2.0, 1.0, 4.0]))
    rates = {(person, ages[0], k): scores[person] for person, _, ages, _ in lives for k in OUTCOMES}
    found = delphi_auc_at_offsets(*tables(lives, rates), (5.0,))
    row = found.filter((pl.col("outcome") == "A") & (pl.col("sex") == FEMALE)).row(0, named=True)
    assert row["auc"] == pytest.approx(((3 / 4) + (0.5 / 4)) / 2)
    assert (row["n_strata"], row["n_cases"], row["n_controls"]) == (1, 2, 4)
    assert found.filter(pl.col("outcome") == "B")["auc"].null_count() == 3


def test_numbers_on_few_people_are_not_shown(monkeypatch):
    monkeypatch.setattr(delphi_protocol, "SMALLEST_SHOWN_COUNT", 10)
    lives, rates = draw(np.random.default_rng(1), 12)
    found = delphi_auc_at_offsets(*tables(lives, rates), OFFSETS)
    assert found.filter((pl.col("n_cases") < 10) | (pl.col("n_controls") < 10)).is_empty()
    assert found.filter(pl.col("n_cases").is_null() & pl.col("auc").is_not_null()).is_empty()


def test_the_same_seed_draws_the_same_rows():
    lives, rates = draw(np.random.default_rng(5), 60)
    first, second = (delphi_auc_at_offsets(*tables(lives, rates), OFFSETS, seed=4) for _ in range(2))
    assert first.equals(second)
