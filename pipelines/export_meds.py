"""Export a cohort as a dataset of the Medical Event Data Standard (MEDS 0.4), and risks as MEDS predictions.

The dataset is `data/{train,tuning,held_out,unassigned}/N.parquet` (one file for each file of events and split) and
`metadata/{dataset.json,codes.parquet,subject_splits.parquet}`. Conventions:

- A person has, in this order: sex (`GENDER//F`, `GENDER//M`; none for unknown) and cluster (`SPLIT//CLUSTER`, the name
  in `text_value`) without a time; `MEDS_BIRTH` at midnight of the birth date; `OBSERVATION//START` at entry; events in
  the order of the cohort, death as `MEDS_DEATH`; `OBSERVATION//END` at exit. `from_meds` reads all of these back.
- A time is midnight of the day of birth plus the age: steps of 1/256 day are whole microseconds, so ages come back
  exactly. Without a birth date birth is put on 1900-01-01 under the code `MEDS_BIRTH//ASSUMED`; `dataset.json` says so
  and counts the people. Their ages are right, their calendar is not.
- `subject_id` of MEDS is int64. Ids that are text are numbered from 1 in their order, and stand as delivered in a
  further column, `source_subject_id`, which `dataset.json` lists under `raw_source_id_columns`.
- `numeric_value` of MEDS is float32. Where that loses digits of any value of the cohort, a further column
  `numeric_value_float64` holds all of them, listed under `additional_value_modality_columns`; a value too large for
  float32 is null in the standard column.
- `codes.parquet` lists every code with the description, kind and chapter of the cohort (null where it has none).
- Tables are brought into shape by `align` of `meds`; the finished dataset must pass `check_meds` before it appears.

Predictions are one file for each outcome and horizon, in the schema that meds-evaluation 0.0.6 reads.
"""

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from flexible_schema import Optional, PyArrowSchema
from meds.schema import (
    CodeMetadataSchema,
    DataSchema,
    DatasetMetadataSchema,
    LabelSchema,
    SubjectSplitSchema,
    birth_code,
    code_metadata_filepath,
    data_subdirectory,
    dataset_metadata_filepath,
    death_code,
    subject_splits_filepath,
)

from data_schemas.cohort import DEATH_CODE, FEMALE, MALE, SUBJECTS_FILE, Codes, Events, Subjects
from data_schemas.errors import InputContractError, Violation
from data_schemas.results import Risks
from pipelines.check_meds import check_meds
from pipelines.import_cohort.check_contract import check_contract
from pipelines.import_cohort.from_meds import (
    ASSUMED,
    CLUSTER_CODE,
    ENTRY_CODE,
    EXIT_CODE,
    FEMALE_CODE,
    MALE_CODE,
    MODIFIER,
    OUR_ETL,
    OWN_ID,
    OWN_NUMBER,
    UNASSIGNED,
    is_code,
    person_codes,
)
from pipelines.tables_on_disk import event_files, read_codes, read_subjects, scan_events, write_json
from pipelines.whole_folders import FolderKind, replace_folder_when_done

MEDS_FOLDER = FolderKind(
    "MEDS dataset", marks=(data_subdirectory, "metadata"), contents=(data_subdirectory, "metadata")
)
PREDICTIONS_FILE = "predictions.json"
PREDICTIONS_FOLDER = FolderKind("MEDS predictions", marks=(PREDICTIONS_FILE,), contents=("*",))
ASSUMED_BIRTH_DATE = date(1900, 1, 1)
ASSUMED_BIRTH_CODE = f"{birth_code}{MODIFIER}{ASSUMED}"
_MICROSECONDS_PER_DAY = 86_400_000_000

_SUBJECT, _TIME, _CODE = DataSchema.subject_id_name, DataSchema.time_name, DataSchema.code_name
_NUMBER, _TEXT = DataSchema.numeric_value_name, DataSchema.text_value_name
_ID = Subjects.subject_id.name
_MEDS_ID, _ZERO, _RANK = "meds_subject_id", "zero", "rank"  # working columns; zero: midnight of the day of birth
_DESCRIPTIONS = {
    birth_code: "Birth",
    ASSUMED_BIRTH_CODE: "Birth on a date that is assumed: only ages are known",
    FEMALE_CODE: "Female",
    MALE_CODE: "Male",
    ENTRY_CODE: "Observation starts",
    EXIT_CODE: "Observation ends",
    CLUSTER_CODE: "People with the same text belong together and share a split",
}


class PredictionSchema(LabelSchema):
    """A file of predictions as meds-evaluation 0.0.6 reads it: both columns must be there, one may be all null."""

    predicted_boolean_value: Optional(pa.bool_())  # type: ignore[valid-type]
    predicted_boolean_probability: Optional(pa.float32())  # type: ignore[valid-type]


