"""Import the CSV export of Synthea: `patients`, `conditions`, and `observations` and `medications` if asked for.

Walonoski et al. 2018 (JAMIA 25:230). Three generations of the export differ in their headers (`ID` or `Id`; a `SYSTEM`
of codes; times with a zone in place of dates); columns are found by name and what is not used may be missing.
Conventions:

- A condition is dated by the day it starts; when it stops is not used. Its code is `SNOMED/…`, from a number; a
  generation with a column `SYSTEM` names other systems by it.
- Not every condition is a disease. SNOMED says what a concept is in brackets behind its name. `(disorder)`, and a name
  without brackets, is a disease; `(finding)` such as employment, `(situation)` such as a history of something, and any
  other word is not. Older exports write no brackets behind some findings, which are listed in `not_diseases`. What is
  no disease becomes a covariate; `findings` drop drops and counts it.
- Follow-up starts at birth, as the simulation does. An export with `exporter.years_of_history` (10 by default in
  later versions) leaves out what ended earlier: give the same number here, and follow-up starts that long before the
  end. It ends at death, or at the end of the simulation: the last start in any table read, or `end_date`.
- Observations are covariates `LOINC/code [unit]` with a value; those without a number are dropped and counted.
  Medications are covariates `RxNorm/code` without a value.
- Deaths come from `DEATHDATE`. Names, addresses and social security numbers are not read.
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import (
    COVARIATE,
    DEATH,
    DEATH_CODE,
    DISEASE,
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
    first_reason,
    marked_rules,
    marks_as_codes,
)
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import CODE_FORM_HELP, CodeForm, normalise_events
from pipelines.import_cohort.row_rules import DROPPED_BY
from pipelines.import_cohort.source_tables import SourceTable, find_key_type, require_table

KIND = "synthea"
_SNOMED = "SNOMED"
_SYSTEMS = {  # what a column SYSTEM may hold, in lower case
    "http://snomed.info/sct": _SNOMED,
    "snomed-ct": _SNOMED,
    "http://loinc.org": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RxNorm",
    "http://hl7.org/fhir/sid/icd-10-cm": "ICD10CM",
    "http://hl7.org/fhir/sid/icd-10": "ICD10",
}
_DISEASE_WORDS = ("disorder", "morphologic abnormality", "disease")
_KIND_OF_CONCEPT = r"\(([^()]+)\)\s*$"
_SEXES = {"f": FEMALE, "m": MALE}
_PERSON, _DIED = Subjects.subject_id.name, "died"

_EVENT_RULES = {
    "no_date": "the date is missing or cannot be read",
    "no_code": "the code is missing",
    "no_value": "an observation without a number",
    "no_disease": "a finding, situation or the like is no disease (setting findings)",
}


class SyntheaOptions(BaseModel):
    """Settings of the importer `synthea`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    findings: Literal["covariate", "drop"] = Field(
        "covariate", description="what becomes of conditions that are no diseases"
    )
    not_diseases: tuple[str, ...] = Field(
        ("15777000", "72892002", "82423001", "428251008", "449868002"),
        description=(
            "SNOMED codes that are no diseases though older exports do not say so: prediabetes, normal pregnancy, "
            "chronic pain, history of appendectomy, daily smoking"
        ),
    )
    observations: bool = Field(False, description="read the table observations: numbers become values of covariates")
    medications: bool = Field(False, description="read the table medications: each start becomes a covariate")
    end_date: date | None = Field(None, description="last day of the simulation; else the last start in any table")
    years_of_history: float | None = Field(
        None, gt=0, description="years of history that the export holds; not given: all since birth"
    )
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


