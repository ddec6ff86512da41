"""Gradient boosting at a landmark: it learns what Cox cannot, is weighted as stated, and survives few cases."""

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, Events, Subjects
from data_schemas.results import Outcomes, Risks
from pipelines.evaluation import gradient_boosting_reference as module
from pipelines.evaluation.gradient_boosting_reference import fit_gradient_boosting, predict_boosted_risks
from pipelines.evaluation.landmark_features import feature_names, landmark_features

LANDMARK = 60 * DAYS_PER_YEAR
HORIZONS = (365.25, 1826.25)


def make_people(n, seed, end=(2500.0, 4000.0)):
    """Two flags: exactly one of them makes the outcome ten times as frequent, which no main effect can say."""
    rng = np.random.default_rng(seed)
    people = pl.DataFrame(
        {
            Subjects.subject_id.name: np.arange(n),
            Subjects.sex.name: rng.choice([FEMALE, MALE], n),
            Outcomes.landmark_age_days.name: np.full(n, LANDMARK),
        }
    )
    flags = rng.random((n, 2)) < 0.5
    rows = [(int(i), 9.0, f"flag{j}", None) for j in (0, 1) for i in np.flatnonzero(flags[:, j])]
    schema = {**Events.create_empty().schema, Events.subject_id.name: pl.Int64}
    onset = rng.exponential(1.0 / np.where(flags[:, 0] ^ flags[:, 1], 2e-4, 2e-5))
    death, exit_ = rng.exponential(1e4, n), rng.uniform(*end, n)
    tables = []
    for outcome, first in (("A", onset), (DEATH_CODE, death)):
        time = np.minimum(np.minimum(first, death), exit_)
        status = np.select([first <= time, death <= time], [1, 2], 0)
        tables.append(
            people.select(Outcomes.subject_id.name, Outcomes.landmark_age_days.name).with_columns(
                pl.lit(outcome).alias(Outcomes.outcome.name),
                pl.Series(Outcomes.time_days.name, time),
                pl.Series(Outcomes.status.name, status.astype(np.int8)),
            )
        )
    return people, pl.LazyFrame(rows, schema=schema, orient="row"), pl.concat(tables), flags


@pytest.fixture(scope="module")
def training():
    return make_people(1500, 1)


@pytest.fixture(scope="module")
def fitted(training):
    return fit_gradient_boosting(*training[:3], ["A", DEATH_CODE, "never"], HORIZONS)


def predict(fitted, people, events):
    return predict_boosted_risks(fitted, landmark_features(people, events, fitted.features))


def test_it_learns_an_interaction_that_main_effects_cannot(fitted):
    people, events, _, flags = make_people(500, 2)
    found = predict(fitted, people, events)
    Risks.validate(found)
    risk = found.filter((Risks.outcome.col == "A") & (Risks.horizon_days.col == 1826.25))[Risks.risk.name].to_numpy()
    assert 0.2 < risk[flags[:, 0] ^ flags[:, 1]].mean() < 0.4
    assert risk[flags[:, 0] & flags[:, 1]].mean() < 0.08
    assert found.height == 500 * 2 * 2


def test_risks_do_not_fall_with_the_horizon(fitted):
    people, events, _, _ = make_people(500, 3)
    by_horizon = predict(fitted, people, events)[Risks.risk.name].to_numpy().reshape(-1, 2)
    assert (np.diff(by_horizon, axis=1) >= 0).all()


def test_an_outcome_that_nobody_has_is_not_fitted(fitted):
    assert set(fitted.outcomes) == {"A", DEATH_CODE}
    assert "fewer than 20 cases" in fitted.not_fitted["never"]


def test_equals_scikit_learn_with_the_weights_written_out():
    """People are lost: those who stay to the horizon stand for them."""
    people, events, outcomes, _ = make_people(800, 4, end=(100.0, 4000.0))
    fitted = fit_gradient_boosting(people, events, outcomes, ["A"], [1826.25])
    deaths = outcomes.filter(Outcomes.outcome.col == DEATH_CODE)
    time = deaths[Outcomes.time_days.name].to_numpy()
    lost = np.sort(time[(deaths[Outcomes.status.name] == 0).to_numpy()])

    def followed(until, *, before):
        product = 1.0
        for moment in lost[lost < until] if before else lost[lost <= until]:
            product *= 1 - 1 / (time >= moment).sum()
        return product

    rows = outcomes.filter(Outcomes.outcome.col == "A")
    features = landmark_features(people, events, fitted.features)
    x = features.select(feature_names(features)).to_numpy()
    weights, is_case = [], []
    for at, status in rows.select(Outcomes.time_days.name, Outcomes.status.name).iter_rows():
        is_case.append(status == 1 and at <= 1826.25)
        if at > 1826.25:
            weights.append(1 / followed(1826.25, before=False))
        else:
            weights.append(1 / followed(at, before=True) if status else 0.0)
    keep = np.array(weights) > 0
    expected = HistGradientBoostingClassifier(random_state=0, **module._SETTINGS).fit(
        x[keep], np.array(is_case)[keep], sample_weight=np.array(weights)[keep]
    )
    found = predict_boosted_risks(fitted, features)[Risks.risk.name].to_numpy()
    np.testing.assert_allclose(found, expected.predict_proba(x)[:, 1], rtol=1e-6)


def test_a_horizon_with_few_cases_has_the_same_risk_for_everyone(training):
    people, events, outcomes, _ = training
    early = outcomes.with_columns(pl.max_horizontal(Outcomes.time_days.col, pl.lit(400.0)))
    fitted = fit_gradient_boosting(people, events, early, ["A"], HORIZONS)
    found = predict(fitted, people, events)
    first = found.filter(Risks.horizon_days.col == 365.25)[Risks.risk.name]
    assert first.unique().to_list() == [0.0]
    assert found.filter(Risks.horizon_days.col == 1826.25)[Risks.risk.name].n_unique() > 1


def test_a_horizon_beyond_follow_up_has_the_risk_at_its_end(training):
    people, events, outcomes, _ = training
    fitted = fit_gradient_boosting(people, events, outcomes, ["A"], [1826.25, 1e6])
    asked = fitted.outcomes["A"][1]
    assert asked.horizon_days == 1e6
    assert asked.classifier is not None
    assert predict(fitted, people, events)[Risks.risk.name].is_between(0, 1).all()


@pytest.mark.parametrize("kind", ["all cases", "all censored on one day", "one person", "nobody"])
def test_hard_cases_are_not_fitted_and_give_no_rows(training, kind):
    people, events, outcomes, _ = training
    status = {"all cases": 1, "all censored on one day": 0}.get(kind, 1)
    changed = outcomes.with_columns(
        pl.lit(status, dtype=pl.Int8).alias(Outcomes.status.name), pl.lit(100.0).alias(Outcomes.time_days.name)
    )
    n = {"one person": 1, "nobody": 0}.get(kind, people.height)
    few = changed.filter(Outcomes.subject_id.col < n)
    fitted = fit_gradient_boosting(people.head(n), events, few, ["A"], HORIZONS)
    assert set(fitted.not_fitted) == {"A"}
    found = predict(fitted, people.head(5), events)
    Risks.validate(found)
    assert found.is_empty()


def test_the_same_seed_gives_the_same_risks(training, fitted):
    people, events, _, _ = make_people(200, 5)
    again = fit_gradient_boosting(*training[:3], ["A", DEATH_CODE], HORIZONS)
    assert predict(again, people, events).equals(predict(fitted, people, events))
