"""A cohort as a MEDS dataset and back again; the checks that `meds` does not make; risks as predictions."""

import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from meds.schema import CodeMetadataSchema, DataSchema, LabelSchema, SubjectSplitSchema
from polars.testing import assert_frame_equal
from small_cohort import write_small_cohort

from data_schemas.cohort import Codes, Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from pipelines.check_meds import check_meds
from pipelines.export_meds import PredictionSchema, export_meds, export_predictions
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_meds import MedsOptions, deliver_meds
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events


def read_back(dataset: Path, out: Path) -> None:
    finish_import(deliver_meds(dataset, MedsOptions.model_validate({})), out)


def assert_same_cohort(first: Path, second: Path) -> None:
    """Compare all rows of all tables; the order of people is not part of MEDS."""
    people = [pl.DataFrame(Subjects.validate(read_subjects(folder), cast=True)) for folder in (first, second)]
    assert_frame_equal(people[0].sort("subject_id"), people[1].sort("subject_id"))
    events = [scan_events(folder).collect() for folder in (first, second)]
    assert_frame_equal(*(table.sort(Events.column_names(), nulls_last=True) for table in events))
    assert_frame_equal(*(read_codes(folder).sort("code") for folder in (first, second)))


def write_cohort_of_three(folder: Path, **subjects: list[object]) -> Path:
    """Write three people: one with everything, one without events, one without birth date, sex, cluster and split."""
    people = {
        "subject_id": [7, -5, 11],
        "sex": ["female", "male", "unknown"],
        "birth_date": [date(1950, 4, 9), date(1899, 12, 31), None],
        "entry_age_days": [100.0, 0.0, 20_000.00390625],
        "exit_age_days": [30_000.99609375, 10.0, 43_830.0],
        "cluster_id": ["family, the first", None, None],
        "split": ["train", "held_out", None],
        **subjects,
    }
    events = pl.DataFrame(
        [
            (7, 0.0, "RACE//A", None),
            (7, 99.5, "E11", None),
            (7, 100.0, "bmi", 0.1),  # has no float32
            (7, 100.00390625, " blanks matter ", None),
            (7, 100.00390625, "E11", None),
            (7, 30_000.99609375, "DEATH", None),
            (11, 43_829.0, "big", 1e300),
            (11, 43_829.0, "bmi", 2.5),
        ],
        schema={"subject_id": pl.Int64, "age_days": pl.Float64, "code": pl.String, "numeric_value": pl.Float64},
        orient="row",
    )
    codes = [
        ("E11", "disease", "Type 2 diabetes mellitus", "IV Endocrine, nutritional and metabolic diseases"),
        ("bmi", "covariate", None, None),
        ("never used", "disease", "nothing", None),
        ("DEATH", "death", "Death of any cause", None),
    ]
    (folder / "events").mkdir(parents=True)
    frame = pl.DataFrame(people, schema_overrides={"birth_date": pl.Date, "cluster_id": pl.String, "split": pl.String})
    frame.write_parquet(folder / "subjects.parquet")
    ids = frame.select("subject_id").with_columns(pl.Series("old", [7, -5, 11]))
    named = events.rename({"subject_id": "old"}).join(ids, on="old", maintain_order="left")
    named.select(Events.column_names()).write_parquet(folder / "events" / "0000.parquet")
    pl.DataFrame(codes, schema=dict.fromkeys(Codes.column_names(), pl.String), orient="row").write_parquet(
        folder / "codes.parquet"
    )
    return folder


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return write_cohort_of_three(tmp_path / "three")


@pytest.fixture
def dataset(three: Path, tmp_path: Path) -> Path:
    export_meds(three, tmp_path / "meds")
    return tmp_path / "meds"


def test_there_and_back_is_the_same_cohort(three: Path, dataset: Path, tmp_path: Path) -> None:
    read_back(dataset, tmp_path / "back")
    assert_same_cohort(three, tmp_path / "back")


def test_the_second_export_is_the_first(dataset: Path, tmp_path: Path) -> None:
    read_back(dataset, tmp_path / "back")
    export_meds(tmp_path / "back", tmp_path / "again")
    for first in sorted(dataset.rglob("*.parquet")):
        second = tmp_path / "again" / first.relative_to(dataset)
        assert_frame_equal(*(pl.read_parquet(path, hive_partitioning=False) for path in (first, second)))


