"""Import a database in the OMOP Common Data Model, version 5.3 or 5.4, as tables of text or parquet.

Tables read: PERSON, CONDITION_OCCURRENCE, OBSERVATION_PERIOD (unless follow-up is by records), and where they are
there DEATH, MEASUREMENT, DRUG_EXPOSURE and CONCEPT. Conventions:

- A code is `VOCABULARY/CODE` of the source concept (default) or of the standard concept. Where that concept is 0 or not
  in CONCEPT (licences keep vocabularies out of many exports) the next name of this list is taken: the other names of
  the same kind (source: source value, as `SOURCE/value` or under `source_vocabulary`; standard: `CONCEPT/id`), then
  those of the other kind. A row without any of them is dropped and counted.
- Birth is `birth_datetime`, else the date of year, month and day. If day or month are missing birth is in the middle:
  the 15th of the month, or 15 June of the year (Themis, OHDSI), or the day of the person's first record if that lies
  earlier in the same month or year, so that nothing of it is before birth; with `birth_imputation` start the first day
  of month or year, as meds_etl does. Both are counted. Without a year the person is dropped.
- Sex is that of `gender_concept_id` (8507 male, 8532 female); anything else is unknown.
- Follow-up is the person's last observation period (default): what lies before its start is history, and no time
  without observation counts as at risk. Periods that touch, overlap or leave at most `joined_gap_days` between them are
  one. `span` reaches from the first start to the last end, over all gaps. `records` takes the first and the last dated
  record of any table instead. A start before birth is at birth.
- Ages are in whole days; with `times` keep they have the time of day where one is given, and a date alone counts as the
  end of its day (as in meds_etl): such a record is not before what happened on its day. Zones are dropped, clocks kept.
  Where `_date` and `_datetime` differ in the day, the date counts.
- Conditions are diseases; `condition_types` keeps certain `condition_type_concept_id` alone (32821 is billing).
  Measurements are covariates with `value_as_number` and the unit behind the code, `LOINC/29463-7 [kg]`, so that units
  never mix; without a number, the category of `value_as_concept_id`: `LOINC/72166-2//LOINC/LA15920-4`. Operators (<, >)
  are not used. Drugs are covariates, dated by the start of exposure.
- People and rows outside PERSON are counted and dropped. Of several deaths the first counts. Causes of death are not
  used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.age_units import AGE_STEPS_PER_DAY, MAX_AGE_DAYS
from data_schemas.cohort import (
    CATEGORY_SEPARATOR,
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
from data_schemas.import_report import Note
from pipelines.import_cohort.calendar_ages import age_on, born_in_month
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import CODE_FORM_HELP, CodeForm, normalise_events
from pipelines.import_cohort.row_rules import RowRule
from pipelines.import_cohort.source_tables import (
    SourceTable,
    find_key_type,
    has_clock,
    read_day,
    read_text,
    require_table,
    scan_table,
)

KIND = "omop"
_MALE_CONCEPT, _FEMALE_CONCEPT = 8507, 8532
_NO_CONCEPT = 0
_UNNAMED_VOCABULARY, _BARE_CONCEPT = "SOURCE", "CONCEPT"
_MICROSECONDS_PER_DAY = 86_400_000_000
_LAST_STEP_OF_DAY = (AGE_STEPS_PER_DAY - 1) / AGE_STEPS_PER_DAY

_ID = Subjects.subject_id.name
_BIRTH = Subjects.birth_date.name
_DAY, _TIME = "day", "time_of_day"  # working columns: the calendar day, and the part of the day gone by (null: none)
_STANDARD, _SOURCE, _SOURCE_VALUE = "standard_concept", "source_concept", "source_value"
_VALUE_CONCEPT, _UNIT_CONCEPT, _UNIT_TEXT, _TYPE = "value_concept", "unit_concept", "unit_text", "type_concept"
_CONCEPT, _CODE, _NAME = "concept_id", "concept_code", "concept_name"
_START, _END, _BLOCK = "start", "end", "block"
_GIVEN = "birth_given"  # date, month or year: how much of a birth date the source has

_MONTH_START, _MONTH_MIDDLE, _YEAR_START, _YEAR_MIDDLE = "month_start", "month_middle", "year_start", "year_middle"
_MIDDLE_MONTH, _MIDDLE_DAY = 6, 15
_KNOWN, _UNREADABLE = "known", "unreadable"

_code, _code_name = Events.code.col, Events.code.name
_exit = Subjects.exit_age_days.col
_SUBJECT_RULES = (
    RowRule("no_id", "the person has no id", pl.col(_ID).is_null()),
    RowRule("repeated_person", "the person stands in an earlier row", ~pl.col(_ID).is_first_distinct()),
    RowRule("no_birth_year", "the year of birth is missing or cannot be read", pl.col(_BIRTH).is_null()),
    RowRule("no_observation_period", "the person has no observation period (or no record)", _exit.is_null()),
    RowRule("follow_up_over_120", "follow-up reaches beyond an age of 120 years", _exit > MAX_AGE_DAYS),
)
_UNKNOWN_PERSON = RowRule("unknown_person", "the person is not in PERSON, or was dropped there", _exit.is_null())
_NO_DATE = RowRule("no_date", "the date is missing or cannot be read", Events.age_days.col.is_null())
_OTHER_TYPE = ""  # stands in for the code of a condition that is to be dropped
_NO_CODE = RowRule("no_code", "the row has neither a concept nor a source value", _code.is_null())
_OTHER_TYPE_RULE = RowRule("other_condition_type", "the condition is of a type not asked for", _code == _OTHER_TYPE)


class OmopOptions(BaseModel):
    """Settings of the importer `omop`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concepts: Literal["source", "standard"] = Field("source", description="whose code an event gets, if there is one")
    source_vocabulary: str = Field(
        _UNNAMED_VOCABULARY,
        min_length=1,
        description="name of the vocabulary of source values whose concept is not in CONCEPT, such as ICD9CM",
    )
    condition_types: tuple[int, ...] = Field(
        (), description="condition_type_concept_id of the conditions to keep; none given: all"
    )
    birth_imputation: Literal["middle", "start"] = Field(
        "middle", description="where in a known month or year a birth without a day is put"
    )
    follow_up: Literal["last_period", "span", "records"] = Field(
        "last_period", description="what entry and exit are taken from"
    )
    joined_gap_days: int = Field(0, ge=0, description="observation periods with a gap of so many days are one")
    times: Literal["ignore", "keep"] = Field("ignore", description="whether ages have the time of day")
    measurements: bool = Field(default=True, description="whether MEASUREMENT is read")
    drugs: bool = Field(default=True, description="whether DRUG_EXPOSURE is read")
    units_in_codes: bool = Field(default=True, description="whether the code of a measurement names its unit")
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