def deliver_synthea(source: Path, options: SyntheaOptions) -> DeliveredCohort:
    """Turn the tables of the folder `source` into people, events and codes.

    Raises:
        InputContractError: a table or column is missing, or there is no date at all.
    """
    patients = _require_patients(source)
    tables = _require_events(source, options)
    key_type = find_key_type(patients, "id")
    dated = {name: _read_events(table, name, key_type, options) for name, table in tables.items()}
    end = options.end_date or _last_day(dated, source)
    people = read_people(patients, key_type, end, options).collect()
    subjects = people.lazy()
    events = {tables[name].name: at_ages(frame, subjects) for name, frame in dated.items()}
    deaths = f"{DEATH_CODE} of {patients.name}"
    normal = normalise_events({**events, deaths: make_deaths(subjects)}, make_codes(dated), form=options.code_form)
    marked = marks_as_codes(normal.events)
    return DeliveredCohort(
        kind=KIND,
        subjects_table=patients.name,
        subjects=subjects.select(Subjects.column_names()),
        events={name: frame for name, frame in marked.items() if name in events},
        derived={name: frame for name, frame in marked.items() if name not in events},
        codes=normal.codes,
        subject_rules=PEOPLE_RULES,
        event_rules=marked_rules(_EVENT_RULES),
        notes=[
            *_notes(people, end, options),
            *(note for table in (patients, *tables.values()) for note in table.notes),
            *patients.count_unreadable([patients.day("birthdate"), patients.day("deathdate")]),
            *normal.notes,
        ],
    )


# ---- the tables of the source ----


