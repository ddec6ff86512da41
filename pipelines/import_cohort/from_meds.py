"""Import a dataset in the Medical Event Data Standard (MEDS), version 0.4; 0.3 reads the same way.

The source is a folder with `data/**/*.parquet`, or with such files directly, often in one folder for each split;
`metadata/` may be missing. Conventions:

- Certain codes are about the person and no events: birth, sex, and the start and end of observation. A setting lists
  them; `MEDS_BIRTH` stands for itself and for everything that begins with `MEDS_BIRTH//`. Death becomes `DEATH`.
- Ages are counted from midnight of the day of birth (of several births the first counts). A birth code ending in
  `//ASSUMED` gives ages, but no birth date: that is how a cohort without birth dates is exported. People without a
  dated birth are dropped with their rows.
- A clock is kept as it was written and a time zone is dropped: what happened on a day stays on that day. A time that
  is there but cannot be read drops its row; it never makes a row static.
- A row without a time (static) holds at any time: it becomes a covariate at birth (age 0), or is left out (`static`).
- Follow-up starts and ends where codes of observation say so (`OBSERVATION//START`, `OBSERVATION//END`: the way our own
  export writes it). For people without them entry is the first dated row at or after birth that is not birth itself,
  or birth, or a fixed age (`entry`); exit is the last dated row, death among them.
- A person's split is that of `metadata/subject_splits.parquet`; without that file, the folder their rows lie in
  (under `data/`, or under the source itself). `split_names` says what names mean; others are counted and left open: the
  person is then assigned by `prepare`. A person in two splits is an error.
- `text_value` is not read, but for a code of `cluster_codes` (people who must share a split). Further columns are left
  behind. A value that is no finite number is missing. In a dataset that names us as its ETL, the columns in which our
  export keeps ids that are text, and values that float32 cannot hold, are read in place of the standard ones.
- Descriptions come from `metadata/codes.parquet`, the first of several rows of a code. `kind` and `chapter` there (our
  own export writes them) are used; else a code is a covariate if any row of it has a value or no time, or if a pattern
  in `covariates` fits, and a disease if not.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from meds.schema import (
    CodeMetadataSchema,
    DataSchema,
    DatasetMetadataSchema,
    SubjectSplitSchema,
    birth_code,
    code_metadata_filepath,
    data_subdirectory,
    dataset_metadata_filepath,
    death_code,
    subject_splits_filepath,
)
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.age_units import DAYS_PER_YEAR, MAX_AGE_DAYS, MAX_AGE_YEARS
from data_schemas.cohort import (
    CODE_KINDS,
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
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import (
    BARE_CODES_HELP,
    CODE_FORM_HELP,
    BareCodes,
    CodeForm,
    normalise_events,
)
from pipelines.import_cohort.row_rules import RowRule
from pipelines.import_cohort.source_tables import SourceTable, find_key_type, find_shards, open_files
from pipelines.tables_on_disk import read_json

KIND = "meds"
SplitName = Literal["train", "tuning", "held_out"]
MODIFIER = "//"  # what comes behind it is about the code before it
ASSUMED = "ASSUMED"  # MEDS_BIRTH//ASSUMED: ages are right, the calendar is not
ENTRY_CODE, EXIT_CODE, CLUSTER_CODE = "OBSERVATION//START", "OBSERVATION//END", "SPLIT//CLUSTER"
FEMALE_CODE, MALE_CODE = "GENDER//F", "GENDER//M"
OWN_ID, OWN_NUMBER = "source_subject_id", "numeric_value_float64"  # further columns of our own export
OUR_ETL, UNASSIGNED = "deephealth", "unassigned"  # the ETL it names, its folder of people without a split
_DATA, _METADATA = data_subdirectory, "metadata"
_MICROSECONDS_PER_DAY = 86_400_000_000

_SUBJECT, _TIME = DataSchema.subject_id_name, DataSchema.time_name
_CODE, _NUMBER, _TEXT = DataSchema.code_name, DataSchema.numeric_value_name, DataSchema.text_value_name
_DESCRIPTION = CodeMetadataSchema.description_name
_SPLIT = SubjectSplitSchema.split_name

_ID, _BIRTH = Subjects.subject_id.name, Subjects.birth_date.name
_BIRTHS, _BOTH_SEXES = "births", "both_sexes"
_IS_INPUT, _SPLIT_NAME = "is_input", "split_name"
_UNREADABLE, _ROLE, _ZERO = "unreadable", "role", "zero"  # working columns; zero: midnight of the day of birth
_ENTRY, _EXIT = Subjects.entry_age_days.name, Subjects.exit_age_days.name
_BIRTH_ROLE, _DEATH_ROLE, _FEMALE_ROLE, _MALE_ROLE = "birth", "death", "female", "male"
_ENTRY_ROLE, _EXIT_ROLE, _CLUSTER_ROLE = "entry", "exit", "cluster"
_ABOUT_THE_PERSON = ""  # stands in for the code of a row that is no event

_SUBJECT_RULES = (
    RowRule("no_birth", "the person has no dated row with a birth code", pl.col(_ZERO).is_null()),
    RowRule("no_dated_row", "the person has no dated row but birth", pl.col(_EXIT).is_null()),
    RowRule("follow_up_over_120", "follow-up reaches beyond an age of 120 years", pl.col(_EXIT) > MAX_AGE_DAYS),
)
_EVENT_RULES = (
    RowRule(
        "about_the_person",
        "the row tells birth, sex, group or follow-up and became part of the person",
        Events.code.col == _ABOUT_THE_PERSON,
    ),
    RowRule("unreadable_time", "the time is there and cannot be read", Events.age_days.col.is_nan()),
    RowRule("unknown_person", "the row has no subject_id, or its person was dropped", pl.col(_EXIT).is_null()),
    RowRule("static", "the row has no time, so it is no event", Events.age_days.col.is_null()),
    RowRule("no_code", "the code is missing", Events.code.col.is_null()),
)


def _usual_split_names() -> dict[str, SplitName]:
    return {
        "train": "train",
        **dict.fromkeys(("tuning", "validation", "valid", "val", "dev"), "tuning"),
        **dict.fromkeys(("held_out", "test"), "held_out"),
    }


class MedsOptions(BaseModel):
    """Settings of the importer `meds`; unknown keys are refused. Each code stands also for `CODE//anything`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    birth_codes: tuple[str, ...] = Field((birth_code,), min_length=1, description="codes of birth")
    death_codes: tuple[str, ...] = Field((death_code,), description="codes of death")
    female_codes: tuple[str, ...] = Field(
        (FEMALE_CODE, "GENDER//FEMALE", "SEX//F", "SEX//FEMALE", "Gender/F"), description="codes of women"
    )
    male_codes: tuple[str, ...] = Field(
        (MALE_CODE, "GENDER//MALE", "SEX//M", "SEX//MALE", "Gender/M"), description="codes of men"
    )
    entry_codes: tuple[str, ...] = Field((ENTRY_CODE,), description="codes of the start of observation, first row")
    exit_codes: tuple[str, ...] = Field((EXIT_CODE,), description="codes of the end of observation, last row")
    cluster_codes: tuple[str, ...] = Field(
        (CLUSTER_CODE,), description="codes whose text_value names the group of people that must share a split"
    )
    entry: Literal["first_row", "birth", "age"] = Field(
        "first_row", description="where follow-up starts for people without a code of its start"
    )
    entry_age_years: float = Field(0.0, ge=0, lt=MAX_AGE_YEARS, description="age in years at entry, if entry is age")
    static: Literal["at_birth", "leave_out"] = Field("at_birth", description="what becomes of rows without a time")
    covariates: tuple[str, ...] = Field(
        (), description="codes that are read but never predicted; * stands for any characters"
    )
    use_splits: bool = Field(default=True, description="whether splits of the dataset are kept")
    split_names: dict[str, SplitName] = Field(
        default_factory=_usual_split_names,
        description="what the names of splits in the dataset mean",
    )
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)
    bare_codes: BareCodes = Field("none", description=BARE_CODES_HELP)


