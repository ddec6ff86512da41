"""OMOP tables: what a code, a birth, an age and follow-up are, and what becomes of rows that are not in order."""

import gzip
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from data_schemas.cohort import COVARIATE, DEATH, DEATH_CODE, DISEASE, Codes, Subjects
from data_schemas.errors import InputContractError
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.from_omop import OmopOptions, deliver_omop, join_periods
from pipelines.import_cohort.row_rules import DROPPED_BY, mark_rows

Row = Mapping[str, object]
BIG, NEGATIVE = 7131048714591189903, -8254164865273971123

CONCEPTS = (
    {"concept_id": 0, "concept_name": "No matching concept", "vocabulary_id": "None", "concept_code": "No match"},
    {"concept_id": 201826, "concept_name": "Type 2 diabetes", "vocabulary_id": "SNOMED", "concept_code": "44054006"},
    {"concept_id": 45566731, "concept_name": "T2DM", "vocabulary_id": "ICD10CM", "concept_code": "E11.9  "},
    {"concept_id": 3025315, "concept_name": "Weight", "vocabulary_id": "LOINC", "concept_code": "29463-7"},
    {"concept_id": 43055141, "concept_name": "Smoking", "vocabulary_id": "LOINC", "concept_code": "72166-2"},
    {"concept_id": 45883458, "concept_name": "Former smoker", "vocabulary_id": "LOINC", "concept_code": "LA15920-4"},
    {"concept_id": 9529, "concept_name": "kilogram", "vocabulary_id": "UCUM", "concept_code": "kg"},
    {"concept_id": 8840, "concept_name": "milligram per decilitre", "vocabulary_id": "UCUM", "concept_code": "mg/dL"},
    {"concept_id": 1124957, "concept_name": "Oxycodone", "vocabulary_id": "RxNorm", "concept_code": "7804"},
)


def a_person(person_id: object = 1, **more: object) -> dict[str, object]:
    born = {"year_of_birth": 1950, "month_of_birth": 4, "day_of_birth": 9, "birth_datetime": None}
    return {"person_id": person_id, "gender_concept_id": 8507, **born, **more}


def a_period(person_id: object = 1, start: object = "2000-01-01", end: object = "2010-12-31") -> dict[str, object]:
    return {
        "person_id": person_id,
        "observation_period_start_date": start,
        "observation_period_end_date": end,
    }


def a_condition(person_id: object = 1, day: object = "2005-06-07", **more: object) -> dict[str, object]:
    return {
        "person_id": person_id,
        "condition_concept_id": 201826,
        "condition_start_date": day,
        "condition_source_concept_id": 45566731,
        "condition_source_value": "E11.9",
        "condition_type_concept_id": 32821,
        **more,
    }


def write_text(rows: Sequence[Row], path: Path, *, upper: bool = False) -> None:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame = frame.rename({name: name.upper() for name in frame.columns}) if upper else frame
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_csv(path)


def write_source(folder: Path, *, upper: bool = False, **tables: Sequence[Row]) -> Path:
    """Write an OMOP database of text files: one person with a period and a condition, unless told otherwise."""
    usual = {
        "person": [a_person()],
        "observation_period": [a_period()],
        "condition_occurrence": [a_condition()],
        "concept": CONCEPTS,
    }
    for name, rows in {**usual, **tables}.items():
        if rows:
            write_text(rows, folder / f"{name.upper() if upper else name}.csv", upper=upper)
    return folder


def deliver(source: Path, **options: object) -> DeliveredCohort:
    return deliver_omop(source, OmopOptions.model_validate(options))


def people_of(delivered: DeliveredCohort) -> pl.DataFrame:
    return mark_rows(delivered.subjects, delivered.subject_rules).collect()


def events_of(delivered: DeliveredCohort) -> pl.DataFrame:
    """Return all events, marked as cleaning marks them: it joins the people who are kept."""
    kept = people_of(delivered).filter(pl.col(DROPPED_BY).is_null()).lazy()
    tables = [frame.with_columns(pl.lit(name).alias("table")) for name, frame in delivered.events.items()]
    follow_up = kept.select("subject_id", "exit_age_days")
    joined = pl.concat(tables).join(follow_up, on="subject_id", how="left", maintain_order="left")
    return mark_rows(joined, delivered.event_rules).collect()