@dataclass(frozen=True)
class _EventTable:
    """Where the columns of one table of events are."""

    name: str
    prefix: str  # of the columns for concept and source
    date: str
    kind: str
    has_value: bool = False


_CONDITIONS = _EventTable("condition_occurrence", "condition", "condition_start", DISEASE)
_MEASUREMENTS = _EventTable("measurement", "measurement", "measurement", COVARIATE, has_value=True)
_DRUGS = _EventTable("drug_exposure", "drug", "drug_exposure_start", COVARIATE)


@dataclass(frozen=True)
class _Rows:
    """The rows of one table that become events: person, day, time, code, value and a description of the code."""

    source: SourceTable
    kind: str
    frame: pl.LazyFrame
    readable: pl.LazyFrame  # the person alone, and whether there is a date that cannot be read


def deliver_omop(source: Path, options: OmopOptions) -> DeliveredCohort:
    """Turn the tables in the folder `source` into people, events and codes.

    Raises:
        InputContractError: a needed table or column is missing, or a table cannot be read.
    """
    person = require_table(source, "person", ["person_id", "year_of_birth", "gender_concept_id"])
    key_type = find_key_type(person, "person_id")
    rows = _read_events(source, key_type, options)
    people = _find_births(_read_people(person, key_type), rows, options).collect().lazy()
    follow_up, period_notes = _find_follow_up(source, key_type, people, rows, options)
    normal = normalise_events(
        {table.source.name: _at_ages(table, people, options) for table in rows},
        _collect_codes(rows),
        form=options.code_form,
    )
    return DeliveredCohort(
        kind=KIND,
        subjects_table=person.name,
        subjects=_make_subjects(people, follow_up, options),
        events=normal.events,
        codes=normal.codes,
        subject_rules=_SUBJECT_RULES,
        event_rules=(_UNKNOWN_PERSON, _NO_DATE, _NO_CODE, *([_OTHER_TYPE_RULE] if options.condition_types else [])),
        notes=(
            *person.notes,
            *_people_notes(people, options),
            *period_notes,
            *(note for table in rows for note in (*table.source.notes, *_row_notes(table, people))),
            *normal.notes,
        ),
    )


