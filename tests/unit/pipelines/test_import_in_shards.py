"""Importing in shards: the same cohort and account as in one piece, resumed after a kill, dropped rows on demand."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from small_cohort import write_small_cohort

from data_schemas.cohort import Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort import clean_in_shards, importers, partition_by_subject
from pipelines.import_cohort.clean_events import CleaningConfig
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.import_cohort.row_rules import RowRule
from pipelines.tables_on_disk import event_files, read_subjects, scan_events


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a made-up cohort as a source, with some rows for the rules to drop."""
    folder = write_small_cohort(tmp_path / "source", n_subjects=120, n_event_files=3)
    for path in sorted((folder / "events").iterdir()):
        events = pl.read_parquet(path)
        bad = [
            events.head(2),
            events[2:4].with_columns(age_days=pl.lit(-3.0)),
            events[4:6].with_columns(age_days=pl.lit(40_000.0)),
        ]
        pl.concat([events, *bad]).write_parquet(path)
    return folder


@pytest.fixture
def in_small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_by_subject, "BATCH_ROWS", 70)
    monkeypatch.setattr(clean_in_shards, "ROWS_PER_FILE", 100)


def run(source: Path, out: Path, quarantine: Path | None = None, **settings: object) -> ImportReport:
    config = importers.import_config("parquet")(**settings)
    return importers.import_cohort("parquet", source, out, config, quarantine=quarantine)


