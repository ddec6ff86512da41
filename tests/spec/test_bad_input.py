"""Bad tables in, a complete account out: one test for each way in which a delivered cohort can break its contract."""

from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pytest

from data_schemas.cohort import Codes, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.from_parquet import import_parquet
from pipelines.tables_on_disk import read_subjects, scan_events

# Values that no message may repeat.
HIDDEN_ID = 987654321
HIDDEN_WORD = "sphinx"
HIDDEN_AGE = -4321.5

GOOD_SUBJECTS = pl.DataFrame(
    {
        Subjects.subject_id.name: [11, HIDDEN_ID, 13],
        Subjects.sex.name: ["female", "male", "unknown"],
        Subjects.entry_age_days.name: [10_000.0, 12_000.0, 9_000.0],
        Subjects.exit_age_days.name: [20_000.0, 22_000.0, 19_000.0],
    }
)
GOOD_EVENTS = pl.DataFrame(
    {
        Events.subject_id.name: [11, 11, HIDDEN_ID, 13],
        Events.age_days.name: [9_500.0, 15_000.0, 13_000.0, 19_000.0],
        Events.code.name: ["I10", "E11", "I10", "DEATH"],
        Events.numeric_value.name: [None, None, 1.5, None],
    }
)
GOOD_CODES = pl.DataFrame({Codes.code.name: ["I10", "E11"], Codes.kind.name: ["disease", "disease"]})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder whose name has a blank and brackets, as people's folders do."""
    folder = tmp_path / "my cohort [1]"
    folder.mkdir()
    return folder


def deliver(
    source: Path,
    subjects: pl.DataFrame = GOOD_SUBJECTS,
    events: pl.DataFrame = GOOD_EVENTS,
    codes: pl.DataFrame | None = GOOD_CODES,
) -> Path:
    subjects.write_parquet(source / "subjects.parquet")
    events.write_parquet(source / "events.parquet")
    if codes is not None:
        codes.write_parquet(source / "codes.parquet")
    return source


def refusal(source: Path, *, strict: bool = True) -> InputContractError:
    """Import, and return the error after checking what every error owes: no value, nothing written."""
    out = source.parent / "out"
    with pytest.raises(InputContractError) as caught:
        import_parquet(source, out, strict=strict)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert not any(str(hidden) in text for hidden in (HIDDEN_ID, HIDDEN_WORD, HIDDEN_AGE))
    assert not out.exists()
    return caught.value


def lines(error: InputContractError) -> list[str]:
    """Return each violation without the folder it is in."""
    return [str(violation).split("my cohort [1]/")[-1] for violation in error.violations]


def accept(source: Path, *, strict: bool = True) -> ImportReport:
    return import_parquet(source, source.parent / "out", strict=strict)


def dropped(report: ImportReport, table: str) -> dict[str, int]:
    return next(dict(row.dropped) for row in report.tables if row.table == table)


def changed(frame: pl.DataFrame, row: int, name: str, value: object) -> pl.DataFrame:
    """Return the table with one cell changed."""
    values = frame[name].to_list()
    values[row] = value
    return frame.with_columns(pl.Series(name, values, strict=False))


def test_good_tables_pass(source: Path) -> None:
    report = accept(deliver(source))
    assert (report.subjects, report.events, report.codes, report.deaths) == (3, 4, 3, 1)
    assert [(t.table, t.rows_read, t.rows_kept) for t in report.tables] == [
        ("subjects.parquet", 3, 3),
        ("events.parquet", 4, 4),
        ("codes.parquet", 2, 2),
    ]


def test_optional_columns_and_codes_may_be_missing(source: Path) -> None:
    report = accept(deliver(source, events=GOOD_EVENTS.drop(Events.numeric_value.name), codes=None))
    subjects = read_subjects(source.parent / "out")
    assert report.events == 4
    assert subjects.columns == Subjects.column_names()
    assert subjects[Subjects.birth_date.name].null_count() == 3


# --- files -----------------------------------------------------------------------------------------------------------


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match="no such folder"):
        import_parquet(tmp_path / "nowhere", tmp_path / "out")


def test_missing_files_are_all_named(source: Path) -> None:
    assert lines(refusal(source)) == ["subjects.parquet: not found", "events.parquet: not found"]


