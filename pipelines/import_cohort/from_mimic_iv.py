"""Import the hospital tables of MIMIC-IV: `patients`, `admissions`, `diagnoses_icd`, in the folder or its `hosp/`.

Johnson et al. 2023 (Scientific Data 10:1), physionet.org/content/mimiciv. Conventions:

- All dates of a person are shifted by the same unknown time, so ages and intervals are true and years are not. They
  are compared at day precision: a death may be written hours after discharge, or without a time.
- Birth is known by age only: 1 July (`birth_month`) of `anchor_year` − `anchor_age`, half a year off at most. Ages over
  89 are all given as 91; such people are kept at that age and counted (`drop_over_89` drops them).
- A diagnosis has no date of its own: it is coded at discharge and dated by it, or by death where that comes first
  within the stay. One whose admission is missing, or has no discharge, is dropped and counted.
- Entry is the first admission. Exit is death, or `follow_up_days` (a year) after the last discharge: so long does
  MIMIC-IV look for deaths outside the hospital, and whoever comes back sooner is in the tables.
- Death is `dod`; where it is missing, the earliest `deathtime` of a stay. What is coded after death is dropped.
- Diagnoses are ICD-9-CM and ICD-10-CM by their `icd_version`; both become categories of ICD-10.
- Each admission is a covariate at its first day, `admission//URGENT` by its type (`admissions_as_events`).
"""

from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.cohort import (
    CATEGORY_SEPARATOR,
    COVARIATE,
    DEATH,
    DEATH_CODE,
    FEMALE,
    MALE,
    UNKNOWN,
    Codes,
    Events,
    Subjects,
)
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import Note
from pipelines.import_cohort.calendar_ages import (
    DAY,
    PEOPLE_RULES,
    age_on,
    at_ages,
    born_in_month,
    first_reason,
    marked_rules,
    marks_as_codes,
)
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import CODE_FORM_HELP, CodeForm, normalise_events
from pipelines.import_cohort.row_rules import DROPPED_BY, FIRST_ROWS_SHOWN, RowRule
from pipelines.import_cohort.source_tables import SourceTable, find_key_type, require_table

KIND = "mimic-iv"
_FOLDER = "hosp"
_ADMISSION = "admission"
_SEXES = {"f": FEMALE, "m": MALE}
_AGE_OF_THE_OLDEST = 91  # stands for every age over 89

_PERSON, _STAY = Subjects.subject_id.name, "hadm_id"  # columns while the tables are put together
_ADMITTED, _DISCHARGED, _DIED_IN_STAY, _DIED = "admitted", "discharged", "died_in_stay", "died"
_ANCHOR_AGE, _KIND_OF_STAY = "anchor_age", "admission_type"

_EVENT_RULES = {
    "no_admission": "the admission of the diagnosis is not among the person's admissions",
    "no_discharge": "the admission of the diagnosis has no date of discharge",
    "no_date": "the admission has no date",
    "no_code": "the code is missing",
    "unknown_version": "icd_version is neither 9 nor 10",
}


