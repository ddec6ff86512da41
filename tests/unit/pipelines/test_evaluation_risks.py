"""From outcomes and risks to the tables of results: same people, paired differences, suppression, errors."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data_schemas.errors import InputContractError
from data_schemas.results import (
    AGE_SEX,
    AUC,
    BOOTSTRAP,
    BRIER,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    COX,
    DIFFERENCE_SUFFIX,
    E50,
    GRADIENT_BOOSTING,
    ICI,
    INFLUENCE,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OUTCOMES_AVERAGED,
    OVERALL,
    POOLED,
    PREDICTED_RISK,
    VERSUS_REST_SUFFIX,
    CalibrationCurve,
    CalibrationGroups,
    CensoringSummary,
    DecisionCurve,
    EvaluatedOutcomes,
    Metrics,
    Outcomes,
    Risks,
)
from pipelines.evaluation.evaluate_risks import EvaluationResult, evaluate_risks
from pipelines.evaluation.metrics_table import COMPARED_METRICS

N_PEOPLE = 600
HORIZONS = (100.0, 1000.0)
RATES = {"often": 3e-4, "seldom": 1e-4, "hardly_ever": 2e-6}  # the last has too few cases to be judged


def make_outcomes() -> pl.DataFrame:
    rng = np.random.default_rng(11)
    factor = rng.normal(size=N_PEOPLE)
    death, end = rng.exponential(8000, N_PEOPLE), rng.uniform(200, 2500, N_PEOPLE)
    tables = []
    for outcome, rate in RATES.items():
        onset = rng.exponential(1 / rate, N_PEOPLE) * np.exp(-factor)
        time = np.minimum(np.minimum(onset, death), end)
        tables.append(
            pl.DataFrame(
                {
                    Outcomes.subject_id.name: np.arange(N_PEOPLE),
                    Outcomes.landmark_age_days.name: 20_000.0,
                    Outcomes.outcome.name: outcome,
                    Outcomes.time_days.name: np.ceil(time),
                    Outcomes.status.name: np.select([onset == time, death == time], [1, 2], 0).astype(np.int8),
                    "factor": factor,
                }
            )
        )
    return pl.concat(tables)


WITH_FACTOR = make_outcomes()
OUTCOMES = WITH_FACTOR.drop("factor")


def make_risks(strength: float, seed: int) -> pl.DataFrame:
    """Return risks that follow the true factor more or less."""
    noise = np.random.default_rng(seed).normal(size=WITH_FACTOR.height)
    horizons = pl.DataFrame({Risks.horizon_days.name: HORIZONS})
    rate = pl.col(Outcomes.outcome.name).replace_strict(RATES, return_dtype=pl.Float64)
    linear = strength * pl.col("factor") + (1 - strength) * pl.Series(noise)
    return (
        WITH_FACTOR.with_columns(hazard=rate * linear.exp())
        .join(horizons, how="cross")
        .with_columns(
            (1 - (-pl.col("hazard") * Risks.horizon_days.col).exp()).alias(Risks.risk.name),
            pl.lit(None, pl.Float64).alias(Risks.reference_risk.name),
            pl.lit(None, pl.String).alias(Risks.reason.name),
            pl.lit("all_future").alias(Risks.method.name),
        )
        .select(Risks.column_names())
    )


PREDICTORS = {MODEL: make_risks(1.0, 1), COX: make_risks(0.7, 2), AGE_SEX: make_risks(0.2, 3)}


@pytest.fixture(scope="module")
def result() -> EvaluationResult:
    return evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, n_bootstrap=60)


def estimate(metrics: pl.DataFrame, predictor: str, outcome: str, metric: str, horizon: float = 1000.0) -> float | None:
    rows = metrics.filter(
        (Metrics.predictor.col == predictor)
        & (Metrics.outcome.col == outcome)
        & (Metrics.metric.col == metric)
        & (Metrics.horizon_days.col == horizon)
    )
    assert rows.height == 1
    value: float | None = rows[Metrics.estimate.name].item()
    return value


def test_tables_satisfy_their_contracts(result: EvaluationResult) -> None:
    Metrics.validate(result.metrics)
    CalibrationGroups.validate(result.calibration)
    EvaluatedOutcomes.validate(result.outcomes)
    keys = Metrics.column_names()[:6]
    assert not result.metrics.select(keys).is_duplicated().any()


def test_intervals_hold_their_estimates(result: EvaluationResult) -> None:
    shown = result.metrics.filter(Metrics.lower.col.is_not_null())
    assert shown.height > 60
    inside = (Metrics.lower.col <= Metrics.estimate.col) & (Metrics.estimate.col <= Metrics.upper.col)
    assert shown.filter(~inside).height <= 0.05 * shown.height  # percentile intervals may miss a skewed estimate


def test_outcome_with_few_cases_is_listed_and_left_out(result: EvaluationResult) -> None:
    listed = dict(zip(result.outcomes["outcome"], result.outcomes["is_judged"], strict=True))
    assert listed == {"often": True, "seldom": True, "hardly_ever": False}
    row = result.outcomes.filter(EvaluatedOutcomes.outcome.col == "hardly_ever")
    assert row[EvaluatedOutcomes.n_events.name].item() is None
    assert "hardly_ever" not in result.metrics[Metrics.outcome.name]
    assert "hardly_ever" not in result.calibration[CalibrationGroups.outcome.name]


def test_horizon_with_few_cases_has_no_estimates_and_no_count(result: EvaluationResult) -> None:
    rows = result.metrics.filter((Metrics.outcome.col == "seldom") & (Metrics.horizon_days.col == 100.0))
    assert rows.height > 0
    for column in (Metrics.estimate, Metrics.lower, Metrics.upper, Metrics.n_events):
        assert rows[column.name].is_null().all()
    assert (rows[Metrics.n.name] == N_PEOPLE).all()


def test_better_predictors_are_seen_to_be_better(result: EvaluationResult) -> None:
    for metric in (CONCORDANCE, AUC):
        values = [estimate(result.metrics, predictor, "often", metric) for predictor in PREDICTORS]
        assert values == sorted(values, reverse=True)
        assert estimate(result.metrics, "model-age_sex", MACRO_MEAN, metric + DIFFERENCE_SUFFIX) > 0.1


def test_differences_and_means_are_those_of_the_estimates(result: EvaluationResult) -> None:
    def of(predictor: str, outcome: str, metric: str) -> float | None:
        return estimate(result.metrics, predictor, outcome, metric)

    for metric in COMPARED_METRICS:
        for other in (COX, AGE_SEX):
            difference = of(MODEL, "often", metric) - of(other, "often", metric)
            assert of(f"model-{other}", "often", metric + DIFFERENCE_SUFFIX) == pytest.approx(difference)
    for metric in (CONCORDANCE, AUC):
        mean = (of(COX, "often", metric) + of(COX, "seldom", metric)) / 2
        assert of(COX, MACRO_MEAN, metric) == pytest.approx(mean)
    assert of(COX, MACRO_MEAN, OUTCOMES_AVERAGED) == 2.0
    assert estimate(result.metrics, COX, MACRO_MEAN, OUTCOMES_AVERAGED, horizon=100.0) == 1.0
    observed, expected = (of(COX, "often", m) + of(COX, "seldom", m) for m in (OBSERVED_RISK, PREDICTED_RISK))
    assert of(COX, POOLED, OBSERVED_EXPECTED) == pytest.approx(observed / expected)


def test_differences_are_paired() -> None:
    same = evaluate_risks(OUTCOMES, {MODEL: PREDICTORS[COX], COX: PREDICTORS[COX]}, "entry", HORIZONS, n_bootstrap=20)
    differences = same.metrics.filter(Metrics.metric.col.str.ends_with(DIFFERENCE_SUFFIX)).drop_nulls()
    assert differences.height > 0
    for column in (Metrics.estimate, Metrics.lower, Metrics.upper):
        assert (differences[column.name] == 0.0).all()


def test_macro_mean_is_over_the_outcomes_asked_for() -> None:
    result = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, macro_outcomes=["seldom"], n_bootstrap=0)
    assert estimate(result.metrics, COX, MACRO_MEAN, AUC) == estimate(result.metrics, COX, "seldom", AUC)
    none = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, macro_outcomes=["hardly_ever"], n_bootstrap=0)
    assert MACRO_MEAN not in none.metrics[Metrics.outcome.name]


def test_people_without_a_risk_from_any_predictor_are_left_out_for_all() -> None:
    def without(table: pl.DataFrame, n: int, how: Callable[[pl.DataFrame, pl.Expr], pl.DataFrame]) -> pl.DataFrame:
        return how(table, (Risks.subject_id.col < n) & (Risks.outcome.col == "often"))

    null_risk = without(
        PREDICTORS[MODEL],
        12,
        lambda table, who: table.with_columns(pl.when(who).then(None).otherwise(Risks.risk.col).alias("risk")),
    )
    fewer_rows = without(PREDICTORS[COX], 30, lambda table, who: table.filter(~who))
    result = evaluate_risks(
        OUTCOMES, {**PREDICTORS, MODEL: null_risk, COX: fewer_rows}, "entry", HORIZONS, n_bootstrap=0
    )
    rows = result.outcomes.filter(EvaluatedOutcomes.outcome.col == "often")
    assert rows.select("n", "n_without_risk").row(0) == (N_PEOPLE - 30, 30)
    kept = OUTCOMES.filter((Outcomes.outcome.col != "often") | (Outcomes.subject_id.col >= 30))
    smaller = evaluate_risks(kept, PREDICTORS, "entry", HORIZONS, n_bootstrap=0)
    assert estimate(result.metrics, AGE_SEX, "often", CONCORDANCE) == estimate(
        smaller.metrics, AGE_SEX, "often", CONCORDANCE
    )


def test_a_predictor_that_does_not_know_an_outcome_keeps_no_other_from_being_judged() -> None:
    both = {MODEL: PREDICTORS[MODEL], COX: PREDICTORS[COX].filter(Risks.outcome.col != "seldom")}
    found = evaluate_risks(OUTCOMES, both, "entry", HORIZONS, n_bootstrap=20)
    alone = evaluate_risks(OUTCOMES, {MODEL: both[MODEL]}, "entry", HORIZONS, n_bootstrap=20)
    of_model = (Metrics.outcome.col == "seldom") & (Metrics.predictor.col == MODEL)
    assert found.metrics.filter(of_model).drop_nulls(Metrics.estimate.name).height > 0
    assert found.metrics.filter(of_model).equals(alone.metrics.filter(of_model))
    of_cox = (Metrics.outcome.col == "seldom") & Metrics.predictor.col.str.contains(COX)
    estimates = found.metrics.filter(of_cox & (Metrics.metric.col != OBSERVED_RISK))[Metrics.estimate.name]
    assert estimates.len() > 0
    assert estimates.null_count() == estimates.len()
    macro = found.metrics.filter((Metrics.outcome.col == MACRO_MEAN) & (Metrics.metric.col == OUTCOMES_AVERAGED))
    assert macro[Metrics.estimate.name].max() == 1  # a mean is over the outcomes that every predictor has


def test_a_predictor_of_some_outcomes_alone_is_in_no_mean_and_changes_none() -> None:
    of_some = {**PREDICTORS, GRADIENT_BOOSTING: PREDICTORS[COX].filter(Risks.outcome.col == "often")}
    found = evaluate_risks(OUTCOMES, of_some, "entry", HORIZONS, partial_predictors=[GRADIENT_BOOSTING])
    plain = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS)
    summed_up = Metrics.outcome.col.is_in([MACRO_MEAN, POOLED])
    assert_frame_equal(found.metrics.filter(summed_up), plain.metrics.filter(summed_up))
    assert estimate(found.metrics, GRADIENT_BOOSTING, "often", AUC) == estimate(plain.metrics, COX, "often", AUC)


def test_calibration_groups_show_nothing_small(result: EvaluationResult) -> None:
    table = result.calibration
    assert table[CalibrationGroups.n_events.name].min() >= 10
    of_model = table.filter((CalibrationGroups.predictor.col == MODEL) & (CalibrationGroups.outcome.col == "often"))
    at_end = of_model.filter(CalibrationGroups.horizon_days.col == 1000.0)
    assert at_end[CalibrationGroups.n.name].sum() == N_PEOPLE
    assert at_end[CalibrationGroups.predicted.name].is_sorted()
    covered = at_end.filter(
        (CalibrationGroups.lower.col <= CalibrationGroups.predicted.col)
        & (CalibrationGroups.predicted.col <= CalibrationGroups.upper.col)
    )
    assert covered.height >= at_end.height / 2  # the model says the true risk without death


def test_the_same_seed_gives_the_same_table(result: EvaluationResult) -> None:
    again = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, n_bootstrap=60)
    assert again.metrics.equals(result.metrics)
    other = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, n_bootstrap=60, seed=1)
    assert not other.metrics.equals(result.metrics)
    assert other.metrics[Metrics.estimate.name].equals(result.metrics[Metrics.estimate.name])


def test_order_of_rows_does_not_matter(result: EvaluationResult) -> None:
    shuffled = {name: table.sample(fraction=1.0, shuffle=True, seed=1) for name, table in PREDICTORS.items()}
    again = evaluate_risks(OUTCOMES, shuffled, "entry", HORIZONS, n_bootstrap=60)
    assert again.metrics.equals(result.metrics)


def test_intervals_say_where_they_come_from(result: EvaluationResult) -> None:
    kinds = result.metrics.group_by(Metrics.metric.name).agg(Metrics.interval.col.drop_nulls().unique().sort())
    by_metric = dict(kinds.iter_rows())
    assert by_metric[AUC] == by_metric[CONCORDANCE] == [BOOTSTRAP]
    assert by_metric[ICI] == by_metric[CONCORDANCE_IPCW] == [INFLUENCE]
    assert by_metric[E50] == []
    without = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS)
    assert set(without.metrics[Metrics.interval.name].drop_nulls()) == {INFLUENCE}


def test_influence_and_bootstrap_agree() -> None:
    people = OUTCOMES.filter(Outcomes.outcome.col != "hardly_ever")
    both = {MODEL: PREDICTORS[MODEL], COX: PREDICTORS[COX]}
    kinds = [evaluate_risks(people, both, "entry", [1000.0], n_bootstrap=n).metrics for n in (0, 400)]
    keys = Metrics.column_names()[:6]
    paired = kinds[0].join(kinds[1].filter(Metrics.interval.col == BOOTSTRAP), on=keys, suffix="_resampled")
    width = (Metrics.upper.col - Metrics.lower.col).alias("width")
    other = (pl.col("upper_resampled") - pl.col("lower_resampled")).alias("other")
    ratios = paired.select(*keys, width, other, (width / other).alias("ratio"))
    assert {MACRO_MEAN, POOLED, "often"} <= set(ratios[Metrics.outcome.name])
    assert any(name.endswith(DIFFERENCE_SUFFIX) for name in ratios[Metrics.metric.name])
    assert ratios["ratio"].is_between(0.75, 1.3).all()


def test_only_outcomes_asked_for_are_resampled() -> None:
    found = evaluate_risks(
        OUTCOMES, {MODEL: PREDICTORS[MODEL]}, "entry", HORIZONS, n_bootstrap=20, bootstrap_outcomes=["often"]
    ).metrics
    of_auc = found.filter(Metrics.metric.col == AUC, Metrics.interval.col.is_not_null())
    kinds = dict(of_auc.select(Metrics.outcome.name, Metrics.interval.name).unique().iter_rows())
    assert kinds == {"often": BOOTSTRAP, "seldom": INFLUENCE, MACRO_MEAN: INFLUENCE}  # not all of the mean's outcomes


def test_curves_and_censoring_satisfy_their_contracts(result: EvaluationResult) -> None:
    CalibrationCurve.validate(result.calibration_curve)
    DecisionCurve.validate(result.decision_curve)
    CensoringSummary.validate(result.censoring)
    summary = result.censoring.filter(CensoringSummary.outcome.col == "often")
    assert summary[CensoringSummary.horizon_days.name].to_list() == list(HORIZONS)
    assert summary[CensoringSummary.followed_probability.name].is_sorted(descending=True)
    assert summary[CensoringSummary.effective_sample_size.name].max() <= N_PEOPLE
    outcomes = OUTCOMES.filter(Outcomes.outcome.col == "often", Outcomes.time_days.col <= 1000.0)
    for status, count in ((1, "n_events"), (2, "n_died"), (0, "n_censored")):
        assert summary[count][1] == outcomes.filter(Outcomes.status.col == status).height
    assert result.censoring.filter(CensoringSummary.outcome.col == "hardly_ever")["n_events"].null_count() == 1


def test_weights_that_explode_are_flagged() -> None:
    late = evaluate_risks(
        OUTCOMES.filter(Outcomes.outcome.col == "often"),
        {MODEL: PREDICTORS[MODEL].with_columns(horizon_days=Risks.horizon_days.col.replace(1000.0, 2400.0))},
        "entry",
        [100.0, 2400.0],
    )
    flagged = dict(late.censoring.select(CensoringSummary.horizon_days.name, "is_unstable").iter_rows())
    assert flagged == {100.0: False, 2400.0: True}
    assert estimate(late.metrics, MODEL, "often", AUC, 2400.0) is not None


def test_horizon_beyond_follow_up_has_no_number_but_a_row() -> None:
    beyond = PREDICTORS[MODEL].with_columns(horizon_days=Risks.horizon_days.col.replace(1000.0, 9000.0))
    found = evaluate_risks(OUTCOMES, {MODEL: beyond}, "entry", [100.0, 9000.0])
    for metric in (AUC, BRIER, CONCORDANCE_IPCW, OBSERVED_RISK, ICI):
        assert estimate(found.metrics, MODEL, "often", metric, 9000.0) is None
    last = found.censoring.filter(CensoringSummary.horizon_days.col == 9000.0)
    assert last["followed_probability"].to_list() == [0.0] * 3
    assert last["effective_sample_size"].null_count() == 3


SUBGROUPS = pl.concat([
    pl.DataFrame({"subject_id": np.arange(N_PEOPLE), "landmark_age_days": 20_000.0}).with_columns(
        subgroup=pl.when(pl.col("subject_id") < 400).then(pl.lit("sex=female")).otherwise(pl.lit("sex=male"))
    ),
    pl.DataFrame({"subject_id": np.arange(12), "landmark_age_days": 20_000.0, "subgroup": "age=80-89"}),
    pl.DataFrame({"subject_id": np.array([N_PEOPLE + 5]), "landmark_age_days": 20_000.0, "subgroup": "age=90-99"}),
])  # fmt: skip


def test_subgroups_have_rows_of_their_own() -> None:
    one = {MODEL: PREDICTORS[MODEL]}
    found = evaluate_risks(OUTCOMES, one, "entry", HORIZONS, subgroups=SUBGROUPS)
    Metrics.validate(found.metrics)
    assert not found.metrics.select(Metrics.column_names()[:6]).is_duplicated().any()
    everyone = found.metrics.filter(Metrics.subgroup.col == OVERALL)
    assert everyone.equals(evaluate_risks(OUTCOMES, one, "entry", HORIZONS).metrics)

    def of(subgroup: str, metric: str) -> dict[str, object]:
        rows = found.metrics.filter(
            Metrics.subgroup.col == subgroup, Metrics.metric.col == metric, Metrics.outcome.col == "often",
            Metrics.horizon_days.col == 1000.0,
        )  # fmt: skip
        return rows.row(0, named=True)

    women, men = of("sex=female", AUC), of("sex=male", AUC)
    assert (women["n"], men["n"]) == (400, 200)
    difference = of("sex=female", AUC + VERSUS_REST_SUFFIX)
    assert difference["estimate"] == pytest.approx(women["estimate"] - men["estimate"])
    apart = np.hypot(women["standard_error"], men["standard_error"])  # but for the censoring curve they share
    assert difference["standard_error"] == pytest.approx(apart, rel=0.05)
    few, none = of("age=80-89", AUC), of("age=90-99", OBSERVED_EXPECTED)
    assert (few["estimate"], few["n"], few["n_events"]) == (None, 12, None)
    assert (none["estimate"], none["n"], none["n_events"]) == (None, None, None)


def test_censoring_within_strata() -> None:
    one = {MODEL: PREDICTORS[MODEL]}
    strata = SUBGROUPS.filter(pl.col("subgroup").str.starts_with("sex")).rename({"subgroup": "stratum"})
    within = evaluate_risks(OUTCOMES, one, "entry", HORIZONS, censoring_strata=strata)
    women = OUTCOMES.filter(Outcomes.subject_id.col < 400)
    by_sex = evaluate_risks(
        OUTCOMES,
        one,
        "entry",
        HORIZONS,
        censoring_strata=strata,
        subgroups=SUBGROUPS.filter(pl.col("subgroup") == "sex=female"),
    )
    alone = evaluate_risks(women, one, "entry", HORIZONS)
    of_women = by_sex.metrics.filter(Metrics.subgroup.col == "sex=female")
    for metric in (AUC, BRIER, CONCORDANCE_IPCW):
        assert estimate(of_women, MODEL, "often", metric) == pytest.approx(
            estimate(alone.metrics, MODEL, "often", metric)
        )
        together = evaluate_risks(OUTCOMES, one, "entry", HORIZONS)
        assert estimate(within.metrics, MODEL, "often", metric) != estimate(together.metrics, MODEL, "often", metric)
    with pytest.raises(InputContractError, match=r"no stratum of censoring.*200 rows"):
        evaluate_risks(OUTCOMES, one, "entry", HORIZONS, censoring_strata=strata.head(400))


def test_several_landmarks_of_a_person_are_one_cluster() -> None:
    def twice(table: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([table, table.with_columns(landmark_age_days=pl.col("landmark_age_days") + 1.0)])

    one = {MODEL: PREDICTORS[MODEL]}
    once = evaluate_risks(OUTCOMES, one, "entry", HORIZONS).metrics
    again = evaluate_risks(twice(OUTCOMES), {MODEL: twice(one[MODEL])}, "entry", HORIZONS).metrics
    wanted = (Metrics.outcome.col == "often") & (Metrics.horizon_days.col == 1000.0)
    wanted &= Metrics.metric.col.is_in([AUC, BRIER, OBSERVED_EXPECTED])
    columns = [Metrics.metric.name, Metrics.estimate.name, Metrics.standard_error.name]
    assert_frame_equal(once.filter(wanted).select(columns), again.filter(wanted).select(columns), rel_tol=1e-6)
    assert again.filter(wanted)[Metrics.n.name].unique().to_list() == [2 * N_PEOPLE]


def test_several_processes_give_the_same_tables(result: EvaluationResult) -> None:
    shared = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS, n_workers=2)
    alone = evaluate_risks(OUTCOMES, PREDICTORS, "entry", HORIZONS)
    for name, table in vars(alone).items():
        assert_frame_equal(getattr(shared, name), table, rel_tol=1e-9)


def test_nothing_to_judge_gives_empty_tables() -> None:
    for outcomes in (OUTCOMES.clear(), OUTCOMES.filter(Outcomes.outcome.col == "hardly_ever")):
        result = evaluate_risks(outcomes, PREDICTORS, "entry", HORIZONS, n_bootstrap=5)
        assert result.metrics.is_empty()
        assert result.calibration.is_empty()
        Metrics.validate(result.metrics)


def test_repeated_risk_is_refused() -> None:
    repeated = pl.concat([PREDICTORS[COX], PREDICTORS[COX].head(1)])
    with pytest.raises(InputContractError, match=r"risks of 'cox'.*more than one risk.*2 rows"):
        evaluate_risks(OUTCOMES, {COX: repeated}, "entry", HORIZONS, n_bootstrap=0)


def test_risks_of_other_landmarks_are_refused() -> None:
    moved = PREDICTORS[COX].with_columns(Risks.landmark_age_days.col + 1)
    with pytest.raises(InputContractError, match="no risk is for a person, landmark and outcome"):
        evaluate_risks(OUTCOMES, {COX: moved}, "entry", HORIZONS, n_bootstrap=0)