def notes_of(delivered: DeliveredCohort) -> dict[str, int | None]:
    return {note.name: note.rows for note in delivered.notes}


@pytest.mark.parametrize("upper", [False, True])
def test_a_person_and_a_condition(tmp_path: Path, upper: bool) -> None:
    delivered = deliver(write_source(tmp_path, upper=upper))
    (person,) = people_of(delivered).select(*Subjects.column_names(), DROPPED_BY).rows(named=True)
    assert person == {
        "subject_id": 1,
        "sex": "male",
        "birth_date": date(1950, 4, 9),
        "entry_age_days": float((date(2000, 1, 1) - date(1950, 4, 9)).days),
        "exit_age_days": float((date(2010, 12, 31) - date(1950, 4, 9)).days),
        "cluster_id": None,
        "split": None,
        "dropped_by": None,
    }
    (event,) = events_of(delivered).rows(named=True)
    assert (event["age_days"], event["code"]) == (float((date(2005, 6, 7) - date(1950, 4, 9)).days), "E11")
    codes = Codes.validate(delivered.codes.collect())
    assert codes.select("code", "kind", "description").rows() == [("E11", DISEASE, "Type 2 diabetes mellitus")]


def test_the_same_tables_as_parquet_with_other_types(tmp_path: Path) -> None:
    text = write_source(tmp_path / "text", person=[a_person(gender_concept_id=8532)])
    folder = tmp_path / "parquet"
    folder.mkdir()
    pl.DataFrame([a_person(gender_concept_id=8532)]).with_columns(
        pl.col("person_id").cast(pl.Int32), pl.lit(datetime(1950, 4, 9)).dt.cast_time_unit("ns").alias("birth_datetime")
    ).write_parquet(folder / "PERSON.parquet")
    pl.DataFrame([a_period()]).with_columns(pl.col(pl.String).str.to_date()).write_parquet(
        folder / "observation_period.parquet"
    )
    pl.DataFrame([a_condition()]).with_columns(
        pl.col("condition_start_date").str.to_datetime(time_zone="UTC")
    ).write_parquet(folder / "condition_occurrence.parquet")
    pl.DataFrame(CONCEPTS).write_parquet(folder / "concept.parquet")
    as_text, as_parquet = deliver(text), deliver(folder)
    assert people_of(as_text).equals(people_of(as_parquet))
    assert events_of(as_text).drop("table").equals(events_of(as_parquet).drop("table"))


def test_missing_tables_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputContractError, match="person: not found"):
        deliver(tmp_path)
    with pytest.raises(InputContractError, match="condition_occurrence: not found"):
        deliver(write_source(tmp_path / "a", condition_occurrence=[]))
    with pytest.raises(InputContractError, match="observation_period: not found"):
        deliver(write_source(tmp_path / "b", observation_period=[]))
    with pytest.raises(InputContractError, match="column 'year_of_birth': is missing"):
        deliver(write_source(tmp_path / "c", person=[{"person_id": 1, "gender_concept_id": 8507}]))
    undated = [{"person_id": 1, "condition_concept_id": 201826}]
    with pytest.raises(InputContractError, match="column 'condition_start_date': is missing"):
        deliver(write_source(tmp_path / "d", condition_occurrence=undated))


def test_unknown_settings_are_refused() -> None:
    for settings in ({"concept": "source"}, {"birth_imputation": "guess"}, {"joined_gap_days": -1}):
        with pytest.raises(ValidationError):
            OmopOptions.model_validate(settings)


# ---- ids ----


def test_ids_of_64_bits_with_a_sign_stay_exact(tmp_path: Path) -> None:
    ids = (BIG, BIG - 1, NEGATIVE)
    delivered = deliver(
        write_source(
            tmp_path,
            person=[a_person(person_id) for person_id in ids],
            observation_period=[a_period(person_id) for person_id in ids],
            condition_occurrence=[a_condition(person_id) for person_id in ids],
        )
    )
    assert people_of(delivered)["subject_id"].to_list() == list(ids)
    assert events_of(delivered)["subject_id"].to_list() == list(ids)
    assert events_of(delivered)[DROPPED_BY].null_count() == 3