class MimicIvOptions(BaseModel):
    """Settings of the importer `mimic-iv`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    birth_month: int = Field(7, ge=1, le=12, description="month on whose first day everyone is taken to be born")
    follow_up_days: int = Field(
        365, ge=0, le=3653, description="days of follow-up after the last discharge of people who are not known to die"
    )
    drop_over_89: bool = Field(False, description="drop people over 89, whose age is not given")
    admissions_as_events: bool = Field(True, description="make each admission an event (a covariate)")
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


def deliver_mimic_iv(source: Path, options: MimicIvOptions) -> DeliveredCohort:
    """Turn the hospital tables into people, events and codes.

    Raises:
        InputContractError: a table or a column is missing, or an admission stands there twice.
    """
    folder = source / _FOLDER if (source / _FOLDER).is_dir() else source
    patients = require_table(folder, "patients", ["subject_id", "gender", "anchor_age", "anchor_year", "dod"])
    admissions = require_table(folder, "admissions", ["subject_id", "hadm_id", "admittime", "dischtime"])
    diagnoses = require_table(folder, "diagnoses_icd", ["subject_id", "hadm_id", "icd_code", "icd_version"])
    key_type = find_key_type(patients, "subject_id")
    stays = read_stays(admissions, key_type)
    people = read_people(patients, stays, key_type, options).collect()
    _refuse_repeated_stays(stays.collect(), admissions.name)
    subjects = people.lazy()
    events = {diagnoses.name: make_diagnoses(read_diagnoses(diagnoses, key_type), stays, subjects)}
    if options.admissions_as_events:
        events[admissions.name] = make_admissions(stays, subjects)
    derived = {f"{DEATH_CODE} of {patients.name} (dod, else deathtime)": make_deaths(subjects)}
    normal = normalise_events(events | derived, make_codes(stays), form=options.code_form)
    marked = marks_as_codes(normal.events)
    return DeliveredCohort(
        kind=KIND,
        subjects_table=patients.name,
        subjects=subjects.select(*Subjects.column_names(), _ANCHOR_AGE, _ADMITTED),
        events={name: frame for name, frame in marked.items() if name in events},
        derived={name: frame for name, frame in marked.items() if name in derived},
        codes=normal.codes,
        subject_rules=[_NO_ADMISSION, *([_OVER_89] if options.drop_over_89 else []), *PEOPLE_RULES],
        event_rules=marked_rules(_EVENT_RULES),
        notes=[
            *_notes(people, options),
            *(note for table in (patients, admissions, diagnoses) for note in table.notes),
            *admissions.count_unreadable([admissions.day("admittime"), admissions.day("dischtime")]),
            *patients.count_unreadable([patients.day("dod"), patients.whole_number("anchor_age")]),
            *normal.notes,
        ],
    )


_NO_ADMISSION = RowRule("no_stay", "the person has no admission", pl.col(_ADMITTED).is_null())
_OVER_89 = RowRule("over_89", "the age is over 89 and not given", pl.col(_ANCHOR_AGE) >= _AGE_OF_THE_OLDEST)


# ---- the tables of the source ----


def read_stays(admissions: SourceTable, key_type: pl.DataType) -> pl.LazyFrame:
    """Return one row an admission: person, stay, days of admission, discharge and death in it, its type."""
    return admissions.frame.select(
        admissions.key("subject_id", key_type).alias(_PERSON),
        admissions.text("hadm_id").alias(_STAY),
        admissions.day("admittime").alias(_ADMITTED),
        admissions.day("dischtime").alias(_DISCHARGED),
        admissions.day("deathtime").alias(_DIED_IN_STAY),
        admissions.text("admission_type").alias(_KIND_OF_STAY),
    )


def read_people(
    patients: SourceTable, stays: pl.LazyFrame, key_type: pl.DataType, options: MimicIvOptions
) -> pl.LazyFrame:
    """Return `Subjects` with the day of death and the anchor age."""
    spans = stays.group_by(_PERSON).agg(
        pl.col(_ADMITTED).min(),
        pl.max_horizontal(pl.col(_ADMITTED).max(), pl.col(_DISCHARGED).max()).alias(_DISCHARGED),
        pl.col(_DIED_IN_STAY).min(),
    )
    birth_year = patients.whole_number("anchor_year") - patients.whole_number("anchor_age")
    born, died = Subjects.birth_date.col, pl.coalesce(_DIED, _DIED_IN_STAY)
    follow_up_end = pl.coalesce(died, pl.col(_DISCHARGED) + pl.duration(days=options.follow_up_days))
    return (
        patients.frame.select(
            patients.key("subject_id", key_type).alias(_PERSON),
            patients.text("gender")
            .str.to_lowercase()
            .replace_strict(_SEXES, default=UNKNOWN, return_dtype=pl.String)
            .fill_null(UNKNOWN)
            .alias(Subjects.sex.name),
            born_in_month(birth_year, options.birth_month).alias(Subjects.birth_date.name),
            patients.whole_number("anchor_age").alias(_ANCHOR_AGE),
            patients.day("dod").alias(_DIED),
        )
        .join(spans, on=_PERSON, how="left", maintain_order="left")
        .with_columns(
            age_on(pl.col(_ADMITTED), born).alias(Subjects.entry_age_days.name),
            age_on(follow_up_end, born).alias(Subjects.exit_age_days.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
        )
    )


def read_diagnoses(diagnoses: SourceTable, key_type: pl.DataType) -> pl.LazyFrame:
    """Return one row a diagnosis: person, stay, and its code behind the name of its vocabulary."""
    version = diagnoses.whole_number("icd_version")
    vocabulary = version.replace_strict({9: "ICD9CM/", 10: "ICD10CM/"}, default=None, return_dtype=pl.String)
    return diagnoses.frame.select(
        diagnoses.key("subject_id", key_type).alias(_PERSON),
        diagnoses.text("hadm_id").alias(_STAY),
        pl.concat_str(vocabulary, diagnoses.text("icd_code")).alias(Events.code.name),
        first_reason([("no_code", diagnoses.text("icd_code").is_null()), ("unknown_version", vocabulary.is_null())]),
    )


# ---- events ----


def make_diagnoses(diagnoses: pl.LazyFrame, stays: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Date each diagnosis by the discharge of its admission, or by a death within it."""
    died = people.select(_PERSON, pl.coalesce(_DIED, _DIED_IN_STAY).alias(_DIED))
    dated = diagnoses.join(
        stays.with_columns(pl.lit(value=True).alias("found")), on=[_PERSON, _STAY], how="left", maintain_order="left"
    ).join(died, on=_PERSON, how="left", maintain_order="left")
    within = (pl.col(_DIED) >= pl.col(_ADMITTED)) & (pl.col(_DIED) < pl.col(_DISCHARGED))
    return at_ages(
        dated.select(
            _PERSON,
            Events.code.col,
            pl.when(within).then(pl.col(_DIED)).otherwise(pl.col(_DISCHARGED)).alias(DAY),
            pl.coalesce(
                DROPPED_BY,
                first_reason(
                    [("no_admission", pl.col("found").is_null()), ("no_discharge", pl.col(_DISCHARGED).is_null())]
                ),
            ),
        ),
        people,
    )


