"""MEDS datasets: who is who, what time is what age, and which rows are no events."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from data_schemas.cohort import COVARIATE, DEATH, DEATH_CODE, DISEASE, Codes
from data_schemas.errors import InputContractError
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.from_meds import MedsOptions, deliver_meds
from pipelines.import_cohort.row_rules import DROPPED_BY, mark_rows

BIRTH = datetime(1950, 4, 9)
Row = tuple[object, datetime | str | None, str | None, float | None]


def day(age_days: float) -> datetime:
    return BIRTH + timedelta(days=age_days)


ANN: tuple[Row, ...] = (
    (1, None, "GENDER//F", None),
    (1, BIRTH, "MEDS_BIRTH", None),
    (1, day(1000.5), "E11", None),
    (1, day(2000), "LAB//BMI", 25.5),
    (1, day(3000), "MEDS_DEATH", None),
)


SCHEMA = {"subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String, "numeric_value": pl.Float32}


def a_frame(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def write_data(frame: pl.DataFrame, root: Path, place: str = "data/0.parquet") -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path)
    return root


def deliver(root: Path, **options: object) -> DeliveredCohort:
    return deliver_meds(root, MedsOptions.model_validate(options))


def people_of(delivered: DeliveredCohort) -> pl.DataFrame:
    return mark_rows(delivered.subjects, delivered.subject_rules).collect()


def events_of(delivered: DeliveredCohort) -> pl.DataFrame:
    """Return all rows, marked as cleaning marks them: it joins the people who are kept."""
    kept = people_of(delivered).filter(pl.col(DROPPED_BY).is_null()).lazy().select("subject_id", "exit_age_days")
    joined = delivered.events["data"].join(kept, on="subject_id", how="left", maintain_order="left")
    return mark_rows(joined, delivered.event_rules).collect()


def kept_events(delivered: DeliveredCohort) -> list[tuple[object, ...]]:
    kept = events_of(delivered).filter(pl.col(DROPPED_BY).is_null())
    return kept.select("subject_id", "age_days", "code", "numeric_value").rows()


def notes_of(delivered: DeliveredCohort) -> dict[str, int | None]:
    return {note.name: note.rows for note in delivered.notes}


def test_a_person_of_five_rows(tmp_path: Path) -> None:
    delivered = deliver(write_data(a_frame(ANN), tmp_path))
    (person,) = people_of(delivered).rows(named=True)
    assert (person["subject_id"], person["sex"], person["birth_date"]) == (1, "female", BIRTH.date())
    assert (person["entry_age_days"], person["exit_age_days"]) == (1000.5, 3000.0)
    assert events_of(delivered)[DROPPED_BY].to_list() == ["about_the_person"] * 2 + [None] * 3
    assert kept_events(delivered) == [
        (1, 1000.5, "E11", None),
        (1, 2000.0, "LAB//BMI", 25.5),
        (1, 3000.0, DEATH_CODE, None),
    ]
    codes = Codes.validate(delivered.codes.collect())
    assert dict(codes.select("code", "kind").iter_rows()) == {
        "E11": DISEASE,
        "LAB//BMI": COVARIATE,
        DEATH_CODE: DEATH,
    }


def test_codes_stand_also_for_what_has_modifiers_behind_them(tmp_path: Path) -> None:
    rows = [
        (1, BIRTH, "MEDS_BIRTH//HOSPITAL", None),
        (1, day(10), "MEDS_BIRTHDAY", None),  # no modifier: another code
        (1, day(20), "meds_death", None),  # codes are taken as written
        (1, day(30), "MEDS_DEATH//IN//HOSPITAL", None),
    ]
    delivered = deliver(write_data(a_frame(rows), tmp_path))
    assert [code for _, _, code, _ in kept_events(delivered)] == ["MEDS_BIRTHDAY", "meds_death", DEATH_CODE]


def test_birth_and_death_may_have_other_names(tmp_path: Path) -> None:
    rows = [(1, BIRTH, "DOB", None), (1, day(5), "x", None), (1, day(9), "SNOMED/419620001", None)]
    root = write_data(a_frame(rows), tmp_path)
    with pytest.raises(InputContractError, match=r"no dated row has a birth code \(MEDS_BIRTH\).*set birth_codes"):
        deliver(root)
    delivered = deliver(root, birth_codes=["DOB"], death_codes=["SNOMED/419620001"])
    assert kept_events(delivered) == [(1, 5.0, "x", None), (1, 9.0, DEATH_CODE, None)]


def test_people_without_birth_or_anything_dated_are_dropped(tmp_path: Path) -> None:
    rows = [
        *ANN,
        (2, day(5), "x", None),
        (3, BIRTH, "MEDS_BIRTH", None),
        (3, None, "RACE//A", None),
        (4, None, "MEDS_BIRTH", None),
        (4, day(7), "x", None),
        (5, BIRTH - timedelta(days=60_000), "MEDS_BIRTH", None),
        (5, day(7), "x", None),
        (None, day(7), "x", None),
    ]
    delivered = deliver(write_data(a_frame(rows), tmp_path))
    assert people_of(delivered)[DROPPED_BY].to_list() == [
        None,
        "no_birth",
        "no_dated_row",
        "no_birth",
        "follow_up_over_120",
    ]
    strangers = events_of(delivered).filter(pl.col("subject_id").is_null())
    assert strangers[DROPPED_BY].to_list() == ["unknown_person"]


def test_of_several_births_the_first_counts(tmp_path: Path) -> None:
    rows = [(1, day(365), "MEDS_BIRTH", None), (1, BIRTH + timedelta(hours=23), "MEDS_BIRTH", None), *ANN[2:]]
    delivered = deliver(write_data(a_frame(rows), tmp_path))
    assert people_of(delivered)["birth_date"].to_list() == [BIRTH.date()]
    assert kept_events(delivered)[0] == (1, 1000.5, "E11", None)  # counted from midnight of that day
    assert notes_of(delivered)["several_births"] == 1


@pytest.mark.parametrize(
    ("codes", "sex"),
    [
        (["GENDER//F"], "female"),
        (["SEX//M"], "male"),
        (["Gender/M"], "male"),
        ([], "unknown"),
        (["GENDER//F", "GENDER//M"], "unknown"),
        (["GENDER//OTHER"], "unknown"),
    ],
)
@pytest.mark.parametrize("time", [None, BIRTH])
def test_sex_is_a_code_of_any_row(tmp_path: Path, codes: list[str], sex: str, time: datetime | None) -> None:
    rows = [*((1, time, code, None) for code in codes), *ANN[1:]]
    delivered = deliver(write_data(a_frame(rows), tmp_path))
    assert people_of(delivered)["sex"].to_list() == [sex]
    assert ("both_sexes" in notes_of(delivered)) == (len(codes) == 2)


def test_static_rows_become_covariates_at_birth_or_are_left_out(tmp_path: Path) -> None:
    root = write_data(a_frame([(1, None, "RACE//A", None), *ANN]), tmp_path)
    delivered = deliver(root)
    assert kept_events(delivered)[0] == (1, 0.0, "RACE//A", None)
    assert people_of(delivered)["entry_age_days"].to_list() == [1000.5]
    assert dict(delivered.codes.collect().select("code", "kind").iter_rows())["RACE//A"] == COVARIATE
    left_out = deliver(root, static="leave_out")
    assert events_of(left_out)[DROPPED_BY].to_list()[0] == "static"


def test_a_time_that_cannot_be_read_is_not_static(tmp_path: Path) -> None:
    frame = a_frame(ANN).with_columns(pl.col("time").dt.to_string("iso"))
    rows = frame.vstack(
        pl.DataFrame({"subject_id": [1, 1], "time": ["soon", "2018-08-03 22:20:52+00:00"], "code": ["x", "y"]})
        .with_columns(pl.lit(None, dtype=pl.Float32).alias("numeric_value"))
    )  # fmt: skip
    delivered = deliver(write_data(rows, tmp_path))
    assert events_of(delivered)[DROPPED_BY].to_list()[-2:] == ["unreadable_time", None]
    assert kept_events(delivered)[0] == (1, 1000.5, "E11", None)


@pytest.mark.parametrize(
    "dtype", [pl.Datetime("ns"), pl.Datetime("ms"), pl.Datetime("us", "UTC"), pl.Datetime("us", "America/New_York")]
)
def test_times_of_any_unit_and_zone_keep_their_clock(tmp_path: Path, dtype: pl.Datetime) -> None:
    typed = a_frame(ANN).with_columns(
        pl.col("time").dt.cast_time_unit(dtype.time_unit).dt.replace_time_zone(dtype.time_zone)
    )
    delivered = deliver(write_data(typed, tmp_path))
    assert [age for _, age, _, _ in kept_events(delivered)] == [1000.5, 2000.0, 3000.0]
    assert people_of(delivered)["birth_date"].to_list() == [BIRTH.date()]


def test_shards_may_differ_in_zone_unit_and_type(tmp_path: Path) -> None:
    plain = a_frame(ANN)
    other = plain.with_columns(
        pl.col("subject_id").cast(pl.Int32) + 1,
        pl.col("time").dt.cast_time_unit("ns").dt.replace_time_zone("Europe/Berlin"),
        pl.col("code").cast(pl.Categorical),
        pl.col("numeric_value").cast(pl.Float64),
        pl.lit("a note").alias("text_value"),
    )
    write_data(plain, tmp_path, "data/a/0.parquet")
    write_data(other, tmp_path, "data/b/c d/1.parquet")
    write_data(plain.clear(), tmp_path, "data/empty.parquet")
    delivered = deliver(tmp_path)
    first, second = kept_events(delivered)[:3], kept_events(delivered)[3:]
    assert [row[1:] for row in first] == [row[1:] for row in second]
    assert notes_of(delivered)["text_not_read"] == 5


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match="column 'code': is missing"):
        deliver(write_data(a_frame(ANN).drop("code"), tmp_path))
    without_values = deliver(write_data(a_frame(ANN).drop("numeric_value"), tmp_path))
    assert kept_events(without_values)[1] == (1, 2000.0, "LAB//BMI", None)


def test_no_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match="no such folder"):
        deliver(tmp_path / "nowhere")
    with pytest.raises(InputContractError, match="holds no parquet file"):
        deliver(tmp_path)


def test_values_that_are_no_numbers_and_codes_that_are_none(tmp_path: Path) -> None:
    rows = [*ANN[:2], (1, day(1), "a", float("nan")), (1, day(2), "b", float("inf")), (1, day(3), None, 1.0)]
    delivered = deliver(write_data(a_frame(rows), tmp_path))
    assert kept_events(delivered) == [(1, 1.0, "a", None), (1, 2.0, "b", None)]
    assert events_of(delivered)[DROPPED_BY].to_list()[-1] == "no_code"


# ---- entry and exit ----


@pytest.mark.parametrize(
    ("options", "entry"),
    [({}, 10.0), ({"entry": "birth"}, 0.0), ({"entry": "age", "entry_age_years": 40}, 14_610.0)],
)
def test_entry_and_exit_without_codes_of_observation(tmp_path: Path, options: dict[str, object], entry: float) -> None:
    rows = [
        (1, day(-1), "before birth", None),
        (1, BIRTH, "MEDS_BIRTH", None),
        (1, BIRTH, "GENDER//M", None),
        (1, day(10), "x", None),
        (1, day(20_000), "y", None),
    ]
    person = people_of(deliver(write_data(a_frame(rows), tmp_path), **options))
    assert person.select("entry_age_days", "exit_age_days").row(0) == (entry, 20_000.0)


def test_codes_of_observation_say_when_follow_up_starts_and_ends(tmp_path: Path) -> None:
    rows = [*ANN[:-1], (1, day(500), "ENROL", None), (1, day(700), "ENROL//AGAIN", None), (1, day(2500), "LEAVE", None)]
    root = write_data(a_frame(rows), tmp_path)
    delivered = deliver(root, entry_codes=["ENROL"], exit_codes=["LEAVE"])
    assert people_of(delivered).select("entry_age_days", "exit_age_days").row(0) == (500.0, 2500.0)
    assert [code for _, _, code, _ in kept_events(delivered)] == ["E11", "LAB//BMI"]


# ---- splits ----


def test_splits_are_those_of_the_folders(tmp_path: Path) -> None:
    for number, folder in enumerate(("train", "tuning", "test"), start=1):
        rows = [(number, *row[1:]) for row in ANN]
        write_data(a_frame(rows), tmp_path, f"{folder}/0.parquet")
    people = people_of(deliver(tmp_path))
    assert people["split"].to_list() == ["train", "tuning", "held_out"]
    assert people_of(deliver(tmp_path, use_splits=False))["split"].null_count() == 3


def test_splits_of_the_file_come_first(tmp_path: Path) -> None:
    rows = [(number, *row[1:]) for number in (1, 2, 3) for row in ANN]
    write_data(a_frame(rows), tmp_path, "data/train/0.parquet")
    splits = pl.DataFrame({"subject_id": [1, 2, 9], "split": ["held_out", "fold 7", "train"]})
    write_data(splits, tmp_path, "metadata/subject_splits.parquet")
    delivered = deliver(tmp_path)
    assert people_of(delivered)["split"].to_list() == ["held_out", None, None]
    notes = notes_of(delivered)
    assert (notes["split_name_unknown"], notes["split_without_rows"]) == (1, 1)
    named = deliver(tmp_path, split_names={"fold 7": "tuning", "held_out": "held_out"})
    assert people_of(named)["split"].to_list() == ["held_out", "tuning", None]


def test_a_person_in_two_splits_is_an_error(tmp_path: Path) -> None:
    for folder in ("train", "held_out"):
        write_data(a_frame(ANN), tmp_path, f"data/{folder}/0.parquet")
    with pytest.raises(InputContractError, match="people must be in one split; 1 are in several"):
        deliver(tmp_path)
    splits = pl.DataFrame({"subject_id": [1, 1], "split": ["train", "held_out"]})
    write_data(splits, tmp_path, "metadata/subject_splits.parquet")
    with pytest.raises(InputContractError, match=r"subject_splits\.parquet.*people must be in one split"):
        deliver(tmp_path)


# ---- codes ----


def test_descriptions_are_those_of_the_dataset(tmp_path: Path) -> None:
    codes = pl.DataFrame(
        {
            "code": ["LAB//BMI", "LAB//BMI", "x", "never used"],
            "description": [None, "Body mass index", "something", "nothing"],
            "parent_codes": pl.Series([None, ["LOINC/39156-5"], None, None], dtype=pl.List(pl.String)),
        }
    )
    write_data(codes, tmp_path, "metadata/codes.parquet")
    described = deliver(write_data(a_frame(ANN), tmp_path)).codes.collect()
    descriptions = dict(described.select("code", "description").iter_rows())
    assert descriptions["LAB//BMI"] == "Body mass index"
    assert set(descriptions) == {"E11", "LAB//BMI", DEATH_CODE}


def test_codes_can_be_declared_covariates(tmp_path: Path) -> None:
    rows = [*ANN, *((1, day(5), code, None) for code in ("ADMISSION//URGENT", "DISCHARGE", "VISIT.A", "VISITxA"))]
    codes = deliver(
        write_data(a_frame(rows), tmp_path), covariates=["ADMISSION*", "DISCHARGE", "VISIT.A"]
    ).codes.collect()
    kinds = dict(codes.select("code", "kind").iter_rows())
    assert [kinds[code] for code in ("ADMISSION//URGENT", "DISCHARGE", "VISIT.A")] == [COVARIATE] * 3
    assert kinds["VISITxA"] == DISEASE  # a point in a pattern is a point


def test_codes_are_brought_to_icd10_if_they_name_it_or_if_asked(tmp_path: Path) -> None:
    rows = [*ANN[:2], (1, day(1), "ICD9CM//250.00", None), (1, day(2), "I10.9", None)]
    root = write_data(a_frame(rows), tmp_path)
    assert [row[2] for row in kept_events(deliver(root))] == ["E11", "I10.9"]
    assert [row[2] for row in kept_events(deliver(root, bare_codes="icd10"))] == ["E11", "I10"]
    assert [row[2] for row in kept_events(deliver(root, code_form="as_delivered"))] == ["ICD9CM//250.00", "I10.9"]


def test_unknown_settings_are_refused() -> None:
    for settings in ({"birth": "DOB"}, {"birth_codes": []}, {"entry": "later"}, {"entry_age_years": 130}):
        with pytest.raises(ValidationError):
            MedsOptions.model_validate(settings)


def test_the_day_of_a_zoned_birth_is_that_of_its_clock(tmp_path: Path) -> None:
    frame = a_frame(ANN).with_columns(pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"))
    (birth,) = people_of(deliver(write_data(frame, tmp_path)))["birth_date"]
    assert birth == datetime(1950, 4, 9, 10, tzinfo=UTC).date() == date(1950, 4, 9)
