"""Writing a cohort: order of rows, who is in which file, all or nothing."""

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from data_schemas.cohort import Codes, Events, Subjects
from data_schemas.errors import UsageError
from pipelines import whole_folders
from pipelines.import_cohort import clean_in_shards
from pipelines.import_cohort import finish_import as module
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.import_cohort.partition_by_subject import hash_ids
from pipelines.import_cohort.write_cohort import sort_events
from pipelines.tables_on_disk import event_files, read_codes, read_subjects, scan_events

NO_CODES = pl.DataFrame(Codes.create_empty())
Row = tuple[int, float, str, float | None]


def make_subjects(*ids: int | str) -> pl.DataFrame:
    return pl.DataFrame(
        [(subject, "female", None, 1.0, 9_000.0, None, None) for subject in ids],
        schema={name: column.dtype for name, column in Subjects.columns().items()}
        | {Subjects.subject_id.name: pl.String() if isinstance(ids[0], str) else pl.Int64()},
        orient="row",
    )


def make_events(*rows: Row) -> pl.DataFrame:
    schema = dict(zip(Events.column_names(), [pl.Int64(), pl.Float64(), pl.String(), pl.Float64()], strict=True))
    return pl.DataFrame(rows, schema=schema, orient="row")


def write_cohort(subjects: pl.DataFrame, events: pl.DataFrame, codes: pl.DataFrame, out: Path) -> None:
    finish_import(DeliveredCohort("test", "people", subjects.lazy(), {"rows": events.lazy()}, codes.lazy()), out)


SUBJECTS = make_subjects(2, 1)
EVENTS = make_events((2, 5.0, "B", None), (1, 5.0, "A", None), (1, 3.0, "B", None))


def test_written_tables_are_read_back(tmp_path: Path) -> None:
    codes = pl.DataFrame(
        [("B", "disease", None, None), ("A", "covariate", "a", "b")], schema=NO_CODES.schema, orient="row"
    )
    write_cohort(SUBJECTS, EVENTS, codes, tmp_path / "new" / "cohort")
    cohort = tmp_path / "new" / "cohort"
    assert read_subjects(cohort).equals(SUBJECTS)
    assert scan_events(cohort).collect().rows() == [(1, 3.0, "B", None), (1, 5.0, "A", None), (2, 5.0, "B", None)]
    assert read_codes(cohort)[Codes.code.name].to_list() == ["A", "B"]
    assert json.loads((cohort / "import_report.json").read_text())["cohort"]["events"] == 3
    assert sorted(p.name for p in cohort.iterdir()) == [
        "codes.parquet",
        "events",
        "import_report.json",
        "subjects.parquet",
    ]


def test_no_codes_no_file(tmp_path: Path) -> None:
    write_cohort(SUBJECTS, EVENTS, NO_CODES, tmp_path / "cohort")
    assert not (tmp_path / "cohort" / "codes.parquet").exists()


def test_within_one_age_measurements_come_first_and_death_last() -> None:
    rows = make_events(
        (1, 5.0, "DEATH", None),
        (1, 5.0, "Z disease", None),
        (1, 5.0, "unlisted disease", None),
        (1, 5.0, "z listed covariate", None),
        (1, 5.0, "unlisted measurement", None),
        (2, 5.0, "unlisted measurement", 7.0),
        (1, 4.0, "Z disease", None),
    )
    codes = pl.DataFrame(
        {Codes.code.name: ["z listed covariate", "Z disease"], Codes.kind.name: ["covariate", "disease"]}
    )
    in_order = [
        "Z disease",
        "unlisted measurement",
        "z listed covariate",
        "Z disease",
        "unlisted disease",
        "DEATH",
        "unlisted measurement",
    ]
    assert sort_events(rows, codes)[Events.code.name].to_list() == in_order
    # The first person alone: that the code is measured elsewhere must be said.
    first = rows.filter(Events.subject_id.col == 1)
    assert sort_events(first, codes, ["unlisted measurement"])[Events.code.name].to_list() == in_order[:-1]


def test_order_does_not_depend_on_delivery() -> None:
    rows = make_events(*[(i % 3, float(i % 5), "AB"[i % 2], float(i % 7)) for i in range(200)])
    assert sort_events(rows, NO_CODES).equals(sort_events(rows.sample(fraction=1.0, shuffle=True, seed=3), NO_CODES))


def people_of_files(cohort: Path) -> list[set[int]]:
    return [set(pl.read_parquet(path)[Events.subject_id.name]) for path in event_files(cohort)]


