"""One row a person: what is accepted, what is refused without quoting anybody, and the way back."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from app.person_rows import read_person_rows, risk_column, to_risk_columns, to_scoring_tables
from data_schemas.age_units import years_to_days
from data_schemas.errors import InputContractError

ROWS = {
    "subject_id": ["b", "a", "b"],
    "sex": ["female", "male", "unknown"],
    "codes": [["x", "y"], [], ["x"]],
    "ages_days": [[5, 7], [], [3.5]],
    "values": [[None, np.nan], [], [2.0]],
    "landmark_age_days": [6, 3, 4],
}
PERSON = "Jane Doe"


def refusal(**changes):
    with pytest.raises(InputContractError) as caught:
        read_person_rows(pd.DataFrame({**ROWS, **changes}))
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_whole_numbers_nulls_and_empty_histories_are_read():
    people = read_person_rows(pd.DataFrame(ROWS))
    assert people["ages_days"].to_list() == [[5.0, 7.0], [], [3.5]]
    assert people["values"].to_list() == [[None, None], [], [2.0]]
    assert people["landmark_age_days"].to_list() == [6.0, 3.0, 4.0]


def test_numpy_arrays_and_whole_number_ids_are_read():
    rows = {
        **ROWS,
        "subject_id": [3, 1, 3],
        "codes": [np.array(["x", "y"], dtype=object), [], ["x"]],
        "ages_days": [np.array([5.0, 7.0]), np.array([]), np.array([3])],
        "values": [np.array([np.nan, 1.0]), [], [None]],
    }
    people = read_person_rows(pd.DataFrame(rows))
    assert people["subject_id"].dtype == pl.Int64
    assert people["values"].to_list() == [[None, 1.0], [], [None]]


def test_nobody_is_read_as_nobody():
    assert read_person_rows(pd.DataFrame({name: [] for name in ROWS})).is_empty()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sex": ["female", 3, PERSON]}, "column 'sex': expected text in every row (1 row); first at row 1"),
        ({"sex": ["female", None, PERSON]}, "column 'sex': must be one of female, male, unknown (2 rows)"),
        ({"codes": [["x", 1], [], ["x"]]}, "column 'codes': expected a list of text in every row (1 row)"),
        ({"codes": [["x", None], [], ["x"]]}, "column 'codes': must not hold nulls or empty text"),
        ({"codes": [["x", ""], [], ["x"]]}, "column 'codes': must not hold nulls or empty text"),
        (
            {"codes": [["x", "y"], None, ["x"]]},
            "column 'codes': must be a list (empty: no events) (1 row); first at row 1",
        ),
        ({"codes": [["x"], [], ["x"]]}, "column 'codes': must be as long as ages_days and values"),
        ({"ages_days": [[5, PERSON], [], [3.5]]}, "column 'ages_days': expected a list of numbers in every row"),
        ({"ages_days": [[5, None], [], [3.5]]}, "column 'ages_days': must hold ages between 0 and 43830 days"),
        ({"ages_days": [[5, -1], [], [3.5]]}, "column 'ages_days': must hold ages between 0 and 43830 days"),
        ({"values": [[1, PERSON], [], [3.5]]}, "column 'values': expected a list of numbers or nulls in every row"),
        ({"values": [[1, np.inf], [], [3.5]]}, "column 'values': must hold finite numbers or nulls"),
        ({"landmark_age_days": [6, None, 4]}, "column 'landmark_age_days': must be between 0 and 43830 days (1 row)"),
        ({"landmark_age_days": [6, 3, 1e6]}, "first at row 2"),
        ({"landmark_age_days": [6, 3, PERSON]}, "column 'landmark_age_days': expected a number in every row"),
        ({"subject_id": [1.5, 2.0, 3.0]}, "column 'subject_id': expected whole numbers or text"),
        ({"subject_id": ["a", None, "c"]}, "column 'subject_id': is null (1 row); first at row 1"),
    ],
)
def test_a_bad_row_is_named_by_column_rule_and_number_only(changes, said):
    message = refusal(**changes)
    assert said in message
    assert PERSON not in message


def test_every_missing_column_is_named():
    with pytest.raises(InputContractError) as caught:
        read_person_rows(pd.DataFrame(ROWS).drop(columns=["sex", "values"]))
    assert [violation.column for violation in caught.value.violations] == ["sex", "values"]


def test_histories_unfold_under_row_numbers():
    tables = to_scoring_tables(read_person_rows(pd.DataFrame(ROWS)))
    assert tables.events.collect().rows() == [(0, 5.0, "x", None), (0, 7.0, "y", None), (2, 3.5, "x", 2.0)]
    assert tables.subjects.select("subject_id", "sex", "entry_age_days", "exit_age_days").rows() == [
        (0, "female", 0.0, 7.0),
        (1, "male", 0.0, 4.0),
        (2, "unknown", 0.0, 5.0),
    ]
    assert tables.landmarks.rows() == [(0, 6.0), (1, 3.0), (2, 4.0)]


def test_events_are_sorted_by_age_and_keep_their_order_within_a_day():
    rows = {**ROWS, "codes": [["c", "b", "a"], [], []], "ages_days": [[2, 2, 1], [], []], "values": [[1, 2, 3], [], []]}
    tables = to_scoring_tables(read_person_rows(pd.DataFrame(rows)))
    assert tables.events.collect()["code"].to_list() == ["a", "c", "b"]


def test_risks_come_back_one_row_a_person_in_order_with_ids_as_delivered():
    rows = pd.DataFrame(ROWS, index=[7, 8, 9])
    risks = pl.DataFrame(
        [
            {
                "subject_id": row,
                "outcome": outcome,
                "horizon_days": years_to_days(years),
                "risk": risk,
                "method": "all_future",
            }
            for row, risk in enumerate([0.1, None, 0.3])
            for outcome in ("stroke", "DEATH")
            for years in (0.5, 10.0)
        ]
    ).sample(fraction=1, shuffle=True, seed=1)
    wide = to_risk_columns(risks, rows)
    expected = {"stroke|0.5y", "stroke|10y", "DEATH|0.5y", "DEATH|10y"}
    assert set(wide.columns[1:]) == expected
    assert wide.columns[0] == "subject_id"
    assert wide.index.tolist() == [7, 8, 9]
    assert wide["subject_id"].tolist() == ["b", "a", "b"]
    assert wide["stroke|10y"].isna().tolist() == [False, True, False]
    assert wide["DEATH|0.5y"].iloc[2] == 0.3


def test_a_horizon_is_named_without_surplus_digits():
    assert [risk_column("x", years, "all_future") for years in (1.0, 0.25, 10)] == ["x|1y", "x|0.25y", "x|10y"]


def test_an_approximation_is_named_in_its_column():
    assert risk_column("x", 5.0, "frozen_history") == "x|5y|frozen_history"
