"""Import the binary files of Delphi: `train.bin`, `val.bin` and `labels.csv` in one folder.

Shmatko et al. 2025, github.com/gerstung-lab/Delphi. A `.bin` file is rows of three little-endian uint32 without a
header: person, age in days, token. `labels.csv` is no CSV: each line is one name, commas and all. Conventions:

- Delphi adds 1 to the tokens when it loads them, and line n of the labels (from 0) names token n after that. The shift
  is not taken for granted: it is the only one of 0 and 1 under which the sex labels stand in one row of (nearly) each
  person, never in two, and `Death` is the last row of whoever has it. If none or both fit, the import stops.
- A token that has no line in the labels stops the import. The size of the vocabulary is what the labels hold.
- `Female` and `Male` become the sex of the person. Who has neither (a file may begin in the middle of a person) or
  both is unknown. Rows of `Padding` and `No event` say nothing and are dropped.
- `Death` is the code DEATH. A label like `A00 (cholera)` or `C00 Malignant neoplasm of lip` is the code of its first
  three letters; the rest describes it. `BMI_low` and the like are covariates: the category `bmi//low`. Any other label
  is a disease under its own name.
- Two labels may name one code: O01 stands once among the first occurrences and once among the cancers. Both mean the
  same disease, so they are one code here, and both rows stay; `merge_repeated_codes` false keeps the later label
  apart under its whole name.
- People are one over both files: who is cut by the border between them is put together again. Ages are days since
  birth, birth dates are not known, entry is birth (age 0), exit is the age of the last row, death or not: the files
  know no end of follow-up, so nobody has time after the last event.
- Splits come from the files only if asked for (`split_from_files`); a person in both belongs to the file with the
  youngest row.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.age_units import MAX_AGE_DAYS
from data_schemas.cohort import (
    CATEGORY_SEPARATOR,
    COVARIATE,
    DEATH,
    DEATH_CODE,
    DISEASE,
    FEMALE,
    MALE,
    TRAIN,
    TUNING,
    UNKNOWN,
    Codes,
    Events,
    Subjects,
)
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import Note
from pipelines.import_cohort.finish_import import DeliveredCohort
from pipelines.import_cohort.normalise_codes import CODE_FORM_HELP, CodeForm, normalise_events
from pipelines.import_cohort.row_rules import FIRST_ROWS_SHOWN, RowRule

KIND = "delphi-bin"
LABELS_FILE = "labels.csv"
_SPLIT_OF_FILE = {"train.bin": TRAIN, "val.bin": TUNING}
_TRIPLE = ("person", "age", "token")
_BYTES_PER_ROW = 12
_SHIFTS = (0, 1)
_LEAST_SHARE_WITH_SEX = 0.9  # a person at the border of a file may have lost the row; few people stand at a border

_PADDING, _NO_EVENT, _FEMALE_LABEL, _MALE_LABEL, _DEATH_LABEL = "Padding", "No event", "Female", "Male", "Death"
_SEX_LABELS = (_FEMALE_LABEL, _MALE_LABEL)
_NO_EVENTS = (_PADDING, _NO_EVENT, *_SEX_LABELS)
_LIFESTYLE = r"^(BMI|Smoking|Alcohol)_(.+)$"
_CODED = r"^([A-Z][0-9A-Z]{2})[ (]+(.*?)\)?$"  # A00 (cholera), C00 Malignant neoplasm of lip, CXX Unknown Cancer

_LABEL, _INDEX, _FILE = "label", "index", "file"  # working columns


class DelphiBinOptions(BaseModel):
    """Settings of the importer `delphi-bin`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_shift: int | None = Field(
        None, ge=0, le=1, description="what to add to a token to get its line in labels.csv; derived where not given"
    )
    merge_repeated_codes: bool = Field(
        True, description="labels that begin with the same code are one code; if not, later ones keep their whole name"
    )
    split_from_files: bool = Field(
        False, description="people of train.bin are the split train, those of val.bin tuning; else nobody has a split"
    )
    code_form: CodeForm = Field("icd10_3", description=CODE_FORM_HELP)


