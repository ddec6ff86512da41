"""The folder `truth/` of a made-up cohort, written and read back; nothing in it is executed."""

from pathlib import Path

import polars as pl
from pydantic import ValidationError

from data_schemas.cohort import DEATH_CODE
from data_schemas.errors import InputContractError, Violation
from data_schemas.truth import (
    COMORBIDITIES_FILE,
    HAZARDS_FILE,
    TRUTH_FOLDER,
    WORLD_FILE,
    TrueComorbidities,
    TrueHazards,
)
from pipelines.import_cohort.check_contract import check_file, raise_violations
from pipelines.synthesize.world import World, WorldSettings, world_of
from pipelines.tables_on_disk import read_json, require_file, write_json, write_parquet

_NO_TRUTH = "not found; only a cohort of `deephealth cohort synthesize` has a truth"


def write_truth(settings: WorldSettings, hazards: pl.DataFrame, comorbidities: pl.DataFrame, cohort: Path) -> None:
    """Write the settings and the two tables of a world to `cohort/truth/`."""
    truth = cohort / TRUTH_FOLDER
    truth.mkdir()
    write_json(settings.model_dump(mode="json"), truth / WORLD_FILE)
    write_parquet(TrueHazards.validate(hazards), truth / HAZARDS_FILE)
    write_parquet(TrueComorbidities.validate(comorbidities), truth / COMORBIDITIES_FILE)


def read_truth(cohort: Path) -> World:
    """Read the truth of a made-up cohort.

    Raises:
        InputContractError: there is none, or it breaks its contract.
    """
    truth = cohort / TRUTH_FOLDER
    path = require_file(truth / WORLD_FILE, _NO_TRUTH)
    try:
        settings = WorldSettings.model_validate(read_json(path))
    except (ValidationError, ValueError) as error:
        raise InputContractError([Violation(str(path), "", "is not a truth that this version can read")]) from error
    hazards = check_file(truth / HAZARDS_FILE, TrueHazards)
    comorbidities = check_file(truth / COMORBIDITIES_FILE, TrueComorbidities, may_be_empty=True)
    raise_violations(
        [fault for table in (hazards, comorbidities) for fault in (*table.structure_faults, *table.row_faults)]
    )
    hazard_table, comorbidity_table = hazards.frame.collect(), comorbidities.frame.collect()
    raise_violations(_order_faults(hazard_table, comorbidity_table, truth))
    return world_of(settings, hazard_table, comorbidity_table)


def _order_faults(hazards: pl.DataFrame, comorbidities: pl.DataFrame, truth: Path) -> list[Violation]:
    """Find what would make a code depend on itself or on nothing: the tables are read in one pass, causes first."""
    codes = hazards[TrueHazards.code.name]
    cause, effect = (
        comorbidities[column].replace_strict(codes, range(codes.len()), default=None, return_dtype=pl.Int64)
        for column in (TrueComorbidities.cause.name, TrueComorbidities.effect.name)
    )
    wrong = int((~(cause < effect).fill_null(value=False)).sum())
    place, column = str(truth / COMORBIDITIES_FILE), TrueComorbidities.cause.name
    faults = [Violation(place, column, f"must stand in an earlier row of {HAZARDS_FILE} than its effect", wrong)]
    last = [Violation(str(truth / HAZARDS_FILE), TrueHazards.code.name, f"must end with {DEATH_CODE}")]
    return (faults if wrong else []) + ([] if codes[-1] == DEATH_CODE else last)