def read_people(patients: SourceTable, key_type: pl.DataType, end: date, options: SyntheaOptions) -> pl.LazyFrame:
    """Return `Subjects` and the day of death; follow-up ends at death or with the simulation."""
    born = patients.day("birthdate")
    age_at_end = age_on(pl.lit(end), born)
    entry = pl.lit(0.0)
    if options.years_of_history is not None:
        entry = (age_at_end - round(options.years_of_history * DAYS_PER_YEAR)).clip(lower_bound=0.0)
    sex = patients.text("gender").str.to_lowercase()
    return patients.frame.select(
        patients.key("id", key_type).alias(_PERSON),
        sex.replace_strict(_SEXES, default=UNKNOWN, return_dtype=pl.String).fill_null(UNKNOWN).alias(Subjects.sex.name),
        born.alias(Subjects.birth_date.name),
        entry.alias(Subjects.entry_age_days.name),
        pl.min_horizontal(age_at_end, age_on(patients.day("deathdate"), born)).alias(Subjects.exit_age_days.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
        patients.day("deathdate").alias(_DIED),
    )


def make_deaths(people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each person who died."""
    died = people.filter(pl.col(_DIED).is_not_null()).select(
        _PERSON, pl.col(_DIED).alias(DAY), pl.lit(DEATH_CODE).alias(Events.code.name)
    )
    return at_ages(died, people)


def make_codes(dated: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Return `Codes` of all tables; of several descriptions of a code, the most frequent one."""
    code, kind, description = Codes.code.name, Codes.kind.name, Codes.description.name
    kept = (frame.filter(pl.col(DROPPED_BY).is_null()) for frame in dated.values())
    known = (
        pl.concat(frame.select(code, kind, description) for frame in kept)
        .group_by(code, kind, description)
        .len()
        .sort("len", description, descending=[True, False], nulls_last=True)
        .group_by(code, maintain_order=True)
        # A concept that one row calls a finding is a finding in all of them.
        .agg((pl.col(kind) == COVARIATE).any().alias(COVARIATE), pl.col(description).drop_nulls().first())
        .select(
            code,
            pl.when(COVARIATE).then(pl.lit(COVARIATE)).otherwise(pl.lit(DISEASE)).alias(kind),
            description,
        )
    )
    death = pl.LazyFrame({code: [DEATH_CODE], kind: [DEATH], description: ["Death of any cause"]})
    return pl.concat([known, death]).with_columns(pl.lit(None, dtype=pl.String).alias(Codes.chapter.name))


def _require_patients(source: Path) -> SourceTable:
    return require_table(source, "patients", ["id", "birthdate", "gender", "deathdate"])


def _require_events(source: Path, options: SyntheaOptions) -> dict[str, SourceTable]:
    tables = {"conditions": require_table(source, "conditions", ["patient", "start", "code", "description"])}
    if options.observations:
        tables["observations"] = require_table(source, "observations", ["patient", "date", "code", "value"])
    if options.medications:
        tables["medications"] = require_table(source, "medications", ["patient", "start", "code"])
    return tables


def _read_events(table: SourceTable, name: str, key_type: pl.DataType, options: SyntheaOptions) -> pl.LazyFrame:
    """Return person, day, code, value, mark, and the kind and description of the code, for one table."""
    code = table.text("code").str.replace(r"\.0+$", "")  # a number that went through a decimal column
    value = table.number("value") if name == "observations" else pl.lit(None, dtype=pl.Float64)
    kind = _kind_of_condition(table, code, options) if name == "conditions" else pl.lit(COVARIATE)
    return table.frame.select(
        table.key("patient", key_type).alias(_PERSON),
        table.day("date" if name == "observations" else "start").alias(DAY),
        _full_code(table, name, code).alias(Events.code.name),
        value.alias(Events.numeric_value.name),
        kind.alias(Codes.kind.name),
        table.text("description").alias(Codes.description.name),
    ).with_columns(
        first_reason(
            [
                ("no_date", pl.col(DAY).is_null()),
                ("no_code", Events.code.col.is_null()),
                ("no_value", Events.numeric_value.col.is_null() & pl.lit(name == "observations")),
                (
                    "no_disease",
                    (Codes.kind.col == COVARIATE).any().over(Events.code.name)
                    & pl.lit(name == "conditions" and options.findings == "drop"),
                ),
            ]
        )
    )


def _kind_of_condition(table: SourceTable, code: pl.Expr, options: SyntheaOptions) -> pl.Expr:
    word = table.text("description").str.extract(_KIND_OF_CONCEPT, 1).str.to_lowercase()
    is_disease = word.fill_null(_DISEASE_WORDS[0]).is_in(_DISEASE_WORDS) & ~code.is_in(options.not_diseases)
    return pl.when(is_disease).then(pl.lit(DISEASE)).otherwise(pl.lit(COVARIATE))


def _full_code(table: SourceTable, name: str, code: pl.Expr) -> pl.Expr:
    """Put the name of its system before a code, and the unit behind that of an observation."""
    if name == "observations":
        system = pl.when(code.str.contains(r"^\d+-\d$")).then(pl.lit("LOINC")).otherwise(pl.lit("SYNTHEA"))
        unit = pl.concat_str(pl.lit(" ["), table.text("units"), pl.lit("]")).fill_null("")
        return pl.concat_str(system, pl.lit("/"), code, unit)
    usual = _SNOMED if name == "conditions" else "RxNorm"
    said = table.text("system")
    system = said.str.to_lowercase().replace_strict(_SYSTEMS, default=said, return_dtype=pl.String).fill_null(usual)
    return pl.concat_str(system, pl.lit("/"), code)


def _last_day(dated: Mapping[str, pl.LazyFrame], source: Path) -> date:
    days = pl.concat([frame.select(DAY) for frame in dated.values()]).select(pl.col(DAY).max()).collect().item()
    if days is None:
        raise InputContractError([Violation(str(source), "", "no table has a date that can be read")])
    assert isinstance(days, date)
    return days


def _notes(people: pl.DataFrame, end: date, options: SyntheaOptions) -> list[Note]:
    unknown_sex = people.filter(Subjects.sex.col == UNKNOWN).height
    origin = "as set" if options.end_date else "the last start in the tables read"
    start = "at birth" if options.years_of_history is None else f"{options.years_of_history:g} years before that day"
    return [
        Note("follow_up", f"follow-up starts {start} and ends at death or on {end:%Y-%m-%d} ({origin})"),
        *([Note("sex_unknown", "people whose gender is neither F nor M", unknown_sex)] if unknown_sex else []),
    ]
