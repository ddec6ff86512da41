"""A model beside true risks: every number equals its definition over pairs, and tends to what outcomes would say."""

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_schemas.evaluation_tables import Subgroups, TruthComparison
from data_schemas.results import COX, MACRO_MEAN, MODEL, OVERALL, TRUTH, Metrics, Risks
from pipelines.evaluation.compare_with_truth import (
    AUC_GAP,
    MEAN_ABSOLUTE_DIFFERENCE,
    ORACLE_AUC,
    ORACLE_BRIER,
    ROOT_MEAN_SQUARE_DIFFERENCE,
    TRUE_AUC,
    TRUE_BRIER,
    TRUE_INTERCEPT,
    TRUE_OBSERVED_EXPECTED,
    TRUE_SLOPE,
    auc_by_true_risk,
    compare_with_truth,
    concordance_gap,
    measure_against_truth,
    regress_true_risk,
)

HORIZON = 1826.25


def auc_slowly(score, true):
    top = bottom = 0.0
    for i, p in enumerate(true):
        for j, q in enumerate(true):
            if i != j:
                weight = p * (1 - q)
                bottom += weight
                top += weight * ((score[i] > score[j]) + 0.5 * (score[i] == score[j]))
    return top / bottom if bottom > 0 else np.nan


@settings(max_examples=60, deadline=None)
@example(0, 1)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_auc_equals_the_sum_over_pairs(seed, n):
    rng = np.random.default_rng(seed)
    score, true = rng.integers(0, 4, n) / 4, rng.choice([0.0, 0.1, 0.5, 1.0], n)
    np.testing.assert_allclose(auc_by_true_risk(score, true), auc_slowly(score, true), atol=1e-12)


def test_auc_is_the_mean_over_drawn_lives():
    rng = np.random.default_rng(1)
    true = rng.beta(2, 5, 400)
    score = np.clip(true + rng.normal(0, 0.1, 400), 0, 1)
    drawn = []
    for _ in range(200):
        is_case = rng.random(400) < true
        cases, controls = score[is_case], score[~is_case]
        drawn.append((cases[:, None] > controls).mean() + 0.5 * (cases[:, None] == controls).mean())
    assert auc_by_true_risk(score, true) == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 200**0.5)


def test_no_score_beats_the_truth():
    rng = np.random.default_rng(2)
    true = rng.beta(1, 9, 300)
    best = auc_by_true_risk(true, true)
    assert all(auc_by_true_risk(true * rng.uniform(0.5, 1.5, 300), true) <= best for _ in range(50))


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.8, -0.3), (1.3, 0.4)])
def test_slope_and_intercept_are_recovered(slope, intercept):
    rng = np.random.default_rng(3)
    z = rng.normal(-2.5, 1.0, 2000)
    risk, true = (-np.expm1(-np.exp(value)) for value in (z, intercept + slope * z))
    found_slope, found_intercept = regress_true_risk(risk, true)
    assert found_slope == pytest.approx(slope, abs=1e-8)
    if slope == 1.0:
        assert found_intercept == pytest.approx(intercept, abs=1e-8)


def test_slope_equals_a_binomial_model_of_very_many_outcomes():
    """Cases in the share p of very many copies of each person: the deviance is least at this slope."""
    rng = np.random.default_rng(4)
    risk, true = rng.beta(2, 8, 500), rng.beta(2, 8, 500)
    slope, _ = regress_true_risk(risk, true)
    z = np.log(-np.log1p(-risk))

    def deviance(a, b):
        mean = -np.expm1(-np.exp(a + b * z))
        return -(true * np.log(mean) + (1 - true) * np.log1p(-mean)).sum()

    grid = np.linspace(slope - 0.02, slope + 0.02, 5)
    profile = [min(deviance(a, b) for a in np.linspace(-4, 1, 2001)) for b in grid]
    assert int(np.argmin(profile)) == 2


def test_noise_of_the_simulated_truth_does_not_bend_the_slope():
    rng = np.random.default_rng(5)
    risk = rng.beta(2, 30, 20_000)
    noisy = np.where(rng.random(20_000) < 0.5, 0.0, 2 * risk)
    assert regress_true_risk(risk, noisy)[0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("risk", "true"),
    [([], []), ([0.2], [0.0]), ([0.2, 0.3], [0.0, 0.0]), ([0.2, 0.3], [1.0, 1.0])],
)
def test_no_line_where_nobody_or_everybody_is_a_case(risk, true):
    assert np.isnan(regress_true_risk(np.array(risk), np.array(true))).all()


def test_equal_predictions_have_an_intercept_but_no_slope():
    slope, intercept = regress_true_risk(np.full(50, 0.1), np.full(50, 0.2))
    assert np.isnan(slope)
    assert intercept == pytest.approx(np.log(np.log1p(-0.2) / np.log1p(-0.1)))


def test_predictions_of_0_and_1_are_survived():
    slope, intercept = regress_true_risk(np.array([0.0, 1.0, 0.3, 0.5]), np.array([0.1, 0.9, 0.3, 0.5]))
    assert not np.isinf([slope, intercept]).any()  # a number or none


