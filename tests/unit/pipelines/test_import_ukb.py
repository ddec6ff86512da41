"""UK Biobank exports. There is no real one here: these are small ones in the column names that users have."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from data_schemas.cohort import DEATH_CODE, Codes, Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_ukb import UkbOptions, deliver_ukb
from pipelines.import_cohort.ukb_fields import FieldColumn, parse_column, read_dictionary
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

# How the four spellings write field, instance and array, the id, what separates cells and what a missing one holds.
STYLES: Mapping[str, tuple[str, str, str, str]] = {
    "csv": ("{field}-{instance}.{array}", "eid", ",", ""),
    "tab": ("f.{field}.{instance}.{array}", "f.eid", "\t", "NA"),
    "r": ("X{field}.{instance}.{array}", "eid", ",", "NA"),
    "platform": ("p{field}_i{instance}_a{array}", "eid", ",", ""),
    "participant": ("participant.p{field}_i{instance}_a{array}", "participant.eid", ",", ""),
}
WITHOUT_INSTANCE = (31, 34, 52, 191)  # on the platform; so are first occurrences
A00, E11, I21 = 130000, 130708, 131298
DICTIONARY = "FieldID,Field\n130000,Date A00 first reported (cholera)\n130001,Source of report of A00 (cholera)\n"
DICTIONARY += "130708,Date E11 first reported (non-insulin-dependent diabetes mellitus)\n"
DICTIONARY += '131298,"Date I21 first reported (acute myocardial infarction, or so)"\n'

Place = tuple[int, int, int]  # field, instance, array
Person = Mapping[Place, str]


def person(**fields: str) -> dict[Place, str]:
    """A man born in March 1950 who was assessed in 2010 in England; `f40006_1` is field 40006, instance 1."""
    usual = {"f31": "1", "f34": "1950", "f52": "3", "f53": "2010-06-15", "f54": "11010", "f40000": ""}
    places = {}
    for name, value in (usual | fields).items():
        field, _, rest = name.removeprefix("f").partition("_")
        instance, _, array = rest.partition("_")
        places[(int(field), int(instance or 0), int(array or 0))] = value
    return places


def column_name(style: str, place: Place) -> str:
    field, instance, array = place
    pattern = STYLES[style][0]
    if style in ("platform", "participant"):
        if field in WITHOUT_INSTANCE or field >= 130000:
            return pattern.split("_i")[0].format(field=field)
        if array == 0:
            pattern = pattern.split("_a")[0]
    return pattern.format(field=field, instance=instance, array=array)


def write_export(path: Path, people: Sequence[Person], style: str = "csv") -> Path:
    """Write one row a person, ids from 1,000,001, with a column that nobody uses."""
    places = sorted({place for cells in people for place in cells})
    _, eid, separator, missing = STYLES[style]
    lines = [separator.join([eid, *(column_name(style, place) for place in places), "unused"])]
    for number, cells in enumerate(people, start=1_000_001):
        values = (cells.get(place) or missing for place in places)
        lines.append(separator.join([str(number), *values, "x"]))
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def options(tmp_path: Path, **settings: Any) -> UkbOptions:
    dictionary = tmp_path / "dictionary.csv"
    dictionary.write_text(DICTIONARY)
    return UkbOptions(**{"dictionary": dictionary, "censor_dates": {"all": "2022-10-31"}, **settings})


def imported(tmp_path: Path, source: Path, **settings: Any) -> tuple[Path, ImportReport]:
    out = tmp_path / "cohort"
    return out, finish_import(deliver_ukb(source, options(tmp_path, **settings)), out)


def rows(cohort: Path, *names: str) -> list[tuple[Any, ...]]:
    return scan_events(cohort).select(names or Events.column_names()).collect().rows()


def dropped(report: ImportReport) -> dict[str, dict[str, int]]:
    return {table.table: dict(table.dropped) for table in report.tables if table.dropped}


EVERYTHING = [
    person(
        f130708="2001-05-01", f131298="2015-02-03", f40005="2016-01-02", f40006="C509", f40005_1="2018-01-02",
        f40006_1="C20", f21001="27.5", f21001_1="28", f53_1="2014-06-15", f1239="0", f1558="-3", f1558_1="6",
        f40000="2020-03-04", f40000_1="2020-03-04",
    ),
    person(f31="0", f34="1940", f130000="1990-01-01", f191="2012-01-01"),
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_every_spelling_gives_the_same_cohort(tmp_path: Path, style: str) -> None:
    ending = "tab" if style == "tab" else "csv"
    source = write_export(tmp_path / f"ukb{style}.{ending}", EVERYTHING, style)
    cohort, report = imported(tmp_path, source)
    born = date(1950, 3, 1)

    def age(*day: int) -> float:
        return float((date(*day) - born).days)

    assert rows(cohort) == [
        (1_000_001, age(2001, 5, 1), "E11", None),
        (1_000_001, age(2010, 6, 15), "bmi", 27.5),
        (1_000_001, age(2010, 6, 15), "smoking//no", None),
        (1_000_001, age(2014, 6, 15), "alcohol//never", None),
        (1_000_001, age(2014, 6, 15), "bmi", 28.0),
        (1_000_001, age(2015, 2, 3), "I21", None),
        (1_000_001, age(2016, 1, 2), "C50", None),
        (1_000_001, age(2018, 1, 2), "C20", None),
        (1_000_001, age(2020, 3, 4), DEATH_CODE, None),
        (1_000_002, float((date(1990, 1, 1) - date(1940, 3, 1)).days), "A00", None),
    ]
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    assert subjects[Subjects.sex.name].to_list() == ["male", "female"]
    assert subjects[Subjects.exit_age_days.name].to_list() == [
        age(2020, 3, 4),
        float((date(2012, 1, 1) - date(1940, 3, 1)).days),  # lost to follow-up
    ]
    assert dropped(report) == {"deaths": {"exact_duplicate": 1}, "assessments": {"no_answer": 1}}


def test_special_dates(tmp_path: Path) -> None:
    days = ("1900-01-01", "1901-01-01", "1902-02-02", "1903-03-03", "1909-09-09", "2037-07-07", "2001-01-01")
    source = write_export(tmp_path / "ukb.csv", [person(f130000=day) for day in days])
    cohort, report = imported(tmp_path, source)
    born = date(1950, 3, 1)
    assert rows(cohort, Events.subject_id.name, Events.age_days.name) == [
        (1_000_002, 0.0),
        (1_000_003, 0.0),
        (1_000_004, (date(1950, 12, 31) - born).days // 2),  # some time in the rest of the year of birth
        (1_000_007, float((date(2001, 1, 1) - born).days)),
    ]
    assert dropped(report) == {"first occurrences": {"special_date_unknown": 1, "special_date_placeholder": 2}}
    assert [note.rows for note in report.notes if note.name == "special_date"] == [1, 1, 1]


def test_what_cannot_be_dated_or_coded_is_dropped_and_counted(tmp_path: Path) -> None:
    people = [
        person(f130000="2001-13-01", f130708="2001-01-01", f40005="2001-01-01", f40006_1="C50"),
        person(f21001="heavy", f21001_2="25", f1239="-1", f1558="1"),
        person(f34="", f130000="2001-01-01"),
        person(f53="", f130000="2001-01-01"),
        person(f53="1949-01-01"),
        person(f53="2023-01-01"),  # after the end of follow-up
    ]
    cohort, report = imported(tmp_path, write_export(tmp_path / "ukb.csv", people))
    assert dropped(report) == {
        "participants of ukb.csv": {"no_birth_date": 1, "no_entry": 1, "impossible_age": 1, "no_follow_up": 1},
        "first occurrences": {"no_date": 1, "unknown_person": 1, "unknown_subject": 1},
        "cancer register": {"cancer_without_icd10": 1, "no_date": 1},
        "assessments": {"no_answer": 1, "no_value": 1, "no_date": 1},
    }
    assert read_subjects(cohort)[Subjects.subject_id.name].to_list() == [1_000_001, 1_000_002]


def test_each_provider_ends_on_its_own_day_and_death_comes_first(tmp_path: Path) -> None:
    centres = ("11010", "11004", "11022", "", "Wrexham", "11010")
    people = [person(f54=centre, f130000="2022-01-01") for centre in centres]
    people[-1][(40000, 0, 0)] = "2022-10-30"
    source = write_export(tmp_path / "ukb.csv", [*people, person(f40000="2022-11-01")])
    dates = {"england": "2022-10-31", "scotland": "2022-08-31", "wales": "2022-05-31"}
    cohort, report = imported(tmp_path, source, censor_dates=dates)
    subjects = read_subjects(cohort).sort(Subjects.subject_id.name)
    ends = subjects.select(Subjects.birth_date.col + pl.duration(days=Subjects.exit_age_days.col)).to_series()
    england, scotland, wales = date(2022, 10, 31), date(2022, 8, 31), date(2022, 5, 31)
    assert ends.to_list() == [england, scotland, wales, wales, wales, date(2022, 10, 30), england]
    assert dropped(report) == {"deaths": {"after_exit": 1}}
    assert [note.rows for note in report.notes if note.name == "provider_missing"] == [1]


def test_follow_up_may_start_at_birth(tmp_path: Path) -> None:
    source = write_export(tmp_path / "ukb.csv", [person(f53="", f52="", f130000="2001-01-01")])
    cohort, report = imported(tmp_path, source, entry="birth")
    (subject,) = read_subjects(cohort).rows(named=True)
    assert (subject["entry_age_days"], subject["birth_date"]) == (0.0, date(1950, 7, 1))
    assert [note.rows for note in report.notes if note.name == "birth_month_missing"] == [1]


def test_spelled_out_cells_of_the_platform(tmp_path: Path) -> None:
    cells = person(
        f31="Female", f52="March", f54="Glasgow", f1239="Only occasionally", f1558="Prefer not to answer",
        f1558_1="Daily or almost daily", f53_1="2012-01-01", f40005="2011-01-01", f40006="C50.9 Breast", f130000="",
    )  # fmt: skip
    cohort, _ = imported(tmp_path, write_export(tmp_path / "participant.csv", [cells], "platform"))
    assert [code for (code,) in rows(cohort, Events.code.name)] == ["smoking//occasionally", "C50", "alcohol//daily"]
    subjects = read_subjects(cohort)
    assert subjects.select(Subjects.sex.name, Subjects.birth_date.name).rows() == [("female", date(1950, 3, 1))]


def test_an_export_may_be_a_folder_of_files_and_shards_with_deaths_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "with blanks [1]"
    registers = [{(130000, 0, 0): "2001-01-01"}, {(130000, 0, 0): ""}, {(130000, 0, 0): "2002-02-02"}]
    usual = [{place: value for place, value in person().items() if place[0] != 40000}] * 3
    table = pl.read_csv(write_export(tmp_path / "all.csv", usual), infer_schema=False)
    (source / "participant").mkdir(parents=True)
    table[:2].write_csv(source / "participant" / "1.csv")
    table[2:].write_csv(source / "participant" / "2.csv")
    write_export(source / "registers.tab", registers, "tab")
    (source / "death.csv").write_text(
        "death.eid,death.ins_index,death.date_of_death\n1000003,0,2015-05-05\n1000003,1,2015-05-06\n"
    )
    (source / "notes.csv").write_text("a,b\n1,2\n")
    cohort, report = imported(tmp_path, source)
    assert (report.subjects, report.events, report.deaths) == (3, 3, 1)
    assert dropped(report) == {"deaths": {"several_deaths": 1}}
    assert "notes.csv has no column eid and is not used" in [note.text for note in report.notes]
    assert rows(cohort, Events.subject_id.name, Events.code.name) == [
        (1_000_001, "A00"),
        (1_000_003, "A00"),
        (1_000_003, DEATH_CODE),
    ]


def test_parquet_keeps_its_types_and_is_read_by_groups_of_columns(tmp_path: Path) -> None:
    text = pl.read_csv(write_export(tmp_path / "a.csv", EVERYTHING), infer_schema=False)
    typed = text.with_columns(
        pl.col("eid", "31-0.0", "34-0.0", "52-0.0").cast(pl.Int32),
        pl.col("130708-0.0").str.to_date(),
        pl.col("53-0.0").str.to_datetime(time_unit="ns"),
        pl.col("21001-0.0").cast(pl.Float64),
        *(pl.lit(None, dtype=pl.Date).alias(f"{field}-0.0") for field in range(130002, 130202, 2)),
    )
    typed.write_parquet(tmp_path / "ukb.parquet")
    from_text, from_parquet = (
        finish_import(deliver_ukb(tmp_path / file, options(tmp_path)), tmp_path / f"cohort {file}")
        for file in ("a.csv", "ukb.parquet")
    )
    assert from_text.events == from_parquet.events
    assert rows(tmp_path / "cohort a.csv") == rows(tmp_path / "cohort ukb.parquet")


def test_further_fields_can_be_named(tmp_path: Path) -> None:
    source = write_export(tmp_path / "ukb.csv", [person(f4080="131", f6138="1", f6138_0_1="3", f130000="")])
    cohort, _ = imported(tmp_path, source, measurements={"4080": "sbp"}, answers={6138: "qualification"})
    assert rows(cohort, Events.code.name, Events.numeric_value.name) == [
        ("qualification//1", None),
        ("qualification//3", None),
        ("sbp", 131.0),
    ]
    kinds = read_codes(cohort).select(Codes.code.name, Codes.kind.name).rows()
    assert ("sbp", "covariate") in kinds
    assert ("A00", "disease") in kinds


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("130000-0.0", (130000, 0, 0)),
        ("f.40006.21.0", (40006, 21, 0)),
        ("x130846.0.0", (130846, 0, 0)),
        ("p130000", (130000, 0, 0)),
        ("participant.p130000", (130000, 0, 0)),
        ("p40006_i0", (40006, 0, 0)),
        ("p41270_a12", (41270, 0, 12)),
        ("p40006_i3_a1", (40006, 3, 1)),
        ("death.date_of_death", (40000, -1, 0)),
        ("eid", None),
        ("130000", None),
        ("p1_x0", None),
    ],
)
def test_column_names(name: str, expected: Place | None) -> None:
    assert parse_column(name) == (FieldColumn(name, *expected) if expected else None)


@pytest.mark.parametrize(
    "text",
    [
        DICTIONARY,
        DICTIONARY.replace("FieldID,Field", "field_id\ttitle").replace(",Date", "\tDate").replace(',"Date', '\t"Date'),
        "entity,name,title\n" + "".join(f"participant,p{line}\n" for line in DICTIONARY.splitlines()[1:]),
        "f.130000.0.0\tSource of report of A00 (cholera)\nf.130708.0.0\tSource of report of E11 (diabetes)\n"
        "f.131298.0.0\tSource of report of I21 (infarction)\n",
    ],
    ids=["showcase", "schema", "platform", "two columns"],
)
def test_dictionaries(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dictionary"
    path.write_text(text)
    assert read_dictionary(path).select("field", "code").rows() == [(A00, "A00"), (E11, "E11"), (I21, "I21")]


def test_settings_that_nothing_can_replace_are_asked_for(tmp_path: Path) -> None:
    source = write_export(tmp_path / "ukb.csv", EVERYTHING)
    with pytest.raises(UsageError, match="needs the data dictionary"):
        deliver_ukb(source, UkbOptions())
    with pytest.raises(UsageError, match="censor_dates for scotland, wales"):
        deliver_ukb(source, options(tmp_path, censor_dates={"england": "2022-10-31"}))
    with pytest.raises(UsageError, match="one date for all, or one for each"):
        deliver_ukb(source, options(tmp_path, censor_dates={"all": "2022-10-31", "wales": "2022-10-31"}))
    with pytest.raises(ValidationError, match="extra"):
        UkbOptions(censor_date="2022-10-31")


def faults(tmp_path: Path, source: Path, **settings: Any) -> list[tuple[str, str, int | None]]:
    with pytest.raises(InputContractError) as caught:
        deliver_ukb(source, options(tmp_path, **settings))
    return [(fault.column, fault.rule, fault.n_rows) for fault in caught.value.violations]


def test_missing_and_repeated_fields(tmp_path: Path) -> None:
    (tmp_path / "ukb.csv").write_text("eid,31-0.0,p31\n1,0,0\n")
    dates = {"england": "2022-10-31", "scotland": "2022-08-31", "wales": "2022-05-31"}
    assert faults(tmp_path, tmp_path / "ukb.csv", censor_dates=dates) == [
        ("field 34", "is missing (year of birth)", None),
        ("field 40000", "is missing (date of death, or the entity death)", None),
        ("field 53", "is missing (date of assessment)", None),
        ("field 54", "is missing (assessment centre)", None),
        ("field 31", "instance 0, array 0 stands in 2 columns", None),
        ("", "has no column of a first occurrence that the dictionary names", None),
    ]


def test_ids_that_are_missing_repeated_or_no_numbers(tmp_path: Path) -> None:
    source = write_export(tmp_path / "ukb.csv", [person(f130000="2001-01-01")] * 4)
    source.write_text(source.read_text().replace("1000002,", "1000001,").replace("1000003,", "person,"))
    assert faults(tmp_path, source) == [
        ("eid", "must be a whole number", 1),
        ("eid", "must not repeat: one row for each participant", 2),
    ]
    (tmp_path / "other.csv").write_text("id,31-0.0\n1,0\n")
    assert faults(tmp_path, tmp_path / "other.csv") == [("eid", "no table has this column", None)]


def test_dictionaries_that_say_nothing(tmp_path: Path) -> None:
    source = write_export(tmp_path / "ukb.csv", EVERYTHING)
    for text, message in (
        ("FieldID,Field\n31,Sex\n", "names no first occurrence"),
        ("one column\n", "must have a column of fields and one of titles"),
        (DICTIONARY + "130000,Date A01 first reported (typhoid)\n", "gives one field different codes"),
    ):
        (tmp_path / "other").write_text(text)
        with pytest.raises(InputContractError, match=message):
            deliver_ukb(source, options(tmp_path, dictionary=tmp_path / "other"))
    with pytest.raises(InputContractError, match="not found"):
        deliver_ukb(source, options(tmp_path, dictionary=tmp_path / "nowhere"))