def deliver_delphi_bin(source: Path, options: DelphiBinOptions) -> DeliveredCohort:
    """Turn the files of the folder `source` into people, events and codes.

    Raises:
        InputContractError: a file is missing or no such file; a token has no label; the shift cannot be derived.
    """
    labels = read_labels(source / LABELS_FILE)
    files = _read_files(source)
    rows = pl.concat(frame.with_columns(pl.lit(file).alias(_FILE)) for file, frame in files.items())
    shift = derive_token_shift(rows, labels, source) if options.token_shift is None else options.token_shift
    _refuse_unknown_tokens(files, shift, len(labels), source)
    names = name_labels(labels, merge_repeated=options.merge_repeated_codes)
    people = summarise_people(_with_labels(rows.lazy(), names, shift)).collect()
    events = {file: make_events(_with_labels(frame.lazy(), names, shift)) for file, frame in files.items()}
    normal = normalise_events(events, make_codes(names.lazy()), form=options.code_form, bare="icd10")
    return DeliveredCohort(
        kind=KIND,
        subjects_table=f"people of {', '.join(files)}",
        subjects=make_subjects(people.lazy(), split_from_files=options.split_from_files),
        events=normal.events,
        codes=normal.codes.filter(~Codes.code.col.is_in(_NO_EVENTS)),
        event_rules=_label_rules(),
        notes=[*_notes(people, names, shift, options), *normal.notes],
    )


def read_labels(path: Path) -> list[str]:
    """Read one name a line; a file of labels that lacks those this importer relies on is refused."""
    if not path.is_file():
        raise InputContractError([Violation(str(path), "", "not found")])
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputContractError([Violation(str(path), "", "cannot be read as UTF-8 text")]) from error
    labels = [line.strip().strip('"').strip() for line in text.rstrip("\r\n").splitlines()]
    faults = [
        Violation(str(path), "", f"must have one line '{label}', found {labels.count(label)}")
        for label in (*_SEX_LABELS, _DEATH_LABEL)
        if labels.count(label) != 1
    ]
    if blank := [number for number, label in enumerate(labels) if not label]:
        faults.append(Violation(str(path), "", "a line must not be empty", len(blank), tuple(blank[:FIRST_ROWS_SHOWN])))
    if faults:
        raise InputContractError(faults)
    return labels


def read_triples(path: Path) -> pl.DataFrame:
    """Read the rows of one binary file: person, age, token, as they stand there."""
    size = path.stat().st_size
    if size == 0 or size % _BYTES_PER_ROW:
        fault = "holds no rows" if size == 0 else f"is cut: its {size} bytes are not whole rows of {_BYTES_PER_ROW}"
        raise InputContractError([Violation(str(path), "", fault)])
    try:
        triples = np.fromfile(path, dtype="<u4").reshape(-1, len(_TRIPLE))
    except OSError as error:
        raise InputContractError([Violation(str(path), "", "cannot be opened (are you allowed to?)")]) from error
    return pl.DataFrame({name: triples[:, place].astype(np.int64) for place, name in enumerate(_TRIPLE)})


def derive_token_shift(rows: pl.DataFrame, labels: list[str], source: Path) -> int:
    """Return the one shift under which the sex and death labels stand where they can stand."""
    fitting = [shift for shift in _SHIFTS if _shift_fits(rows, labels, shift)]
    if len(fitting) != 1:
        rule = (
            f"the tokens fit {LABELS_FILE} under {'either' if fitting else 'neither'} shift of {_SHIFTS}: "
            f"'{_FEMALE_LABEL}' or '{_MALE_LABEL}' should stand once for each person and '{_DEATH_LABEL}' in the last "
            "row; check the labels, or set token_shift"
        )
        raise InputContractError([Violation(str(source), "token", rule)])
    return fitting[0]


