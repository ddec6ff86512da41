"""Tables in hard places: awkward paths, folders that cannot be written, full disks, tables that have drifted."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import polars as pl
import pytest
from small_cohort import write_small_cohort

from app.main import main
from data_schemas.cohort import Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from pipelines.check_leakage import check_leakage
from pipelines.import_cohort.from_parquet import import_parquet
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.tables_on_disk import read_subjects, scan_events

NOBODY = 65_534


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments], {})


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my cohort, of 2026", "[a-z]*", "Kohorte Zürich ✓", "-", "a'b\"c", "%20"])
def test_any_name_of_a_folder_will_do(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    source = write_small_cohort(place / "source", n_subjects=80, n_event_files=2)
    import_parquet(source, place / "the cohort")
    prepare_dataset(place / "the cohort", place / "the data", PrepareConfig())
    assert check_leakage(place / "the data", place / "the cohort").people == 80


# --- where nothing can be written ------------------------------------------------------------------------------------


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """Yield a folder with a source in it that we may read and not write; root, who may anything, becomes nobody."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_small_cohort(folder / "source", n_subjects=40)
        folder.chmod(0o555)
        if is_root:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_wrong_usage(closed_folder: Path) -> None:
    for out in (closed_folder / "out", closed_folder / "deeper" / "out"):
        with pytest.raises(UsageError, match=r"cannot write the cohort to .*out: Permission denied"):
            import_parquet(closed_folder / "source", out)
        with pytest.raises(UsageError, match=r"cannot write the dataset to .*out: Permission denied"):
            prepare_dataset(closed_folder / "source", out, PrepareConfig())
    assert [path.name for path in closed_folder.iterdir()] == ["source"]


FULL = """
import resource, sys
from app.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))  # no larger file can be written
sys.exit(main(sys.argv[2:], {}))
"""


def run_on_full_disk(n_bytes: int, *arguments: object) -> tuple[int, str]:
    program = [sys.executable, "-c", FULL, n_bytes, *arguments]
    done = subprocess.run([str(part) for part in program], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("n_bytes", [2_000, 20_000, 50_000])
def test_a_full_disk_stops_import_and_prepare_in_words_and_leaves_what_was_there(tmp_path: Path, n_bytes: int) -> None:
    source = write_small_cohort(tmp_path / "source", n_subjects=900)
    small = write_small_cohort(tmp_path / "small", n_subjects=30)
    cohort, dataset = tmp_path / "cohort", tmp_path / "dataset"
    import_parquet(small, cohort)
    prepare_dataset(cohort, dataset, PrepareConfig())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    for command in (
        ("cohort", "import", "parquet", source, "--out", cohort),
        ("prepare", source, "--out", dataset),
    ):
        code, said = run_on_full_disk(n_bytes, *command)
        assert code == 2, said
        assert said.startswith("deephealth: cannot write the "), said
        assert "File too large" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cohort", "dataset", "small", "source"]


# --- tables at the border of prepare and score -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (pl.lit(None, pl.String).alias("code"), "column 'code': must not be null"),
        (pl.lit(float("nan")).alias("age_days"), "column 'age_days': must not be NaN"),
        (pl.lit(-1.0).alias("age_days"), "column 'age_days': must be at least 0"),
        (pl.lit("old").alias("age_days"), "column 'age_days': must hold numbers, found text"),
        (pl.lit(None, pl.Int64).alias("subject_id"), "column 'subject_id': must not be null"),
        (pl.lit(float("inf")).alias("numeric_value"), "column 'numeric_value': must not be infinite"),
    ],
)
def test_events_that_were_spoiled_after_the_import_do_not_get_into_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: pl.Expr, said: str
) -> None:
    cohort = write_small_cohort(tmp_path / "cohort", n_subjects=40, n_event_files=2)
    path = cohort / "events" / "0001.parquet"
    pl.read_parquet(path).with_columns(change).write_parquet(path)
    assert run("prepare", cohort, "--out", tmp_path / "dataset") == 3
    assert f"0001.parquet: {said}" in capsys.readouterr().err
    assert not (tmp_path / "dataset").exists()