def person_codes() -> tuple[str, ...]:
    """Return the codes that by default are about the person and no events, and those of death."""
    options = MedsOptions.model_validate({})
    return (
        *options.birth_codes,
        *options.death_codes,
        *options.female_codes,
        *options.male_codes,
        *options.entry_codes,
        *options.exit_codes,
        *options.cluster_codes,
    )


def deliver_meds(source: Path, options: MedsOptions) -> DeliveredCohort:
    """Turn a MEDS dataset into people, events and codes.

    Raises:
        InputContractError: there are no data, a column is missing, no row has a birth code, a person is in two splits.
    """
    files = _find_data_files(source)
    data = open_files(files, _DATA).require([_SUBJECT, _TIME, _CODE])
    ours = _is_our_export(source)
    subject = OWN_ID if ours and data.has(OWN_ID) else _SUBJECT
    number = OWN_NUMBER if ours and data.has(OWN_NUMBER) else _NUMBER
    rows = _read_rows(data, subject, number, options)
    births = _find_births(rows).collect()
    _refuse_no_births(births, options)
    found = _find_people(rows, births.lazy(), options).collect()
    place, named = _find_splits(source, files, subject, options)
    people, split_notes = _join_splits(found, place, named if options.use_splits else named.clear(), options)
    events = {_DATA: _make_events(rows, people.lazy(), options)}
    normal = normalise_events(
        events, _describe_codes(rows, source, options), form=options.code_form, bare=options.bare_codes
    )
    return DeliveredCohort(
        kind=KIND,
        subjects_table=f"people of {_DATA}",
        subjects=people.lazy(),
        events=normal.events,
        codes=normal.codes,
        subject_rules=_SUBJECT_RULES,
        event_rules=_EVENT_RULES,
        notes=(*data.notes, *_people_notes(people), *split_notes, *_text_notes(data, options), *normal.notes),
    )