@pytest.mark.parametrize("string_ids", [False, True])
def test_three_hundred_people_there_and_back(tmp_path: Path, string_ids: bool) -> None:
    cohort = write_small_cohort(tmp_path / "cohort", n_event_files=2, string_ids=string_ids)
    export = export_meds(cohort, tmp_path / "meds")
    assert export.subjects == 300
    read_back(tmp_path / "meds", tmp_path / "back")
    assert_same_cohort(cohort, tmp_path / "back")


def test_the_files_are_where_and_what_the_standard_says(dataset: Path) -> None:
    files = sorted(path.relative_to(dataset).as_posix() for path in dataset.rglob("*.*"))
    assert files == [
        "data/held_out/1.parquet",  # nothing ever happened to this person
        "data/train/0.parquet",
        "data/unassigned/0.parquet",
        "metadata/codes.parquet",
        "metadata/dataset.json",
        "metadata/subject_splits.parquet",
    ]
    for path in dataset.glob("data/*/*.parquet"):
        DataSchema.validate(pq.read_table(path, partitioning=None))
    CodeMetadataSchema.validate(pq.read_table(dataset / "metadata" / "codes.parquet"))
    SubjectSplitSchema.validate(pq.read_table(dataset / "metadata" / "subject_splits.parquet"))
    check_meds(dataset)


def test_rows_of_a_person(dataset: Path) -> None:
    rows = pl.read_parquet(dataset / "data" / "train" / "0.parquet").select(
        "time", "code", "numeric_value", "text_value"
    )
    assert [row[:2] for row in rows.rows()] == [
        (None, "GENDER//F"),
        (None, "SPLIT//CLUSTER"),
        (datetime(1950, 4, 9), "MEDS_BIRTH"),
        (datetime(1950, 4, 9), "RACE//A"),
        (datetime(1950, 7, 17, 12), "E11"),
        (datetime(1950, 7, 18), "OBSERVATION//START"),
        (datetime(1950, 7, 18), "bmi"),
        (datetime(1950, 7, 18, 0, 5, 37, 500_000), " blanks matter "),
        (datetime(1950, 7, 18, 0, 5, 37, 500_000), "E11"),
        (datetime(2032, 5, 28, 23, 54, 22, 500_000), "MEDS_DEATH"),
        (datetime(2032, 5, 28, 23, 54, 22, 500_000), "OBSERVATION//END"),
    ]
    assert rows["text_value"].drop_nulls().to_list() == ["family, the first"]
    assert rows["numeric_value"].drop_nulls().to_list() == [pytest.approx(0.1, rel=1e-6)]


def test_an_assumed_birth_is_said_to_be_one(dataset: Path) -> None:
    rows = pl.read_parquet(dataset / "data" / "unassigned" / "0.parquet")
    assert rows.select("time", "code").row(0) == (datetime(1900, 1, 1), "MEDS_BIRTH//ASSUMED")
    content = json.loads((dataset / "metadata" / "dataset.json").read_text())
    assert content["assumed_birth"] == {"date": "1900-01-01", "code": "MEDS_BIRTH//ASSUMED", "subjects": 1}
    assert content["additional_value_modality_columns"] == ["numeric_value_float64"]
    assert rows.filter(pl.col("code") == "big")["numeric_value"].to_list() == [None]  # too large, never infinite
    assert rows.filter(pl.col("code") == "big")["numeric_value_float64"].to_list() == [1e300]


def test_values_that_float32_holds_need_no_further_column(tmp_path: Path) -> None:
    folder = write_cohort_of_three(tmp_path / "cohort")
    events = pl.read_parquet(folder / "events" / "0000.parquet").with_columns(pl.lit(2.5).alias("numeric_value"))
    events.write_parquet(folder / "events" / "0000.parquet")
    export_meds(folder, tmp_path / "meds")
    columns = pl.read_parquet_schema(tmp_path / "meds" / "data" / "train" / "0.parquet")
    assert list(columns) == ["subject_id", "time", "code", "numeric_value", "text_value"]


