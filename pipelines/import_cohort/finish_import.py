"""The common end of every importer: clean, account for every row, write.

People are worked on in shards by a hash of their id, so that memory does not grow with the cohort. Every table is
shared out first, then each shard is cleaned, then written; an import that was killed goes on where it stopped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from data_schemas.cohort import DEATH_CODE, Codes, DeliveredEvents, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.import_report import ImportReport, Note, RuleReport, TableReport
from pipelines.import_cohort.check_contract import contract_rules, raise_violations
from pipelines.import_cohort.clean_events import SUBJECT_RULES, CleaningConfig, event_rules
from pipelines.import_cohort.clean_in_shards import PEOPLE, Account, CleanedShards, CleaningRules, clean_in_shards
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule, choose_rules, mark_rows
from pipelines.import_cohort.write_cohort import (
    COHORT_FOLDER,
    write_codes,
    write_events,
    write_report,
    write_subjects,
)
from pipelines.import_cohort.write_quarantine import QUARANTINE_FOLDER, write_quarantine
from pipelines.whole_folders import WORK_FOLDER, refuse_other_folder, replace_folder_when_done

_is_kept = pl.col(DROPPED_BY).is_null()


@dataclass(frozen=True)
class DeliveredCohort:
    """What an importer makes of its source.

    `events` (from the source) and `derived` (made by the importer, such as a death from a status) are
    `DeliveredEvents` by the name of the table they come from. The rules given here drop and count rows before the
    general cleaning rules do. `codes_table` is None where the importer itself knows the codes. `row_faults` are rows
    that the importer itself has found to break the contract of their table; rules given here drop them.
    """

    kind: str
    subjects_table: str
    subjects: pl.LazyFrame
    events: Mapping[str, pl.LazyFrame]
    codes: pl.LazyFrame
    codes_table: str | None = None
    derived: Mapping[str, pl.LazyFrame] = field(default_factory=dict)
    subject_rules: Sequence[RowRule] = ()
    event_rules: Sequence[RowRule] = ()
    code_rules: Sequence[RowRule] = ()
    notes: Sequence[Note] = ()
    row_faults: Sequence[Violation] = ()


def finish_import(
    delivered: DeliveredCohort,
    out: Path,
    *,
    strict: bool = True,
    cleaning: CleaningConfig | None = None,
    quarantine: Path | None = None,
    inputs: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Clean a delivered cohort, write it to `out` and return the report that was written with it.

    Args:
        delivered: what the importer made.
        out: folder of the cohort; an earlier cohort there is replaced.
        strict: stop at rows that break the contract of their table; if not, they are dropped and counted rule by rule.
        cleaning: settings of the cleaning rules.
        quarantine: folder for a copy of every row that a rule has dropped.
        inputs: what the delivered tables are made of (files, options); given it, a killed import goes on.
        options: settings of the importer, for the report.

    Raises:
        UsageError: `out` cannot be written or replaced; a switch names no rule.
        InputContractError: rows break their contract, or the rules leave no person or no event.
    """
    refuse_other_folder(out, COHORT_FOLDER)
    if quarantine is not None:
        _refuse_common_place(out, quarantine)
        refuse_other_folder(quarantine, QUARANTINE_FOLDER)
    raise_violations(delivered.row_faults if strict else ())
    rules = _Rules.of(delivered, cleaning or CleaningConfig())
    made_of = None if inputs is None else _made_of(inputs, rules.config, keep_dropped=quarantine is not None)
    with replace_folder_when_done(out, COHORT_FOLDER, inputs=made_of) as folder:
        cleaned = clean_in_shards(
            delivered.subjects,
            {**delivered.events, **delivered.derived},
            rules.to_clean,
            folder / WORK_FOLDER,
            subjects_table=delivered.subjects_table,
            keep_dropped=quarantine is not None,
        )
        codes = mark_rows(delivered.codes, rules.codes).collect()
        raise_violations(_contract_faults(delivered, cleaned.account) if strict else ())
        settings = {"options": dict(options or {}), "strict": strict, **rules.config.model_dump(mode="json")}
        report = _account(delivered, rules, codes, cleaned.account, settings)
        _refuse_empty(report)
        _write(cleaned, codes.filter(_is_kept).drop(DROPPED_BY), report, folder)
        if quarantine is not None:
            dropped_codes = codes.filter(~_is_kept)
            write_quarantine(quarantine, cleaned.scan_dropped_subjects(), cleaned.scan_dropped_events(), dropped_codes)
    return report


