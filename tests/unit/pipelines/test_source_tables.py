"""Tables of a source: found in any spelling, read without guessing, one table from shards that differ."""

import gzip
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest

from data_schemas.errors import InputContractError
from pipelines.import_cohort.source_tables import (
    find_key_type,
    has_clock,
    open_table,
    read_datetime,
    read_day,
    read_number,
    read_text,
    read_whole_number,
    require_table,
    scan_table,
)


def rows_of(source: Path, name: str) -> list[dict[str, object]]:
    table = scan_table(source, name)
    assert table is not None
    return table.frame.collect().to_dicts()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("PERSON.csv", "Person_ID,Sex\n1,F\n"),
        ("person.tsv", "person_id\tSEX\n1\tF\n"),
        ("Person.txt", " person_id , sex \n1,F\n"),
        ("person.tab", "person_id\tsex\r\n1\tF\r\n"),
        ("person.csv", "\ufeffperson_id,sex\n1,F\n"),
    ],
)
def test_a_text_table_is_found_in_any_spelling(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_bytes(content.encode())
    assert rows_of(tmp_path, "person") == [{"person_id": "1", "sex": "F"}]
    compressed = tmp_path / "other place" / f"{file}.gz"
    compressed.parent.mkdir()
    compressed.write_bytes(gzip.compress(content.encode()))
    assert rows_of(compressed.parent, "Person") == [{"person_id": "1", "sex": "F"}]


def test_a_folder_with_brackets_and_blanks_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "my [first] export"
    (folder / "person").mkdir(parents=True)
    (folder / "person" / "part 0.csv").write_text("person_id\n1\n")
    pl.DataFrame({"person_id": [2]}).write_parquet(folder / "person" / "part [1].parquet")
    assert rows_of(folder, "person") == [{"person_id": "1"}, {"person_id": "2"}]


def test_leftovers_of_archives_are_not_tables(tmp_path: Path) -> None:
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._person.csv").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / "._person.csv").write_bytes(b"\x00\x05\x16\x07")
    assert scan_table(tmp_path, "person") is None
    shards = tmp_path / "person"
    (shards / "__MACOSX").mkdir(parents=True)
    (shards / "__MACOSX" / "._0.csv").write_bytes(b"\x00")
    (shards / "_SUCCESS").write_text("")
    assert scan_table(tmp_path, "person") is None
    (shards / "0.csv").write_text("person_id\n1\n")
    assert rows_of(tmp_path, "person") == [{"person_id": "1"}]


def test_a_table_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "person.csv").write_text("person_id\n1\n")
    (tmp_path / "PERSON.csv.gz").write_bytes(gzip.compress(b"person_id\n1\n"))
    with pytest.raises(InputContractError, match=r"holds table person more than once \(PERSON.csv.gz, person.csv\)"):
        scan_table(tmp_path, "person")


def test_a_missing_table_or_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match="no such folder"):
        scan_table(tmp_path / "nowhere", "person")
    with pytest.raises(InputContractError, match="person: not found"):
        require_table(tmp_path, "person")
    with pytest.raises(InputContractError, match="not found"):
        open_table(tmp_path / "export.csv")
    (tmp_path / "person.csv").write_text("person_id\n1\n")
    with pytest.raises(InputContractError) as caught:
        require_table(tmp_path, "person", ["person_id", "sex", "born"])
    assert [violation.column for violation in caught.value.violations] == ["sex", "born"]


def test_the_same_column_twice_is_an_error(tmp_path: Path) -> None:
    for header in ("id,code,code", "id,code,Code"):
        (tmp_path / "person.csv").write_text(f"{header}\n1,2,3\n")
        with pytest.raises(InputContractError, match="column 'code': is there more than once"):
            scan_table(tmp_path, "person")


