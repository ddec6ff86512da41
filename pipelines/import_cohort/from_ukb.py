"""Import an export of UK Biobank: first occurrences, cancer register, deaths and assessments.

The source is the export itself, one row a participant, or a folder of such files with a column `eid` each (fields may
be spread over several); `ukb_fields` says which column names are read. An export has up to 20,000 columns and 70 GB:
text is read once, front to back, parquet by groups of columns, and only the filled cells of the fields that are used
are ever held. Conventions:

- Which field is the first occurrence of which ICD-10 code is read from the data dictionary (`dictionary`).
- Birth is the month of field 52 in the year of field 34, on day 1 (`birth_day`): the day is not given, and on day 1
  nothing of the birth month lies before birth. Without a month birth is 1 July. Without a year the person is dropped.
- Special dates of first occurrences (coding 819): 1900-01-01 (the code has no date) and the placeholders 1909-09-09
  and 2037-07-07 are dropped and counted, each under its rule; 1901-01-01 (before birth) and 1902-02-02 (at birth)
  are age 0; 1903-03-03 (after birth, in the year of birth) is half way from birth to the end of that year.
- Entry is the first assessment (field 53), what lies before is history; `entry` birth makes it age 0. Exit is the
  censor date of the person's data provider (`censor_dates`), or the day the person was lost to follow-up (field 191),
  or death, whichever comes first. The provider is that of the first assessment centre (field 54): Glasgow and
  Edinburgh are Scotland, Cardiff, Swansea and Wrexham Wales, others England. UK Biobank does not apply these dates
  itself and they differ by release, so there is no default.
- Death (field 40000, or the entity `death` of the platform) may be given several times; the first counts.
- Cancer register: the ICD-10 code (40006) and date (40005) of the same instance are an event under the three-character
  code. A date without an ICD-10 code (older cancers are coded in ICD-9, field 40013) is dropped and counted.
- Assessments: body mass index (21001) is a code with a value; smoking (1239) and alcohol (1558) are categories such as
  `smoking//no`. They are dated by field 53 of the same instance. `Prefer not to answer` and `Do not know` are missing,
  which is counted. Further fields can be named (`measurements`, `answers`).
- Cells may be coded or, in an export of the platform, spelled out (`1` or `Male`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.cohort import (
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
from data_schemas.errors import InputContractError, UsageError, Violation
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
from pipelines.import_cohort.row_rules import DROPPED_BY
from pipelines.import_cohort.source_tables import SourceTable, read_day, read_number
from pipelines.import_cohort.ukb_assessments import ASSESSMENT_RULES, describe_covariates, make_assessments
from pipelines.import_cohort.ukb_cells import ARRAY, INSTANCE, VALUE, open_export, read_cells
from pipelines.import_cohort.ukb_fields import (
    ASSESSMENT_DATE_FIELD,
    DEATH_DATE_FIELD,
    FIELD,
    FIRST_OCCURRENCE_FIELDS,
    FieldColumn,
    parse_column,
    read_dictionary,
)

KIND = "ukb"
Provider = Literal["all", "england", "scotland", "wales"]
_ALL: Provider = "all"
_COUNTRIES: tuple[Provider, ...] = ("england", "scotland", "wales")

_SEX, _BIRTH_YEAR, _BIRTH_MONTH, _CENTRE, _LOST = 31, 34, 52, 54, 191
_CANCER_DATE, _CANCER_CODE = 40005, 40006
_PERSON_FIELDS = (_SEX, _BIRTH_YEAR, _BIRTH_MONTH, ASSESSMENT_DATE_FIELD, _CENTRE, _LOST)
_OTHER_FIELDS = (_CANCER_DATE, _CANCER_CODE, DEATH_DATE_FIELD)
_NAMES = {
    _SEX: "sex",
    _BIRTH_YEAR: "year of birth",
    ASSESSMENT_DATE_FIELD: "date of assessment",
    _CENTRE: "assessment centre",
    DEATH_DATE_FIELD: "date of death, or the entity death",
}

_SEXES = {"0": FEMALE, "female": FEMALE, "1": MALE, "male": MALE}
_MONTHS = ("january", "february", "march", "april", "may", "june",
           "july", "august", "september", "october", "november", "december")  # fmt: skip
_CENTRES: dict[Provider, tuple[str, ...]] = {  # assessment centres outside England
    "scotland": ("11004", "11005", "glasgow", "edinburgh"),
    "wales": ("11003", "11022", "11023", "cardiff", "swansea", "wrexham"),
}
_NO_DATE_KNOWN, _PLACEHOLDERS = date(1900, 1, 1), (date(1909, 9, 9), date(2037, 7, 7))
_AT_BIRTH, _YEAR_OF_BIRTH = (date(1901, 1, 1), date(1902, 2, 2)), date(1903, 3, 3)
_EVENT_RULES = {
    "special_date_unknown": "special date 1900-01-01: the code has no date (coding 819)",
    "special_date_placeholder": "special date 1909-09-09 or 2037-07-07: a placeholder in the future (coding 819)",
    "no_date": "there is no date, or one that cannot be read",
    "cancer_without_icd10": "a cancer with a date and without an ICD-10 code (it may be coded in ICD-9)",
    **ASSESSMENT_RULES,
}


class UkbOptions(BaseModel):
    """Settings of the importer `ukb`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dictionary: Path | None = Field(
        None, description="the data dictionary, or a table of two columns: which field is which ICD-10 code; needed"
    )
    censor_dates: dict[Provider, date] = Field(
        default_factory=dict,
        description="last day of complete data: one date for all, or one each for england, scotland and wales; needed",
    )
    entry: Literal["assessment", "birth"] = Field("assessment", description="when follow-up starts")
    birth_day: int = Field(1, ge=1, le=28, description="day of the month on which people are taken to be born")
    measurements: dict[int, str] = Field(
        default_factory=lambda: {21001: "bmi"},
        description="assessment fields whose number is the value of a code: field -> code",
    )
    answers: dict[int, str] = Field(
        default_factory=lambda: {1239: "smoking", 1558: "alcohol"},
        description="assessment fields whose answer is a category: field -> variable",
    )
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


