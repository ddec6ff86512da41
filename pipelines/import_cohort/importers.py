"""The importers by the name of their source, and the one way through all of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, create_model

from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.import_report import ImportReport
from pipelines.import_cohort import (
    from_delphi_bin,
    from_desynpuf,
    from_meds,
    from_mimic_iv,
    from_nafld,
    from_omop,
    from_parquet,
    from_synthea,
    from_ukb,
)
from pipelines.import_cohort.clean_events import CleaningConfig
from pipelines.import_cohort.finish_import import DeliveredCohort, finish_import

Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True)
class Importer:
    """One kind of source: its settings, and the function that turns its files into people, events and codes."""

    options: type[BaseModel]
    deliver: Callable[[Path, Any], DeliveredCohort]
    takes_path: bool = True


IMPORTERS = {
    from_parquet.KIND: Importer(from_parquet.ParquetOptions, from_parquet.deliver_parquet),
    from_meds.KIND: Importer(from_meds.MedsOptions, from_meds.deliver_meds),
    from_omop.KIND: Importer(from_omop.OmopOptions, from_omop.deliver_omop),
    from_ukb.KIND: Importer(from_ukb.UkbOptions, from_ukb.deliver_ukb),
    from_mimic_iv.KIND: Importer(from_mimic_iv.MimicIvOptions, from_mimic_iv.deliver_mimic_iv),
    from_synthea.KIND: Importer(from_synthea.SyntheaOptions, from_synthea.deliver_synthea),
    from_desynpuf.KIND: Importer(from_desynpuf.DesynpufOptions, from_desynpuf.deliver_desynpuf),
    from_delphi_bin.KIND: Importer(from_delphi_bin.DelphiBinOptions, from_delphi_bin.deliver_delphi_bin),
    from_nafld.KIND: Importer(from_nafld.NafldOptions, from_nafld.deliver_nafld, takes_path=False),
}


def import_config(kind: str) -> type[BaseModel]:
    """Return the settings of one import: those of the importer and those of the cleaning rules, side by side."""
    return create_model(f"{kind} import", __base__=(IMPORTERS[kind].options, CleaningConfig))


def import_cohort(
    kind: str,
    source: Path | None,
    out: Path,
    config: BaseModel,
    *,
    strict: bool = True,
    quarantine: Path | None = None,
) -> ImportReport:
    """Import the tables of `source` into the cohort `out`; killed, it goes on when called again on the same files.

    Args:
        kind: a name of `IMPORTERS`.
        source: folder or file of the source tables; None for a kind that finds its own.
        out: folder of the cohort; an earlier cohort there is replaced.
        config: settings, of the class that `import_config` returns.
        strict: stop at rows that break the contract of their table; if not, they are dropped and counted.
        quarantine: folder for a copy of every row that is dropped.

    Raises:
        UsageError: a path is missing or one too many; `out` holds something else or cannot be written.
        InputContractError: the source breaks its contract.
    """
    importer = IMPORTERS[kind]
    if (source is not None) != importer.takes_path:
        says = "needs a PATH: where the source tables are" if importer.takes_path else "takes no PATH"
        raise UsageError(f"cohort import {kind} {says}")
    if source is not None and not source.exists():
        raise InputContractError([Violation(str(source), "", "no such folder or file")])
    place = source if source is not None else Path()
    options, cleaning = _part_of(config, importer.options), _part_of(config, CleaningConfig)
    settings = options.model_dump(mode="json")
    files = [file for path in (source, *dict(options).values()) if isinstance(path, Path) for file in _list_files(path)]
    made_of = {"kind": kind, "options": settings, "strict": strict, "files": files}
    return finish_import(
        importer.deliver(place, options),
        out,
        strict=strict,
        cleaning=cleaning,
        quarantine=quarantine,
        inputs=json.dumps(made_of, sort_keys=True),
        options=settings,
    )


def _part_of(config: BaseModel, part: type[Settings]) -> Settings:
    """Return those settings that belong to one of the two classes that `import_config` has joined."""
    return part(**{name: getattr(config, name) for name in part.model_fields})


def _list_files(source: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of every file of the source: enough to see that none has changed."""
    paths = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    return [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