@dataclass(frozen=True)
class MedsExport:
    """What was written."""

    subjects: int
    rows: int
    files: int
    assumed_births: int


@dataclass(frozen=True)
class PredictionExport:
    """What was written; people without a risk (prevalent, dead, outside follow-up) are in no file."""

    files: int
    rows: int
    without_risk: int


def export_meds(cohort: Path, out: Path, *, name: str = "cohort") -> MedsExport:
    """Write the cohort in the folder `cohort` as a MEDS dataset to the folder `out`.

    Raises:
        UsageError: `out` holds something else or cannot be written.
        InputContractError: there is no cohort, or a code of it has a meaning of its own in MEDS.
    """
    _refuse_reserved_codes(scan_events(cohort))
    people = number_people(_read_people(cohort))
    exact = _fits_float32(scan_events(cohort))
    n_rows = n_files = 0
    with replace_folder_when_done(out, MEDS_FOLDER) as folder:
        codes = pl.DataFrame(schema={_CODE: pl.String})
        for place, rows in _split_rows(cohort, people):
            table = _to_data_table(rows, exact=exact, text_ids=people.schema[_ID] == pl.String)
            _write_table(table, folder / data_subdirectory / place)
            codes = pl.concat([codes, rows.select(pl.col(_CODE).unique())]).unique()
            n_rows, n_files = n_rows + rows.height, n_files + 1
        _write_codes(codes, read_codes(cohort), folder)
        _write_splits(people, folder)
        content = _describe_dataset(people, name=name, exact=exact)
        write_json(content, folder / dataset_metadata_filepath)
        check_meds(folder)
    return MedsExport(people.height, n_rows, n_files, content["assumed_birth"]["subjects"])


def export_predictions(risks: Path, cohort: Path, out: Path) -> PredictionExport:
    """Write `risks/*.parquet` as MEDS predictions: `out/OUTCOME/DAYS.parquet`, DAYS being the horizon.

    The time of a prediction is that of the landmark; people and times are those of `export_meds`. Characters of an
    outcome that a file name cannot have are written as %XX. `predicted_boolean_value` is null: a risk is no decision.
    There are no labels: whether somebody censored had the outcome is not known. `out/predictions.json` lists the files.

    Raises:
        UsageError: `out` holds something else or cannot be written.
        InputContractError: there are no risks, or people in them who are not in the cohort.
    """
    files = sorted(risks.glob("*.parquet"))
    if not files:
        raise InputContractError([Violation(str(risks), "", "holds no parquet file of risks")])
    scored = pl.scan_parquet(files, glob=False)
    people = number_people(_read_people(cohort))
    _refuse_unknown_people(scored, people, risks)
    keys = [Risks.outcome.name, Risks.horizon_days.name]
    counts = scored.group_by(keys).agg(pl.len(), Risks.risk.col.is_not_null().sum()).sort(keys).collect()
    listed = []
    with replace_folder_when_done(out, PREDICTIONS_FOLDER) as folder:
        for outcome, horizon, n_people, n_scored in counts.iter_rows():
            place = f"{quote(outcome, safe=' ')}/{horizon:g}.parquet"
            chosen = scored.filter(Risks.outcome.col == outcome, Risks.horizon_days.col == horizon)
            _write_table(_to_prediction_table(chosen, people), folder / place)
            without = n_people - n_scored
            listed.append({**dict(zip(keys, (outcome, horizon), strict=True)), "file": place, "without_risk": without})
        write_json({"predictions": listed}, folder / PREDICTIONS_FILE)
    n_rows = int(counts[Risks.risk.name].sum())
    return PredictionExport(len(listed), n_rows, int(counts["len"].sum()) - n_rows)


def _read_people(cohort: Path) -> pl.DataFrame:
    """Read `subjects.parquet` with all columns of `Subjects`; those that may be missing are null then."""
    return check_contract(read_subjects(cohort), Subjects, SUBJECTS_FILE).collect()


def number_people(subjects: pl.DataFrame) -> pl.DataFrame:
    """Add the id in MEDS and midnight of the (perhaps assumed) day of birth to `Subjects`."""
    number = pl.col(_ID).rank("ordinal").cast(pl.Int64) if subjects.schema[_ID] == pl.String else pl.col(_ID)
    birth = Subjects.birth_date.col.fill_null(ASSUMED_BIRTH_DATE).cast(pl.Datetime("us"))
    return subjects.with_columns(number.alias(_MEDS_ID), birth.alias(_ZERO))