def test_empty_cells_and_words_for_nothing_are_null(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b,c,d\n,NA,NULL,\\N\n"","N/A",null,0\n')
    assert rows_of(tmp_path, "t") == [
        {"a": None, "b": None, "c": None, "d": None},
        {"a": None, "b": "N/A", "c": "null", "d": "0"},
    ]


def test_cells_in_quotes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,name\n1,"one, ""two""\nthree"\n')
    assert rows_of(tmp_path, "t") == [{"id": "1", "name": 'one, "two"\nthree'}]
    (tmp_path / "v.csv").write_text('id\tname\n1\t5" tube\n"2"\t"a ""b"""\n3\t""\n')  # a vocabulary as Athena gives it
    assert rows_of(tmp_path, "v") == [
        {"id": "1", "name": '5" tube'},
        {"id": "2", "name": 'a "b"'},
        {"id": "3", "name": None},
    ]


def test_bytes_that_are_no_utf8_do_not_stop_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("id,name\n1,Crohnsche Entzündung\n".encode("latin-1"))
    assert rows_of(tmp_path, "t") == [{"id": "1", "name": "Crohnsche Entz\ufffdndung"}]


def test_a_header_behind_placeholders_is_the_header(tmp_path: Path) -> None:
    (tmp_path / "death.csv").write_text("column0,column1\nPERSON_ID,DEATH_DATE\n")
    table = scan_table(tmp_path, "death")
    assert table is not None
    assert table.types.names() == ["person_id", "death_date"]
    assert table.frame.collect().is_empty()
    assert [(note.name, note.rows) for note in table.notes] == [("header_rows", 1)]
    (tmp_path / "death.csv").write_text("column0,column1\nPERSON_ID,DEATH_DATE\n7,2001-01-01\n")
    assert rows_of(tmp_path, "death") == [{"person_id": "7", "death_date": "2001-01-01"}]


def test_headers_between_the_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,code\n1,a\nID,Code\n2,b\nid,x\n")
    table = scan_table(tmp_path, "t")
    assert table is not None
    assert table.frame.collect()["id"].to_list() == ["1", "2", "id"]
    assert [(note.name, note.rows) for note in table.notes] == [("header_rows", 1)]
    quick = scan_table(tmp_path, "t", look_for_headers=False)
    assert quick is not None
    assert quick.notes == ()


def test_empty_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(InputContractError, match="is empty: not even a header"):
        scan_table(tmp_path, "t")
    (tmp_path / "t.csv").unlink()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "0.csv").write_text("")
    (tmp_path / "t" / "1.csv").write_text("id\n")
    (tmp_path / "t" / "2.csv").write_text("id\n5\n")
    table = scan_table(tmp_path, "t")
    assert table is not None
    assert table.frame.collect()["id"].to_list() == ["5"]
    assert [(note.name, note.rows) for note in table.notes] == [("empty_files", 1)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"PAR1 and no more", "is no parquet file, or only part of one"),
        ("t.csv.gz", b"id,code\n1,a\n", "compressed by gzip"),
        ("t.csv.gz", gzip.compress(b"id,code\n1,a\n" * 1000)[:30], "compressed by gzip"),
        ("t.csv", b"id,code\n1,a\n1,b,c,d\n", "some have more cells than there are columns"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputContractError, match=message) as caught:
        scan_table(tmp_path, "t")
    assert "t." in caught.value.violations[0].file


def test_shards_of_different_types_become_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    day = datetime(2020, 1, 2, 3, 4, 5)
    first = pl.DataFrame(
        {
            "id": pl.Series([2**60 + 1], dtype=pl.Int64),
            "small": pl.Series([1], dtype=pl.UInt8),
            "time": pl.Series([day], dtype=pl.Datetime("ns")),
            "word": pl.Series(["a"], dtype=pl.Categorical),
            "number": [1],
            "nothing": pl.Series([None], dtype=pl.Null),
            "list": [[1]],
            "zoned": pl.Series([day]).dt.replace_time_zone("Europe/Berlin"),
        }
    )
    second = pl.DataFrame(
        {
            "ID": [None, 7.0],  # pandas writes whole numbers with gaps as floats
            "small": pl.Series([70_000, None], dtype=pl.UInt32),
            "time": pl.Series([day, None], dtype=pl.Datetime("ms")),
            "word": ["b", None],
            "number": [1.5, None],
            "nothing": [None, 4.5],
            "list": ["no list", None],
            "zoned": pl.Series([day, None], dtype=pl.Datetime("us")),
            "more": ["x", "y"],
        }
    )
    first.write_parquet(folder / "0.parquet")
    second.write_parquet(folder / "1.parquet")
    first.clear().write_parquet(folder / "2.parquet")
    table = scan_table(tmp_path, "t")
    assert table is not None
    assert find_key_type(table, "id") == pl.Int64
    read = table.frame.select(
        table.key("id", pl.Int64()),
        table.whole_number("small"),
        table.datetime("time"),
        table.text("word"),
        table.number("number"),
        table.number("nothing"),
        table.datetime("zoned"),
        table.text("more"),
        table.text("absent"),
    ).collect()
    assert read.rows() == [
        (2**60 + 1, 1, day, "a", 1.0, None, day, None, None),
        (None, 70_000, day, "b", 1.5, None, day, "x", None),
        (7, None, None, None, None, 4.5, None, "y", None),
    ]
    assert [note.text for note in table.notes] == ["t: column 'list' is not used"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2018-08-03", datetime(2018, 8, 3)),
        ("20180803", datetime(2018, 8, 3)),
        ("2018-08-03 22:20:52", datetime(2018, 8, 3, 22, 20, 52)),
        ("2018-08-03T22:20", datetime(2018, 8, 3, 22, 20)),
        ("2018-08-03T22:20:52Z", datetime(2018, 8, 3, 22, 20, 52)),
        ("2018-08-03 22:20:52+00:00", datetime(2018, 8, 3, 22, 20, 52)),
        ("2018-08-03 23:59:59.5 +0530", datetime(2018, 8, 3, 23, 59, 59, 500_000)),
        ("2018-08-03 00:00:00.000000001 UTC", datetime(2018, 8, 3)),
        ("  2018-08-03 ", datetime(2018, 8, 3)),
        ("1899-12-31", datetime(1899, 12, 31)),
        ("", None),
        (None, None),
        ("2018-02-30", None),
        ("2018-08", None),
        ("2018-08-03 25:00:00", None),
        ("03/08/2018", None),
        ("18-08-03", None),
        ("2018113", None),
        ("0000-00-00", None),
        ("unknown", None),
    ],
)
def test_dates_in_text(text: str | None, expected: datetime | None) -> None:
    frame = pl.DataFrame({"t": pl.Series([text], dtype=pl.String)})
    time, day = frame.select(
        read_datetime(pl.col("t"), pl.String()), read_day(pl.col("t"), pl.String()).alias("day")
    ).row(0)
    assert (time, day) == (expected, expected and expected.date())


