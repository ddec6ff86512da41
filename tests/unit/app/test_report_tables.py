"""What a report reads: tables held to their contract, small cells taken out, rows laid out for a reader."""

import polars as pl
import pytest
from made_up_evaluation import CASES, EVIL, PEOPLE, write_made_up_evaluation
from made_up_model import made_up_facts

from app.report.compare_predictors import compare_predictors, detail_outcomes, references_won
from app.report.follow_up_table import tabulate_follow_up, tabulate_landmarks, tabulate_left_out
from app.report.outcome_table import tabulate_outcomes
from app.report.read_evaluation import read_evaluation
from app.report.state_limits import state_limits
from app.report.subgroup_table import tabulate_subgroups
from app.report.truth_comparison import tabulate_truth
from data_schemas.age_units import years_to_days
from data_schemas.errors import InputContractError
from data_schemas.evaluation_tables import PeopleLeftOut, TruthComparison
from data_schemas.results import AUC, COX, MACRO_MEAN, MODEL, Metrics
from pipelines.evaluation.compare_with_truth import AUC_GAP, TRUE_SLOPE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_made_up_evaluation(tmp_path_factory.mktemp("evaluation") / "tables")


@pytest.fixture(scope="module")
def evaluation(folder):
    return read_evaluation(folder)


def change_metrics(folder, out, change):
    write_made_up_evaluation(out)
    change(pl.read_parquet(folder / "metrics.parquet", glob=False)).write_parquet(out / "metrics.parquet")
    return out


def test_first_numbers_are_at_entry_five_years_ahead(evaluation):
    assert (evaluation.landmark, evaluation.horizon_days) == ("entry", years_to_days(5.0))
    assert evaluation.predictors == ["model", "cox", "age_sex"]
    assert evaluation.outcomes_by_cases() == ["DEATH", "stroke", "angina", EVIL]
    assert evaluation.outcomes_by_cases(2) == ["DEATH", "stroke"]


def test_other_landmarks_and_horizons_have_first_numbers_too(folder, tmp_path):
    only = (Metrics.landmark.col == "entry+5y") & (Metrics.horizon_days.col != years_to_days(5.0))
    found = read_evaluation(change_metrics(folder, tmp_path / "x", lambda metrics: metrics.filter(only)))
    assert (found.landmark, found.horizon_days) == ("entry+5y", years_to_days(10.0))


def test_small_cells_are_taken_out_whatever_wrote_them(folder, tmp_path):
    """An estimate on 3 cases that another program left in the table."""
    small = pl.when(Metrics.outcome.col == "stroke").then(3).otherwise(Metrics.n_events.col).alias("n_events")
    found = read_evaluation(change_metrics(folder, tmp_path / "x", lambda metrics: metrics.with_columns(small)))
    rows = found.metrics.filter(Metrics.outcome.col == "stroke")
    assert rows["n_events"].null_count() == rows.height > 0
    assert rows["estimate"].null_count() == rows["lower"].null_count() == rows.height
    assert "stroke" not in found.outcomes_by_cases()


def test_a_table_that_is_missing_is_named_and_one_that_is_broken_refused(folder, tmp_path):
    found = read_evaluation(write_made_up_evaluation(tmp_path / "few", leave_out=("decision_curve", "censoring")))
    assert {"decision_curve", "censoring"} < set(found.missing)
    assert found["decision_curve"].is_empty()
    with pytest.raises(InputContractError, match=r"metrics\.parquet: not found; make an evaluation"):
        read_evaluation(tmp_path)
    with pytest.raises(InputContractError, match="column 'standard_error': the column is missing"):
        read_evaluation(change_metrics(folder, tmp_path / "x", lambda metrics: metrics.drop("standard_error")))
    with pytest.raises(InputContractError, match=r"column 'interval': check \(\d+ rows\)"):
        read_evaluation(change_metrics(folder, tmp_path / "y", lambda rows: rows.with_columns(interval=pl.lit("z"))))
    with pytest.raises(InputContractError, match="no outcome had enough cases"):
        read_evaluation(change_metrics(folder, tmp_path / "z", lambda metrics: metrics.clear()))


def test_every_number_has_the_references_beside_it(evaluation):
    table = compare_predictors(evaluation, made_up_facts().words)
    assert table.predictors == ("model", "Cox", "age and sex")
    assert table.references == ("Cox", "age and sex")
    assert [row.label for row in table.overall] == [
        "AUC, mean over outcomes",
        "observed / expected, all outcomes together",
    ]
    mean = table.overall[0]
    assert mean.numbers == ("0.78 (0.76–0.80)", "0.77 (0.75–0.79)", "0.70 (0.68–0.72)")
    assert mean.differences == (
        "+0.009 (−0.009\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+0.027)",
        "+0.078 (+0.060\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+0.096)",
    )
    assert [(row.label, row.hint) for row in table.outcomes[:2]] == [
        ("DEATH", "DEATH in words"),
        ("stroke", "stroke in words"),
    ]
    assert references_won(evaluation) == {"cox": (0, 0, 4), "age_sex": (4, 0, 0)}