def _read_concepts(source: Path) -> pl.LazyFrame:
    """Return concept_id, code as `VOCABULARY/CODE`, and name, without concept 0; no rows where CONCEPT is missing."""
    table = scan_table(source, "concept")
    if table is None:
        return pl.LazyFrame(schema={_CONCEPT: pl.Int64, _CODE: pl.String, _NAME: pl.String})
    table.require(["concept_id", "vocabulary_id", "concept_code", "concept_name"])
    return (
        table.frame.select(
            table.whole_number("concept_id").alias(_CONCEPT),
            (table.text("vocabulary_id") + "/" + table.text("concept_code")).alias(_CODE),
            table.text("concept_name").alias(_NAME),
        )
        .filter(pl.col(_CONCEPT) != _NO_CONCEPT)
        .unique(_CONCEPT, keep="first", maintain_order=True)
    )


# ---- events ----


def _read_events(source: Path, key_type: pl.DataType, options: OmopOptions) -> list[_Rows]:
    """Read the tables of events that are there and wanted; conditions must be there."""
    concepts = _read_concepts(source)
    optional = [spec for spec, on in ((_MEASUREMENTS, options.measurements), (_DRUGS, options.drugs)) if on]
    tables = [(_CONDITIONS, require_table(source, _CONDITIONS.name))]
    tables += [(spec, table) for spec in optional if (table := scan_table(source, spec.name)) is not None]
    rows = [_read_coded(spec, table, key_type, concepts, options) for spec, table in tables]
    deaths = scan_table(source, "death")
    return [*rows, *([_read_deaths(deaths, key_type, options)] if deaths is not None else [])]


def _read_coded(
    spec: _EventTable, table: SourceTable, key_type: pl.DataType, concepts: pl.LazyFrame, options: OmopOptions
) -> _Rows:
    table.require(["person_id", f"{spec.prefix}_concept_id"])
    dated = _Dated.of(table, key_type, spec.date, options)
    frame = table.frame.select(
        *dated.columns,
        table.whole_number(f"{spec.prefix}_concept_id").alias(_STANDARD),
        table.whole_number(f"{spec.prefix}_source_concept_id").alias(_SOURCE),
        table.text(f"{spec.prefix}_source_value").alias(_SOURCE_VALUE),
        table.whole_number(f"{spec.prefix}_type_concept_id").alias(_TYPE),
        (table.number("value_as_number") if spec.has_value else pl.lit(None, dtype=pl.Float64)).alias(
            Events.numeric_value.name
        ),
        table.whole_number("value_as_concept_id").alias(_VALUE_CONCEPT),
        table.whole_number("unit_concept_id").alias(_UNIT_CONCEPT),
        table.text("unit_source_value").alias(_UNIT_TEXT),
    )
    coded = _name_codes(frame, concepts, options)
    if spec.has_value:
        coded = _name_values(coded, concepts, options)
    if spec is _CONDITIONS and options.condition_types:
        other = ~pl.col(_TYPE).is_in(options.condition_types).fill_null(value=False)
        coded = coded.with_columns(pl.when(other).then(pl.lit(_OTHER_TYPE)).otherwise(_code).alias(_code_name))
    kept = [_ID, _DAY, _TIME, _code_name, Events.numeric_value.name, Codes.description.name]
    return _Rows(table, spec.kind, coded.select(kept), dated.readable)


