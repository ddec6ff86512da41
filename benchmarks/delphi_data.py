"""Delphi's simulated cohort as an ordinary cohort and dataset, so that the product's own path is what is measured.

Source: gerstung-lab/Delphi, `data/ukb_simulated_data`: `train.bin` and `val.bin` hold uint32 triples (person, age in
days, token), `labels.csv` names token t on its line t + 2. Tokens 1 and 2 are sex, 1268 is death, the rest are first
diagnoses. Conventions:

- train.bin is train, save every tenth of its people, who are tuning; val.bin is held_out.
- Nothing is known of observation: entry = 0 (birth), exit = the age of the last row, of the dead as of the living.
- The files were cut by rows, so that each begins in the middle of a person, without the sex and the rows before. The
  first person of val.bin is the last of train.bin. Both remainders are left out: their entry is not birth, and the one
  in val.bin was trained on. The person whose rows end with train.bin is kept, censored there.
- A code is the first word of its label, the ICD-10 code. O01 names two tokens; they stay apart as `O01#935` and
  `O01#1267`.
- Every code of a training person is in the vocabulary. Codes of held-out people alone are no model's targets.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.cohort import (
    DEATH,
    DEATH_CODE,
    DISEASE,
    FEMALE,
    HELD_OUT,
    MALE,
    TRAIN,
    TUNING,
    Codes,
    Events,
    Subjects,
)
from data_schemas.import_report import Note
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset

FOLDER = "delphi_simulated"  # below the folder that the variable DEEPHEALTH_TEST_DATA names
_TRAIN_FILE, _HELD_OUT_FILE, _LABELS_FILE = "train.bin", "val.bin", "labels.csv"
_PERSON, _AGE, _TOKEN = "person", "age", "token"  # columns of the triples
_SEX_OF_TOKEN = {1: FEMALE, 2: MALE}
_DEATH_TOKEN = 1268
_LABEL_SHIFT = 1  # Delphi's loader adds one to the tokens of the files; the labels are those of the sum
_TUNING_EVERY = 10


def prepare_delphi(source: Path, folder: Path, n_people: int | None = None) -> Path:
    """Import and prepare the cohort below `folder` and return the dataset.

    Args:
        source: the folder with the two files and the labels.
        folder: where `cohort` and `dataset` are written.
        n_people: the first so many of each file; None is all.
    """
    train, held_out = (_first_people(read_triples(source / name), n_people) for name in (_TRAIN_FILE, _HELD_OUT_FILE))
    labels = (source / _LABELS_FILE).read_text(encoding="utf-8").splitlines()
    finish_import(deliver_delphi(train, held_out, labels), folder / "cohort")
    settings = PrepareConfig.model_validate({"min_subjects": 1})
    return prepare_dataset(folder / "cohort", folder / "dataset", settings).folder


def read_triples(path: Path) -> pl.DataFrame:
    """Read the rows of one file: uint32 triples, little-endian, without a header."""
    columns = np.fromfile(path, dtype="<u4").reshape(-1, 3).T.astype(np.int64)
    return pl.DataFrame(dict(zip((_PERSON, _AGE, _TOKEN), columns, strict=True)))


def deliver_delphi(train: pl.DataFrame, held_out: pl.DataFrame, labels: Sequence[str]) -> DeliveredCohort:
    """Turn the triples of the two files into people, events and codes."""
    whole = {_TRAIN_FILE: _people_from_birth(train), _HELD_OUT_FILE: _people_from_birth(held_out)}
    codes = make_codes(labels)
    n_left_out = train.height + held_out.height - sum(rows.height for rows in whole.values())
    return DeliveredCohort(
        kind="delphi-bin",
        subjects_table="people of both files",
        subjects=pl.concat(
            [
                make_subjects(whole[_TRAIN_FILE], _split_of_training_people()),
                make_subjects(whole[_HELD_OUT_FILE], pl.lit(HELD_OUT)),
            ]
        ).lazy(),
        events={name: make_events(rows, codes).lazy() for name, rows in whole.items()},
        codes=codes.select(Codes.column_names()).lazy(),
        notes=[Note("remainders", "rows of people whose first rows lie in another file, left out", n_left_out)],
    )


def make_codes(labels: Sequence[str]) -> pl.DataFrame:
    """Return `Codes` and the token of each: the first word of the label, with the token where two labels share it."""
    code = pl.col(Codes.description.name).str.split(" ").list.first()
    kind = pl.when(pl.col(_TOKEN) == _DEATH_TOKEN).then(pl.lit(DEATH)).otherwise(pl.lit(DISEASE))
    return (
        pl.DataFrame({Codes.description.name: labels})
        .with_columns(code.alias(Codes.code.name), (pl.int_range(pl.len()) - _LABEL_SHIFT).alias(_TOKEN))
        .filter(pl.col(_TOKEN) > max(_SEX_OF_TOKEN))
        .with_columns(
            pl.when(pl.col(_TOKEN) == _DEATH_TOKEN).then(pl.lit(DEATH_CODE))
            .when(Codes.code.col.is_duplicated()).then(pl.format("{}#{}", Codes.code.col, pl.col(_TOKEN)))
            .otherwise(Codes.code.col)
            .alias(Codes.code.name),
            kind.alias(Codes.kind.name),
            pl.lit(None, dtype=pl.String).alias(Codes.chapter.name),
        )
    )  # fmt: skip


def make_subjects(rows: pl.DataFrame, split: pl.Expr) -> pl.DataFrame:
    """Return `Subjects` of whole people, by id."""
    sex = pl.col(_TOKEN).filter(pl.col(_TOKEN).is_in(list(_SEX_OF_TOKEN))).first()
    return (
        rows.group_by(pl.col(_PERSON).alias(Subjects.subject_id.name))
        .agg(
            sex.replace_strict(_SEX_OF_TOKEN, return_dtype=pl.String).alias(Subjects.sex.name),
            pl.lit(None, dtype=pl.Date).alias(Subjects.birth_date.name),
            pl.lit(0.0).alias(Subjects.entry_age_days.name),
            pl.col(_AGE).max().cast(pl.Float64).alias(Subjects.exit_age_days.name),
            pl.lit(None, dtype=pl.String).alias(Subjects.cluster_id.name),
        )
        .sort(Subjects.subject_id.name)
        .with_columns(split.alias(Subjects.split.name))
        .select(Subjects.column_names())
    )


def make_events(rows: pl.DataFrame, codes: pl.DataFrame) -> pl.DataFrame:
    """Return `DeliveredEvents`: every row that does not say the sex."""
    return rows.join(codes, on=_TOKEN, maintain_order="left").select(
        pl.col(_PERSON).alias(Events.subject_id.name),
        pl.col(_AGE).cast(pl.Float64).alias(Events.age_days.name),
        Events.code.col,
        pl.lit(None, dtype=pl.Float64).alias(Events.numeric_value.name),
    )


def _split_of_training_people() -> pl.Expr:
    """Return the split of people in the order of their ids."""
    is_tuning = pl.int_range(pl.len()) % _TUNING_EVERY == _TUNING_EVERY - 1
    return pl.when(is_tuning).then(pl.lit(TUNING)).otherwise(pl.lit(TRAIN))


def _people_from_birth(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of people whose sex is said, which is their first row, at birth."""
    return rows.filter(pl.col(_TOKEN).is_in(list(_SEX_OF_TOKEN)).any().over(_PERSON))


def _first_people(rows: pl.DataFrame, n_people: int | None) -> pl.DataFrame:
    ids = rows[_PERSON].unique(maintain_order=True)
    return rows if n_people is None else rows.filter(pl.col(_PERSON).is_in(ids.head(n_people).implode()))
