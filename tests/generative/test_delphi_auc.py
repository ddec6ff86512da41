"""The AUCs of the Delphi benchmark equal their definitions written out pair by pair, with ties."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.delphi_auc import LandmarkScores, landmark_auc
from data_schemas.age_units import DAYS_PER_YEAR
from pipelines.evaluation.delphi_protocol import N_BANDS, Lives, RowScores, age_band, delphi_auc, midrank_auc

drawn = settings(max_examples=60, deadline=None)
FEMALE, MALE = 0, 1
HORIZON = 5.0


def concordance(cases, controls):
    pairs = [(case > control) + 0.5 * (case == control) for case in cases for control in controls]
    return sum(pairs) / len(pairs) if pairs else np.nan


def draw_lives(rng, n_people, n_outcomes):
    first = np.where(rng.random((n_people, n_outcomes)) < 0.5, rng.integers(1, 12, (n_people, n_outcomes)), np.inf)
    exit_ = rng.integers(6, 12, n_people).astype(float)
    return Lives(
        sex=rng.integers(0, 2, n_people),
        exit_days=exit_,
        first_days=np.where(first <= exit_[:, None], first, np.inf),
        death_days=np.where(rng.random(n_people) < 0.3, exit_, np.inf),
    )


def draw_rows(rng, lives, n_bands=2):
    """Draw scores of few different values: every kind of tie occurs."""
    person, outcome = np.nonzero(np.isfinite(lives.first_days))
    control_person = np.repeat(np.arange(len(lives.sex)), n_bands)
    score = rng.integers(0, 4, (len(control_person), lives.first_days.shape[1])).astype(np.float32)
    return RowScores(
        case_person=person,
        case_outcome=outcome,
        case_band=rng.integers(-1, n_bands, len(person)),
        case_score=rng.integers(0, 4, len(person)).astype(np.float32),
        control_person=control_person,
        control_band=np.tile(np.arange(n_bands), len(lives.sex)),
        control_score=score,
    )


def delphi_auc_slowly(lives, rows, outcome):
    strata = []
    for sex in (FEMALE, MALE):
        of_sex = [
            m
            for m in range(len(rows.case_person))
            if rows.case_outcome[m] == outcome and lives.sex[rows.case_person[m]] == sex
        ]
        if len(of_sex) < 2:
            continue
        for band in range(N_BANDS):
            cases = [rows.case_score[m] for m in of_sex if rows.case_band[m] == band]
            controls = [
                rows.control_score[c, outcome]
                for c, person in enumerate(rows.control_person)
                if rows.control_band[c] == band
                and lives.sex[person] == sex
                and np.isinf(lives.first_days[person, outcome])
            ]
            strata.append(concordance(cases, controls))
    known = [auc for auc in strata if not np.isnan(auc)]
    return np.mean(known) if known else np.nan


@drawn
@example(0, 1)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_delphis_protocol(seed, n_people):
    rng = np.random.default_rng(seed)
    lives = draw_lives(rng, n_people, 3)
    rows = draw_rows(rng, lives)
    np.testing.assert_allclose(delphi_auc(lives, rows), [delphi_auc_slowly(lives, rows, k) for k in range(3)])


def landmark_auc_slowly(lives, scores, outcome):
    """Nobody may be lost before the horizon: then every weight is one."""
    total, n_all = 0.0, 0
    for at in scores:
        cases, controls = [], []
        for row, person in enumerate(at.person):
            first = lives.first_days[person, outcome] - at.landmark_days
            if first > 0:
                (cases if first <= HORIZON else controls).append(at.score[row, outcome])
        if cases:
            total, n_all = total + len(cases) * concordance(cases, controls), n_all + len(cases)
    return (total / n_all if n_all else np.nan), n_all


@drawn
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_landmark_auc_of_people_who_are_all_followed(seed, n_people):
    rng = np.random.default_rng(seed)
    lives = draw_lives(rng, n_people, 3)
    lives.exit_days[:] = np.where(np.isfinite(lives.death_days), lives.exit_days, 20.0)
    scores = []
    for landmark in (0.0, 4.0):
        person = np.flatnonzero(lives.exit_days > landmark)
        scores.append(LandmarkScores(landmark, person, rng.integers(0, 4, (len(person), 3)).astype(np.float32)))
    auc, n_cases = landmark_auc(lives, scores, HORIZON)
    slow = [landmark_auc_slowly(lives, scores, k) for k in range(3)]
    np.testing.assert_allclose(auc, [value for value, _ in slow])
    assert n_cases.tolist() == [n for _, n in slow]


def test_people_lost_before_the_horizon_are_stood_for_by_others():
    """Two of four controls are lost at once: the two that stay count twice, those lost not at all."""
    lives = Lives(
        sex=np.zeros(5, dtype=np.int64),
        exit_days=np.array([9.0, 1.0, 1.0, 9.0, 9.0]),
        first_days=np.array([[3.0], [np.inf], [np.inf], [np.inf], [np.inf]]),
        death_days=np.full(5, np.inf),
    )
    score = np.array([[2.0], [9.0], [9.0], [1.0], [3.0]], dtype=np.float32)
    auc, n_cases = landmark_auc(lives, [LandmarkScores(0.0, np.arange(5), score)], HORIZON)
    assert auc.tolist() == [0.5]
    assert n_cases.tolist() == [1]


@pytest.mark.parametrize(
    ("cases", "controls", "auc"), [([1], [0, 1, 2], 0.5), ([3, 0], [1], 0.5), ([2], [1], 1.0), ([], [1], np.nan)]
)
def test_midrank_auc(cases, controls, auc):
    np.testing.assert_equal(midrank_auc(np.array(cases, dtype=float), np.array(controls, dtype=float)), auc)


def test_bands_are_those_of_delphi():
    years = np.array([39.99, 40.0, 44.99, 45.0, 79.99, 80.0])
    assert age_band(years * DAYS_PER_YEAR).tolist() == [-1, 0, 0, 1, 7, -1]