def _read_deaths(table: SourceTable, key_type: pl.DataType, options: OmopOptions) -> _Rows:
    table.require(["person_id"])
    dated = _Dated.of(table, key_type, "death", options)
    frame = table.frame.select(
        *dated.columns,
        pl.lit(DEATH_CODE).alias(_code_name),
        pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name),
        pl.lit("Death of any cause").alias(Codes.description.name),
    )
    return _Rows(table, DEATH, frame, dated.readable)


@dataclass(frozen=True)
class _Dated:
    """How a table says who and when: person, day and time of day, and for the account person and dates alone."""

    columns: tuple[pl.Expr, ...]
    readable: pl.LazyFrame

    @classmethod
    def of(cls, table: SourceTable, key_type: pl.DataType, prefix: str, options: OmopOptions) -> "_Dated":
        """Read `PREFIX_date` and `PREFIX_datetime`, of which one must be there. The time is looked at if it is kept."""
        date, datetime = f"{prefix}_date", f"{prefix}_datetime"
        if not table.has(datetime):
            table.require([date])
        person = table.key("person_id", key_type).alias(_ID)
        day, text = table.day(date), table.text(date)
        if table.has(datetime):
            dtype = table.types[datetime]
            otherwise = pl.when(day.is_null()).then(pl.col(datetime))  # the second column where the first has nothing
            day, text = pl.coalesce(day, read_day(otherwise, dtype)), pl.coalesce(text, read_text(otherwise, dtype))
        unreadable = day.is_null() & text.is_not_null()
        time = _time_of_day(table, datetime, day) if options.times == "keep" else pl.lit(None, dtype=pl.Float64)
        columns = (person, day.alias(_DAY), time.alias(_TIME))
        return cls(columns, table.frame.select(person, unreadable.alias(_UNREADABLE)))


def _time_of_day(table: SourceTable, datetime: str, day: pl.Expr) -> pl.Expr:
    """Return the part of the day gone by; null where no time is given, or one of another day."""
    if not table.has(datetime):
        return pl.lit(None, dtype=pl.Float64)
    moment = table.datetime(datetime)
    given = has_clock(pl.col(datetime), table.types[datetime]) & (moment.dt.date() == day)
    return pl.when(given).then((moment.dt.timestamp("us") % _MICROSECONDS_PER_DAY) / _MICROSECONDS_PER_DAY)


def _name_codes(frame: pl.LazyFrame, concepts: pl.LazyFrame, options: OmopOptions) -> pl.LazyFrame:
    """Give each row its code and a description, in the order of names that the module docstring states."""
    joined = frame.pipe(_join_concept, concepts, _SOURCE).pipe(_join_concept, concepts, _STANDARD)
    by_source = [
        pl.col(_named(_SOURCE, _CODE)),
        pl.concat_str(pl.lit(f"{options.source_vocabulary}/"), _SOURCE_VALUE),
        _bare_concept(_SOURCE),
    ]
    by_standard = [pl.col(_named(_STANDARD, _CODE)), _bare_concept(_STANDARD)]
    descriptions = [pl.col(_named(_SOURCE, _NAME)), pl.col(_named(_STANDARD, _NAME))]
    source_first = options.concepts == "source"
    return joined.with_columns(
        pl.coalesce(by_source + by_standard if source_first else by_standard + by_source).alias(_code_name),
        pl.coalesce(descriptions if source_first else descriptions[::-1]).alias(Codes.description.name),
    )