def test_file_that_is_no_parquet(source: Path) -> None:
    deliver(source)
    (source / "events.parquet").write_text("subject_id,age_days,code\n1,2,I10\n")
    assert lines(refusal(source)) == ["events.parquet: is no parquet file, or only part of one"]


@pytest.mark.parametrize("kept_bytes", [0, 3, 500])
def test_truncated_parquet(source: Path, kept_bytes: int) -> None:
    path = deliver(source) / "subjects.parquet"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert lines(refusal(source)) == ["subjects.parquet: is no parquet file, or only part of one"]


def test_parquet_with_damaged_pages(source: Path) -> None:
    many = pl.concat([GOOD_EVENTS] * 5_000)
    path = deliver(source, events=many) / "events.parquet"
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(bytes(content))
    assert lines(refusal(source)) == ["events.parquet: is damaged: its rows cannot be read"]


def test_folder_in_place_of_a_file(source: Path) -> None:
    deliver(source)
    (source / "subjects.parquet").unlink()
    (source / "subjects.parquet").mkdir()
    assert lines(refusal(source)) == ["subjects.parquet: is a folder, not a file"]


def test_events_as_file_and_as_folder(source: Path) -> None:
    (deliver(source) / "events").mkdir()
    assert lines(refusal(source)) == ["events.parquet: there is a folder events/ as well; keep one of the two"]


def test_events_folder_without_parquet(source: Path) -> None:
    deliver(source)
    (source / "events.parquet").unlink()
    (source / "events").mkdir()
    (source / "events" / "part.csv").write_text("")
    assert lines(refusal(source)) == ["events: holds no parquet file"]


def test_empty_subjects(source: Path) -> None:
    assert lines(refusal(deliver(source, subjects=GOOD_SUBJECTS.clear()))) == ["subjects.parquet: holds no rows"]


def test_empty_events(source: Path) -> None:
    assert lines(refusal(deliver(source, events=GOOD_EVENTS.clear()))) == ["events.parquet: holds no rows"]


def test_empty_shard_among_others_is_no_fault(source: Path) -> None:
    deliver(source)
    (source / "events.parquet").unlink()
    (source / "events").mkdir()
    GOOD_EVENTS.write_parquet(source / "events" / "a.parquet")
    GOOD_EVENTS.clear().write_parquet(source / "events" / "b.parquet")
    report = accept(source)
    assert [(t.table, t.rows_read) for t in report.tables[1:3]] == [("events/a.parquet", 4), ("events/b.parquet", 0)]


def test_all_shards_empty(source: Path) -> None:
    deliver(source)
    (source / "events.parquet").unlink()
    (source / "events").mkdir()
    for name in "ab":
        GOOD_EVENTS.clear().write_parquet(source / "events" / f"{name}.parquet")
    assert lines(refusal(source)) == ["events: holds no rows in any file"]


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["subject_id", "sex", "entry_age_days", "exit_age_days"])
def test_missing_column_of_subjects(source: Path, name: str) -> None:
    assert lines(refusal(deliver(source, subjects=GOOD_SUBJECTS.drop(name)))) == [
        f"subjects.parquet: column '{name}': is missing"
    ]


@pytest.mark.parametrize("name", ["subject_id", "age_days", "code"])
def test_missing_column_of_events(source: Path, name: str) -> None:
    assert lines(refusal(deliver(source, events=GOOD_EVENTS.drop(name)))) == [
        f"events.parquet: column '{name}': is missing"
    ]


def test_missing_column_also_stops_a_quarantine_import(source: Path) -> None:
    deliver(source, events=GOOD_EVENTS.drop(Events.code.name))
    assert lines(refusal(source, strict=False)) == ["events.parquet: column 'code': is missing"]


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("age_days", ["9500", "15000", HIDDEN_WORD, "1"], "must hold numbers, found text"),
        ("age_days", [True, False, True, True], "must hold numbers, found true/false"),
        ("code", [1, 2, 3, 4], "must hold text, found numbers (Int64)"),
        ("subject_id", [date(2020, 1, 1)] * 4, "must hold whole numbers or text, found Date"),
        ("numeric_value", [HIDDEN_WORD] * 4, "must hold numbers, found text"),
    ],
)
def test_wrong_type_in_events(source: Path, name: str, values: list[object], rule: str) -> None:
    deliver(source, events=GOOD_EVENTS.with_columns(pl.Series(name, values)))
    assert lines(refusal(source)) == [f"events.parquet: column '{name}': {rule}"]