def deliver_ukb(source: Path, options: UkbOptions) -> DeliveredCohort:
    """Turn an export into people, events and codes.

    Raises:
        UsageError: no dictionary or censor dates are given.
        InputContractError: fields are missing or there twice, an eid is missing or repeated, a file cannot be read.
    """
    if options.dictionary is None:
        raise UsageError("ukb needs the data dictionary of UK Biobank (option dictionary): which field is which code")
    _refuse_missing_censor_dates(options)
    dictionary = read_dictionary(options.dictionary)
    tables, unused = open_export(source)
    used = _find_columns(tables, dictionary, options)
    cells = pl.concat([read_cells(table, used[table.name]) for table in tables])
    people = make_people(cells.lazy(), options).collect()
    births = people.lazy().select(Subjects.column_names())
    delivered = {
        "first occurrences": make_first_occurrences(cells.lazy(), dictionary.lazy(), births),
        "cancer register": make_cancers(cells.lazy(), births),
        "deaths": make_deaths(cells.lazy(), births),
        "assessments": make_assessments(cells.lazy(), births, options.measurements, options.answers),
    }
    codes = make_codes(cells.lazy(), dictionary.lazy(), options)
    normal = normalise_events(delivered, codes, form=options.code_form, bare="icd10")
    return DeliveredCohort(
        kind=KIND,
        subjects_table=f"participants of {', '.join(table.name for table in tables)}",
        subjects=births,
        events=marks_as_codes(normal.events),
        codes=normal.codes,
        subject_rules=PEOPLE_RULES,
        event_rules=marked_rules(_EVENT_RULES),
        notes=[
            *_people_notes(cells, people, options),
            *_special_date_notes(cells, dictionary),
            *_column_notes(tables, used, dictionary),
            *unused,
            *normal.notes,
            *(note for table in tables for note in table.notes),
        ],
    )