def _find_data_files(source: Path) -> list[Path]:
    """Return the files of `data/`, or all of the folder but those of `metadata/`.

    Raises:
        InputContractError: there is no such folder, or no parquet file in it.
    """
    if not source.is_dir():
        raise InputContractError([Violation(str(source), "", "no such folder")])
    root = source / _DATA if (source / _DATA).is_dir() else source
    files = [path for path in find_shards(root) if path.suffix.lower() == ".parquet"]
    files = [path for path in files if path.relative_to(source).parts[0] != _METADATA]
    if not files:
        raise InputContractError([Violation(str(root), "", "holds no parquet file")])
    return files


def _is_our_export(source: Path) -> bool:
    path = source / dataset_metadata_filepath
    try:
        content = read_json(path) if path.is_file() else {}
    except ValueError as error:
        raise InputContractError([Violation(str(path), "", "is no JSON")]) from error
    return isinstance(content, dict) and content.get(DatasetMetadataSchema.etl_name_name) == OUR_ETL


def _read_rows(data: SourceTable, subject: str, number: str, options: MedsOptions) -> pl.LazyFrame:
    """Return person, time, code, value, text, whether the time cannot be read, and the role of the code, if any."""
    key_type = pl.String() if subject == OWN_ID else find_key_type(data, subject)
    time = data.datetime(_TIME)
    raw_code = pl.col(_CODE).cast(pl.String)  # blanks around it are part of a code of MEDS
    code = pl.when(raw_code != "").then(raw_code)
    roles = {
        _BIRTH_ROLE: options.birth_codes,
        _DEATH_ROLE: options.death_codes,
        _FEMALE_ROLE: options.female_codes,
        _MALE_ROLE: options.male_codes,
        _ENTRY_ROLE: options.entry_codes,
        _EXIT_ROLE: options.exit_codes,
        _CLUSTER_ROLE: options.cluster_codes,
    }
    role = pl.coalesce(pl.when(is_code(code, codes)).then(pl.lit(role)) for role, codes in roles.items())
    return data.frame.select(
        data.key(subject, key_type).alias(_ID),
        time.alias(_TIME),
        code.alias(_CODE),
        data.number(number).alias(_NUMBER),
        data.text(_TEXT).alias(_TEXT),
        (time.is_null() & data.text(_TIME).is_not_null()).alias(_UNREADABLE),
        role.alias(_ROLE),
    )