def test_details_hold_every_measure_and_the_null_model_once(evaluation):
    stroke = next(detail for detail in detail_outcomes(evaluation, {}) if detail.outcome == "stroke")
    rows = {row.label: row for row in stroke.rows}
    assert rows["Brier of one risk for all"].numbers[1:] == ("", "")
    assert rows["scaled Brier"].numbers[0].startswith("9.4\N{NO-BREAK SPACE}% (7.6–")
    assert (stroke.people, stroke.cases) == ("2,571", "432")


def test_the_table_of_outcomes_has_a_number_to_sort_by_for_each_text(evaluation):
    table = tabulate_outcomes(evaluation, {})
    # EVIL has 40 cases in five years and 8 in one: no row for one year.
    assert len(table.rows) == 2 * (3 * len(CASES) - 1)
    assert {len(row.cells) for row in table.rows} == {len(table.headings)}
    cases = [float(row.cells[1].value) for row in table.rows]
    assert cases == sorted(cases, reverse=True)
    assert min(cases) >= 10


def test_a_withheld_count_of_a_subgroup_is_not_what_is_missing_to_everyone(evaluation):
    stroke = next(table for table in tabulate_subgroups(evaluation, {}) if table.outcome == "stroke")
    rows = {row.subgroup: row for row in stroke.rows}
    assert (rows["everyone"].n, rows["everyone"].n_events) == (PEOPLE, CASES["stroke"])
    assert rows["sex: unknown"].n_events is None
    assert rows["sex: unknown"].auc is None
    assert [rows[f"sex: {sex}"].n_events for sex in ("female", "male")] == [230, 200]  # 225 and 200
    assert rows["age: 40-59"].n_events == 238  # nothing is withheld among ages
    assert rows["sex: female"].cells[3] == "−0.012 (−0.030\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}+0.006)"


def test_without_subgroups_there_is_no_table_of_them(folder, tmp_path):
    only = change_metrics(folder, tmp_path / "x", lambda metrics: metrics.filter(Metrics.subgroup.col == "all"))
    assert tabulate_subgroups(read_evaluation(only), {}) == []


def test_follow_up_shows_no_rest_of_fewer_than_ten(evaluation):
    rows = {row.outcome: row for row in tabulate_follow_up(evaluation)}
    assert (rows["stroke"].died, rows["stroke"].lost) == ("150", "450")
    assert rows["stroke"].followed_beyond == f"{PEOPLE - 432 - 150 - 450:,}"
    assert rows["DEATH"].died == "–"
    # 6 people are followed beyond 5 years, which n − cases − died − lost would tell.
    assert rows["angina"].followed_beyond == "under 10"
    true_lost = PEOPLE - CASES["angina"] - 150 - 6
    assert int(rows["angina"].lost.replace(",", "")) != true_lost
    unstable = [row for row in tabulate_landmarks(evaluation) if row.is_unstable]
    assert {row.horizon for row in unstable} == {"10 years"}


def test_a_gap_and_the_truth_have_tables_of_their_own(folder, tmp_path, evaluation):
    assert tabulate_left_out(evaluation) == []
    assert tabulate_truth(evaluation) is None
    place = ("entry", years_to_days(5.0), "all")
    left_out = [("stroke", "entry", 90.0, 2570, 20, None, 40), ("angina", "entry+5y", 90.0, 2570, 20, 30, 40)]
    numbers = {AUC_GAP: 0.0123, TRUE_SLOPE: 0.97}
    truth = [("model", MACRO_MEAN, *place, metric, value, 2571) for metric, value in numbers.items()]
    out = write_made_up_evaluation(tmp_path / "more")
    for name, schema, rows in (("left_out", PeopleLeftOut, left_out), ("truth", TruthComparison, truth)):
        pl.DataFrame(rows, schema=schema.create_empty().schema, orient="row").write_parquet(out / f"{name}.parquet")
    found = read_evaluation(out)
    assert tabulate_left_out(found) == [("stroke", "90", "2,570", "20", "under 10", "40")]
    table = tabulate_truth(found)
    assert [(label, people) for label, people, _ in table.rows] == [("model", "2,571")]
    assert dict(zip(table.headings, table.rows[0][2], strict=True))["gap"] == "0.012"


def test_limits_are_read_off_the_tables(evaluation, folder, tmp_path):
    text = "\n".join(state_limits(evaluation, made_up_facts(notes=("said of the method",))))
    assert text.startswith("said of the method\n")
    assert "10 years after entry, 10 years after entry+5y" in text
    assert f"1 of 4 outcomes have fewer than 100 cases here ({EVIL})" in text
    assert "Too few cases to be judged at all: porphyria." in text
    assert "no number of Cox" not in text
    lacks_cox = ~((Metrics.predictor.col == COX) & (Metrics.outcome.col == "angina") & (Metrics.metric.col == AUC))
    less = read_evaluation(change_metrics(folder, tmp_path / "x", lambda metrics: metrics.filter(lacks_cox)))
    text = "\n".join(state_limits(less, made_up_facts()))
    assert "There is no number of Cox for angina at entry, angina at entry+5y" in text
    assert MODEL in less.predictors