def test_shards_change_nothing_but_the_files(source: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    whole = run(source, tmp_path / "whole")
    request.getfixturevalue("in_small_shards")
    sharded = run(source, tmp_path / "sharded")
    assert sharded == whole
    assert len(event_files(tmp_path / "whole")) == 1
    assert len(event_files(tmp_path / "sharded")) > 5
    assert read_subjects(tmp_path / "sharded").equals(read_subjects(tmp_path / "whole"))
    person = Subjects.subject_id.name
    assert_frame_equal(
        scan_events(tmp_path / "sharded").sort(person, maintain_order=True).collect(),
        scan_events(tmp_path / "whole").collect(),
    )
    assert sorted(path.name for path in (tmp_path / "sharded").iterdir()) == [
        "codes.parquet", "events", "import_report.json", "subjects.parquet",
    ]  # fmt: skip


@pytest.mark.usefixtures("in_small_shards")
def test_the_same_source_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(source, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.import_cohort import clean_in_shards, finish_import, importers, partition_by_subject

partition_by_subject.BATCH_ROWS, clean_in_shards.ROWS_PER_FILE = 70, 100
source, out, step, after = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
module, name = {
    "share out": (partition_by_subject, "write_ipc"),
    "clean": (clean_in_shards, "write_json"),
    "write": (finish_import, "write_events"),
}[step]
work, done = getattr(module, name), []

def work_until_killed(*arguments):
    if len(done) == after:
        os.kill(os.getpid(), int(sys.argv[5]))
    done.append(work(*arguments))

setattr(module, name, work_until_killed)
importers.import_cohort("parquet", source, out, importers.import_config("parquet")())
print(len(done))
"""


def run_until(source: Path, out: Path, step: str, after: int, by: int = signal.SIGKILL) -> subprocess.CompletedProcess:
    arguments = [sys.executable, "-c", KILLED, source, out, step, after, int(by)]
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("step", "after"), [("share out", 5), ("clean", 3), ("write", 2)])
@pytest.mark.usefixtures("in_small_shards")
def test_a_killed_import_is_no_cohort_and_goes_on_when_called_again(
    source: Path, tmp_path: Path, step: str, after: int
) -> None:
    out = tmp_path / "cohort"
    run(source, tmp_path / "untouched")
    assert run_until(source, out, step, after).returncode == -signal.SIGKILL
    assert not out.exists()
    again = run_until(source, out, step, after=10_000)
    if step == "clean":
        assert int(again.stdout) == len(event_files(out)) - after, again.stderr
    files = sorted(path.relative_to(out) for path in out.rglob("*.*"))
    assert [(out / file).read_bytes() for file in files] == [
        (tmp_path / "untouched" / file).read_bytes() for file in files
    ]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("in_small_shards")
def test_an_interrupted_import_goes_on_but_not_with_other_files_or_settings(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "cohort"
    for change in ("nothing", "settings", "source"):
        assert run_until(source, out, "clean", 3, by=signal.SIGINT).returncode != 0
        (left,) = tmp_path.glob(".cohort.*.part")
        account = left / ".work" / "shards" / "0000" / "account.json"
        account.write_text(account.read_text().replace('"exits_moved": 0', '"exits_moved": 1000'))
        if change == "source":
            os.utime(source / "subjects.parquet", ns=(1, 1))
        settings = {"rules": {"before_entry": True}} if change == "settings" else {}
        notes = {note.name: note.rows for note in run(source, out, **settings).notes}
        assert (notes.get("exit_moved_to_death", 0) >= 1000) == (change == "nothing")
        assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("in_small_shards")
def test_dropped_rows_are_kept_apart_on_demand(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "cohort", quarantine=tmp_path / "quarantine")
    events = pl.read_parquet(tmp_path / "quarantine" / "dropped_events.parquet")
    counted = {
        (table.table, rule): rows
        for table in report.tables
        for rule, rows in table.dropped.items()
        if table.table.startswith("events/")
    }
    assert {(t, r): n for t, r, n in events.group_by("table", "dropped_by").len().iter_rows()} == counted
    delivered = pl.read_parquet(source / "events" / "0001.parquet").with_row_index("source_row")
    same = events.filter(table="events/0001.parquet").join(
        delivered, on=["source_row", *Events.column_names()], nulls_equal=True
    )
    assert same.height == events.filter(table="events/0001.parquet").height > 0
    assert pl.read_parquet(tmp_path / "quarantine" / "dropped_subjects.parquet").is_empty()
    run(source, tmp_path / "cohort", quarantine=tmp_path / "quarantine")  # an earlier one is replaced


def test_a_quarantine_never_replaces_something_else(source: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no quarantine"):
        run(source, tmp_path / "cohort", quarantine=tmp_path / "thesis")
    assert not (tmp_path / "cohort").exists()


@pytest.mark.parametrize("place", ["cohort", "cohort/apart", "."])
def test_a_quarantine_lies_apart_from_the_cohort(source: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match="lie in each other"):
        run(source, tmp_path / "cohort", quarantine=tmp_path / place)


def test_every_rule_is_in_the_report_with_default_setting_and_count(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "cohort", rules={"before_entry": True, "exact_duplicate": False})
    content = json.loads((tmp_path / "cohort" / "import_report.json").read_text())
    rules = {rule["rule"]: rule for rule in content["cleaning"]}
    assert {name: rule["on"] for name, rule in rules.items()} == {
        "no_birth_date": False, "death_kind": True, "exact_duplicate": False, "placeholder_date": True,
        "before_birth": True, "age_over_120": True, "unknown_subject": True, "after_exit": True,
        "later_occurrence": False, "before_entry": True,
        "several_deaths": True, "after_death": True, "no_follow_up": True,
    }  # fmt: skip
    assert rules["before_birth"] == {
        "rule": "before_birth", "on": True, "by_default": True, "can_be_off": False, "rows_dropped": 6,
        "text": "the age is below 0",
    }  # fmt: skip
    assert rules["before_entry"]["rows_dropped"] > 0
    assert rules["exact_duplicate"]["rows_dropped"] == 0
    assert content["settings"]["rules"] == {"before_entry": True, "exact_duplicate": False}
    assert content["settings"]["placeholder_dates"][-1] == "9999-12-31"


def test_unknown_rules_and_rules_that_must_stay_on_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such cleaning rule: after_lunch; the rules are .*exact_duplicate"):
        run(source, tmp_path / "cohort", rules={"after_lunch": True})
    with pytest.raises(UsageError, match="cleaning rule after_exit cannot be switched off"):
        run(source, tmp_path / "cohort", rules={"after_exit": False})


def test_people_without_birth_date_can_be_left_out(source: Path, tmp_path: Path) -> None:
    subjects = pl.read_parquet(source / "subjects.parquet")
    is_first = pl.int_range(pl.len()) == 0
    subjects.with_columns(pl.when(is_first).then("birth_date")).write_parquet(source / "subjects.parquet")
    assert run(source, tmp_path / "cohort").subjects == 120
    report = run(source, tmp_path / "cohort", rules={"no_birth_date": True})
    assert report.subjects == 1
    assert report.tables[0].dropped == {"no_birth_date": 119}


# --- what any importer hands over -----------------------------------------------------------------------------------


def deliver(events: pl.DataFrame, subjects: pl.DataFrame | None = None, **more: object) -> DeliveredCohort:
    people = pl.DataFrame(
        {
            "subject_id": [1, 2], "sex": ["female", "male"], "birth_date": None, "entry_age_days": [100.0] * 2,
            "exit_age_days": [9_000.0] * 2, "cluster_id": None, "split": None,
        },
        schema_overrides={"birth_date": pl.Date, "cluster_id": pl.String, "split": pl.String},
    )  # fmt: skip
    codes = pl.LazyFrame(schema={"code": pl.String, "kind": pl.String, "description": pl.String, "chapter": pl.String})
    return DeliveredCohort(
        "made", "people.csv", (people if subjects is None else subjects).lazy(), {"rows.csv": events.lazy()}, codes,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


ROWS = pl.DataFrame(
    {
        "subject_id": [1, 1, None, 2, 2, 1],
        "age_days": [500.0, None, 600.0, float("nan"), 700.0, 800.0],
        "code": ["A", "B", "A", "A", None, "C"],
        "numeric_value": [None, None, None, None, None, float("inf")],
    }
)


def test_rows_that_break_the_contract_stop_a_strict_import_with_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputContractError) as caught:
        finish_import(deliver(ROWS), tmp_path / "cohort")
    assert [str(violation) for violation in caught.value.violations] == [
        "rows.csv: column 'age_days': must not be NaN (1 row); first at row 3 (counted from 0)",
        "rows.csv: column 'age_days': must not be null (1 row); first at row 1 (counted from 0)",
        "rows.csv: column 'code': must not be null (1 row); first at row 4 (counted from 0)",
        "rows.csv: column 'numeric_value': must not be infinite (1 row); first at row 5 (counted from 0)",
        "rows.csv: column 'subject_id': must not be null (1 row); first at row 2 (counted from 0)",
    ]
    assert list(tmp_path.iterdir()) == []


def test_such_rows_are_dropped_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    report = finish_import(deliver(ROWS), tmp_path / "cohort", strict=False)
    assert report.events == 1
    assert sum(report.tables[1].dropped.values()) == 5


def test_a_rule_of_the_importer_comes_before_the_contract(tmp_path: Path) -> None:
    no_code = RowRule("no_code", "the code is missing", Events.code.col.is_null())
    rows = ROWS.filter(Events.age_days.col.is_finite(), Events.subject_id.col.is_not_null()).head(2)
    report = finish_import(deliver(rows, event_rules=[no_code]), tmp_path / "cohort")
    assert report.tables[1].dropped == {"no_code": 1}
    on = CleaningConfig(rules={"no_code": False})
    with pytest.raises(InputContractError, match="column 'code': must not be null"):
        finish_import(deliver(rows, event_rules=[no_code]), tmp_path / "cohort", cleaning=on)


def test_a_person_twice_is_a_fault_unless_the_importer_keeps_one(tmp_path: Path) -> None:
    people = deliver(ROWS.head(1)).subjects.collect()
    twice = pl.concat([people, people.head(1)])
    with pytest.raises(InputContractError) as caught:
        finish_import(deliver(ROWS.head(1), twice), tmp_path / "cohort")
    assert [violation.first_rows for violation in caught.value.violations] == [(0, 2)]
    repeated = RowRule("repeated_person", "stands in an earlier row", ~Subjects.subject_id.col.is_first_distinct())
    report = finish_import(deliver(ROWS.head(1), twice, subject_rules=[repeated]), tmp_path / "cohort")
    assert report.tables[0].dropped == {"repeated_person": 1}


def test_a_code_measured_in_one_shard_is_sorted_as_a_measurement_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_in_shards, "ROWS_PER_FILE", 1)
    rows = pl.DataFrame(
        {
            "subject_id": [1, 1, 2],
            "age_days": [500.0] * 3,
            "code": ["A", "Z", "Z"],
            "numeric_value": [None, None, 3.0],
        }
    )
    finish_import(deliver(rows), tmp_path / "cohort")
    assert scan_events(tmp_path / "cohort").filter(subject_id=1).collect()["code"].to_list() == ["Z", "A"]