def _time_at(age_days: pl.Expr) -> pl.Expr:
    """Return the time at an age: 1/256 day is 337,500,000 microseconds."""
    return pl.col(_ZERO) + pl.duration(microseconds=(age_days * _MICROSECONDS_PER_DAY).round().cast(pl.Int64))


def _refuse_reserved_codes(events: pl.LazyFrame) -> None:
    """Refuse codes that a reader of the dataset would take for birth, sex, death or observation."""
    found = events.select(Events.code.col.unique()).filter(is_code(Events.code.col, person_codes())).collect()
    if found.height:
        names = ", ".join(sorted(found[Events.code.name]))
        rule = f"has codes with a meaning of their own in a MEDS dataset: {names}"
        raise InputContractError([Violation("events", Events.code.name, rule)])


def _refuse_unknown_people(scored: pl.LazyFrame, people: pl.DataFrame, risks: Path) -> None:
    strangers = (
        scored.join(people.lazy(), on=_ID, how="anti").select(pl.col(_ID).n_unique()).collect().item()
        if scored.collect_schema()[_ID] == people.schema[_ID]
        else scored.select(pl.col(_ID).n_unique()).collect().item()
    )
    if strangers:
        raise InputContractError([Violation(str(risks), _ID, "people must be in the cohort", strangers)])


def _fits_float32(events: pl.LazyFrame) -> bool:
    value = Events.numeric_value.col
    return not events.select((value.cast(pl.Float32).cast(pl.Float64) != value).any()).collect().item()


