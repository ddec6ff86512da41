"""The common end of every importer: clean, account for every row, write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from data_schemas.cohort import DEATH_CODE, Events
from data_schemas.errors import InputContractError, Violation
from data_schemas.import_report import ImportReport, Note, TableReport
from pipelines.import_cohort.clean_events import CleanedCohort, clean_cohort
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule, mark_rows
from pipelines.import_cohort.write_cohort import COHORT_FOLDER, write_cohort
from pipelines.whole_folders import refuse_other_folder


@dataclass(frozen=True)
class DeliveredCohort:
    """What an importer makes of its source.

    `events` (from the source) and `derived` (made by the importer, such as a death from a status) are
    `DeliveredEvents` by the name of the table they come from. The rules given here drop and count rows before the
    general cleaning rules do. `codes_table` is None where the importer itself knows the codes.
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


def finish_import(delivered: DeliveredCohort, out: Path, *, switches: Mapping[str, bool] | None = None) -> ImportReport:
    """Clean a delivered cohort, write it to `out` and return the report that was written with it.

    Raises:
        UsageError: `out` cannot be written or replaced; a switch names no rule.
        InputContractError: the rules leave no person or no event.
    """
    refuse_other_folder(out, COHORT_FOLDER)
    subjects = mark_rows(delivered.subjects, delivered.subject_rules).collect()
    codes = mark_rows(delivered.codes, delivered.code_rules).collect()
    cleaned = clean_cohort(
        _kept(subjects).lazy(),
        {**delivered.events, **delivered.derived},
        first_rules=delivered.event_rules,
        switches=switches,
    )
    report = _account(delivered, subjects, codes, cleaned)
    _refuse_empty(report)
    write_cohort(cleaned.subjects, cleaned.events, _kept(codes), report, out)
    return report


def _kept(marked: pl.DataFrame) -> pl.DataFrame:
    return marked.filter(pl.col(DROPPED_BY).is_null()).drop(DROPPED_BY)


def _account(
    delivered: DeliveredCohort, subjects: pl.DataFrame, codes: pl.DataFrame, cleaned: CleanedCohort
) -> ImportReport:
    """Account for every row of every table, and check that the sums are those of the cohort."""
    rules = [*delivered.subject_rules, *delivered.event_rules, *delivered.code_rules, *cleaned.rules]
    sentences = {rule.name: rule.sentence for rule in rules}
    dropped_subjects = {**_count_marks(subjects), **cleaned.subject_counts}
    subject_table = _table_report(delivered.subjects_table, subjects.height, dropped_subjects, sentences)
    code_table = [
        _table_report(table, codes.height, _count_marks(codes), sentences)
        for table in [delivered.codes_table]
        if table is not None
    ]
    source, derived = (
        tuple(_event_table_report(table, cleaned, sentences) for table in tables)
        for tables in (delivered.events, delivered.derived)
    )
    if sum(table.rows_kept for table in (*source, *derived)) != cleaned.events.height:
        raise AssertionError("the events kept are not those of the report")
    moved = Note(
        "exit_moved_to_death",
        "people whose exit was set to their age at death, which lies before it",
        cleaned.exits_moved,
    )
    return ImportReport(
        kind=delivered.kind,
        subjects=cleaned.subjects.height,
        events=cleaned.events.height,
        codes=cleaned.events[Events.code.name].n_unique(),
        deaths=cleaned.events.filter(Events.code.col == DEATH_CODE).height,
        tables=(subject_table, *source, *code_table),
        derived=derived,
        rules=sentences,
        notes=(*delivered.notes, *([moved] if cleaned.exits_moved else []), *_death_notes(cleaned.events)),
    )


def _death_notes(events: pl.DataFrame) -> list[Note]:
    """Notice deaths that are spelled otherwise: without `DEATH` nobody dies, and every risk comes out too high."""
    counts = events.group_by(Events.code.name).len().sort(Events.code.name)
    if DEATH_CODE in counts[Events.code.name]:
        return []
    alike = counts.filter(Events.code.col.str.strip_chars().str.to_uppercase() == DEATH_CODE)
    return [
        Note("no_death_code", f"no event has the code {DEATH_CODE}; '{code}' is taken for a disease", rows)
        for code, rows in alike.iter_rows()
    ]


def _count_marks(marked: pl.DataFrame) -> dict[str | None, int]:
    return dict(marked.group_by(DROPPED_BY).len().iter_rows())


def _event_table_report(table: str, cleaned: CleanedCohort, sentences: Mapping[str, str]) -> TableReport:
    counts = {rule: rows for (name, rule), rows in cleaned.event_counts.items() if name == table}
    return _table_report(table, sum(counts.values()), counts, sentences)


def _table_report(
    table: str, rows_read: int, counts: Mapping[str | None, int], sentences: Mapping[str, str]
) -> TableReport:
    """Put the counts by mark (None: kept) in the order in which the rules were applied."""
    dropped = {rule: counts[rule] for rule in sentences if counts.get(rule)}
    return TableReport(table, rows_read, counts.get(None, 0), dropped)


def _refuse_empty(report: ImportReport) -> None:
    """Refuse a cohort without people or events: what dropped them all is worth more than an empty folder."""
    empty = [
        Violation(table.table, "", f"no row is left; dropped by {', '.join(table.dropped)}", table.rows_dropped)
        for table in report.tables
        if (not report.subjects or not report.events) and table.dropped and not table.rows_kept
    ]
    if empty:
        raise InputContractError(empty)