def test_the_forms_of_dates_may_be_mixed_in_a_column() -> None:
    texts = [
        "2018-08-03",
        "20180804",
        None,
        "2018-08-05T01:02:03Z",
        "2018-08-06 07:00+02:00",
        "x",
        "2018-08-07 00:00:00",
    ]
    days = pl.LazyFrame({"t": texts}).select(read_day(pl.col("t"), pl.String())).collect()["t"].to_list()
    assert days == [date(2018, 8, day) if day else None for day in (3, 4, None, 5, 6, None, 7)]


def test_dates_that_are_typed_already() -> None:
    late = datetime(2021, 1, 1, 0, 30)
    frame = pl.DataFrame(
        {
            "date": [late.date()],
            "ns": pl.Series([late], dtype=pl.Datetime("ns")),
            "berlin": pl.Series([late]).dt.replace_time_zone("Europe/Berlin"),  # still 2020 in UTC
            "number": [20210101],
            "float": [20210101.0],
            "null": pl.Series([None], dtype=pl.Null),
        }
    )
    read = frame.select(read_day(pl.col(name), dtype) for name, dtype in frame.schema.items()).row(0)
    assert read == (*[date(2021, 1, 1)] * 5, None)
    times = frame.select(read_datetime(pl.col(name), dtype) for name, dtype in frame.schema.items())
    assert times.row(0)[1:3] == (late, late)
    assert set(times.dtypes) == {pl.Datetime("us")}
    clocks = frame.select(has_clock(pl.col(name), dtype).alias(name) for name, dtype in frame.schema.items()).row(0)
    assert clocks == (False, True, True, False, False, None)


def test_numbers_are_read_whole_or_not_at_all() -> None:
    texts = ["-8254164865273971123", " 7 ", "007", "1.0", "1.5", "1e3", "9999999999999999999", "", "x", "nan", None]
    value = pl.col("t")
    frame = pl.DataFrame({"t": texts}).select(
        read_whole_number(value, pl.String()).alias("whole"), read_number(value, pl.String()).alias("number")
    )
    assert frame["whole"].to_list() == [-8254164865273971123, 7, 7, 1, None, None, None, None, None, None, None]
    assert frame["number"].to_list()[3:6] == [1.0, 1.5, 1000.0]
    assert frame["number"].to_list()[7:] == [None] * 4
    floats = pl.DataFrame({"t": [3.0, 2.5, float("nan"), float("inf")]})
    assert floats.select(read_whole_number(value, pl.Float64()))["t"].to_list() == [3, None, None, None]
    assert floats.select(read_text(value, pl.Float64()))["t"].to_list()[:2] == ["3", "2.5"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1", "-5", None, "3.0"], pl.Int64),
        (["1", "007"], pl.String),
        (["1", "a7"], pl.String),
        (["99999999999999999999"], pl.String),
    ],
)
def test_ids_are_numbers_only_if_all_of_them_are(tmp_path: Path, ids: list[str | None], expected: pl.DataType) -> None:
    (tmp_path / "t.csv").write_text("id,x\n" + "".join(f"{id_ or ''},1\n" for id_ in ids))
    table = require_table(tmp_path, "t")
    key_type = find_key_type(table, "id")
    assert key_type == expected
    assert table.frame.select(table.key("id", key_type)).collect()["id"].null_count() == ids.count(None)


def test_cells_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,day,value\n1,2020-01-01,5\n2,soon,\n3,,five\n4,2020-13-01,6\n")
    table = require_table(tmp_path, "t")
    notes = table.count_unreadable([table.day("day"), table.number("value"), table.number("absent")])
    assert [(note.text, note.rows) for note in notes] == [
        ("t.csv: cells of 'day' that could not be read, taken as missing", 2),
        ("t.csv: cells of 'value' that could not be read, taken as missing", 1),
    ]