def test_sex_as_numbers_is_not_guessed(source: Path) -> None:
    deliver(source, subjects=GOOD_SUBJECTS.with_columns(pl.Series(Subjects.sex.name, [0, 1, 1])))
    assert lines(refusal(source)) == ["subjects.parquet: column 'sex': must hold text, found numbers (Int64)"]


def test_zoned_birth_dates_are_refused_and_naive_ones_taken(source: Path) -> None:
    zoned = pl.Series(Subjects.birth_date.name, [datetime(1950, 3, 1, tzinfo=UTC)] * 3)
    error = refusal(deliver(source, subjects=GOOD_SUBJECTS.with_columns(zoned)))
    assert lines(error)[0].startswith("subjects.parquet: column 'birth_date': must hold dates without a time zone")

    naive = pl.Series(Subjects.birth_date.name, [datetime(1950, 3, 1, 6)] * 3)
    accept(deliver(source, subjects=GOOD_SUBJECTS.with_columns(naive)))
    assert read_subjects(source.parent / "out")[Subjects.birth_date.name].to_list() == [date(1950, 3, 1)] * 3


def test_numbers_are_cast_between_whole_and_decimal(source: Path) -> None:
    subjects = GOOD_SUBJECTS.with_columns(
        Subjects.subject_id.col.cast(pl.Float64), Subjects.entry_age_days.col.cast(pl.Int32)
    )
    accept(deliver(source, subjects=subjects, events=GOOD_EVENTS.with_columns(Events.age_days.col.cast(pl.UInt16))))
    written = read_subjects(source.parent / "out")
    assert written.schema[Subjects.subject_id.name] == pl.Int64
    assert written.schema[Subjects.entry_age_days.name] == pl.Float64


def test_broken_subject_numbers(source: Path) -> None:
    deliver(source, subjects=GOOD_SUBJECTS.with_columns(pl.Series(Subjects.subject_id.name, [11.0, HIDDEN_ID, 13.5])))
    assert lines(refusal(source, strict=False)) == [
        "subjects.parquet: column 'subject_id': must be whole numbers (or text) (1 row); first at row 2 "
        "(counted from 0)"
    ]


def test_integer_and_text_ids_do_not_meet(source: Path) -> None:
    deliver(source, events=GOOD_EVENTS.with_columns(Events.subject_id.col.cast(pl.String)))
    (violation,) = refusal(source).violations
    assert (Path(violation.file).name, violation.column) == ("events.parquet", "subject_id")
    assert violation.rule == f"holds text, while {source / 'subjects.parquet'} names people by whole numbers"


def test_type_drift_between_shards_is_evened_out(source: Path) -> None:
    deliver(source)
    (source / "events.parquet").unlink()
    (source / "events").mkdir()
    first, second = GOOD_EVENTS.head(2), GOOD_EVENTS.tail(2)
    first.with_columns(Events.subject_id.col.cast(pl.UInt8), Events.code.col.cast(pl.Categorical)).write_parquet(
        source / "events" / "a.parquet"
    )
    second.with_columns(Events.age_days.col.cast(pl.Float32)).write_parquet(source / "events" / "b.parquet")
    assert accept(source).events == 4


