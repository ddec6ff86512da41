"""The table of an evaluation as text."""

import polars as pl

from app.evaluate_model import format_table, result_table
from data_schemas.results import Metrics

ROW = ("stroke", 1200, 0.75, None, 0.7, 1.01)
SCHEMA = ["outcome", "n_cases", "c_index_model", "c_index_cox", "c_index_age_sex", "observed_expected_5y"]


def test_numbers_stand_under_their_headings_and_a_missing_one_is_a_dash():
    head, row = format_table(pl.DataFrame([ROW], schema=SCHEMA, orient="row"))
    assert len(head) == len(row)
    assert row.split() == ["stroke", "1,200", "0.750", "-", "0.700", "1.010"]


def test_without_an_outcome_it_says_why():
    table = result_table(pl.DataFrame(Metrics.create_empty()))
    assert format_table(table) == [
        "nothing could be judged: every outcome has fewer than 20 cases among the people judged"
    ]