def _split_rows(cohort: Path, people: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the place of each file and its rows: one for each file of events and split; last, people without events."""
    seen = pl.Series(_ID, [], dtype=people.schema[_ID])
    for number, path in enumerate(event_files(cohort)):
        events = pl.read_parquet(path, glob=False)
        ids = events[_ID].unique()
        yield from _rows_by_split(people.filter(pl.col(_ID).is_in(ids.implode())), events, number)
        seen = pl.concat([seen, ids])
    without = people.filter(~pl.col(_ID).is_in(seen.implode()))
    if without.height:
        yield from _rows_by_split(without, events.clear(), number + 1)


def _rows_by_split(people: pl.DataFrame, events: pl.DataFrame, number: int) -> Iterator[tuple[str, pl.DataFrame]]:
    split = Subjects.split.col.fill_null(UNASSIGNED)
    for (name,), members in people.with_columns(split).group_by(Subjects.split.name, maintain_order=True):
        yield f"{name}/{number}.parquet", make_rows(members.lazy(), events.lazy()).collect()


def make_rows(people: pl.LazyFrame, events: pl.LazyFrame) -> pl.LazyFrame:
    """Return all rows of these people in the order of the standard; `numeric_value` is still float64.

    Columns: the id in MEDS and in the cohort, time, code, value, text.
    """
    nothing = pl.lit(None, dtype=pl.Float64).alias(_NUMBER)
    no_text = pl.lit(None, dtype=pl.String).alias(_TEXT)
    never = pl.lit(None, dtype=pl.Datetime("us")).alias(_TIME)
    ids = (_MEDS_ID, _ID)
    sex = Subjects.sex.col.replace_strict({FEMALE: FEMALE_CODE, MALE: MALE_CODE}, default=None, return_dtype=pl.String)
    birth = pl.when(Subjects.birth_date.col.is_null()).then(pl.lit(ASSUMED_BIRTH_CODE)).otherwise(pl.lit(birth_code))
    entry, end = _time_at(Subjects.entry_age_days.col), _time_at(Subjects.exit_age_days.col)
    text = Subjects.cluster_id.col.alias(_TEXT)
    code = Events.code.col.replace({DEATH_CODE: death_code})
    parts = [
        people.select(*ids, never, sex.alias(_CODE), nothing, no_text).filter(pl.col(_CODE).is_not_null()),
        people.select(*ids, never, pl.lit(CLUSTER_CODE).alias(_CODE), nothing, text).filter(
            pl.col(_TEXT).is_not_null()
        ),
        people.select(*ids, pl.col(_ZERO).alias(_TIME), birth.alias(_CODE), nothing, no_text),
        people.select(*ids, entry.alias(_TIME), pl.lit(ENTRY_CODE).alias(_CODE), nothing, no_text),
        events.join(people, on=_ID, maintain_order="left").select(
            *ids,
            _time_at(Events.age_days.col).alias(_TIME),
            code.alias(_CODE),
            Events.numeric_value.col.alias(_NUMBER),
            no_text,
        ),
        people.select(*ids, end.alias(_TIME), pl.lit(EXIT_CODE).alias(_CODE), nothing, no_text),
    ]
    ranked = pl.concat([part.with_columns(pl.lit(rank).alias(_RANK)) for rank, part in enumerate(parts)])
    return ranked.sort(_MEDS_ID, _TIME, _RANK, maintain_order=True, nulls_last=False).drop(_RANK)


def _to_data_table(rows: pl.DataFrame, *, exact: bool, text_ids: bool) -> pa.Table:
    """Bring rows into the columns and types of the standard, with our further columns where they are needed."""
    rounded = pl.col(_NUMBER).cast(pl.Float32)
    further = [
        *([pl.col(_ID).alias(OWN_ID)] if text_ids else []),
        *([] if exact else [pl.col(_NUMBER).alias(OWN_NUMBER)]),
    ]
    columns = rows.select(
        pl.col(_MEDS_ID).alias(_SUBJECT),
        _TIME,
        _CODE,
        pl.when(rounded.is_finite()).then(rounded).alias(_NUMBER),
        _TEXT,
        *further,
    )
    return _align(columns, DataSchema)


def _align(frame: pl.DataFrame, schema: type[PyArrowSchema]) -> pa.Table:
    """Bring a frame into the types of a schema of `meds` (text of polars is large_string, which it refuses)."""
    table = schema.align(frame.to_arrow())
    schema.validate(table)
    return table


def _write_table(table: pa.Table, path: Path) -> None:
    """Write one file into the folder that is in the making."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _write_codes(used: pl.DataFrame, codes: pl.DataFrame, folder: Path) -> None:
    """List every code once: with what the cohort says about it, or what a code of ours means."""
    known = codes.rename({Codes.code.name: _CODE}).with_columns(pl.col(_CODE).replace({DEATH_CODE: death_code}))
    described = used.join(known, on=_CODE, how="full", coalesce=True).with_columns(
        Codes.description.col.fill_null(pl.col(_CODE).replace_strict(_DESCRIPTIONS, default=None)),
        pl.lit(None, dtype=pl.List(pl.String)).alias(CodeMetadataSchema.parent_codes_name),
    )
    columns = [_CODE, CodeMetadataSchema.description_name, CodeMetadataSchema.parent_codes_name]
    ordered = described.select(*columns, Codes.kind.name, Codes.chapter.name).sort(_CODE)
    _write_table(_align(ordered, CodeMetadataSchema), folder / code_metadata_filepath)


def _write_splits(people: pl.DataFrame, folder: Path) -> None:
    """Write the splits of those who have one; no file where nobody has."""
    splits = people.filter(Subjects.split.col.is_not_null()).select(
        pl.col(_MEDS_ID).alias(SubjectSplitSchema.subject_id_name),
        Subjects.split.col.alias(SubjectSplitSchema.split_name),
    )
    if splits.height:
        table = _align(splits.sort(SubjectSplitSchema.subject_id_name), SubjectSplitSchema)
        _write_table(table, folder / subject_splits_filepath)


def _describe_dataset(people: pl.DataFrame, *, name: str, exact: bool) -> dict[str, Any]:
    """Return the content of `dataset.json`; the last key is ours, as the standard allows."""
    schema = DatasetMetadataSchema
    return {
        schema.dataset_name_name: name,
        schema.etl_name_name: OUR_ETL,
        schema.etl_version_name: importlib.metadata.version("deephealth"),
        schema.meds_version_name: importlib.metadata.version("meds"),
        schema.created_at_name: datetime.now(UTC).isoformat(timespec="seconds"),
        schema.raw_source_id_columns_name: [OWN_ID] if people.schema[_ID] == pl.String else [],
        schema.additional_value_modality_columns_name: [] if exact else [OWN_NUMBER],
        "assumed_birth": {
            "date": ASSUMED_BIRTH_DATE.isoformat(),
            "code": ASSUMED_BIRTH_CODE,
            "subjects": people[Subjects.birth_date.name].null_count(),
        },
    }


def _to_prediction_table(risks: pl.LazyFrame, people: pl.DataFrame) -> pa.Table:
    """Return the predictions of one outcome and horizon, in the order of the cohort's risks."""
    predictions = (
        risks.filter(Risks.risk.col.is_not_null())
        .join(people.lazy().select(_ID, _MEDS_ID, _ZERO), on=_ID, maintain_order="left")
        .select(
            pl.col(_MEDS_ID).alias(PredictionSchema.subject_id_name),
            _time_at(Risks.landmark_age_days.col).alias(PredictionSchema.prediction_time_name),
            pl.lit(None, dtype=pl.Boolean).alias(PredictionSchema.predicted_boolean_value_name),
            Risks.risk.col.cast(pl.Float32).alias(PredictionSchema.predicted_boolean_probability_name),
        )
    )
    return _align(predictions.collect(), PredictionSchema)
