"""`cohort/import_report.json`: what became of every row of the source. It stays with the owner of the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TableReport:
    """The rows of one table: read = kept + dropped, where each dropped row counts under the first rule it broke.

    For rows that the importer derives itself (death from a status, say), `rows_read` is how many it made.
    """

    table: str
    rows_read: int
    rows_kept: int
    dropped: Mapping[str, int]  # rule -> rows; rules that dropped nothing are left out

    def __post_init__(self) -> None:
        """Refuse an account that does not add up: it would be a fault of the importer, never of the data."""
        if self.rows_read != self.rows_kept + self.rows_dropped:
            raise AssertionError(
                f"{self.table}: {self.rows_read} read, {self.rows_kept} kept, {self.rows_dropped} dropped"
            )

    @property
    def rows_dropped(self) -> int:
        """Rows that any rule dropped."""
        return sum(self.dropped.values())


@dataclass(frozen=True)
class RuleReport:
    """One rule of cleaning: whether it was on, whether it is by default and must be, and how many rows it dropped."""

    rule: str
    text: str
    is_on: bool
    by_default: bool
    can_be_off: bool
    rows_dropped: int


@dataclass(frozen=True)
class Note:
    """Something done or noticed that dropped no row: a spelling made uniform, an error upstream, a missing value."""

    name: str
    text: str
    rows: int | None = None


@dataclass(frozen=True)
class ImportReport:
    """The account of one import.

    `rules` explains every rule that was applied, whether it dropped rows or not; `cleaning` lists also those that were
    off. `settings` are those of the import.
    """

    kind: str  # the importer: parquet, nafld, ...
    subjects: int
    events: int
    codes: int
    deaths: int
    tables: tuple[TableReport, ...]
    derived: tuple[TableReport, ...]
    rules: Mapping[str, str]
    notes: tuple[Note, ...]
    cleaning: tuple[RuleReport, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def report_to_json(report: ImportReport) -> dict[str, Any]:
    """Return the content of `import_report.json`, keys in the order a person reads them."""
    return {
        "kind": report.kind,
        "cohort": {
            "subjects": report.subjects,
            "events": report.events,
            "codes": report.codes,
            "deaths": report.deaths,
        },
        "tables": [_table_to_json(table, "rows_read") for table in report.tables],
        "derived": [_table_to_json(table, "rows_added") for table in report.derived],
        "rules": dict(report.rules),
        "cleaning": [
            {
                "rule": rule.rule,
                "on": rule.is_on,
                "by_default": rule.by_default,
                "can_be_off": rule.can_be_off,
                "rows_dropped": rule.rows_dropped,
                "text": rule.text,
            }
            for rule in report.cleaning
        ],
        "settings": dict(report.settings),
        "notes": [{"note": note.name, "rows": note.rows, "text": note.text} for note in report.notes],
    }


def summary_lines(report: ImportReport) -> list[str]:
    """Return what the command line prints: the cohort, each table with its drops, each note."""
    lines = [
        f"{report.subjects:,} people, {report.events:,} events of {report.codes:,} codes, {report.deaths:,} deaths",
    ]
    for table in report.tables:
        lines.append(f"{table.table}: {table.rows_read:,} rows read, {table.rows_kept:,} kept")
        lines += _drop_lines(table, report.rules)
    for table in report.derived:
        lines.append(f"{table.table}: {table.rows_read:,} rows added, {table.rows_kept:,} kept")
        lines += _drop_lines(table, report.rules)
    lines += [f"{note.text}" + ("" if note.rows is None else f": {note.rows:,}") for note in report.notes]
    return lines


def _table_to_json(table: TableReport, rows_key: str) -> dict[str, Any]:
    return {
        "table": table.table,
        rows_key: table.rows_read,
        "rows_kept": table.rows_kept,
        "rows_dropped": table.rows_dropped,
        "dropped": dict(table.dropped),
    }


def _drop_lines(table: TableReport, rules: Mapping[str, str]) -> list[str]:
    return [f"  {rows:,} dropped by {rule}: {rules[rule]}" for rule, rows in table.dropped.items()]