def make_admissions(stays: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each admission, at its first day."""
    dated = stays.select(
        _PERSON,
        pl.col(_ADMITTED).alias(DAY),
        _code_of_admission().alias(Events.code.name),
        first_reason([("no_date", pl.col(_ADMITTED).is_null())]),
    )
    return at_ages(dated, people)


def make_deaths(people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each person who is known to have died."""
    day = pl.coalesce(_DIED, _DIED_IN_STAY).alias(DAY)
    died = people.select(_PERSON, day, pl.lit(DEATH_CODE).alias(Events.code.name)).filter(pl.col(DAY).is_not_null())
    return at_ages(died, people)


def make_codes(stays: pl.LazyFrame) -> pl.LazyFrame:
    """Return `Codes`: the kinds of admissions and death; diagnoses are described by ICD-10."""
    admissions = (
        stays.select(_code_of_admission().alias(Codes.code.name)).unique()
        .select(
            Codes.code.name,
            pl.lit(COVARIATE).alias(Codes.kind.name),
            pl.lit("Admission to hospital").alias(Codes.description.name),
        )
    )  # fmt: skip
    death = pl.LazyFrame(
        {Codes.code.name: [DEATH_CODE], Codes.kind.name: [DEATH], Codes.description.name: ["Death of any cause"]}
    )
    return pl.concat([admissions, death]).with_columns(pl.lit(None, dtype=pl.String).alias(Codes.chapter.name))


def _code_of_admission() -> pl.Expr:
    kind = pl.col(_KIND_OF_STAY).fill_null(UNKNOWN)
    return pl.concat_str(pl.lit(f"{_ADMISSION}{CATEGORY_SEPARATOR}"), kind)


# ---- the account ----


def _refuse_repeated_stays(stays: pl.DataFrame, table: str) -> None:
    repeats = stays.select(pl.struct(_PERSON, _STAY).is_duplicated()).to_series()
    if repeats.any():
        rule = "must not repeat: the table has one row for each admission"
        first_rows = tuple(repeats.arg_true().head(FIRST_ROWS_SHOWN))
        raise InputContractError([Violation(table, _STAY, rule, int(repeats.sum()), first_rows)])


def _notes(people: pl.DataFrame, options: MimicIvOptions) -> list[Note]:
    died, died_in_stay = pl.col(_DIED), pl.col(_DIED_IN_STAY)
    counts = {
        "over_89": ("people over 89, whose age is given as 91", pl.col(_ANCHOR_AGE) >= _AGE_OF_THE_OLDEST),
        "dod_missing": (
            "people without dod who died in a stay: deathtime is taken",
            died.is_null() & died_in_stay.is_not_null(),
        ),
        "dod_differs": ("people whose dod is another day than deathtime: dod is taken", died != died_in_stay),
        "stay_after_death": (
            "people with a stay that ends after the day of death",
            pl.coalesce(died, died_in_stay) < pl.col(_DISCHARGED),
        ),
        "sex_unknown": ("people whose sex is neither F nor M, kept as unknown", Subjects.sex.col == UNKNOWN),
    }
    found = people.select(condition.sum().alias(name) for name, (_, condition) in counts.items()).row(0, named=True)
    return [
        Note(
            "birth_imputed", f"births are known by year alone: the first day of month {options.birth_month} was taken"
        ),
        Note(
            "exit", f"follow-up of people not known to die ends {options.follow_up_days} days after the last discharge"
        ),
        *(Note(name, text, found[name]) for name, (text, _) in counts.items() if found[name]),
    ]
