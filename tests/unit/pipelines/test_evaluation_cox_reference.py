"""The Cox reference: features look back only, fits are lifelines' own, risks compete with death."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from lifelines import CoxPHFitter

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, UNKNOWN, Events, Subjects
from data_schemas.results import OUTCOME, Outcomes, Risks
from pipelines.evaluation import fit_cox_reference as cox_module
from pipelines.evaluation.fit_cox_reference import CoxReference, fit_cox_reference, predict_cox_risks
from pipelines.evaluation.landmark_features import feature_names, fit_landmark_features, landmark_features

LANDMARK = 20_000.0
EventRow = tuple[int, float, str, float | None]


def events_of(rows: list[EventRow]) -> pl.LazyFrame:
    schema = {**Events.create_empty().schema, Events.subject_id.name: pl.Int64}
    return pl.LazyFrame(rows, schema=schema, orient="row")


def people_of(sexes: list[str], landmark: float = LANDMARK) -> pl.DataFrame:
    return pl.DataFrame(
        {
            Subjects.subject_id.name: list(range(len(sexes))),
            Subjects.sex.name: sexes,
            Outcomes.landmark_age_days.name: landmark,
        }
    )


PEOPLE = people_of([FEMALE, MALE, FEMALE, MALE, MALE])
EVENTS: list[EventRow] = [
    (0, 100.0, "bmi", 20.0),
    (0, 300.0, "bmi", 24.0),
    (0, 400.0, "bmi", None),  # an event without a value hides none
    (1, LANDMARK, "bmi", 30.0),  # on the day of the landmark
    (2, LANDMARK + 1, "bmi", 99.0),  # future
    (0, 10.0, "smoking//yes", None),
    (0, 20.0, "smoking//no", None),
    (1, 20.0, "smoking//yes", None),
    (3, 20.0, "smoking//no", None),
    (4, 20.0, "smoking//yes", None),
    (0, 5.0, "gout", None),
    (1, 6.0, "gout", None),
    (1, 7.0, "gout", None),
    (2, LANDMARK + 1, "gout", None),
    (3, 20.0, "rare", None),
    (3, LANDMARK, DEATH_CODE, None),
]


def test_features_are_the_latest_values_and_history_at_the_landmark() -> None:
    fitted = fit_landmark_features(PEOPLE, events_of(EVENTS), min_people=2)
    table = landmark_features(PEOPLE, events_of(EVENTS), fitted)
    assert feature_names(table) == [
        "age", "age_squared", "sex is male", "latest bmi", "no value of bmi", "smoking is yes",
        "no level of smoking", "had gout",
    ]  # fmt: skip  # of two equally frequent levels the first by name has no column; "rare" is too rare
    age = (LANDMARK / DAYS_PER_YEAR - 60) / 10
    z = 0.5**0.5  # 24 and 30: mean 27, deviation 3√2
    assert table.drop("age", "age_squared").rows() == [
        (0, LANDMARK, 0.0, pytest.approx(-z), 0.0, 0.0, 0.0, 1.0),
        (1, LANDMARK, 1.0, pytest.approx(z), 0.0, 1.0, 0.0, 1.0),
        (2, LANDMARK, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0),
        (3, LANDMARK, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0),
        (4, LANDMARK, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0),
    ]
    assert table["age"].to_list() == pytest.approx([age] * 5)
    assert table["age_squared"].to_list() == pytest.approx([age**2] * 5)


def test_future_events_change_nothing() -> None:
    past = [row for row in EVENTS if row[1] <= LANDMARK]
    future: list[EventRow] = [(0, LANDMARK + 0.5, code, 1e6) for code in ("bmi", "gout", "smoking//yes", "new")]
    fitted = fit_landmark_features(PEOPLE, events_of(past), min_people=1)
    assert fitted == fit_landmark_features(PEOPLE, events_of(past + future), min_people=1)
    before = landmark_features(PEOPLE, events_of(past), fitted)
    assert before.equals(landmark_features(PEOPLE, events_of(past + future), fitted))


def test_what_training_has_not_seen_is_left_out_and_extremes_are_clipped() -> None:
    fitted = fit_landmark_features(PEOPLE, events_of(EVENTS), min_people=2)
    others: list[EventRow] = [
        (0, 1.0, "bmi", 1e9),
        (1, 1.0, "smoking//pipe", None),
        (1, 1.0, "plague", None),
    ]
    table = landmark_features(people_of([UNKNOWN, MALE]), events_of(others), fitted)
    assert table["latest bmi"].to_list() == [5.0, 0.0]
    assert table["no value of bmi"].to_list() == [0.0, 1.0]
    assert table.select("smoking is yes", "no level of smoking").rows() == [(0.0, 1.0), (0.0, 0.0)]
    assert table["sex is male"].to_list() == [0.0, 1.0]
    assert "had plague" not in table.columns


def test_codes_cannot_take_the_name_of_another_column() -> None:
    rows: list[EventRow] = [(i, 1.0, "age", float(i)) for i in range(4)]
    rows += [(i, 1.0, code, None) for i in (0, 1) for code in ("bmi", "x=missing", "smoking//missing")]
    rows += [(i, 2.0, "smoking//yes", None) for i in (2, 3)]
    fitted = fit_landmark_features(PEOPLE, events_of(rows), min_people=1)
    table = landmark_features(PEOPLE, events_of(rows), fitted)
    assert table["had x=missing"].to_list() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert len(set(table.columns)) == len(table.columns)


# The fits


def make_training(n: int = 1500) -> tuple[pl.DataFrame, pl.LazyFrame, pl.DataFrame]:
    rng = np.random.default_rng(8)
    people = people_of(rng.choice([FEMALE, MALE], n).tolist()).with_columns(
        pl.Series(Outcomes.landmark_age_days.name, rng.uniform(40, 80, n) * DAYS_PER_YEAR)
    )
    bmi, gout = rng.normal(27, 4, n), rng.random(n) < 0.2
    measured = rng.random(n) < 0.8
    rows: list[EventRow] = [(i, 9.0, "bmi", float(bmi[i])) for i in np.flatnonzero(measured)]
    rows += [(int(i), 9.0, "gout", None) for i in np.flatnonzero(gout)]
    age = people[Outcomes.landmark_age_days.name].to_numpy() / DAYS_PER_YEAR
    onset = rng.exponential(6000 * np.exp(-0.1 * (bmi - 27) - gout))
    death = rng.exponential(9000 * np.exp(-0.08 * (age - 60)))
    end = rng.uniform(100, 4000, n)
    tables = []
    for outcome, first in (("A", onset), (DEATH_CODE, death), ("rare", np.full(n, np.inf))):
        time = np.ceil(np.minimum(np.minimum(first, death), end))
        status = np.select([np.ceil(first) == time, (np.ceil(death) == time) & (death < end)], [1, 2], 0)
        tables.append(
            people.select(Outcomes.subject_id.name, Outcomes.landmark_age_days.name).with_columns(
                pl.lit(outcome).alias(Outcomes.outcome.name),
                pl.Series(Outcomes.time_days.name, time),
                pl.Series(Outcomes.status.name, status.astype(np.int8)),
            )
        )
    return people, events_of(rows), pl.concat(tables)


TRAINING = make_training()
HORIZONS = (365.25, 1826.25, 9000.0)


@pytest.fixture(scope="module")
def fitted() -> CoxReference:
    return fit_cox_reference(*TRAINING, ["A", DEATH_CODE, "rare"])


def lifelines_fit(outcome: str, reference: CoxReference) -> tuple[CoxPHFitter, pd.DataFrame]:
    people, events, outcomes = TRAINING
    features = landmark_features(people, events, reference.features)
    rows = outcomes.filter(Outcomes.outcome.col == outcome)
    columns = list((reference.death if outcome == DEATH_CODE else reference.outcomes[outcome]).columns)
    frame = pd.DataFrame(features.select(columns).to_numpy(), columns=[f"c{i}" for i in range(len(columns))])
    frame["t"] = rows[Outcomes.time_days.name].to_numpy()
    frame["e"] = (rows[Outcomes.status.name] == OUTCOME).to_numpy()
    return CoxPHFitter(penalizer=0.01).fit(frame, "t", "e"), frame


def test_risks_equal_the_sum_over_curves_that_lifelines_predicts(fitted: CoxReference) -> None:
    people, events, _ = TRAINING
    features = landmark_features(people, events, fitted.features).head(25)
    found = predict_cox_risks(fitted, features, HORIZONS)
    Risks.validate(found)
    (cause, frame), (death, death_frame) = (lifelines_fit(outcome, fitted) for outcome in ("A", DEATH_CODE))
    cause_curves = cause.predict_cumulative_hazard(frame.head(25))
    death_curves = death.predict_cumulative_hazard(death_frame.head(25))
    for person in range(25):
        h_cause, h_death = cause_curves[person], death_curves[person]
        steps = h_cause.diff().fillna(h_cause.iloc[0])
        for horizon in HORIZONS:
            risk = 0.0
            for day in steps.index[(steps > 0) & (steps.index <= horizon)]:
                before = h_death[h_death.index < day]
                free = np.exp(-(h_cause[day] - steps[day]) - (before.iloc[-1] if len(before) else 0.0))
                risk += free * -np.expm1(-steps[day])
            row = found.filter(
                (Risks.subject_id.col == person) & (Risks.horizon_days.col == horizon) & (Risks.outcome.col == "A")
            )
            assert row[Risks.risk.name].item() == pytest.approx(risk, abs=1e-9)
    of_death = found.filter((Risks.outcome.col == DEATH_CODE) & (Risks.horizon_days.col == 1826.25))
    last = death_curves.loc[:1826.25].iloc[-1].to_numpy()
    np.testing.assert_allclose(of_death[Risks.risk.name].to_numpy(), -np.expm1(-last), atol=1e-9)


def test_chunks_of_people_give_the_same_risks(fitted: CoxReference, monkeypatch: pytest.MonkeyPatch) -> None:
    people, events, _ = TRAINING
    features = landmark_features(people, events, fitted.features)
    whole = predict_cox_risks(fitted, features, HORIZONS)
    monkeypatch.setattr(cox_module, "PEOPLE_PER_CHUNK", 100)
    assert predict_cox_risks(fitted, features, HORIZONS).equals(whole)
    risks = whole[Risks.risk.name].to_numpy().reshape(-1, len(HORIZONS))
    assert (np.diff(risks, axis=1) >= 0).all()


def test_outcomes_without_cases_are_recorded_and_have_no_rows(fitted: CoxReference) -> None:
    assert set(fitted.outcomes) == {"A", DEATH_CODE}
    assert fitted.not_fitted == {"rare": "fewer than 20 cases in the training split"}
    assert {fit.penalizer for fit in fitted.outcomes.values()} == {0.01}


def test_few_deaths_give_everyone_the_same_hazard_of_death() -> None:
    people, events, outcomes = TRAINING
    few = outcomes.filter((Outcomes.outcome.col != DEATH_CODE) | (Outcomes.subject_id.col < 15))
    reference = fit_cox_reference(people, events, few, ["A"])
    assert reference.death.columns == ()
    assert reference.death.penalizer is None
    assert DEATH_CODE in reference.not_fitted
    at_risk = few.filter(Outcomes.outcome.col == DEATH_CODE).sort(Outcomes.time_days.name)
    is_death = (at_risk[Outcomes.status.name] == OUTCOME).to_numpy()
    expected = (is_death / np.arange(at_risk.height, 0, -1)).sum()  # no ties among fifteen people
    assert reference.death.cumulative_baseline_at(1e9) == pytest.approx(expected)
    without = fit_cox_reference(people, events, outcomes.filter(Outcomes.outcome.col == "A"), ["A"])
    risks = predict_cox_risks(without, landmark_features(people, events, without.features).head(3), [1000.0])
    assert risks[Risks.risk.name].is_between(0, 1).all()


def test_a_fit_that_does_not_converge_is_repeated_with_the_larger_penaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    true_fit = cox_module._try_lifelines
    tried = []

    def fail_first(frame: pd.DataFrame, penalizer: float) -> CoxPHFitter | None:
        tried.append(penalizer)
        return None if penalizer == 0.01 else true_fit(frame, penalizer)

    monkeypatch.setattr(cox_module, "_try_lifelines", fail_first)
    reference = fit_cox_reference(*TRAINING, ["A"])
    assert tried == [0.01, 0.03, 0.01, 0.03]
    assert reference.outcomes["A"].penalizer == 0.03
    monkeypatch.setattr(cox_module, "_try_lifelines", lambda frame, penalizer: None)
    reference = fit_cox_reference(*TRAINING, ["A"])
    assert reference.not_fitted["A"] == "no convergence with penalisers 0.01 and 0.03"


def test_lifelines_warnings_of_convergence_are_failures() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x0": np.r_[np.ones(30), np.zeros(30)], "duration": rng.permutation(60) + 1.0})
    frame["event"] = frame["x0"] == 1  # the column says who is a case
    assert cox_module._try_lifelines(frame, 0.0) is None


def test_columns_that_do_not_vary_among_cases_are_left_out() -> None:
    people, events, outcomes = TRAINING
    cases = outcomes.filter((Outcomes.outcome.col == "A") & (Outcomes.status.col == OUTCOME))
    no_case_has_it = set(people[Outcomes.subject_id.name]) - set(cases[Outcomes.subject_id.name])
    marker = events_of([(person, 3.0, "marker", None) for person in sorted(no_case_has_it)[:50]])
    reference = fit_cox_reference(people, pl.concat([events, marker]), outcomes, ["A"])
    assert "marker" in reference.features.history
    assert "had marker" not in reference.outcomes["A"].columns
    assert "had gout" in reference.outcomes["A"].columns


def test_nothing_that_varies_leaves_the_baseline() -> None:
    people, events, outcomes = TRAINING
    same = people.with_columns(pl.lit(FEMALE).alias(Subjects.sex.name), pl.lit(LANDMARK).alias("landmark_age_days"))
    outcomes = outcomes.with_columns(pl.lit(LANDMARK).alias(Outcomes.landmark_age_days.name))
    reference = fit_cox_reference(same, events.filter(Events.code.col == "none"), outcomes, ["A"])
    assert reference.outcomes["A"].columns == ()
    features = landmark_features(same, events.filter(Events.code.col == "none"), reference.features)
    risks = predict_cox_risks(reference, features, [1000.0])[Risks.risk.name]
    assert risks.n_unique() == 1
    assert 0 < risks[0] < 1
