"""Import the synthetic claims of Medicare (CMS DE-SynPUF 2008–2010): beneficiary summaries and claims.

The files keep their names (`DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv`, `…_Inpatient_Claims_Sample_1.csv`), in
one folder or in folders of it; several samples, which share no person, may be there at once. Conventions:

- A person has one summary a year while alive and enrolled. Entry is 1 January of the first year with a summary, exit
  31 December of the last, or death. Months without Part A cover are followed all the same; `drop_without_part_a`
  drops people who never had any, whose stays in hospital nobody could claim.
- Birth dates are given, all on the first day of a month. Death is given to the month, as its first day: the last day is
  taken (`death_day`), so that nothing of that month lies after death. It stands in the last summary of the person
  alone, so all years are needed to find all deaths.
- Sex 1 is male, 2 female. Dates are whole numbers YYYYMMDD.
- The diagnoses of a claim (`ICD9_DGNS_CD_1` to `_10`) are dated by discharge, else by the end and then the start of the
  claim. A second segment of a claim repeats its number and lacks those two dates; its diagnoses count like others. The
  admitting diagnosis is a suspicion, procedures and the yearly flags of chronic conditions have no day: not read.
- ICD-9-CM without dots becomes categories of ICD-10.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.cohort import DEATH, DEATH_CODE, FEMALE, MALE, UNKNOWN, Codes, Events, Subjects
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import Note
from pipelines.import_cohort.calendar_ages import (
    DAY,
    PEOPLE_RULES,
    age_on,
    at_ages,
    first_reason,
    marked_rules,
    marks_as_codes,
)
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import CODE_FORM_HELP, CodeForm, normalise_events
from pipelines.import_cohort.row_rules import RowRule
from pipelines.import_cohort.source_tables import SourceTable, open_files

KIND = "desynpuf"
_SUMMARY_FILE = re.compile(r"(20\d\d)_beneficiary_summary_file.*\.(csv|csv\.gz|parquet)$")
_CLAIM_FILES = re.compile(r"(inpatient|outpatient|carrier)_claims.*\.(csv|csv\.gz|parquet)$")
_DIAGNOSIS = re.compile(r"icd9_dgns_cd_\d+")
_SEXES = {1: MALE, 2: FEMALE}
_PERSON, _YEAR, _DIED, _PART_A = Subjects.subject_id.name, "year", "died", "part_a_months"

_EVENT_RULES = {"no_date": "the claim has no date that can be read"}
_NO_PART_A = RowRule("no_part_a", "the person never had Part A cover", pl.col(_PART_A) == 0)


class DesynpufOptions(BaseModel):
    """Settings of the importer `desynpuf`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claims: tuple[Literal["inpatient", "outpatient", "carrier"], ...] = Field(
        ("inpatient", "outpatient", "carrier"), min_length=1, description="claims to read, where their files are there"
    )
    death_day: Literal["first", "last"] = Field("last", description="day of the month on which people are taken to die")
    drop_without_part_a: bool = Field(False, description="drop people without a month of Part A cover in any year")
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


def deliver_desynpuf(source: Path, options: DesynpufOptions) -> DeliveredCohort:
    """Turn summaries and claims in the folder `source` into people, events and codes.

    Raises:
        InputContractError: there are no summaries or no claims, or a column is missing.
    """
    years, claims = find_files(source, options)
    summaries = {year: open_files(files, f"beneficiary summaries {year}") for year, files in years.items()}
    tables = [open_files(files, f"{kind} claims") for kind, files in claims.items()]
    yearly = pl.concat([_read_summary(table, year) for year, table in summaries.items()])
    people = make_people(yearly, options).collect()
    subjects = people.lazy()
    events = {f"{table.name} (diagnoses)": at_ages(_read_diagnoses(table), subjects) for table in tables}
    deaths = f"{DEATH_CODE} of beneficiary summaries"
    normal = normalise_events({**events, deaths: make_deaths(subjects)}, _death_code(), form=options.code_form)
    marked = marks_as_codes(normal.events)
    return DeliveredCohort(
        kind=KIND,
        subjects_table="beneficiaries",
        subjects=subjects.select(*Subjects.column_names(), _PART_A),
        events={name: frame for name, frame in marked.items() if name in events},
        derived={name: frame for name, frame in marked.items() if name not in events},
        codes=normal.codes,
        subject_rules=[*PEOPLE_RULES, *([_NO_PART_A] if options.drop_without_part_a else [])],
        event_rules=marked_rules(_EVENT_RULES),
        notes=[
            *_notes(yearly, people, options, list(summaries)),
            *_claim_notes(tables),
            *(note for table in (*summaries.values(), *tables) for note in table.notes),
            *normal.notes,
        ],
    )


def find_files(source: Path, options: DesynpufOptions) -> tuple[dict[int, list[Path]], dict[str, list[Path]]]:
    """Return the files of the summaries by year and those of the claims by kind, in the order of their paths."""
    if not source.is_dir():
        raise InputContractError([Violation(str(source), "", "no such folder")])
    years: dict[int, list[Path]] = {}
    claims: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*")):
        if any(part.startswith((".", "__MACOSX")) for part in path.relative_to(source).parts) or not path.is_file():
            continue
        name = path.name.lower()
        if found := _SUMMARY_FILE.search(name):
            years.setdefault(int(found[1]), []).append(path)
        elif (found := _CLAIM_FILES.search(name)) and found[1] in options.claims:
            claims.setdefault(found[1], []).append(path)
    faults = [
        Violation(str(source), "", f"holds no file of {what}")
        for what, files in (("beneficiary summaries", years), (f"claims ({', '.join(options.claims)})", claims))
        if not files
    ]
    if faults:
        raise InputContractError(faults)
    return dict(sorted(years.items())), claims