def test_people_and_codes_that_were_spoiled_after_the_import_are_named_together_with_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort = write_small_cohort(tmp_path / "cohort", n_subjects=40)
    subjects, codes = (pl.read_parquet(cohort / f"{name}.parquet") for name in ("subjects", "codes"))
    pl.concat([subjects, subjects.head(1)]).write_parquet(cohort / "subjects.parquet")
    assert run("prepare", cohort, "--out", tmp_path / "dataset") == 3
    assert "subjects.parquet: column 'subject_id': must not repeat" in capsys.readouterr().err
    subjects.write_parquet(cohort / "subjects.parquet")
    codes.with_columns(kind=pl.lit("illness")).write_parquet(cohort / "codes.parquet")
    assert run("prepare", cohort, "--out", tmp_path / "dataset") == 3
    assert "codes.parquet: column 'kind': must be one of disease, covariate, death" in capsys.readouterr().err


def test_an_event_file_that_was_cut_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort = write_small_cohort(tmp_path / "cohort", n_subjects=40, n_event_files=2)
    path = cohort / "events" / "0000.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    assert run("prepare", cohort, "--out", tmp_path / "dataset") == 3
    assert "0000.parquet: is no parquet file, or only part of one" in capsys.readouterr().err


# --- tables that have drifted ----------------------------------------------------------------------------------------


def test_shards_of_other_types_and_empty_shards_make_one_cohort(tmp_path: Path) -> None:
    source = write_small_cohort(tmp_path / "source", n_subjects=90, n_event_files=3)
    first, second, third = sorted((source / "events").iterdir())
    codes = pl.Enum(scan_events(source).collect()["code"].unique())
    drifted = {
        first: [pl.col("subject_id").cast(pl.UInt16), pl.col("code").cast(pl.Categorical)],
        second: [pl.col("subject_id").cast(pl.Float64), pl.col("numeric_value").cast(pl.Float32)],
        third: [pl.col("age_days").cast(pl.Int32), pl.col("code").cast(codes)],
    }
    whole = {path: pl.read_parquet(path) for path in drifted}
    whole[second] = whole[second].with_columns(pl.col("numeric_value").cast(pl.Float32).cast(pl.Float64))
    whole[second].write_parquet(second)
    plain = import_parquet(source, tmp_path / "plain")
    for path, casts in drifted.items():
        whole[path].with_columns(casts).write_parquet(path)
    whole[first].clear().select(pl.exclude("numeric_value").cast(pl.Null)).write_parquet(
        source / "events" / "z.parquet"
    )
    report = import_parquet(source, tmp_path / "cohort")
    assert (report.subjects, report.events, report.deaths) == (plain.subjects, plain.events, plain.deaths)
    assert scan_events(tmp_path / "cohort").collect().equals(scan_events(tmp_path / "plain").collect())


def test_null_keys_are_counted_never_joined(tmp_path: Path) -> None:
    source = write_small_cohort(tmp_path / "source", n_subjects=40)
    subjects = pl.read_parquet(source / "subjects.parquet")
    is_first = pl.int_range(pl.len()) == 0
    without_key = pl.when(~is_first).then("subject_id")
    subjects.with_columns(without_key).write_parquet(source / "subjects.parquet")
    events = pl.read_parquet(source / "events" / "0000.parquet")
    events.with_columns(without_key).write_parquet(source / "events" / "0000.parquet")
    with pytest.raises(InputContractError) as caught:
        import_parquet(source, tmp_path / "cohort")
    assert [(violation.column, violation.n_rows) for violation in caught.value.violations] == [("subject_id", 1)] * 2
    report = import_parquet(source, tmp_path / "cohort", strict=False)
    assert [table.dropped.get("subject_id|nullability") for table in report.tables[:2]] == [1, 1]
    assert read_subjects(tmp_path / "cohort")[Subjects.subject_id.name].null_count() == 0
    assert scan_events(tmp_path / "cohort").collect()[Events.subject_id.name].null_count() == 0


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=2))])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_birth_date_with_a_zone_is_refused_because_its_day_is_not_sure(tmp_path: Path, zone, unit) -> None:
    source = write_small_cohort(tmp_path / "source", n_subjects=40)
    subjects = pl.read_parquet(source / "subjects.parquet")
    born = pl.Series("birth_date", [datetime(1950, 3, 1, tzinfo=zone)] * 40).dt.cast_time_unit(unit)
    subjects.with_columns(born).write_parquet(source / "subjects.parquet")
    with pytest.raises(InputContractError, match="column 'birth_date': must hold dates without a time zone"):
        import_parquet(source, tmp_path / "cohort")
    subjects.with_columns(born.dt.replace_time_zone(None)).write_parquet(source / "subjects.parquet")
    import_parquet(source, tmp_path / "cohort")
    assert set(read_subjects(tmp_path / "cohort")["birth_date"].dt.day()) <= {1, 28}