def test_extra_columns_are_named_and_left_behind(source: Path) -> None:
    report = accept(deliver(source, events=GOOD_EVENTS.with_columns(ward=pl.lit(HIDDEN_WORD))))
    assert [note.text for note in report.notes] == ["events.parquet: columns not used: ward"]
    assert scan_events(source.parent / "out").collect_schema().names() == Events.column_names()


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("subject_id", None, "must not be null"),
        ("age_days", None, "must not be null"),
        ("code", None, "must not be null"),
        ("code", "", "must not be an empty text"),
        ("age_days", float("nan"), "must not be NaN"),
        ("age_days", float("inf"), "must not be infinite"),
        ("numeric_value", float("nan"), "must not be NaN"),
        ("numeric_value", float("-inf"), "must not be infinite"),
    ],
)
def test_bad_cell_in_events(source: Path, name: str, value: object, rule: str) -> None:
    deliver(source, events=changed(GOOD_EVENTS, 2, name, value))
    assert lines(refusal(source)) == [
        f"events.parquet: column '{name}': {rule} (1 row); first at row 2 (counted from 0)"
    ]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("subject_id", None, "must not be null"),
        ("sex", HIDDEN_WORD, "must be one of female, male, unknown"),
        ("entry_age_days", None, "must not be null"),
        ("entry_age_days", HIDDEN_AGE, "must be at least 0"),
        ("entry_age_days", float("nan"), "must not be NaN"),
        ("exit_age_days", float("inf"), "must not be infinite"),
        ("exit_age_days", 43_831.0, "must be at most 43830 (120 years)"),
        ("exit_age_days", 12_000.0, "must be greater than entry_age_days"),
        ("exit_age_days", 11_999.0, "must be greater than entry_age_days"),
    ],
)
def test_bad_cell_in_subjects(source: Path, name: str, value: object, rule: str) -> None:
    deliver(source, subjects=changed(GOOD_SUBJECTS, 1, name, value))
    assert lines(refusal(source)) == [
        f"subjects.parquet: column '{name}': {rule} (1 row); first at row 1 (counted from 0)"
    ]


def test_unknown_split(source: Path) -> None:
    subjects = GOOD_SUBJECTS.with_columns(pl.Series(Subjects.split.name, ["train", HIDDEN_WORD, None]))
    (line,) = lines(refusal(deliver(source, subjects=subjects)))
    assert line.startswith("subjects.parquet: column 'split': must be null or one of train, tuning, held_out (1 row)")


def test_duplicate_person_names_both_rows(source: Path) -> None:
    deliver(source, subjects=pl.concat([GOOD_SUBJECTS, GOOD_SUBJECTS[1:2]]))
    assert lines(refusal(source)) == [
        "subjects.parquet: column 'subject_id': must not repeat: the table has one row for each (2 rows); "
        "first at row 1, 3 (counted from 0)"
    ]


def test_only_the_first_rows_are_listed(source: Path) -> None:
    deliver(source, events=pl.concat([changed(GOOD_EVENTS, 3, Events.code.name, None)] * 10))
    (line,) = lines(refusal(source))
    assert line.endswith("(10 rows); first at row 3, 7, 11, 15, 19 (counted from 0)")


def test_bad_codes(source: Path) -> None:
    codes = pl.DataFrame({"code": ["I10", "I10", "X", "DEATH"], "kind": ["disease", "disease", "illness", "disease"]})
    assert [line.split("(")[0].strip() for line in lines(refusal(deliver(source, codes=codes)))] == [
        "codes.parquet: column 'kind': must be one of disease, covariate, death",
        "codes.parquet: column 'code': must not repeat: the table has one row for each",
        "codes.parquet: column 'kind': kind 'death' belongs to the code DEATH and to no other",
    ]


def test_faults_of_all_files_are_in_one_error(source: Path) -> None:
    subjects = changed(changed(GOOD_SUBJECTS, 0, "sex", HIDDEN_WORD), 2, "exit_age_days", 1.0)
    events = changed(GOOD_EVENTS, 1, "code", None).with_columns(Events.age_days.col.cast(pl.String))
    deliver(source, subjects, events, GOOD_CODES.drop(Codes.kind.name))
    found = [(Path(v.file).name, v.column) for v in refusal(source).violations]
    assert sorted(found) == [
        ("codes.parquet", "kind"),
        ("events.parquet", "age_days"),
        ("events.parquet", "code"),
        ("subjects.parquet", "exit_age_days"),
        ("subjects.parquet", "sex"),
    ]


# --- rows that a stated rule drops -----------------------------------------------------------------------------------


def test_event_before_birth_is_dropped_and_counted(source: Path) -> None:
    report = accept(deliver(source, events=changed(GOOD_EVENTS, 0, Events.age_days.name, HIDDEN_AGE)))
    assert dropped(report, "events.parquet") == {"before_birth": 1}
    assert report.rules["before_birth"] == "the age is below 0"