def test_ids_that_are_text_are_numbered_and_kept(tmp_path: Path) -> None:
    folder = write_cohort_of_three(tmp_path / "cohort", subject_id=["b", "007", "a"])
    export_meds(folder, tmp_path / "meds")
    rows = pl.scan_parquet(sorted((tmp_path / "meds" / "data").rglob("*.parquet"))).collect()
    assert dict(rows.select("source_subject_id", "subject_id").unique().iter_rows()) == {"007": 1, "a": 2, "b": 3}
    read_back(tmp_path / "meds", tmp_path / "back")
    assert_same_cohort(folder, tmp_path / "back")


def test_every_code_is_listed(dataset: Path) -> None:
    codes = pl.read_parquet(dataset / "metadata" / "codes.parquet")
    assert codes["code"].is_unique().all()
    kinds = dict(codes.select("code", "kind").iter_rows())
    assert kinds["MEDS_DEATH"] == "death"
    assert kinds["RACE//A"] is None
    assert kinds["OBSERVATION//END"] is None
    assert codes.filter(pl.col("code") == "MEDS_BIRTH//ASSUMED")["description"].to_list() != [None]


def test_a_cohort_without_splits_has_no_file_of_splits(tmp_path: Path) -> None:
    folder = write_cohort_of_three(tmp_path / "cohort", split=[None, None, None])
    export_meds(folder, tmp_path / "meds")
    assert not (tmp_path / "meds" / "metadata" / "subject_splits.parquet").exists()
    read_back(tmp_path / "meds", tmp_path / "back")
    assert_same_cohort(folder, tmp_path / "back")


@pytest.mark.parametrize("code", ["MEDS_BIRTH", "MEDS_DEATH//X", "GENDER//F", "OBSERVATION//START", "SPLIT//CLUSTER"])
def test_codes_that_mean_something_else_in_meds_are_refused(three: Path, tmp_path: Path, code: str) -> None:
    path = three / "events" / "0000.parquet"
    pl.read_parquet(path).with_columns(pl.col("code").replace({"E11": code})).write_parquet(path)
    with pytest.raises(InputContractError, match=f"codes with a meaning of their own in a MEDS dataset: {code}"):
        export_meds(three, tmp_path / "meds")
    assert not (tmp_path / "meds").exists()