def is_code(value: pl.Expr, codes: Sequence[str]) -> pl.Expr:
    """Whether a code is one of these, alone or with something behind `//`."""
    return pl.any_horizontal(
        pl.lit(value=False), *((value == code) | value.str.starts_with(code + MODIFIER) for code in codes)
    )


def _find_births(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return midnight of each person's (first) day of birth, and their birth date unless it is assumed."""
    assumed = pl.col(_CODE).str.ends_with(MODIFIER + ASSUMED)
    born = pl.col(_TIME).dt.truncate("1d").min()
    return (
        rows.filter(pl.col(_ROLE) == _BIRTH_ROLE, pl.col(_TIME).is_not_null(), pl.col(_ID).is_not_null())
        .group_by(_ID)
        .agg(born.alias(_ZERO), pl.when(~assumed.any()).then(born).dt.date().alias(_BIRTH), pl.len().alias(_BIRTHS))
    )


def _find_people(rows: pl.LazyFrame, births: pl.LazyFrame, options: MedsOptions) -> pl.LazyFrame:
    """Return `Subjects` (without split) of all people with rows, in the order of their ids, and midnight of birth."""
    role = pl.col(_ROLE)
    age = _age()
    dated = pl.when(role.is_null() | (role == _DEATH_ROLE), age >= 0.0).then(age)  # birth and sex are no records
    entry = {"first_row": dated.min(), "birth": pl.lit(0.0), "age": pl.lit(options.entry_age_years * DAYS_PER_YEAR)}
    female, male = (role == _FEMALE_ROLE).any(), (role == _MALE_ROLE).any()
    return (
        rows.filter(pl.col(_ID).is_not_null())
        .join(births, on=_ID, how="left")
        .group_by(_ID)
        .agg(
            pl.when(female & ~male).then(pl.lit(FEMALE))
            .when(male & ~female).then(pl.lit(MALE))
            .otherwise(pl.lit(UNKNOWN)).alias(Subjects.sex.name),
            (female & male).alias(_BOTH_SEXES),
            pl.col(_BIRTH).first(),
            pl.col(_ZERO).first(),
            pl.col(_BIRTHS).first(),
            pl.coalesce(pl.when(role == _ENTRY_ROLE).then(age).min().clip(lower_bound=0.0), entry[options.entry])
            .alias(_ENTRY),
            pl.coalesce(pl.when(role == _EXIT_ROLE).then(age).max(), dated.max()).alias(_EXIT),
            pl.when(role == _CLUSTER_ROLE).then(pl.col(_TEXT)).min().alias(Subjects.cluster_id.name),
        )
        .sort(_ID)
    )  # fmt: skip


def _age() -> pl.Expr:
    """Days from midnight of the day of birth; null without a time or a birth."""
    return (pl.col(_TIME) - pl.col(_ZERO)).dt.total_microseconds() / _MICROSECONDS_PER_DAY


def _make_events(rows: pl.LazyFrame, people: pl.LazyFrame, options: MedsOptions) -> pl.LazyFrame:
    """Turn all rows into `DeliveredEvents`: those that are no events are marked in a way that the rules recognise."""
    age = pl.when(pl.col(_UNREADABLE)).then(pl.lit(float("nan"))).otherwise(_age())
    if options.static == "at_birth":
        age = pl.when(_is_static()).then(0.0).otherwise(age)
    role = pl.col(_ROLE)
    code = (
        pl.when(role == _DEATH_ROLE).then(pl.lit(DEATH_CODE))
        .when(role.is_not_null()).then(pl.lit(_ABOUT_THE_PERSON))
        .otherwise(pl.col(_CODE))
    )  # fmt: skip
    return rows.join(people.select(_ID, _ZERO), on=_ID, how="left", maintain_order="left").select(
        pl.col(_ID),
        age.alias(Events.age_days.name),
        code.alias(Events.code.name),
        pl.col(_NUMBER).cast(pl.Float64).alias(Events.numeric_value.name),
    )


def _is_static() -> pl.Expr:
    return pl.col(_TIME).is_null() & ~pl.col(_UNREADABLE) & pl.col(_ROLE).is_null()


def _refuse_no_births(births: pl.DataFrame, options: MedsOptions) -> None:
    if births.is_empty():
        codes = ", ".join(options.birth_codes)
        rule = f"no dated row has a birth code ({codes}); without birth there is no age: set birth_codes"
        raise InputContractError([Violation(_DATA, _CODE, rule)])


# ---- splits ----


def _find_splits(source: Path, files: Sequence[Path], subject: str, options: MedsOptions) -> tuple[str, pl.DataFrame]:
    """Return where the splits are written, and each person (id as text) with each split named there.

    The file of splits knows the ids of MEDS alone; where other ids are read, the folders say the same.
    """
    path = source / subject_splits_filepath
    if path.is_file() and subject == _SUBJECT:
        table = open_files([path], subject_splits_filepath).require([_SUBJECT, _SPLIT])
        named = table.frame.select(table.text(_SUBJECT).alias(_ID), table.text(_SPLIT).alias(_SPLIT_NAME))
        return str(path), named.unique().collect()
    root = source / _DATA if (source / _DATA).is_dir() else source
    folders: dict[str, list[Path]] = {name: [] for name in options.split_names}
    for file in files:
        folders.get(file.relative_to(root).parts[0], []).append(file)
    tables = {name: open_files(paths, _DATA) for name, paths in folders.items() if paths}
    named_by_folder = [
        table.frame.select(table.text(subject).alias(_ID), pl.lit(name).alias(_SPLIT_NAME)).unique().collect()
        for name, table in tables.items()
    ]
    return str(root), pl.concat([pl.DataFrame(schema={_ID: pl.String, _SPLIT_NAME: pl.String}), *named_by_folder])


def _join_splits(
    people: pl.DataFrame, place: str, named: pl.DataFrame, options: MedsOptions
) -> tuple[pl.DataFrame, list[Note]]:
    """Give people the split that its name means, and count those whose name means nothing to us.

    Raises:
        InputContractError: a person is in two splits.
    """
    twice = named.filter(pl.col(_ID).is_duplicated())[_ID].n_unique()
    if twice:
        raise InputContractError([Violation(place, _SPLIT, f"people must be in one split; {twice} are in several")])
    split = pl.col(_SPLIT_NAME).replace_strict(options.split_names, default=None, return_dtype=pl.String)
    same_ids = named.with_columns(pl.col(_ID).cast(people.schema[_ID], strict=False))
    joined = people.join(same_ids, on=_ID, how="left", maintain_order="left").with_columns(
        split.alias(Subjects.split.name)
    )
    strange = joined.filter(pl.col(_SPLIT_NAME).is_not_null(), Subjects.split.col.is_null()).height
    absent = same_ids.join(people, on=_ID, how="anti").height
    notes = [
        Note("split_name_unknown", "people in a split whose name means nothing here, left open", strange),
        Note("split_without_rows", f"{place}: people who have no rows", absent),
    ]
    return joined, [note for note in notes if note.rows]


# ---- codes and notes ----


def _describe_codes(rows: pl.LazyFrame, source: Path, options: MedsOptions) -> pl.LazyFrame:
    """Return `Codes`: of a dataset that says what kinds its codes are those it lists, else those of the events."""
    table, says_kinds = _read_code_table(source, options)
    if says_kinds:
        return table.filter(pl.col(Codes.kind.name).is_not_null()).select(Codes.column_names()).lazy()
    role = pl.col(_ROLE)
    code = pl.when(role == _DEATH_ROLE).then(pl.lit(DEATH_CODE)).otherwise(pl.col(_CODE)).alias(_CODE)
    used = (
        rows.filter(role.is_null() | (role == _DEATH_ROLE), pl.col(_CODE).is_not_null())
        .group_by(code)
        .agg((pl.col(_NUMBER).is_not_null() | _is_static()).any().alias(_IS_INPUT))
        .collect()
    )
    described = used.join(table.drop(Codes.kind.name), on=_CODE, how="left").sort(_CODE)
    kind = (
        pl.when(pl.col(_CODE) == DEATH_CODE).then(pl.lit(DEATH))
        .when(pl.col(_IS_INPUT) | pl.col(_CODE).str.contains(_pattern(options.covariates))).then(pl.lit(COVARIATE))
        .otherwise(pl.lit(DISEASE))
    )  # fmt: skip
    return described.with_columns(kind.alias(Codes.kind.name)).select(Codes.column_names()).lazy()


def _read_code_table(source: Path, options: MedsOptions) -> tuple[pl.DataFrame, bool]:
    """Return code, description, chapter and kind, one row a code, and whether `metadata/codes.parquet` has kinds."""
    path = source / code_metadata_filepath
    if not path.is_file():
        return pl.DataFrame(schema=dict.fromkeys(Codes.column_names(), pl.String)), False
    table = open_files([path], code_metadata_filepath).require([_CODE])
    raw = pl.col(_CODE).cast(pl.String)
    kind = table.text(Codes.kind.name)
    described = table.frame.select(
        pl.when(is_code(raw, options.death_codes)).then(pl.lit(DEATH_CODE)).otherwise(raw).alias(Codes.code.name),
        pl.when(kind.is_in(CODE_KINDS)).then(kind).alias(Codes.kind.name),
        table.text(_DESCRIPTION).alias(Codes.description.name),
        table.text(Codes.chapter.name).alias(Codes.chapter.name),
    )
    first = described.group_by(Codes.code.name, maintain_order=True).agg(pl.all().drop_nulls().first())
    return first.collect(), table.has(Codes.kind.name)


def _pattern(codes: Sequence[str]) -> str:
    """Return a regular expression for codes in which * stands for any characters; it fits nothing if there are none."""
    return "|".join(f"^{'.*'.join(map(re.escape, code.split('*')))}$" for code in codes) or "$^"


def _people_notes(people: pl.DataFrame) -> list[Note]:
    notes = [
        Note("both_sexes", f"people with codes of both sexes, kept as {UNKNOWN}", people.filter(_BOTH_SEXES).height),
        Note("sex_missing", f"people without a code of sex, kept as {UNKNOWN}",
             people.filter(Subjects.sex.col == UNKNOWN, ~pl.col(_BOTH_SEXES)).height),
        Note("several_births", "people with several rows of birth, of which the first counts",
             people.filter(pl.col(_BIRTHS) > 1).height),
        Note("birth_assumed", "people whose birth is assumed: their ages are right, their birth date is not kept",
             people.filter(pl.col(_ZERO).is_not_null(), pl.col(_BIRTH).is_null()).height),
    ]  # fmt: skip
    return [note for note in notes if note.rows]


def _text_notes(data: SourceTable, options: MedsOptions) -> list[Note]:
    """Count texts that are not read, and name the columns that are left behind."""
    standard = {_SUBJECT, _TIME, _CODE, _NUMBER, _TEXT, OWN_ID, OWN_NUMBER}
    extra = [name for name in data.types if name not in standard]
    notes = [Note("extra_columns", f"{_DATA}: columns not used: {', '.join(extra)}")] if extra else []
    if not data.has(_TEXT):
        return notes
    in_cluster = is_code(pl.col(_CODE).cast(pl.String), options.cluster_codes)
    unread = data.frame.select((data.text(_TEXT).is_not_null() & ~in_cluster).sum()).collect().item()
    return [*notes, *([Note("text_not_read", f"{_DATA}: rows whose {_TEXT} is not read", unread)] if unread else [])]