def test_ids_that_are_text_stay_text(tmp_path: Path) -> None:
    ids = ("007", "a-1")
    delivered = deliver(
        write_source(
            tmp_path,
            person=[a_person(person_id) for person_id in ids],
            observation_period=[a_period(person_id) for person_id in ids],
            condition_occurrence=[a_condition(person_id) for person_id in ids],
        )
    )
    assert people_of(delivered)["subject_id"].to_list() == list(ids)
    assert events_of(delivered)[DROPPED_BY].null_count() == 2


def test_people_outside_person_are_counted_and_dropped(tmp_path: Path) -> None:
    delivered = deliver(
        write_source(
            tmp_path,
            observation_period=[a_period(1), a_period(2), a_period(3)],
            condition_occurrence=[a_condition(1), a_condition(2), a_condition(None)],
        )
    )
    assert people_of(delivered)["subject_id"].to_list() == [1]
    assert events_of(delivered)[DROPPED_BY].to_list() == [None, "unknown_person", "unknown_person"]
    outside = [(note.text.split(":")[0], note.rows) for note in delivered.notes if note.name == "outside_person"]
    assert outside == [("observation_period.csv", 2), ("condition_occurrence.csv", 2)]


def test_people_who_cannot_be_used_are_dropped_by_rule(tmp_path: Path) -> None:
    delivered = deliver(
        write_source(
            tmp_path,
            person=[
                a_person(1),
                a_person(1, year_of_birth=1951),
                a_person(2, year_of_birth=None, month_of_birth=None, day_of_birth=None),
                a_person(3),
                a_person(None),
                a_person(4, year_of_birth=1850),
            ],
            observation_period=[a_period(person_id) for person_id in (1, 2, 4)],
        )
    )
    assert people_of(delivered)[DROPPED_BY].to_list() == [
        None,
        "repeated_person",
        "no_birth_year",
        "no_observation_period",
        "no_id",
        "follow_up_over_120",
    ]


def test_a_header_among_the_rows_is_no_person(tmp_path: Path) -> None:
    source = write_source(tmp_path)
    (source / "death.csv").write_text("column0,column1,column2\nPERSON_ID,DEATH_DATE,DEATH_DATETIME\n")
    delivered = deliver(source)
    assert events_of(delivered)["code"].to_list() == ["E11"]
    assert notes_of(delivered)["header_rows"] == 1


# ---- codes ----


@pytest.mark.parametrize(
    ("row", "source", "standard"),
    [
        ({}, "ICD10CM/E11.9", "SNOMED/44054006"),
        ({"condition_source_concept_id": 0}, "SOURCE/E11.9", "SNOMED/44054006"),
        ({"condition_source_concept_id": None, "condition_source_value": "  "}, "SNOMED/44054006", "SNOMED/44054006"),
        ({"condition_concept_id": 0}, "ICD10CM/E11.9", "ICD10CM/E11.9"),
        (
            {"condition_source_concept_id": 44824628, "condition_source_value": "78791  "},
            "SOURCE/78791",
            "SNOMED/44054006",
        ),
        ({"condition_concept_id": 44, "condition_source_concept_id": 55}, "SOURCE/E11.9", "CONCEPT/44"),
        (
            {"condition_concept_id": 44, "condition_source_concept_id": 55, "condition_source_value": None},
            "CONCEPT/55",
            "CONCEPT/44",
        ),
    ],
)
def test_names_of_codes(tmp_path: Path, row: Row, source: str, standard: str) -> None:
    folder = write_source(tmp_path, condition_occurrence=[a_condition(**row), a_condition()])
    for concepts, expected in (("source", source), ("standard", standard)):
        delivered = deliver(folder, concepts=concepts, code_form="as_delivered")
        assert events_of(delivered)["code"][0] == expected
        assert expected in delivered.codes.collect()["code"].to_list()