def write_in_files(ids: Sequence[int], rows_per_file: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    rows = make_events(*[(ids[i % len(ids)], float(i + 1), "AB"[i % 2], None) for i in range(1_000)])
    monkeypatch.setattr(clean_in_shards, "ROWS_PER_FILE", rows_per_file)
    write_cohort(make_subjects(*ids), rows, NO_CODES, out)
    return rows


def test_files_hold_whole_people_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write_in_files(range(50), 300, tmp_path, monkeypatch)
    people = people_of_files(tmp_path)
    assert len(people) == 4
    assert sum(len(group) for group in people) == len(set().union(*people)) == 50
    key = [Events.subject_id.name, Events.age_days.name]
    assert scan_events(tmp_path).sort(key).collect().equals(rows.sort(key))
    assert all(pl.read_parquet(path).select(pl.struct(key).is_sorted()).item() for path in event_files(tmp_path))
    assert read_subjects(tmp_path)[Subjects.subject_id.name].to_list() == list(range(50))


def test_file_of_a_person_does_not_depend_on_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in_files(range(50), 500, tmp_path / "all", monkeypatch)
    write_in_files(range(30), 500, tmp_path / "some", monkeypatch)
    for group, fewer in zip(people_of_files(tmp_path / "all"), people_of_files(tmp_path / "some"), strict=True):
        assert fewer <= group


def test_hash_is_the_same_in_every_version() -> None:
    """FNV-1a of 'a' is af63dc4c8601ec8c (draft-eastlake-fnv); the finaliser is done by hand, in Python integers."""

    def by_hand(text: str) -> int:
        mask = 2**64 - 1
        value = 0xCBF29CE484222325
        for byte in text.encode():
            value = ((value ^ byte) * 0x100000001B3) & mask
        assert text != "a" or value == 0xAF63DC4C8601EC8C
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    texts = ["a", "", "person-00017", "Zoë"]
    assert hash_ids(pl.Series(texts)).tolist() == [by_hand(text) for text in texts]
    assert hash_ids(pl.Series(texts)[2:]).tolist() == [by_hand(text) for text in texts[2:]]
    assert hash_ids(pl.Series([-7, 123456789012])).tolist() == [by_hand("-7"), by_hand("123456789012")]
    assert hash_ids(pl.Series([None], dtype=pl.Int64)).tolist() == [by_hand("")]
    assert hash_ids(pl.Series([], dtype=pl.String)).tolist() == []


def test_an_earlier_cohort_is_replaced(tmp_path: Path) -> None:
    cohort = tmp_path / "cohort"
    write_cohort(SUBJECTS, EVENTS, NO_CODES, cohort)
    (cohort / "events" / "0007.parquet").write_bytes(event_files(cohort)[0].read_bytes())
    write_cohort(make_subjects(2), EVENTS.head(1), NO_CODES, cohort)
    assert [path.name for path in event_files(cohort)] == ["0000.parquet"]
    assert read_subjects(cohort).height == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cohort"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "cohort").mkdir()
    write_cohort(SUBJECTS, EVENTS, NO_CODES, tmp_path / "cohort")
    assert read_subjects(tmp_path / "cohort").height == 2


def test_other_content_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and holds no cohort"):
        write_cohort(SUBJECTS, EVENTS, NO_CODES, tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        write_cohort(SUBJECTS, EVENTS, NO_CODES, tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("error", [RuntimeError("stopped"), KeyboardInterrupt()])
def test_a_write_that_is_stopped_leaves_the_old_cohort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    cohort = tmp_path / "cohort"
    write_cohort(SUBJECTS, EVENTS, NO_CODES, cohort)
    before = {path: path.read_bytes() for path in cohort.rglob("*.*")}

    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "write_report", stop)
    with pytest.raises(type(error)):
        write_cohort(make_subjects(2), EVENTS.head(1), NO_CODES, cohort)
    assert {path: path.read_bytes() for path in cohort.rglob("*.*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["cohort"]


def test_a_full_disk_is_an_error_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_report", fill)
    with pytest.raises(UsageError, match=r"cannot write the cohort to .*: No space left on device"):
        write_cohort(SUBJECTS, EVENTS, NO_CODES, tmp_path / "cohort")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "seen"), [(OSError(5, "Input/output error"), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_failed_exchange_puts_the_old_cohort_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, seen: type[BaseException]
) -> None:
    cohort = tmp_path / "cohort"
    write_cohort(SUBJECTS, EVENTS, NO_CODES, cohort)
    rename = whole_folders.os.replace

    def refuse_new(source: Path, target: Path) -> None:
        if source.name.endswith(".part") and target == cohort:
            raise raised
        rename(source, target)

    monkeypatch.setattr(whole_folders.os, "replace", refuse_new)
    with pytest.raises(seen):
        write_cohort(make_subjects(2), EVENTS.head(1), NO_CODES, cohort)
    assert read_subjects(cohort).height == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cohort"]