def _name_values(frame: pl.LazyFrame, concepts: pl.LazyFrame, options: OmopOptions) -> pl.LazyFrame:
    """Put the unit behind the code of a row with a number, the category behind that of a row with a concept only."""
    joined = frame.pipe(_join_concept, concepts, _VALUE_CONCEPT).pipe(_join_concept, concepts, _UNIT_CONCEPT)
    has_number = Events.numeric_value.col.is_not_null()
    category = pl.coalesce(_named(_VALUE_CONCEPT, _CODE), _bare_concept(_VALUE_CONCEPT))
    behind_code: pl.Expr = pl.when(~has_number).then(pl.concat_str(pl.lit(CATEGORY_SEPARATOR), category))
    behind_name: pl.Expr = pl.when(~has_number).then(pl.concat_str(pl.lit(": "), _named(_VALUE_CONCEPT, _NAME)))
    if options.units_in_codes:
        unit_code = pl.col(_named(_UNIT_CONCEPT, _CODE)).str.replace("^[^/]*/", "")
        unit = pl.when(has_number).then(pl.format(" [{}]", pl.coalesce(unit_code, _UNIT_TEXT)))
        behind_code, behind_name = pl.coalesce(behind_code, unit), pl.coalesce(behind_name, unit)
    return joined.with_columns(
        _code + behind_code.fill_null(""),
        Codes.description.col + behind_name.fill_null(""),
    )


def _join_concept(frame: pl.LazyFrame, concepts: pl.LazyFrame, column: str) -> pl.LazyFrame:
    names = concepts.select(
        pl.col(_CONCEPT).alias(column), *(pl.col(name).alias(_named(column, name)) for name in (_CODE, _NAME))
    )
    return frame.join(names, on=column, how="left", maintain_order="left")


def _named(column: str, what: str) -> str:
    return f"{column} {what}"


def _bare_concept(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != _NO_CONCEPT).then(pl.format(f"{_BARE_CONCEPT}/{{}}", pl.col(column)))


def _collect_codes(rows: Sequence[_Rows]) -> pl.LazyFrame:
    """Return `Codes` of all events: a code is of the kind of the first table that has it."""
    tables = [
        table.frame.group_by(_code_name)
        .agg(Codes.description.col.drop_nulls().min())
        .select(
            _code_name,
            pl.lit(table.kind).alias(Codes.kind.name),
            Codes.description.name,
            pl.lit(None, dtype=pl.String).alias(Codes.chapter.name),
        )
        .collect()
        for table in rows
    ]
    codes = pl.concat(tables).filter(_code != _OTHER_TYPE)
    return codes.unique(_code_name, keep="first", maintain_order=True).sort(_code_name).lazy()


def _at_ages(table: _Rows, people: pl.LazyFrame, options: OmopOptions) -> pl.LazyFrame:
    """Turn dated rows into `DeliveredEvents`; the age is null without a date or a birth."""
    births = people.select(_ID, _BIRTH).unique(_ID, keep="first")
    age = age_on(pl.col(_DAY), pl.col(_BIRTH))
    if options.times == "keep":
        age += pl.min_horizontal(pl.col(_TIME).fill_null(_LAST_STEP_OF_DAY), _LAST_STEP_OF_DAY)
    return (
        table.frame.join(births, on=_ID, how="left", maintain_order="left")
        .with_columns(age.alias(Events.age_days.name))
        .select(Events.column_names())
    )


def _row_notes(table: _Rows, people: pl.LazyFrame) -> list[Note]:
    """Count rows of people outside PERSON, and dates that are there but cannot be read."""
    outside, unreadable = (
        table.readable.join(people.select(_ID, pl.lit(value=True).alias(_KNOWN)).unique(_ID), on=_ID, how="left")
        .select(pl.col(_KNOWN).is_null().sum(), pl.col(_UNREADABLE).sum())
        .collect()
        .row(0)
    )
    name = table.source.name
    return _nonzero(
        Note("outside_person", f"{name}: rows of people who are not in PERSON, dropped", outside),
        Note("unreadable_date", f"{name}: dates that cannot be read, taken as missing", unreadable),
    )


# ---- people ----