def test_event_after_exit_is_dropped_and_counted(source: Path) -> None:
    report = accept(deliver(source, events=changed(GOOD_EVENTS, 1, Events.age_days.name, 20_000.01)))
    assert dropped(report, "events.parquet") == {"after_exit": 1}


def test_event_of_an_unknown_person_is_dropped_and_counted(source: Path) -> None:
    report = accept(deliver(source, events=changed(GOOD_EVENTS, 1, Events.subject_id.name, 12)))
    assert dropped(report, "events.parquet") == {"unknown_subject": 1}


def test_a_cohort_without_any_event_left_is_refused(source: Path) -> None:
    deliver(source, events=GOOD_EVENTS.with_columns(Events.subject_id.col + 1_000))
    assert lines(refusal(source)) == ["events.parquet: no row is left; dropped by unknown_subject (4 rows)"]


def test_quarantine_drops_and_counts_each_bad_row_once(source: Path) -> None:
    subjects = changed(changed(GOOD_SUBJECTS, 1, "sex", HIDDEN_WORD), 1, "exit_age_days", 1.0)
    events = changed(changed(GOOD_EVENTS, 0, "code", None), 0, "age_days", float("nan"))
    codes = pl.DataFrame({"code": ["I10", "E11"], "kind": ["illness", "disease"]})
    report = accept(deliver(source, subjects, events, codes), strict=False)
    assert dropped(report, "subjects.parquet") == {"sex|check": 1}
    assert dropped(report, "events.parquet") == {"code|nullability": 1, "unknown_subject": 1}
    assert dropped(report, "codes.parquet") == {"kind|check": 1}
    assert (report.subjects, report.events) == (2, 2)
    assert all(table.rows_read == table.rows_kept + table.rows_dropped for table in report.tables)


def test_quarantine_keeps_no_row_of_a_duplicate_person(source: Path) -> None:
    report = accept(deliver(source, subjects=pl.concat([GOOD_SUBJECTS, GOOD_SUBJECTS[1:2]])), strict=False)
    assert dropped(report, "subjects.parquet") == {"subject_id|unique": 2}
    assert dropped(report, "events.parquet") == {"unknown_subject": 1}


# --- tolerated spellings ---------------------------------------------------------------------------------------------


def test_spellings_of_sex_are_unified_and_counted(source: Path) -> None:
    sexes = ["f", "F", " Female ", "m", "M", "MALE", "male", None, "", "Unknown"]
    subjects = pl.DataFrame(
        {
            Subjects.subject_id.name: range(10),
            Subjects.sex.name: sexes,
            Subjects.entry_age_days.name: [1.0] * 10,
            Subjects.exit_age_days.name: [30_000.0] * 10,
        }
    )
    events = GOOD_EVENTS.head(3).with_columns(pl.Series(Events.subject_id.name, [0, 1, 2]))
    report = accept(deliver(source, subjects, events))
    written = read_subjects(source.parent / "out")[Subjects.sex.name].to_list()
    assert written == ["female"] * 3 + ["male"] * 4 + ["unknown"] * 3
    assert {note.name: note.rows for note in report.notes} == {"sex_respelled": 8, "sex_null": 1}


def test_numeric_clusters_become_text(source: Path) -> None:
    subjects = GOOD_SUBJECTS.with_columns(pl.Series(Subjects.cluster_id.name, [7, None, 7]))
    report = accept(deliver(source, subjects=subjects))
    assert read_subjects(source.parent / "out")[Subjects.cluster_id.name].to_list() == ["7", None, "7"]
    assert [note.name for note in report.notes] == ["cluster_id_to_text"]


def test_text_ids_stay_text(source: Path) -> None:
    subjects = GOOD_SUBJECTS.with_columns(Subjects.subject_id.col.cast(pl.String) + "x")
    accept(deliver(source, subjects, GOOD_EVENTS.with_columns(Events.subject_id.col.cast(pl.String) + "x")))
    assert read_subjects(source.parent / "out")[Subjects.subject_id.name].to_list() == ["11x", f"{HIDDEN_ID}x", "13x"]