def _read_summary(table: SourceTable, year: int) -> pl.LazyFrame:
    table.require(["desynpuf_id", "bene_birth_dt", "bene_death_dt", "bene_sex_ident_cd"])
    return table.frame.select(
        table.text("desynpuf_id").alias(_PERSON),
        pl.lit(year, dtype=pl.Int32).alias(_YEAR),
        table.day("bene_birth_dt").alias(Subjects.birth_date.name),
        table.day("bene_death_dt").alias(_DIED),
        table.whole_number("bene_sex_ident_cd").alias(Subjects.sex.name),
        table.whole_number("bene_hi_cvrage_tot_mons").alias(_PART_A),
    )


def make_people(yearly: pl.LazyFrame, options: DesynpufOptions) -> pl.LazyFrame:
    """Return `Subjects` with the day of death and the months of Part A cover, in the order of their ids.

    What the years say differently is taken from the first that says anything, death from the last.
    """
    died = pl.col(_DIED).drop_nulls().max()
    born = Subjects.birth_date.col
    sex = Subjects.sex.col.replace_strict(_SEXES, default=UNKNOWN, return_dtype=pl.String)
    year_end = pl.date(pl.col("last_year"), 12, 31)
    return (
        yearly.filter(pl.col(_PERSON).is_not_null())
        .sort(_PERSON, _YEAR)
        .group_by(_PERSON, maintain_order=True)
        .agg(
            born.drop_nulls().first(),
            Subjects.sex.col.drop_nulls().first(),
            (died.dt.month_end() if options.death_day == "last" else died).alias(_DIED),
            pl.col(_YEAR).min(),
            pl.col(_YEAR).max().alias("last_year"),
            pl.col(_PART_A).sum(),
        )
        .select(
            _PERSON,
            sex.fill_null(UNKNOWN),
            born,
            age_on(pl.date(pl.col(_YEAR), 1, 1), born).alias(Subjects.entry_age_days.name),
            age_on(pl.min_horizontal(year_end, _DIED), born).alias(Subjects.exit_age_days.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
            _DIED,
            _PART_A,
        )
    )


def make_deaths(people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each person who died."""
    died = people.filter(pl.col(_DIED).is_not_null()).select(
        _PERSON, pl.col(_DIED).alias(DAY), pl.lit(DEATH_CODE).alias(Events.code.name)
    )
    return at_ages(died, people)


def _read_diagnoses(table: SourceTable) -> pl.LazyFrame:
    """Return one row for each diagnosis of each claim."""
    columns = _diagnosis_columns(table)
    day = pl.coalesce(table.day("nch_bene_dschrg_dt"), table.day("clm_thru_dt"), table.day("clm_from_dt"))
    return (
        table.frame.select(
            table.text("desynpuf_id").alias(_PERSON), day.alias(DAY), *(table.text(column) for column in columns)
        )
        .unpivot(on=columns, index=[_PERSON, DAY], value_name=Events.code.name)
        .filter(Events.code.col.is_not_null())
        .select(
            _PERSON,
            DAY,
            pl.concat_str(pl.lit("ICD9CM/"), Events.code.col).alias(Events.code.name),
            first_reason([("no_date", pl.col(DAY).is_null())]),
        )
    )


def _diagnosis_columns(table: SourceTable) -> list[str]:
    table.require(["desynpuf_id", "clm_thru_dt"])
    columns = [name for name in table.types if _DIAGNOSIS.fullmatch(name)]
    if not columns:
        raise InputContractError([Violation(table.name, "ICD9_DGNS_CD_1", "is missing")])
    return columns


def _death_code() -> pl.LazyFrame:
    row = (DEATH_CODE, DEATH, "Death of any cause", None)
    return pl.LazyFrame([row], schema=dict.fromkeys(Codes.column_names(), pl.String), orient="row")


def _notes(yearly: pl.LazyFrame, people: pl.DataFrame, options: DesynpufOptions, years: list[int]) -> list[Note]:
    per_person = yearly.group_by(_PERSON).agg(
        pl.col(Subjects.birth_date.name, Subjects.sex.name, _DIED).drop_nulls().n_unique()
    )
    contradicting = per_person.filter(pl.any_horizontal(pl.exclude(_PERSON) > 1)).select(pl.len()).collect().item()
    n_rows, no_id = yearly.select(pl.len(), pl.col(_PERSON).is_null().sum().alias("no_id")).collect().row(0)
    counted = (
        ("sex_unknown", "people whose sex is neither 1 nor 2", people.filter(Subjects.sex.col == UNKNOWN).height),
        (
            "contradiction",
            "people whose years differ in birth, sex or death: the first year counts, the last death",
            contradicting,
        ),
        ("summary_without_id", "rows of summaries without an id, not used", no_id),
    )
    return [
        Note("years", f"rows of the summaries of {', '.join(map(str, years))}, one for a person and year", n_rows),
        Note("death_day", f"deaths are known to the month: the {options.death_day} day of it was taken"),
        *(Note(name, text, rows) for name, text, rows in counted if rows),
    ]


def _claim_notes(tables: Sequence[SourceTable]) -> list[Note]:
    notes = []
    for table in tables:
        texts = (table.text(column).is_null() for column in _diagnosis_columns(table))
        claims, without = table.frame.select(pl.len(), pl.all_horizontal(texts).sum().alias("without")).collect().row(0)
        notes.append(Note("claims", f"{table.name}: rows read, whose diagnoses are the rows counted above", claims))
        notes.append(Note("claims_without_diagnosis", f"{table.name}: rows without any diagnosis", without))
    return notes