@dataclass(frozen=True)
class _Rules:
    """All rules by the table they are about, in the order in which they are applied, and those of them that are on."""

    subjects: tuple[RowRule, ...]
    events: tuple[RowRule, ...]
    codes: tuple[RowRule, ...]
    general_events: tuple[RowRule, ...]
    config: CleaningConfig
    names_on: frozenset[str]

    @classmethod
    def of(cls, delivered: DeliveredCohort, config: CleaningConfig) -> "_Rules":
        """Put the rules of the importer first, then those of the contract, then those that hold for every source."""
        subjects = (*delivered.subject_rules, *_contract_of_subjects(), *SUBJECT_RULES)
        events = (*delivered.event_rules, *contract_rules(DeliveredEvents))
        rules = (*subjects, *events, *delivered.code_rules, *event_rules(config))
        names_on = frozenset(rule.name for rule in choose_rules(rules, config.rules))
        return cls(subjects, events, tuple(delivered.code_rules), event_rules(config), config, names_on)

    @property
    def to_clean(self) -> CleaningRules:
        """The rules that are on, as cleaning wants them."""
        names = {rule.name for rule in (*self.events, *self.general_events)}
        of_events = {name: on for name, on in self.config.rules.items() if name in names}
        return CleaningRules(
            subjects=[rule for rule in self.subjects if rule.name in self.names_on],
            events=self.events,
            config=self.config.model_copy(update={"rules": of_events}),
        )

    @property
    def sentences(self) -> dict[str, str]:
        """What each rule that is on says, in the order in which they are applied."""
        rules = (*self.subjects, *self.events, *self.codes, *self.general_events)
        return {rule.name: rule.sentence for rule in rules if rule.name in self.names_on}

    def report(self, tables: Sequence[TableReport]) -> tuple[RuleReport, ...]:
        """Report each rule of cleaning, also those that are off; what the contract asks for is never off."""
        of_contract = {rule.name for schema in (Subjects, DeliveredEvents, Codes) for rule in contract_rules(schema)}
        all_rules = (*self.subjects, *self.events, *self.codes, *self.general_events)
        return tuple(
            RuleReport(
                rule=rule.name,
                text=rule.sentence,
                is_on=rule.name in self.names_on,
                by_default=rule.by_default,
                can_be_off=not rule.fixed,
                rows_dropped=sum(table.dropped.get(rule.name, 0) for table in tables),
            )
            for rule in {rule.name: rule for rule in all_rules if rule.name not in of_contract}.values()
        )


def _contract_of_subjects() -> list[RowRule]:
    """Return what the schema of people asks for, of the rows that are still kept.

    That exit lies after entry is left to cleaning: many sources hold people without follow-up.
    """
    subject_id = pl.when(_is_kept).then(Subjects.subject_id.col)
    repeats = subject_id.is_duplicated() & subject_id.is_not_null()
    return [
        replace(rule, breaks=repeats) if rule.name == f"{Subjects.subject_id.name}|unique" else rule
        for rule in contract_rules(Subjects)
        if rule.name != "exit_after_entry"
    ]


def _refuse_common_place(out: Path, quarantine: Path) -> None:
    cohort, apart = out.resolve(), quarantine.resolve()
    if cohort.is_relative_to(apart) or apart.is_relative_to(cohort):
        raise UsageError(
            f"{quarantine} and {out} lie in each other; the quarantine needs a folder apart from the cohort"
        )


def _made_of(inputs: str, config: CleaningConfig, *, keep_dropped: bool) -> str:
    """Say what the work of an import depends on."""
    versions = {package: version(package) for package in ("deephealth", "polars")}
    settings = {"cleaning": config.model_dump(mode="json"), "keep_dropped": keep_dropped}
    return json.dumps({"inputs": inputs, **settings, "versions": versions}, sort_keys=True)