def test_a_row_without_any_code_is_dropped(tmp_path: Path) -> None:
    nothing = {"condition_concept_id": 0, "condition_source_concept_id": 0, "condition_source_value": None}
    delivered = deliver(write_source(tmp_path, condition_occurrence=[a_condition(**nothing), a_condition()]))
    assert events_of(delivered)[DROPPED_BY].to_list() == ["no_code", None]
    assert delivered.codes.collect()["code"].to_list() == ["E11"]


def test_without_concept_source_values_can_be_given_a_vocabulary(tmp_path: Path) -> None:
    rows = [a_condition(condition_source_value=value) for value in ("E119", "4019  ", "V5861")]
    folder = write_source(tmp_path, condition_occurrence=rows, concept=[])
    assert events_of(deliver(folder))["code"].to_list() == ["SOURCE/E119", "SOURCE/4019", "SOURCE/V5861"]
    either = deliver(folder, source_vocabulary="ICD")
    assert events_of(either)["code"].to_list() == ["E11", "I10", "ICD/V5861"]
    assert events_of(deliver(folder, source_vocabulary="ICD9CM"))["code"].to_list() == ["ICD9CM/E119", "I10", "Z79"]


def test_conditions_of_one_type(tmp_path: Path) -> None:
    rows = [a_condition(condition_type_concept_id=kind) for kind in (32821, 32817, None)]
    delivered = deliver(write_source(tmp_path, condition_occurrence=rows), condition_types=[32821])
    assert events_of(delivered)[DROPPED_BY].to_list() == [None, "other_condition_type", "other_condition_type"]


def a_measurement(**more: object) -> dict[str, object]:
    row = {"person_id": 1, "measurement_concept_id": 3025315, "measurement_date": "2005-06-07"}
    return {
        **row,
        "value_as_number": None,
        "value_as_concept_id": 0,
        "unit_concept_id": 0,
        "unit_source_value": None,
        **more,
    }


def test_measurements_have_units_and_categories(tmp_path: Path) -> None:
    rows = [
        a_measurement(value_as_number=48.1, unit_concept_id=9529),
        a_measurement(value_as_number=106.0, unit_source_value="lbs"),
        a_measurement(value_as_number=5.0, unit_concept_id=8840),
        a_measurement(value_as_number=48.1),
        a_measurement(measurement_concept_id=43055141, value_as_concept_id=45883458),
        a_measurement(unit_concept_id=9529),
    ]
    folder = write_source(tmp_path, measurement=rows)
    delivered = deliver(folder)
    events = events_of(delivered).filter(pl.col("table") == "measurement.csv")
    assert events.select("code", "numeric_value").rows() == [
        ("LOINC/29463-7 [kg]", 48.1),
        ("LOINC/29463-7 [lbs]", 106.0),
        ("LOINC/29463-7 [mg/dL]", 5.0),
        ("LOINC/29463-7", 48.1),
        ("LOINC/72166-2//LOINC/LA15920-4", None),
        ("LOINC/29463-7", None),
    ]
    codes = {row["code"]: (row["kind"], row["description"]) for row in delivered.codes.collect().rows(named=True)}
    assert codes["LOINC/29463-7 [kg]"] == (COVARIATE, "Weight [kg]")
    assert codes["LOINC/72166-2//LOINC/LA15920-4"] == (COVARIATE, "Smoking: Former smoker")
    without_units = events_of(deliver(folder, units_in_codes=False)).filter(pl.col("table") == "measurement.csv")
    assert without_units["code"].n_unique() == 2
    assert "measurement.csv" not in deliver(folder, measurements=False).events


def test_drugs_are_covariates(tmp_path: Path) -> None:
    row = {"person_id": 1, "drug_concept_id": 1124957, "drug_exposure_start_date": "2005-06-07"}
    delivered = deliver(write_source(tmp_path, drug_exposure=[row]))
    assert events_of(delivered)["code"].to_list() == ["E11", "RxNorm/7804"]
    kinds = dict(delivered.codes.collect().select("code", "kind").iter_rows())
    assert kinds["RxNorm/7804"] == COVARIATE
    assert "drug_exposure.csv" not in deliver(tmp_path, drugs=False).events


