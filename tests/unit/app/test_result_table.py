"""The results as a person and a machine get them."""

import polars as pl
import pytest

from app.result_table import format_results, overall_results, result_table
from data_schemas.results import AGE_SEX, CONCORDANCE, COX, MODEL, OBSERVED_EXPECTED, Metrics


def metric(predictor, outcome, name, estimate, lower=None, upper=None, n_events=1200):
    return (predictor, outcome, "entry", 1826.25, "all", name, estimate, lower, upper, 5000, n_events, None, None)


ROWS = [
    metric(MODEL, "stroke", CONCORDANCE, 0.75),
    metric(AGE_SEX, "stroke", CONCORDANCE, 0.70),
    metric(COX, "stroke", CONCORDANCE, None),
    metric(MODEL, "stroke", OBSERVED_EXPECTED, 1.014, 0.9, 1.1),
    metric(MODEL, "gout", CONCORDANCE, 0.8, n_events=2000),
    metric(MODEL, "macro_mean", CONCORDANCE, 0.775),
    metric("model-cox", "macro_mean", "concordance_difference", 0.0123, -0.001, 0.02),
    metric(MODEL, "pooled", OBSERVED_EXPECTED, 0.98, 0.95, 1.02),
]
METRICS = pl.DataFrame(ROWS, schema=Metrics.create_empty().schema, orient="row")


def test_numbers_stand_under_their_headings_and_a_missing_one_is_a_dash():
    head, gout, stroke, mean, *differences = format_results(METRICS)
    assert len(head) == len(gout) == len(stroke) == len(mean)
    assert gout.split() == ["gout", "2,000", "0.800", "-", "-", "-"]
    assert stroke.split() == ["stroke", "1,200", "0.750", "-", "0.700", "1.01", "(0.90", "to", "1.10)"]
    assert mean.endswith("0.98 (0.95 to 1.02)")
    assert differences == [
        "C of the model - C of Cox: +0.012 (-0.001 to +0.020)",
        "C of the model - C of age and sex: -",
    ]


def test_the_machine_gets_the_same_figures():
    assert result_table(METRICS)["outcome"].to_list() == ["gout", "stroke"]  # most cases first, no means among them
    overall = overall_results(METRICS)
    assert overall["c_index_model"] == 0.775
    assert overall["c_index_cox"] is None
    assert overall["difference_to_cox"] == pytest.approx(0.0123)
    assert overall["observed_expected_upper"] == 1.02


def test_other_landmarks_and_horizons_are_left_out():
    later = METRICS.with_columns(pl.lit("entry+5y").alias("landmark"))
    sooner = METRICS.with_columns(pl.lit(365.25).alias("horizon_days"))
    assert format_results(pl.concat([METRICS, later, sooner])) == format_results(METRICS)


def test_without_an_outcome_it_says_why():
    assert format_results(pl.DataFrame(Metrics.create_empty())) == [
        "nothing could be judged: every outcome has fewer than 20 cases among the people judged"
    ]


def test_without_entry_or_five_years_the_first_landmark_and_the_nearest_horizon_are_shown():
    at_sixty = METRICS.with_columns(landmark=pl.lit("age60"), horizon_days=pl.lit(3 * 365.25))
    at_seventy = at_sixty.with_columns(pl.lit("age70").alias("landmark"))
    later = at_sixty.with_columns(horizon_days=pl.lit(10 * 365.25))
    head, *rest = format_results(pl.concat([at_sixty, at_seventy, later]))
    assert head.endswith("O/E 3y (95 %)")
    assert rest == format_results(METRICS)[1:]


def test_subgroups_do_not_get_into_the_table():
    women = METRICS.with_columns(pl.lit("sex=female").alias("subgroup"))
    assert format_results(pl.concat([METRICS, women])) == format_results(METRICS)