# ---- what is asked for, and whether it is there ----


def _find_columns(
    tables: Sequence[SourceTable], dictionary: pl.DataFrame, options: UkbOptions
) -> dict[str, list[FieldColumn]]:
    """Return the columns of each table that hold a field that is used."""
    wanted = {*dictionary[FIELD], *_PERSON_FIELDS, *_OTHER_FIELDS, *options.measurements, *options.answers}
    parsed = {table.name: [parse_column(name) for name in table.types] for table in tables}
    used = {
        name: [column for column in columns if column is not None and column.field in wanted]
        for name, columns in parsed.items()
    }
    _refuse_wrong_fields(used, set(dictionary[FIELD]), options)
    return used


def _refuse_wrong_fields(used: Mapping[str, Sequence[FieldColumn]], coded: set[int], options: UkbOptions) -> None:
    everywhere = ", ".join(used)
    places = [(column.field, column.instance, column.array) for columns in used.values() for column in columns]
    fields = {field for field, _, _ in places}
    needed = [_SEX, _BIRTH_YEAR, DEATH_DATE_FIELD]
    needed += [ASSESSMENT_DATE_FIELD] if options.entry == "assessment" else []
    needed += [_CENTRE] if _ALL not in options.censor_dates else []
    faults = [
        Violation(everywhere, f"field {field}", f"is missing ({_NAMES[field]})")
        for field in needed
        if field not in fields
    ]
    faults += [
        Violation(everywhere, f"field {field}", f"instance {instance}, array {array} stands in {columns} columns")
        for (field, instance, array), columns in sorted(Counter(places).items())
        if columns > 1
    ]
    if not fields & coded:
        faults.append(Violation(everywhere, "", "has no column of a first occurrence that the dictionary names"))
    if faults:
        raise InputContractError(faults)


def _refuse_missing_censor_dates(options: UkbOptions) -> None:
    given = options.censor_dates
    if _ALL in given and len(given) > 1:
        raise UsageError("censor_dates: give one date for all, or one for each of england, scotland and wales")
    if _ALL not in given and (missing := [country for country in _COUNTRIES if country not in given]):
        raise UsageError(
            f"ukb needs censor_dates for {', '.join(missing)} (or one for all): the last day of complete data of your "
            "release, which UK Biobank lists under 'Data providers and dates of data availability'"
        )


# ---- people ----