def _read_people(person: SourceTable, key_type: pl.DataType) -> pl.LazyFrame:
    """Return id, sex and what PERSON says about birth: the full date, or the month or year in which it lies."""
    year, month = person.whole_number("year_of_birth"), person.whole_number("month_of_birth")
    parts = pl.format("{}-{}-{}", year, month, person.whole_number("day_of_birth")).str.to_date(
        "%Y-%m-%d", strict=False
    )
    gender = person.whole_number("gender_concept_id")
    return person.frame.select(
        person.key("person_id", key_type).alias(_ID),
        pl.when(gender == _MALE_CONCEPT).then(pl.lit(MALE))
        .when(gender == _FEMALE_CONCEPT).then(pl.lit(FEMALE))
        .otherwise(pl.lit(UNKNOWN)).alias(Subjects.sex.name),
        pl.coalesce(person.day("birth_datetime"), parts).alias(_BIRTH),
        born_in_month(year, month).alias(_MONTH_START),
        born_in_month(year, month, _MIDDLE_DAY).alias(_MONTH_MIDDLE),
        born_in_month(year, 1).alias(_YEAR_START),
        born_in_month(year, _MIDDLE_MONTH, _MIDDLE_DAY).alias(_YEAR_MIDDLE),
    )  # fmt: skip


def _find_births(people: pl.LazyFrame, rows: Sequence[_Rows], options: OmopOptions) -> pl.LazyFrame:
    """Return id, sex, birth date, and whether the source gives it as date, month, year or not at all (null)."""
    start, middle = pl.coalesce(_MONTH_START, _YEAR_START), pl.coalesce(_MONTH_MIDDLE, _YEAR_MIDDLE)
    given = (
        pl.when(pl.col(_BIRTH).is_not_null()).then(pl.lit("date"))
        .when(pl.col(_MONTH_START).is_not_null()).then(pl.lit("month"))
        .when(pl.col(_YEAR_START).is_not_null()).then(pl.lit("year"))
    )  # fmt: skip
    known = people.select(_ID, Subjects.sex.name, _BIRTH, start.alias(_START), middle.alias(_END), given.alias(_GIVEN))
    if options.birth_imputation == "start":
        return known.with_columns(pl.coalesce(_BIRTH, _START).alias(_BIRTH)).drop(_START, _END)
    imputed = known.filter(pl.col(_GIVEN) != "date").select(_ID, _START, _END).unique(_ID).collect().lazy()
    first_records = (
        pl.concat([table.frame.select(_ID, _DAY) for table in rows])
        .join(imputed, on=_ID)
        .filter(pl.col(_DAY) >= pl.col(_START), pl.col(_DAY) < pl.col(_END))
        .group_by(_ID)
        .agg(pl.col(_DAY).min())
    )
    return (
        known.join(first_records, on=_ID, how="left", maintain_order="left")
        .with_columns(pl.coalesce(_BIRTH, _DAY, _END).alias(_BIRTH))
        .select(_ID, Subjects.sex.name, _BIRTH, _GIVEN)
    )


