"""What a model is judged by, compared with plain loops over the rows of the files."""

import math

import numpy as np
import pytest
import torch

from benchmarks import delphi_evaluation
from benchmarks.delphi_data import read_triples
from benchmarks.delphi_evaluation import HORIZON_YEARS, LANDMARKS_YEARS, evaluate
from benchmarks.quality_delphi import Budget, Cohort
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import HELD_OUT
from models.cause_hazards import ConstantHazards

FIRST_HELD_OUT = 181  # person 180 is cut over both files
DEATH_TOKEN = 1268


@pytest.fixture(scope="module")
def cohort(delphi_source, tmp_path_factory):
    return Cohort.prepare(delphi_source, tmp_path_factory.mktemp("work"), Budget())


@pytest.fixture(scope="module")
def lives(delphi_source):
    """Return {token: age} of each held-out person, in the order of the dataset."""
    found = {}
    for person, age, token in read_triples(delphi_source / "val.bin").iter_rows():
        if person >= FIRST_HELD_OUT and token > 2:
            found.setdefault(person, {})[token] = age
    return list(found.values())


def judge(cohort, predict):
    death = int(cohort.tables.outcome_of_token[cohort.tables.death_token])
    return evaluate(predict, cohort.pad, cohort.people(HELD_OUT), cohort.tables.outcome_of_token, death)


def rate_of_age(batch, rows):
    """Say a rate that tells from which row it comes: one day of age, one millionth."""
    age = batch.ages_days.flatten()[rows, None]
    return ConstantHazards(torch.log(1e-6 * age + 1e-9).expand(-1, 5), 4)


def test_log_likelihood_per_event_with_constant_rates(cohort, lives):
    """Tokens 12 to 15 and death are the five outcomes; each is at risk until it has happened."""
    rates = np.array([0.02, 0.01, 0.03, 0.015, 0.005])
    total = n_events = 0.0
    for life in lives:
        end = max(life.values())
        for rate, token in zip(rates, (12, 13, 14, 15, DEATH_TOKEN), strict=True):
            until = life.get(token, end)
            total += (math.log(rate) if token in life else 0.0) - rate * until / DAYS_PER_YEAR
            n_events += token in life
    log_rate = torch.from_numpy(np.log(rates)).float()
    quality = judge(cohort, lambda _, rows: ConstantHazards(log_rate.expand(len(rows), -1), 4))
    assert quality.log_likelihood_per_event == pytest.approx(total / n_events, abs=1e-5)
    assert quality.macro_auc == pytest.approx(0.5)  # equal scores for everyone
    assert quality.delphi_auc == pytest.approx(0.5)


def row_ages(life):
    """Return the ages of a person's rows: birth, events, and every 5 years up to exit."""
    grid = [5 * n * DAYS_PER_YEAR for n in range(17)]
    return sorted({age for age in [*grid, *life.values()] if age <= max(life.values())})


def test_a_landmark_sees_the_last_row_up_to_it(cohort, lives, monkeypatch):
    seen = {}
    original = delphi_evaluation.landmark_auc
    monkeypatch.setattr(
        delphi_evaluation,
        "landmark_auc",
        lambda lives, scores, h: seen.update(scores=scores) or original(lives, scores, h),
    )
    judge(cohort, rate_of_age)
    for years, at in zip(LANDMARKS_YEARS, seen["scores"], strict=True):
        landmark = years * DAYS_PER_YEAR
        expected = {
            number: HORIZON_YEARS * 1e-6 * max(age for age in row_ages(life) if age <= landmark)
            for number, life in enumerate(lives)
            if landmark < max(life.values())
        }
        assert at.landmark_days == landmark
        assert sorted(at.person.tolist()) == sorted(expected)
        np.testing.assert_allclose(
            at.score, np.repeat([[expected[p]] for p in at.person], at.score.shape[1], 1), rtol=1e-5
        )


def test_delphis_protocol_sees_the_last_row_before_the_event_and_one_row_of_each_control(cohort, lives, monkeypatch):
    seen = {}
    original = delphi_evaluation.delphi_auc
    monkeypatch.setattr(
        delphi_evaluation, "delphi_auc", lambda lives, rows: seen.update(rows=rows) or original(lives, rows)
    )
    judge(cohort, rate_of_age)
    rows = seen["rows"]
    tokens = np.array([token for token in (12, 13, 14, 15, DEATH_TOKEN) if sum(token in life for life in lives) >= 20])
    cases = {(person, token) for person, life in enumerate(lives) for token in life if token in tokens}
    assert {(p, tokens[k]) for p, k in zip(rows.case_person, rows.case_outcome, strict=True)} == cases
    for person, outcome, band, score in zip(
        rows.case_person, rows.case_outcome, rows.case_band, rows.case_score, strict=True
    ):
        life = lives[person]
        before = max(age for age in row_ages(life) if age < life[tokens[outcome]])
        assert score == pytest.approx(1e-6 * before, rel=1e-4, abs=2e-9)
        inside = 40 <= before / DAYS_PER_YEAR < 80
        assert band == ((before / DAYS_PER_YEAR - 40) // 5 if inside else -1)
    controls = list(zip(rows.control_person.tolist(), rows.control_band.tolist(), strict=True))
    assert len(set(controls)) == len(controls)
    reached = {
        (person, int((age / DAYS_PER_YEAR - 40) // 5))
        for person, life in enumerate(lives)
        for age in row_ages(life)[:-1]
        if age >= 40 * DAYS_PER_YEAR
    }
    assert set(controls) == reached