def test_death_is_an_event(tmp_path: Path) -> None:
    deaths = [{"person_id": 1, "death_date": day} for day in ("2007-08-09", "2008-08-09")]
    delivered = deliver(write_source(tmp_path, death=deaths))
    events = events_of(delivered).filter(pl.col("code") == DEATH_CODE)
    assert events.height == 2  # cleaning keeps the first
    assert delivered.codes.collect().filter(pl.col("code") == DEATH_CODE)["kind"].to_list() == [DEATH]


# ---- dates ----


def test_dates_that_are_missing_or_cannot_be_read_never_become_the_epoch(tmp_path: Path) -> None:
    rows = [a_condition(day=day) for day in (None, "soon", "20050607", "2005-06-07T08:09:10Z")]
    delivered = deliver(write_source(tmp_path, condition_occurrence=rows))
    events = events_of(delivered)
    assert events[DROPPED_BY].to_list() == ["no_date", "no_date", None, None]
    assert events["age_days"].drop_nulls().n_unique() == 1
    assert notes_of(delivered)["unreadable_date"] == 1


def test_times_of_day_are_kept_if_asked(tmp_path: Path) -> None:
    rows = [
        a_condition(condition_start_datetime="2005-06-07 06:00:00"),
        a_condition(condition_start_datetime=None),
        a_condition(condition_start_datetime="2005-06-08 06:00:00"),  # contradicts the date, which counts
        a_condition(day=None, condition_start_datetime="2005-06-07 23:59:59+00:00"),
    ]
    folder = write_source(tmp_path, condition_occurrence=rows)
    day = float((date(2005, 6, 7) - date(1950, 4, 9)).days)
    assert events_of(deliver(folder))["age_days"].to_list() == [day] * 4
    kept = deliver(folder, times="keep")
    assert events_of(kept)["age_days"].to_list() == [day + 0.25, *[day + 255 / 256] * 3]
    (exit_age,) = people_of(kept)["exit_age_days"]
    assert exit_age == (date(2010, 12, 31) - date(1950, 4, 9)).days + 255 / 256


# ---- birth ----


@pytest.mark.parametrize(
    ("born", "records", "middle", "start"),
    [
        ({"birth_datetime": "1950-05-06 07:08:09"}, (), date(1950, 5, 6), date(1950, 5, 6)),
        ({"day_of_birth": None}, (), date(1950, 4, 15), date(1950, 4, 1)),
        ({"day_of_birth": 31}, (), date(1950, 4, 15), date(1950, 4, 1)),  # April has 30 days
        ({"day_of_birth": None, "month_of_birth": None}, (), date(1950, 6, 15), date(1950, 1, 1)),
        (
            {"day_of_birth": None, "month_of_birth": None},
            ("1950-03-04", "1950-02-03", "1949-12-31"),
            date(1950, 2, 3),
            date(1950, 1, 1),
        ),
        ({"day_of_birth": None}, ("1950-04-10", "1950-03-31"), date(1950, 4, 10), date(1950, 4, 1)),
        ({"day_of_birth": None}, ("1950-05-01",), date(1950, 4, 15), date(1950, 4, 1)),
    ],
)
def test_birth_is_given_or_imputed(
    tmp_path: Path, born: Row, records: tuple[str, ...], middle: date, start: date
) -> None:
    rows = [a_condition(), *(a_condition(day=day) for day in records)]
    folder = write_source(tmp_path, person=[a_person(**born)], condition_occurrence=rows)
    for imputation, expected in (("middle", middle), ("start", start)):
        delivered = deliver(folder, birth_imputation=imputation)
        assert people_of(delivered)["birth_date"].to_list() == [expected]
    counted = {"birth_day_imputed", "birth_month_imputed"} & notes_of(deliver(folder)).keys()
    assert len(counted) == (0 if "birth_datetime" in born else 1)


def test_sex_is_that_of_the_concept(tmp_path: Path) -> None:
    people = [a_person(number, gender_concept_id=sex) for number, sex in enumerate((8507, 8532, 0, None), start=1)]
    delivered = deliver(write_source(tmp_path, person=people))
    assert people_of(delivered)["sex"].to_list() == ["male", "female", "unknown", "unknown"]
    assert notes_of(delivered)["sex_unknown"] == 2


# ---- follow-up ----