def _contract_faults(delivered: DeliveredCohort, account: Account) -> list[Violation]:
    """Return the rules of the contract that rows broke, which no rule of the importer had dropped before."""
    of_people = {rule.name: rule for rule in _contract_of_subjects()}
    of_events = {rule.name: rule for rule in contract_rules(DeliveredEvents)}
    faults = []
    for (table, name), first_rows in sorted(account.first_rows.items()):
        rule = (of_people if table == PEOPLE else of_events).get(str(name))
        if rule is not None:
            file = delivered.subjects_table if table == PEOPLE else table
            faults.append(Violation(file, rule.column, rule.sentence, account.rows[table, name], first_rows))
    return faults


def _write(cleaned: CleanedShards, codes: pl.DataFrame, report: ImportReport, folder: Path) -> None:
    """Write the tables of the cohort; event files that an earlier run has written stay."""
    with_value = [code for code, rows in cleaned.account.values_of_code.items() if rows]
    write_subjects(cleaned.read_subjects(), folder)
    for shard in range(cleaned.n_shards):
        write_events(cleaned.read_events(shard), codes, with_value, folder, shard)
    write_codes(codes, folder)
    write_report(report, folder)


def _account(
    delivered: DeliveredCohort, rules: _Rules, codes: pl.DataFrame, account: Account, settings: Mapping[str, Any]
) -> ImportReport:
    """Account for every row of every table, and check that the sums are those of the cohort."""
    sentences = rules.sentences
    subject_table = _table_report(delivered.subjects_table, account.marks_of(PEOPLE), sentences)
    code_marks = dict(codes.group_by(DROPPED_BY).len().iter_rows())
    code_table = [_table_report(table, code_marks, sentences) for table in [delivered.codes_table] if table is not None]
    source, derived = (
        tuple(_table_report(table, account.marks_of(table), sentences) for table in tables)
        for tables in (delivered.events, delivered.derived)
    )
    n_events = account.events_of_code.total()
    if sum(table.rows_kept for table in (*source, *derived)) != n_events:
        raise AssertionError("the events kept are not those of the report")
    moved = Note(
        "exit_moved_to_death",
        "people whose exit was set to their age at death, which lies before it",
        account.exits_moved,
    )
    return ImportReport(
        kind=delivered.kind,
        subjects=subject_table.rows_kept,
        events=n_events,
        codes=len(account.events_of_code),
        deaths=account.events_of_code[DEATH_CODE],
        tables=(subject_table, *source, *code_table),
        derived=derived,
        rules=sentences,
        notes=(
            *delivered.notes,
            *([moved] if account.exits_moved else []),
            *_death_notes(account),
        ),
        cleaning=rules.report([subject_table, *source, *derived, *code_table]),
        settings=settings,
    )


def _death_notes(account: Account) -> list[Note]:
    """Notice deaths that are spelled otherwise: without `DEATH` nobody dies, and every risk comes out too high."""
    if account.events_of_code[DEATH_CODE]:
        return []
    alike = sorted(code for code in account.events_of_code if code.strip().upper() == DEATH_CODE)
    return [
        Note(
            "no_death_code",
            f"no event has the code {DEATH_CODE}; '{code}' is taken for a disease",
            account.events_of_code[code],
        )
        for code in alike
    ]


def _table_report(table: str, marks: Mapping[str | None, int], sentences: Mapping[str, str]) -> TableReport:
    """Put the counts by mark (None: kept) in the order in which the rules were applied."""
    dropped = {rule: marks[rule] for rule in sentences if marks.get(rule)}
    return TableReport(table, sum(marks.values()), marks.get(None, 0), dropped)


def _refuse_empty(report: ImportReport) -> None:
    """Refuse a cohort without people or events: what dropped them all is worth more than an empty folder."""
    empty = [
        Violation(table.table, "", f"no row is left; dropped by {', '.join(table.dropped)}", table.rows_dropped)
        for table in report.tables
        if (not report.subjects or not report.events) and table.dropped and not table.rows_kept
    ]
    if empty:
        raise InputContractError(empty)