def make_people(cells: pl.LazyFrame, options: UkbOptions) -> pl.LazyFrame:
    """Return `Subjects`, in the order of their ids; ages are null where birth or assessment are not known."""
    people = cells.select(Subjects.subject_id.name).unique()
    for field in _PERSON_FIELDS:
        people = people.join(_first_cells(cells, field), on=Subjects.subject_id.name, how="left")
    year = read_number(pl.col(str(_BIRTH_YEAR)), pl.String()).cast(pl.Int64)
    birth = born_in_month(year, _month_of_birth(), options.birth_day)
    birth = pl.when(pl.col(str(_BIRTH_MONTH)).is_null()).then(born_in_month(year, 7)).otherwise(birth)
    birth_date = Subjects.birth_date.col
    censored = pl.min_horizontal(_censor_date(options), _day(str(_LOST)))
    assessed = age_on(_day(str(ASSESSMENT_DATE_FIELD)), birth_date)
    entry = assessed if options.entry == "assessment" else pl.lit(0.0)
    sex = pl.col(str(_SEX)).str.to_lowercase().replace_strict(_SEXES, default=UNKNOWN, return_dtype=pl.String)
    return (
        people.with_columns(birth.alias(Subjects.birth_date.name))
        .select(
            Subjects.subject_id.name,
            sex.fill_null(UNKNOWN).alias(Subjects.sex.name),
            birth_date,
            entry.alias(Subjects.entry_age_days.name),
            age_on(censored, birth_date).alias(Subjects.exit_age_days.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
        )
        .sort(Subjects.subject_id.name)
    )


def _first_cells(cells: pl.LazyFrame, field: int) -> pl.LazyFrame:
    """Return instance 0 of a field, one row a person, as a column that is called like its number."""
    first = cells.filter(pl.col(FIELD) == field, pl.col(INSTANCE) == 0, pl.col(ARRAY) == 0)
    return first.select(Subjects.subject_id.name, pl.col(VALUE).alias(str(field)))


def _day(column: str) -> pl.Expr:
    return read_day(pl.col(column), pl.String())


def _month_of_birth() -> pl.Expr:
    """Read a month from its number or its English name."""
    word = pl.col(str(_BIRTH_MONTH)).str.to_lowercase()
    names = {name: str(number) for number, name in enumerate(_MONTHS, start=1)}
    return read_number(word.replace(names), pl.String()).cast(pl.Int64)


def _censor_date(options: UkbOptions) -> pl.Expr:
    """Return the censor date of each person's provider; without a known centre the earliest of all."""
    dates = {country: options.censor_dates.get(_ALL) or options.censor_dates.get(country) for country in _COUNTRIES}
    centre = pl.col(str(_CENTRE)).str.to_lowercase()
    known = {place: dates[country] for country, places in _CENTRES.items() for place in places}
    earliest = min(day for day in dates.values() if day is not None)
    by_centre = centre.replace_strict(known, default=dates["england"], return_dtype=pl.Date)
    return pl.when(centre.is_null()).then(pl.lit(earliest)).otherwise(by_centre)


# ---- events ----


def make_first_occurrences(cells: pl.LazyFrame, dictionary: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each date of a first occurrence; special dates are aged or marked by their rule."""
    day, born = pl.col(DAY), Subjects.birth_date.col
    dated = (
        cells.join(dictionary.with_columns(pl.col(FIELD).cast(pl.Int32)), on=FIELD, how="inner", maintain_order="left")
        .with_columns(_day(VALUE).alias(DAY))
        .with_columns(
            first_reason(
                [
                    ("special_date_unknown", day == _NO_DATE_KNOWN),
                    ("special_date_placeholder", day.is_in(_PLACEHOLDERS)),
                    ("no_date", day.is_null()),
                ]
            )
        )
        .join(
            people.select(Subjects.subject_id.name, born),
            on=Subjects.subject_id.name,
            how="left",
            maintain_order="left",
        )
    )
    half_way = born + pl.duration(days=(age_on(pl.date(born.dt.year(), 12, 31), born) / 2).floor())
    meant = pl.when(day.is_in(_AT_BIRTH)).then(born).when(day == _YEAR_OF_BIRTH).then(half_way).otherwise(day)
    return at_ages(dated.select(Subjects.subject_id.name, meant.alias(DAY), Events.code.name, DROPPED_BY), people)


def make_cancers(cells: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each instance of the cancer register that has a date or a code."""
    key = [Subjects.subject_id.name, INSTANCE, ARRAY]
    dates, codes = (
        cells.filter(pl.col(FIELD) == field).select(*key, pl.col(VALUE).alias(name))
        for field, name in ((_CANCER_DATE, DAY), (_CANCER_CODE, Events.code.name))
    )
    paired = dates.join(codes, on=key, how="full", coalesce=True).sort(key)
    # Spelled out, a cell reads `C50.9 Breast, unspecified`.
    dated = paired.with_columns(_day(DAY), Events.code.col.str.extract(r"^\s*(\S+)", 1))
    reasons = [("cancer_without_icd10", Events.code.col.is_null()), ("no_date", pl.col(DAY).is_null())]
    return at_ages(dated.with_columns(first_reason(reasons)), people)


def make_deaths(cells: pl.LazyFrame, people: pl.LazyFrame) -> pl.LazyFrame:
    """Return one event for each date of death."""
    dated = cells.filter(pl.col(FIELD) == DEATH_DATE_FIELD).select(
        Subjects.subject_id.name, _day(VALUE).alias(DAY), pl.lit(DEATH_CODE).alias(Events.code.name)
    )
    return at_ages(dated.with_columns(first_reason([("no_date", pl.col(DAY).is_null())])), people)


def make_codes(cells: pl.LazyFrame, dictionary: pl.LazyFrame, options: UkbOptions) -> pl.LazyFrame:
    """Return `Codes`: the diseases of the dictionary, what was measured and answered, death."""
    no_chapter = pl.lit(None, dtype=pl.String).alias(Codes.chapter.name)
    kind, description = Codes.kind.name, Codes.description.name
    diseases = dictionary.select(Codes.code.name, pl.lit(DISEASE).alias(kind), description, no_chapter)
    death = pl.LazyFrame({Codes.code.name: [DEATH_CODE], kind: [DEATH], description: ["Death of any cause"]})
    covariates = describe_covariates(cells, options.measurements, options.answers)
    codes = pl.concat([diseases, covariates, death.with_columns(no_chapter)])
    return codes.unique(Codes.code.name, keep="first", maintain_order=True)


# ---- the account ----


def _people_notes(cells: pl.DataFrame, people: pl.DataFrame, options: UkbOptions) -> list[Note]:
    def without(field: int) -> int:
        return people.height - _first_cells(cells.lazy(), field).collect().height

    unknown_sex = people.filter(Subjects.sex.col == UNKNOWN).height
    counted = [
        ("sex_missing", "participants whose sex is not given, kept as unknown", unknown_sex),
        (
            "birth_month_missing",
            "participants whose month of birth is not given: 1 July is taken",
            without(_BIRTH_MONTH),
        ),
    ]
    if _ALL not in options.censor_dates:
        text = "participants without an assessment centre: the earliest of the censor dates is taken"
        counted.append(("provider_missing", text, without(_CENTRE)))
    dates = ", ".join(f"{provider} {day:%Y-%m-%d}" for provider, day in sorted(options.censor_dates.items()))
    return [
        Note("birth_day", f"day of birth is not given: {options.birth_day} was taken for everyone"),
        Note("censor_dates", f"follow-up ends at the latest at: {dates}"),
        *(Note(name, text, rows) for name, text, rows in counted if rows),
    ]


def _special_date_notes(cells: pl.DataFrame, dictionary: pl.DataFrame) -> list[Note]:
    """Count the special dates that were given an age; those that were dropped are counted by their rule."""
    texts = {
        "1901-01-01": "before birth: age 0",
        "1902-02-02": "at birth: age 0",
        "1903-03-03": "after birth in the year of birth: half way to its end",
    }
    dated = cells.filter(pl.col(FIELD).is_in(dictionary[FIELD].implode()))
    counts = dict(dated.group_by(pl.col(VALUE).str.head(10)).len().iter_rows())
    return [
        Note("special_date", f"first occurrences with special date {day}, {text}", counts[day])
        for day, text in texts.items()
        if day in counts
    ]


def _column_notes(
    tables: Sequence[SourceTable], used: Mapping[str, Sequence[FieldColumn]], dictionary: pl.DataFrame
) -> list[Note]:
    coded, present = set(dictionary[FIELD]), {column.field for columns in used.values() for column in columns}
    parsed = [column for table in tables for name in table.types if (column := parse_column(name)) is not None]
    uncoded = {
        column.field
        for column in parsed
        if column.field in FIRST_OCCURRENCE_FIELDS and column.field % 2 == 0 and column.field not in coded
    }
    counted = (
        (
            "fields_not_in_dictionary",
            "first occurrence fields that the dictionary does not name; not read",
            len(uncoded),
        ),
        ("fields_not_in_export", "first occurrences of the dictionary that the export lacks", len(coded - present)),
    )
    return [Note(name, text, rows) for name, text, rows in counted if rows]