def test_differences_and_brier():
    risk, true = np.array([0.1, 0.4, 0.5]), np.array([0.2, 0.2, 0.5])
    found = measure_against_truth(risk, true)
    assert found[MEAN_ABSOLUTE_DIFFERENCE] == pytest.approx(0.1)
    assert found[ROOT_MEAN_SQUARE_DIFFERENCE] == pytest.approx((0.05 / 3) ** 0.5)
    assert found[TRUE_OBSERVED_EXPECTED] == pytest.approx(0.9)
    expected = np.mean([p * (1 - s) ** 2 + (1 - p) * s**2 for p, s in zip(true, risk, strict=True)])
    assert found[TRUE_BRIER] == pytest.approx(expected)
    assert found[ORACLE_BRIER] == pytest.approx(np.mean(true * (1 - true)))


def risks_of(values, outcome="A", method=TRUTH, horizon=HORIZON):
    rows = [(i, 100.0, outcome, horizon, value, None, None, method) for i, value in enumerate(values)]
    return pl.DataFrame(rows, schema={**Risks.create_empty().schema, Risks.subject_id.name: pl.Int64}, orient="row")


def pick(table, outcome, metric, subgroup=OVERALL, predictor=MODEL):
    rows = table.filter(
        TruthComparison.outcome.col == outcome,
        TruthComparison.metric.col == metric,
        TruthComparison.subgroup.col == subgroup,
        TruthComparison.predictor.col == predictor,
    )
    return rows.select(TruthComparison.estimate.name, TruthComparison.n.name).row(0)


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(6)
    true = {outcome: rng.beta(2, 10, 60) for outcome in "AB"}
    model = {outcome: np.clip(values * rng.uniform(0.7, 1.3, 60), 0, 1) for outcome, values in true.items()}
    truth, risks = (pl.concat([risks_of(values[k], k) for k in "AB"]) for values in (true, model))
    groups = pl.DataFrame(
        [(i, 100.0, f"sex={'female' if i % 2 else 'male'}") for i in range(60)]
        + [(i, 100.0, "few=yes") for i in range(5)],
        schema=Subgroups.column_names(),
        orient="row",
    )
    return true, model, compare_with_truth({MODEL: risks, COX: truth}, truth, "entry", groups)


def test_each_outcome_and_the_mean_over_them(made):
    true, model, table = made
    TruthComparison.validate(table)
    gaps = [auc_slowly(true[k], true[k]) - auc_slowly(model[k], true[k]) for k in "AB"]
    assert [pick(table, k, AUC_GAP)[0] for k in "AB"] == pytest.approx(gaps)
    assert pick(table, MACRO_MEAN, AUC_GAP) == (pytest.approx(np.mean(gaps)), 60)
    assert pick(table, "A", AUC_GAP, predictor=COX)[0] == pytest.approx(0.0)
    assert pick(table, "A", TRUE_SLOPE, predictor=COX)[0] == pytest.approx(1.0)
    assert pick(table, "A", TRUE_INTERCEPT, predictor=COX)[0] == pytest.approx(0.0, abs=1e-9)


def test_subgroups_and_those_too_small(made):
    true, model, table = made
    odd = np.arange(60) % 2 == 1
    expected = auc_slowly(model["B"][odd], true["B"][odd])
    assert pick(table, "B", TRUE_AUC, "sex=female") == (pytest.approx(expected), 30)
    assert pick(table, "B", ORACLE_AUC, "few=yes") == (None, None)
    assert pick(table, MACRO_MEAN, ORACLE_AUC, "few=yes") == (None, None)


def test_only_people_with_both_risks_and_at_risk_count():
    truth, risks = risks_of([0.1] * 15 + [None] * 15), risks_of([None] * 2 + [0.1] * 28, method=COX)
    assert pick(compare_with_truth({MODEL: risks}, truth, "entry"), "A", TRUE_AUC) == (pytest.approx(0.5), 13)
    at_risk = truth.filter(Risks.subject_id.col < 14)
    assert pick(compare_with_truth({MODEL: risks}, truth, "entry", at_risk=at_risk), "A", TRUE_AUC)[1] == 12
    assert compare_with_truth({MODEL: risks.clear()}, truth, "entry").is_empty()


def test_the_gap_in_concordance_is_over_outcomes_that_both_have():
    empty = Metrics.create_empty()
    rows = [
        {"predictor": predictor, "outcome": outcome, "landmark": "entry", "horizon_days": HORIZON, "subgroup": OVERALL,
         "metric": "concordance", "estimate": value}
        for predictor, outcome, value in (
            (MODEL, "A", 0.6), (TRUTH, "A", 0.7), (MODEL, "B", 0.8), (TRUTH, "B", None), (MODEL, "C", 0.5),
            (TRUTH, "C", 0.6), (MODEL, MACRO_MEAN, 0.9), (TRUTH, MACRO_MEAN, 0.1),
        )
    ]  # fmt: skip
    metrics = pl.concat([pl.DataFrame(empty), pl.DataFrame(rows)], how="diagonal_relaxed")
    found = concordance_gap(metrics).row(0, named=True)
    assert (found[MODEL], found[TRUTH], found["gap"], found["n_outcomes"]) == (
        pytest.approx(0.55), pytest.approx(0.65), pytest.approx(0.1), 2,
    )  # fmt: skip