def test_another_folder_is_not_replaced_and_an_earlier_dataset_is(three: Path, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and holds no MEDS dataset"):
        export_meds(three, tmp_path / "mine")
    (dataset / "data" / "train" / "0.parquet").write_bytes(b"damaged")
    export_meds(three, dataset)
    check_meds(dataset)


# ---- checks ----


def _rewrite(change: Callable[[pl.DataFrame], pl.DataFrame], place: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        table = pq.read_table(root / place, partitioning=None)
        frame = change(pl.DataFrame(pl.from_arrow(table)))
        schema = {TRAIN: DataSchema, CODES: CodeMetadataSchema, SPLITS: SubjectSplitSchema}[place]
        pq.write_table(schema.align(frame.to_arrow()), root / place)

    return apply


def _copy_a_person(root: Path) -> None:
    (root / "data" / "copy.parquet").write_bytes((root / "data" / "train" / "0.parquet").read_bytes())


TRAIN, CODES, SPLITS = "data/train/0.parquet", "metadata/codes.parquet", "metadata/subject_splits.parquet"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_rewrite(lambda rows: rows.reverse(), TRAIN), "must be in the order of time within a person"),
        (_rewrite(lambda rows: rows[2:].vstack(rows[:2]), TRAIN), "rows without a time must come first"),
        (
            _rewrite(
                lambda rows: pl.concat([rows, rows.with_columns(subject_id=pl.lit(99, dtype=pl.Int64)), rows]), TRAIN
            ),
            "the rows of a person must lie next to each other",
        ),
        (_copy_a_person, "people must be in one file; 1 are in more than one"),
        (_rewrite(lambda rows: rows[1:], CODES), "must list every code of the data; 1 are missing"),
        (_rewrite(lambda rows: rows.vstack(rows[:1]), SPLITS), "people must be in one split"),
        (
            _rewrite(lambda rows: rows.with_columns(pl.col("subject_id") + 1), SPLITS),
            "people with a split must have rows",
        ),
        (
            lambda root: pl.DataFrame({"subject_id": [1.5]}).write_parquet(root / SPLITS),
            "is not valid as SubjectSplitSchema of meds",
        ),
        (
            lambda root: pl.read_parquet(root / TRAIN).write_parquet(root / TRAIN),
            "is not valid as DataSchema of meds",  # text of polars is large_string
        ),
        (lambda root: (root / TRAIN).write_bytes(b"PAR1"), "is no parquet file"),
        (lambda root: (root / CODES).unlink(), "not found: it must list every code"),
        (lambda root: (root / "metadata/dataset.json").write_text('{"dataset_name": 5}'), "does not fit"),
        (lambda root: (root / "metadata/dataset.json").write_text("{"), "does not fit"),
        (lambda root: (root / "metadata/dataset.json").unlink(), "dataset.json: not found"),
    ],
)
def test_what_breaks_the_standard_is_found(dataset: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(dataset)
    with pytest.raises(InputContractError, match=message):
        check_meds(dataset)


# ---- predictions ----


def write_risks(folder: Path, ids: list[object]) -> Path:
    folder.mkdir()
    rows = [
        (
            subject,
            landmark,
            outcome,
            horizon,
            None if subject == ids[1] else 0.25,
            0.5,
            "dead" if subject == ids[1] else None,
        )
        for subject, landmark in zip(ids, (200.5, 5.0, None), strict=True)
        for outcome in ("E11", "SNOMED/1//a")
        for horizon in (365.25, 1826.25)
        if landmark is not None
    ]
    columns = ("subject_id", "landmark_age_days", "outcome", "horizon_days", "risk", "reference_risk", "reason")
    pl.DataFrame(rows, schema=columns, orient="row").write_parquet(folder / "0000.parquet")
    return folder


def test_risks_become_one_file_for_each_outcome_and_horizon(three: Path, tmp_path: Path) -> None:
    export = export_predictions(write_risks(tmp_path / "risks", [7, -5, 11]), three, tmp_path / "predictions")
    assert (export.files, export.rows, export.without_risk) == (4, 4, 4)
    files = sorted(path.relative_to(tmp_path / "predictions").as_posix() for path in tmp_path.glob("predictions/*/*"))
    assert files == [
        "E11/1826.25.parquet",
        "E11/365.25.parquet",
        "SNOMED%2F1%2F%2Fa/1826.25.parquet",
        "SNOMED%2F1%2F%2Fa/365.25.parquet",
    ]
    table = pq.read_table(tmp_path / "predictions" / "E11" / "365.25.parquet", partitioning=None)
    PredictionSchema.validate(table)
    assert table.to_pylist() == [
        {
            "subject_id": 7,
            "prediction_time": datetime(1950, 10, 26, 12),
            "predicted_boolean_value": None,
            "predicted_boolean_probability": 0.25,
        }
    ]
    assert set(LabelSchema.required_columns()) <= set(PredictionSchema.columns())
    listed = json.loads((tmp_path / "predictions" / "predictions.json").read_text())["predictions"]
    assert listed[0] == {"outcome": "E11", "horizon_days": 365.25, "file": "E11/365.25.parquet", "without_risk": 1}


def test_predictions_name_people_as_the_dataset_does(tmp_path: Path) -> None:
    cohort = write_cohort_of_three(tmp_path / "cohort", subject_id=["b", "007", "a"])
    export_predictions(write_risks(tmp_path / "risks", ["b", "007", "a"]), cohort, tmp_path / "predictions")
    predictions = pl.read_parquet(tmp_path / "predictions" / "E11" / "365.25.parquet")
    assert predictions["subject_id"].to_list() == [3]


def test_risks_of_strangers_are_refused(three: Path, tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match=r"people must be in the cohort \(1 row\)"):
        export_predictions(write_risks(tmp_path / "risks", [8, -5, 11]), three, tmp_path / "predictions")
    with pytest.raises(InputContractError, match="people must be in the cohort"):
        export_predictions(write_risks(tmp_path / "text", ["7", "-5", "11"]), three, tmp_path / "predictions")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputContractError, match="holds no parquet file of risks"):
        export_predictions(tmp_path / "empty", three, tmp_path / "predictions")