def name_labels(labels: list[str], *, merge_repeated: bool) -> pl.DataFrame:
    """Return the labels in order, each with its index and what `Codes` says of it."""
    label, coded = pl.col(_LABEL), pl.col(_LABEL).str.extract(_CODED, 1)
    variable, category = label.str.extract(_LIFESTYLE, 1).str.to_lowercase(), label.str.extract(_LIFESTYLE, 2)
    repeats = coded.is_not_null() & ~coded.is_first_distinct()
    code = (
        pl.when(label == _DEATH_LABEL).then(pl.lit(DEATH_CODE))
        .when(variable.is_not_null()).then(pl.concat_str(variable, category, separator=CATEGORY_SEPARATOR))
        .when(coded.is_not_null() & ~(repeats & (not merge_repeated))).then(coded)
        .otherwise(label)
    )  # fmt: skip
    kind = (
        pl.when(label == _DEATH_LABEL).then(pl.lit(DEATH))
        .when(variable.is_not_null() | label.is_in(_NO_EVENTS)).then(pl.lit(COVARIATE))
        .otherwise(pl.lit(DISEASE))
    )  # fmt: skip
    return pl.DataFrame({_LABEL: labels}).select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias(_INDEX),
        label,
        code.alias(Codes.code.name),
        kind.alias(Codes.kind.name),
        label.str.extract(_CODED, 2).fill_null(label).alias(Codes.description.name),
        pl.lit(None, dtype=pl.String).alias(Codes.chapter.name),
    )


def make_codes(names: pl.LazyFrame) -> pl.LazyFrame:
    """Return `Codes` of the labels, one row a code; labels that are no events count as covariates."""
    return names.select(Codes.column_names()).unique(Codes.code.name, keep="first", maintain_order=True)


def summarise_people(labelled: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row a person: sex labels seen, age of the last row that says something, files, youngest row's file."""
    label, age = pl.col(_LABEL), pl.col("age")
    tells = ~label.is_in(_NO_EVENTS) & (age <= MAX_AGE_DAYS)
    return (
        labelled.group_by("person", maintain_order=True)
        .agg(
            (label == _FEMALE_LABEL).any().alias(FEMALE),
            (label == _MALE_LABEL).any().alias(MALE),
            age.filter(tells).max().alias("last_age"),
            pl.col(_FILE).n_unique().alias("n_files"),
            pl.col(_FILE).sort_by("age", maintain_order=True).first(),
        )
    )  # fmt: skip


def make_subjects(people: pl.LazyFrame, *, split_from_files: bool) -> pl.LazyFrame:
    """Turn the summary of each person into `Subjects`."""
    sex = (
        pl.when(pl.col(FEMALE) & ~pl.col(MALE)).then(pl.lit(FEMALE))
        .when(pl.col(MALE) & ~pl.col(FEMALE)).then(pl.lit(MALE))
        .otherwise(pl.lit(UNKNOWN))
    )  # fmt: skip
    split = pl.col(_FILE).replace_strict(_SPLIT_OF_FILE, return_dtype=pl.String)
    return people.select(
        pl.col("person").alias(Subjects.subject_id.name),
        sex.alias(Subjects.sex.name),
        pl.lit(None, dtype=pl.Date).alias(Subjects.birth_date.name),
        pl.lit(0.0).alias(Subjects.entry_age_days.name),
        pl.col("last_age").fill_null(0).cast(pl.Float64).alias(Subjects.exit_age_days.name),
        pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
        (split if split_from_files else pl.lit(None, dtype=pl.String)).alias(Subjects.split.name),
    )


def make_events(labelled: pl.LazyFrame) -> pl.LazyFrame:
    """Turn rows with their labels into events; rows that are none keep their label as code, for a rule to drop."""
    return labelled.select(
        pl.col("person").alias(Events.subject_id.name),
        pl.col("age").cast(pl.Float64).alias(Events.age_days.name),
        Events.code.col,
        pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name),
    )


