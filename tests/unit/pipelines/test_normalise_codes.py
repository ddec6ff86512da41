"""Codes become three characters of ICD-10, or stay what they are and are counted."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data_schemas.cohort import COVARIATE, DEATH, DEATH_CODE, DISEASE, Codes, Events
from pipelines.import_cohort.normalise_codes import (
    describe_codes,
    icd9_targets,
    icd10_categories,
    map_codes,
    normalise_events,
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ICD10CM/E11.9", "E11"),
        ("ICD10/e119", "E11"),
        ("icd-10-cm//I10", "I10"),
        ("ICD10WHO/G63.2*", "G63"),
        ("ICD10/A09X", "A09"),
        ("ICD10CM/U07.1", "U07"),
        ("ICD10CM/Z3A.01", "Z3A"),  # a category of ICD-10-CM alone
        ("DIAGNOSIS//ICD//10//E119 ", "E11"),
        ("ICD9CM//250.00", "E11"),
        ("ICD9CM/78791  ", "R19"),  # padded, as in MIMIC
        ("ICD9CM/0030", "A02"),
        ("ICD9CM/E885.9", "W18"),
        ("ICD9CM/V5861", "Z79"),
        ("DIAGNOSIS//ICD//9//4019", "I10"),
        ("ICD9CM/410", "I21"),  # cut short, and all codes below it lead to one category
        ("ICD/4019", "I10"),
        ("ICD/I10", "I10"),
    ],
)
def test_diagnoses_become_categories(code: str, expected: str) -> None:
    assert map_codes(pl.Series([code]))["new_code"].to_list() == [expected]


@pytest.mark.parametrize(
    ("code", "system"),
    [
        ("ICD10CM/XYZ", "icd10"),
        ("ICD10/E10-E14", "icd10"),  # a block is no category
        ("ICD9CM/99999", "icd9"),
        ("ICD9CM/250", "icd9"),  # cut short: diabetes of either type
        ("ICD9CM/30", "icd9"),  # the leading zeros are lost: 003.0 or 030
        ("ICD/V5861", "icd"),  # V58.61 of ICD-9, or V58 of ICD-10
        ("PROCEDURE//ICD//10//027034Z", None),
        ("ICD10PCS/0DTJ4ZZ", None),
        ("ICD9Proc/0001", None),
        ("ICDO3/8000/3", None),
        ("SNOMED/44054006", None),
        ("E11.9", None),
        ("", None),
    ],
)
def test_what_is_not_known_keeps_its_name(code: str, system: str | None) -> None:
    (row,) = map_codes(pl.Series([code])).rows(named=True)
    assert (row["new_code"], row["category"], row["system"]) == (code, None, system)


def test_codes_without_a_vocabulary_are_read_only_if_asked() -> None:
    codes = pl.Series(["E11.9", "D501", "25000", "SNOMED/1", "ADMISSION"])
    assert map_codes(codes)["category"].null_count() == 5
    assert map_codes(codes, "icd10")["new_code"].to_list() == ["E11", "D50", "25000", "SNOMED/1", "ADMISSION"]
    assert map_codes(codes, "icd9")["new_code"].to_list() == ["E11.9", "D501", "E11", "SNOMED/1", "ADMISSION"]


def test_categories_are_described_by_who() -> None:
    categories = icd10_categories()
    assert categories["category"].is_unique().all()
    assert categories["chapter"].null_count() == 0
    known = {row["category"]: row for row in categories.rows(named=True)}
    assert known["E11"]["description"] == "Type 2 diabetes mellitus"
    assert known["E11"]["chapter"] == "IV Endocrine, nutritional and metabolic diseases"
    assert known["D49"]["chapter"] == "II Neoplasms"  # of ICD-10-CM alone, with D50 in another chapter beside it
    assert known["D50"]["chapter"].startswith("III ")


def test_every_target_of_icd9_is_a_category_or_nothing() -> None:
    targets = icd9_targets()
    assert targets["icd9"].is_unique().all()
    known = targets.drop_nulls().join(icd10_categories(), on="category", how="anti")
    assert known.is_empty()


def an_event(code: str | None, value: float | None = None) -> dict[str, object]:
    return {"subject_id": 1, "age_days": 100.0, "code": code, "numeric_value": value}


EVENTS = {
    "diagnoses": pl.LazyFrame(
        [an_event(code) for code in ("ICD10CM/E11.9", "ICD9CM/25000", "ICD10CM/E11.9", "ICD9CM/99999", None)]
    ),
    "others": pl.LazyFrame([an_event("E10", 5.0), an_event("SNOMED/1"), an_event(DEATH_CODE)]),
}
CODES = pl.LazyFrame(
    [
        ("ICD10CM/E11.9", DISEASE, "as the source says", None),
        ("ICD9CM/99999", DISEASE, "something", None),
        ("E10", COVARIATE, "an electrode", None),
        ("SNOMED/1", DISEASE, "one", None),
        (DEATH_CODE, DEATH, None, None),
    ],
    schema=dict.fromkeys(Codes.column_names(), pl.String),
    orient="row",
)


def test_events_are_renamed_in_their_order_and_counted() -> None:
    normal = normalise_events(EVENTS, CODES, form="icd10_3", bare="icd10")
    renamed = {name: frame.collect()["code"].to_list() for name, frame in normal.events.items()}
    assert renamed == {
        "diagnoses": ["E11", "E11", "E11", "ICD9CM/99999", None],
        "others": ["E10", "SNOMED/1", DEATH_CODE],  # E10 is declared a covariate: no diabetes
    }
    assert [frame.collect_schema().names() for frame in normal.events.values()] == [Events.column_names()] * 2
    notes = {note.name: (note.text.split()[0], note.rows) for note in normal.notes}
    assert notes == {"icd_normalised": ("2", 3), "icd_unknown": ("1", 1), "other_vocabulary": ("1", 1)}


def test_codes_are_listed_once_under_their_new_names() -> None:
    codes = Codes.validate(normalise_events(EVENTS, CODES, form="icd10_3").codes.collect())
    rows = {row["code"]: (row["kind"], row["description"]) for row in codes.rows(named=True)}
    assert rows == {
        DEATH_CODE: (DEATH, None),
        "E10": (COVARIATE, "an electrode"),
        "E11": (DISEASE, "Type 2 diabetes mellitus"),
        "ICD9CM/99999": (DISEASE, "something"),
        "SNOMED/1": (DISEASE, "one"),
    }


def test_as_delivered_changes_nothing() -> None:
    normal = normalise_events(EVENTS, CODES, form="as_delivered")
    assert normal.events is EVENTS
    assert normal.codes is CODES
    assert normal.notes == ()


def test_normal_codes_stay_normal() -> None:
    once = normalise_events(EVENTS, CODES, form="icd10_3")
    twice = normalise_events(once.events, once.codes, form="icd10_3")
    for name, frame in once.events.items():
        assert_frame_equal(frame.collect(), twice.events[name].collect())
    assert_frame_equal(once.codes.collect(), twice.codes.collect())


def test_descriptions_fill_gaps_only() -> None:
    codes = pl.LazyFrame(
        [("I10", DISEASE, "high pressure", None), ("I11", DISEASE, None, None), ("x", DISEASE, None, None)],
        schema=dict.fromkeys(Codes.column_names(), pl.String),
        orient="row",
    )
    described = describe_codes(codes).collect()
    assert described["description"].to_list() == ["high pressure", "Hypertensive heart disease", None]
    assert described["chapter"].to_list() == [*["IX Diseases of the circulatory system"] * 2, None]
