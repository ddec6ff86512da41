"""Contracts of single tables, and the rules about rows that contracts and cleaning share."""

import polars as pl
import pytest

from data_schemas.cohort import Codes, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport, Note, TableReport, report_to_json, summary_lines
from pipelines.import_cohort.check_contract import check_contract, check_table, contract_rules
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule, mark_rows

EVENTS = pl.DataFrame(
    {
        Events.subject_id.name: [1, 2],
        Events.age_days.name: [1, 2],
        Events.code.name: pl.Series(["A", "B"], dtype=pl.Categorical),
    }
)


@pytest.mark.parametrize("frame", [EVENTS, EVENTS.lazy()], ids=["eager", "lazy"])
def test_a_good_table_comes_back_in_its_schema(frame: pl.DataFrame | pl.LazyFrame) -> None:
    checked = check_contract(frame, Events, "events.parquet").collect()
    assert checked.columns == Events.column_names()
    assert Events.is_valid(checked)


def test_a_column_of_nulls_fits_any_type_but_not_a_rule() -> None:
    with pytest.raises(InputContractError, match=r"column 'code': must not be null \(2 rows\)"):
        check_contract(EVENTS.with_columns(pl.lit(None).alias("code")), Events, "events.parquet")


def test_rules_of_the_schema_itself_hold_for_ages() -> None:
    with pytest.raises(InputContractError, match=r"column 'age_days': must be at least 0 \(1 row\)"):
        check_contract(EVENTS.with_columns(pl.Series("age_days", [-1.0, 2.0])), Events, "events.parquet")


def test_other_columns_are_checked_where_one_cannot_be() -> None:
    frame = EVENTS.with_columns(pl.Series("age_days", ["x", "y"]), pl.Series("code", ["A", ""]))
    with pytest.raises(InputContractError) as caught:
        check_contract(frame, Events, "events.parquet")
    assert [violation.column for violation in caught.value.violations] == ["age_days", "code"]


def test_ids_beyond_int64_are_refused() -> None:
    frame = EVENTS.with_columns(pl.Series("subject_id", [1, 2**63], dtype=pl.UInt64))
    with pytest.raises(InputContractError, match="must fit a 64-bit signed integer"):
        check_contract(frame, Events, "events.parquet")


def test_a_missing_number_in_decimal_ids_is_a_null_key() -> None:
    frame = EVENTS.with_columns(pl.Series("subject_id", [1.0, float("nan")]))
    checked = check_table(frame, Events, "events.parquet")
    assert not checked.structure_faults
    assert [str(fault) for fault in checked.row_faults] == [
        "events.parquet: column 'subject_id': must not be null (1 row); first at row 1 (counted from 0)"
    ]


@pytest.mark.parametrize("schema", [Subjects, Events, Codes])
def test_every_rule_has_a_sentence(schema: type[Subjects | Events | Codes]) -> None:
    for rule in contract_rules(schema):
        assert rule.sentence.startswith("must ")
        assert rule.column in schema.column_names()


def test_marks_keep_the_first_rule_and_rules_see_earlier_marks() -> None:
    rules = [
        RowRule("odd", "", pl.col("x") % 2 == 1),
        RowRule("large", "", pl.col("x") > 3),
        RowRule("first kept", "", pl.col(DROPPED_BY).is_null() & (pl.col("x") == 2)),
        RowRule("null", "", pl.col("x") == pl.lit(None, dtype=pl.Int64)),
    ]
    marked = mark_rows(pl.LazyFrame({"x": [1, 2, 4, 5, 0, None]}), rules).collect()
    assert marked[DROPPED_BY].to_list() == ["odd", "first kept", "large", "odd", None, None]


def test_an_account_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(AssertionError, match="events: 5 read, 3 kept, 1 dropped"):
        TableReport("events", 5, 3, {"after_exit": 1})


def test_report_is_readable_as_json_and_as_lines() -> None:
    report = ImportReport(
        kind="parquet",
        subjects=1_000,
        events=2_000,
        codes=3,
        deaths=4,
        tables=(TableReport("events.parquet", 2_001, 2_000, {"after_exit": 1}),),
        derived=(TableReport("deaths", 4, 4, {}),),
        rules={"after_exit": "too late"},
        notes=(Note("a", "left out"), Note("b", "missing", 7)),
    )
    content = report_to_json(report)
    assert list(content) == ["kind", "cohort", "tables", "derived", "rules", "cleaning", "settings", "notes"]
    assert content["tables"] == [
        {
            "table": "events.parquet",
            "rows_read": 2_001,
            "rows_kept": 2_000,
            "rows_dropped": 1,
            "dropped": {"after_exit": 1},
        }
    ]
    assert summary_lines(report) == [
        "1,000 people, 2,000 events of 3 codes, 4 deaths",
        "events.parquet: 2,001 rows read, 2,000 kept",
        "  1 dropped by after_exit: too late",
        "deaths: 4 rows added, 4 kept",
        "left out",
        "missing: 7",
    ]