def _make_subjects(people: pl.LazyFrame, follow_up: pl.LazyFrame, options: OmopOptions) -> pl.LazyFrame:
    """Return `Subjects`; entry and exit are null for people without follow-up. Exit is the end of its day."""
    rest_of_day = _LAST_STEP_OF_DAY if options.times == "keep" else 0.0
    return people.join(follow_up, on=_ID, how="left", maintain_order="left").select(
        _ID,
        Subjects.sex.name,
        _BIRTH,
        age_on(pl.col(_START), pl.col(_BIRTH)).clip(lower_bound=0.0).alias(Subjects.entry_age_days.name),
        (age_on(pl.col(_END), pl.col(_BIRTH)) + rest_of_day).alias(Subjects.exit_age_days.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
    )


def _people_notes(people: pl.LazyFrame, options: OmopOptions) -> list[Note]:
    given, sex = pl.col(_GIVEN), Subjects.sex.col
    months, years, unknown = (
        people.select((given == "month").sum(), (given == "year").sum().alias(_YEAR_START), (sex == UNKNOWN).sum())
        .collect()
        .row(0)
    )
    where = "in the middle, or on the first record of" if options.birth_imputation == "middle" else "at the start of"
    return _nonzero(
        Note("birth_day_imputed", f"people whose day of birth is missing; birth is {where} that month", months),
        Note("birth_month_imputed", f"people whose month of birth is missing; birth is {where} that year", years),
        Note("sex_unknown", "people whose gender concept is neither 8507 (male) nor 8532 (female)", unknown),
    )


# ---- follow-up ----


def _find_follow_up(
    source: Path, key_type: pl.DataType, people: pl.LazyFrame, rows: Sequence[_Rows], options: OmopOptions
) -> tuple[pl.LazyFrame, list[Note]]:
    """Return id and first and last day of follow-up, one row a person, and an account of what it was made of."""
    if options.follow_up == "records":
        return _span_records(people, rows).collect().lazy(), []
    columns = ["person_id", "observation_period_start_date", "observation_period_end_date"]
    table = require_table(source, "observation_period", columns)
    periods = table.frame.select(
        table.key(columns[0], key_type).alias(_ID),
        table.day(columns[1]).alias(_START),
        table.day(columns[2]).alias(_END),
    ).collect()
    ours = periods.join(people.select(_ID).unique().collect(), on=_ID, how="semi")
    usable = ours.filter(pl.col(_START) <= pl.col(_END))
    joined = join_periods(usable.lazy(), options.joined_gap_days).collect()
    one_each = joined.group_by(_ID).agg(
        pl.col(_START).min() if options.follow_up == "span" else pl.col(_START).max(), pl.col(_END).max()
    )
    early = one_each.lazy().join(people.unique(_ID, keep="first"), on=_ID).filter(pl.col(_START) < pl.col(_BIRTH))
    name = table.name
    which = "all from the first to the last" if options.follow_up == "span" else "the last"
    notes = _nonzero(
        Note("outside_person", f"{name}: rows of people who are not in PERSON, not used", len(periods) - len(ours)),
        Note("unusable_period", f"{name}: rows without a start or end, or with the end first", len(ours) - len(usable)),
        Note(
            "several_periods",
            f"{name}: people with observation periods apart from each other; {which} counts",
            joined.filter(pl.col(_ID).is_duplicated())[_ID].n_unique(),
        ),
        Note(
            "observed_before_birth",
            f"{name}: people observed before their (perhaps imputed) birth; entry is at birth",
            early.select(pl.len()).collect().item(),
        ),
    )
    return one_each.lazy(), [*table.notes, *notes]


def join_periods(periods: pl.LazyFrame, joined_gap_days: int) -> pl.LazyFrame:
    """Join periods of a person that overlap, touch, or leave at most so many days between them.

    Columns in and out: subject_id, start, end (both days belong to the period).
    """
    ended = pl.col(_END).cum_max().shift(1).over(_ID)  # the latest end of any earlier period of the person
    apart = (pl.col(_START) - ended).dt.total_days() - 1 > joined_gap_days
    return (
        periods.sort(_ID, _START, _END)
        .with_columns(apart.fill_null(value=False).cum_sum().over(_ID).alias(_BLOCK))
        .group_by(_ID, _BLOCK)
        .agg(pl.col(_START).min(), pl.col(_END).max())
        .drop(_BLOCK)
    )


def _span_records(people: pl.LazyFrame, rows: Sequence[_Rows]) -> pl.LazyFrame:
    """Return the days of each person's first and last record at or after birth."""
    return (
        pl.concat([table.frame.select(_ID, _DAY) for table in rows])
        .join(people.select(_ID, _BIRTH).unique(_ID, keep="first"), on=_ID)
        .filter(pl.col(_DAY) >= pl.col(_BIRTH))
        .group_by(_ID)
        .agg(pl.col(_DAY).min().alias(_START), pl.col(_DAY).max().alias(_END))
    )


def _nonzero(*notes: Note) -> list[Note]:
    return [note for note in notes if note.rows]