def _read_files(source: Path) -> dict[str, pl.DataFrame]:
    files = {name: source / name for name in _SPLIT_OF_FILE if (source / name).is_file()}
    if not files:
        raise InputContractError([Violation(str(source), "", f"holds none of {', '.join(_SPLIT_OF_FILE)}")])
    return {name: read_triples(path) for name, path in files.items()}


def _shift_fits(rows: pl.DataFrame, labels: list[str], shift: int) -> bool:
    female, male, death = (labels.index(label) - shift for label in (*_SEX_LABELS, _DEATH_LABEL))
    token, age = pl.col("token"), pl.col("age")
    people = rows.group_by("person").agg(
        token.is_in([female, male]).sum().alias("n_sex"),
        (token == death).sum().alias("n_deaths"),
        (age.filter(token == death).min() < age.max()).any().alias("lives_on"),
    )
    fits = (
        (pl.col("n_sex").max() <= 1)
        & ((pl.col("n_sex") == 1).mean() >= _LEAST_SHARE_WITH_SEX)
        & (pl.col("n_deaths").max() <= 1)
        & ~pl.col("lives_on").any()
    )
    return bool(people.select(fits).item())


def _refuse_unknown_tokens(files: Mapping[str, pl.DataFrame], shift: int, n_labels: int, source: Path) -> None:
    faults = []
    for file, rows in files.items():
        beyond = rows.select((pl.col("token") + shift >= n_labels).arg_true()).to_series()
        if len(beyond):
            rule = f"must have a line in {LABELS_FILE} ({n_labels} lines, shift {shift})"
            faults.append(
                Violation(str(source / file), "token", rule, len(beyond), tuple(beyond.head(FIRST_ROWS_SHOWN)))
            )
    if faults:
        raise InputContractError(faults)


def _with_labels(rows: pl.LazyFrame, names: pl.DataFrame, shift: int) -> pl.LazyFrame:
    return rows.with_columns((pl.col("token") + shift).alias(_INDEX)).join(
        names.lazy().select(_INDEX, _LABEL, Codes.code.name), on=_INDEX, how="left", maintain_order="left"
    )


def _label_rules() -> list[RowRule]:
    code = Events.code.col
    return [
        RowRule("sex_row", "the row says the person's sex, which is kept among the people", code.is_in(_SEX_LABELS)),
        RowRule("no_event_row", f"the row says '{_PADDING}' or '{_NO_EVENT}'", code.is_in([_PADDING, _NO_EVENT])),
    ]


def _notes(people: pl.DataFrame, names: pl.DataFrame, shift: int, options: DelphiBinOptions) -> list[Note]:
    coded = pl.col(_LABEL).str.extract(_CODED, 1)
    repeated = names.filter(coded.is_not_null() & ~coded.is_first_distinct())[_LABEL].to_list()
    origin = "derived from the rows" if options.token_shift is None else "as set"
    both, neither = pl.col(FEMALE) & pl.col(MALE), ~pl.col(FEMALE) & ~pl.col(MALE)
    counted = (
        ("sex_missing", "people without a row of their sex, kept as unknown", people.filter(neither).height),
        ("sex_contradicts", "people with rows of both sexes, kept as unknown", people.filter(both).height),
        ("cut_by_files", "people whose rows lie in both files, put together", people.filter(n_files=2).height),
    )
    handled = "one code with the earlier label" if options.merge_repeated_codes else "a code under its whole name"
    return [
        Note("token_shift", f"{shift} was added to each token to get its line in {LABELS_FILE} ({origin})"),
        Note("exit_at_last_row", "the files give no end of follow-up: exit is the age of a person's last row"),
        *(Note(name, text, rows) for name, text, rows in counted if rows),
        *(Note("repeated_code", f"label '{label}' repeats a code: {handled}") for label in repeated),
    ]