PERIODS = (("2000-01-01", "2001-12-31"), ("2002-01-01", "2003-12-31"), ("2006-02-01", "2008-12-31"))


def follow_up(tmp_path: Path, periods: Sequence[tuple[str | None, str | None]], **options: object) -> list[date]:
    rows = [a_period(1, start, end) for start, end in periods]
    delivered = deliver(write_source(tmp_path, observation_period=rows), **options)
    entry, exit_age = people_of(delivered).select("entry_age_days", "exit_age_days").row(0)
    return [date.fromordinal(date(1950, 4, 9).toordinal() + int(age)) for age in (entry, exit_age)]


def test_the_last_period_counts_and_history_lies_before_it(tmp_path: Path) -> None:
    assert follow_up(tmp_path, PERIODS) == [date(2006, 2, 1), date(2008, 12, 31)]
    assert follow_up(tmp_path, PERIODS[::-1]) == [date(2006, 2, 1), date(2008, 12, 31)]
    assert follow_up(tmp_path, PERIODS[:2]) == [date(2000, 1, 1), date(2003, 12, 31)]  # they touch: one period
    assert follow_up(tmp_path, PERIODS, follow_up="span") == [date(2000, 1, 1), date(2008, 12, 31)]
    assert follow_up(tmp_path, PERIODS, joined_gap_days=761) == [date(2006, 2, 1), date(2008, 12, 31)]
    assert follow_up(tmp_path, PERIODS, joined_gap_days=762) == [date(2000, 1, 1), date(2008, 12, 31)]


def test_periods_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    periods = [
        ("2000-01-01", "2001-12-31"),
        ("2009-01-01", "2008-01-01"),
        (None, "2010-01-01"),
        ("never", "2010-01-01"),
    ]
    assert follow_up(tmp_path, periods) == [date(2000, 1, 1), date(2001, 12, 31)]
    assert notes_of(deliver(tmp_path))["unusable_period"] == 3


def test_a_period_from_before_birth_starts_at_birth(tmp_path: Path) -> None:
    assert follow_up(tmp_path, [("1950-01-01", "2001-12-31")]) == [date(1950, 4, 9), date(2001, 12, 31)]
    assert notes_of(deliver(tmp_path))["observed_before_birth"] == 1


def test_follow_up_by_records_needs_no_periods(tmp_path: Path) -> None:
    conditions = [a_condition(day=day) for day in ("1949-01-01", "2001-02-03", None, "2004-05-06")]
    folder = write_source(
        tmp_path,
        observation_period=[],
        condition_occurrence=conditions,
        death=[{"person_id": 1, "death_date": "2005-06-07"}],
    )
    delivered = deliver(folder, follow_up="records")
    ages = people_of(delivered).select("entry_age_days", "exit_age_days").row(0)
    assert ages == tuple(float((day - date(1950, 4, 9)).days) for day in (date(2001, 2, 3), date(2005, 6, 7)))


def test_periods_are_joined_across_people_separately() -> None:
    days = [date(2000, 1, day) for day in range(1, 32)]
    periods = pl.LazyFrame(
        {
            "subject_id": [1, 1, 1, 2, 1],
            "start": [days[0], days[9], days[2], days[10], days[20]],
            "end": [days[11], days[9], days[4], days[12], days[25]],
        }
    )
    joined = join_periods(periods, 0).sort("subject_id", "start").collect()
    assert joined.rows() == [(1, days[0], days[11]), (1, days[20], days[25]), (2, days[10], days[12])]


def test_compressed_files_and_shards(tmp_path: Path) -> None:
    folder = write_source(tmp_path, condition_occurrence=[a_condition()])
    shards = folder / "CONDITION_OCCURRENCE"
    shards.mkdir()
    content = (folder / "condition_occurrence.csv").read_bytes()
    (folder / "condition_occurrence.csv").unlink()
    (shards / "part-0.csv.gz").write_bytes(gzip.compress(content))
    (shards / "part-1.csv").write_bytes(content.replace(b"2005-06-07", b"2006-06-07"))
    (shards / "part-2.csv").write_bytes(content.splitlines(keepends=True)[0])
    assert events_of(deliver(folder)).height == 2
