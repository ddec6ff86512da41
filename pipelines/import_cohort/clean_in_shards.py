"""Clean a cohort shard by shard, and keep the account of each shard beside its rows.

Every rule works within one person, so shards are independent and their accounts add up. What is done stays done: a
shard with an account is not cleaned again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from data_schemas.cohort import Events, Subjects
from pipelines.import_cohort.clean_events import SOURCE_ROW, TABLE, CleanedCohort, CleaningConfig, clean_cohort
from pipelines.import_cohort.partition_by_subject import partition_table, read_batches, read_shard
from pipelines.import_cohort.row_rules import DROPPED_BY, FIRST_ROWS_SHOWN, RowRule, mark_rows
from pipelines.import_cohort.write_cohort import ROWS_PER_FILE
from pipelines.tables_on_disk import read_ipc, read_json, write_ipc, write_json

PEOPLE = ""  # stands for the table of people where tables are keys
_SUBJECTS_FOLDER, _EVENTS_FOLDER, _SHARDS_FOLDER = "subjects", "events", "shards"
_ACCOUNT_FILE = "account.json"
_KEPT_SUBJECTS, _KEPT_EVENTS = "kept_subjects.arrow", "kept_events.arrow"
_DROPPED_SUBJECTS, _DROPPED_EVENTS = "dropped_subjects.arrow", "dropped_events.arrow"

TableAndRule: TypeAlias = tuple[str, str | None]  # the rule that dropped a row; None: it is kept


@dataclass(frozen=True)
class Account:
    """What became of the rows of some people."""

    rows: Counter[TableAndRule] = field(default_factory=Counter)
    first_rows: Mapping[TableAndRule, tuple[int, ...]] = field(default_factory=dict)  # numbers of those dropped
    events_of_code: Counter[str] = field(default_factory=Counter)  # of those kept
    values_of_code: Counter[str] = field(default_factory=Counter)  # of those kept, with a value
    exits_moved: int = 0  # people whose exit was set to their death

    def __add__(self, other: "Account") -> "Account":
        """Return the account of both groups of people."""
        places = [(key, rows) for account in (self, other) for key, rows in account.first_rows.items()]
        keys = dict.fromkeys(key for key, _ in places)
        return Account(
            self.rows + other.rows,
            {key: _first([row for known, rows in places if known == key for row in rows]) for key in keys},
            self.events_of_code + other.events_of_code,
            self.values_of_code + other.values_of_code,
            self.exits_moved + other.exits_moved,
        )

    def marks_of(self, table: str) -> dict[str | None, int]:
        """Return the rows of one table by the rule that dropped them, None for those kept."""
        return {rule: rows for (name, rule), rows in self.rows.items() if name == table}


@dataclass(frozen=True)
class CleaningRules:
    """The rules that are on: about people, and of the importer about events; `config` switches the general ones."""

    subjects: Sequence[RowRule]
    events: Sequence[RowRule]
    config: CleaningConfig


@dataclass(frozen=True)
class CleanedShards:
    """Where the cleaned rows lie, and the account of all of them."""

    work: Path
    n_shards: int
    account: Account

    def read_subjects(self) -> Iterable[pl.DataFrame]:
        """Yield the people who are kept, in the order in which they were delivered, part by part."""
        ages = pl.concat(read_ipc(folder / _KEPT_SUBJECTS) for folder in self._folders)
        for batch in read_batches(self.work / _SUBJECTS_FOLDER):
            yield (
                batch.drop(Subjects.entry_age_days.name, Subjects.exit_age_days.name)
                .join(ages, on=SOURCE_ROW, how="inner", maintain_order="left")
                .select(Subjects.column_names())
            )

    def read_events(self, shard: int) -> pl.DataFrame:
        """Read the events of a shard that are kept."""
        return read_ipc(self._folders[shard] / _KEPT_EVENTS)

    def scan_dropped_subjects(self) -> pl.LazyFrame:
        """Scan the people who were dropped, where `keep_dropped` was asked for."""
        return pl.scan_ipc([folder / _DROPPED_SUBJECTS for folder in self._folders], glob=False)

    def scan_dropped_events(self) -> pl.LazyFrame:
        """Scan the events that were dropped, where `keep_dropped` was asked for."""
        return pl.scan_ipc([folder / _DROPPED_EVENTS for folder in self._folders], glob=False)

    @property
    def _folders(self) -> list[Path]:
        return [_shard_folder(self.work, shard) for shard in range(self.n_shards)]


def clean_in_shards(
    subjects: pl.LazyFrame,
    events: Mapping[str, pl.LazyFrame],
    rules: CleaningRules,
    work: Path,
    *,
    subjects_table: str,
    keep_dropped: bool,
) -> CleanedShards:
    """Share the tables out by person and apply all rules, in the folder `work`.

    Args:
        subjects: people as delivered, with the columns that their rules read.
        events: `DeliveredEvents` by the name of their table.
        rules: the rules that are on.
        work: folder for everything in between; what is whole there is not made again.
        subjects_table: name of the table of people.
        keep_dropped: write the dropped rows as well.

    Raises:
        InputContractError: a table cannot be read to its end.
    """
    n_people = partition_table(subjects, work / _SUBJECTS_FOLDER, subjects_table)
    folders = {table: work / _EVENTS_FOLDER / f"{number:04d}" for number, table in enumerate(events)}
    key_type = subjects.collect_schema()[Subjects.subject_id.name]
    n_events = sum(
        partition_table(_as_events(frame, key_type), folders[table], table) for table, frame in events.items()
    )
    n_shards = max(1, -(-max(n_people, n_events) // ROWS_PER_FILE))
    account = Account()
    for shard in range(n_shards):
        folder = _shard_folder(work, shard)
        if not (folder / _ACCOUNT_FILE).exists():
            people = read_shard(work / _SUBJECTS_FOLDER, shard, n_shards)
            tables = {table: read_shard(place, shard, n_shards).lazy() for table, place in folders.items()}
            _clean_shard(people, tables, rules, folder, keep_dropped=keep_dropped)
        account += _account_from_json(read_json(folder / _ACCOUNT_FILE))
    return CleanedShards(work, n_shards, account)


def _shard_folder(work: Path, shard: int) -> Path:
    return work / _SHARDS_FOLDER / f"{shard:04d}"


def _as_events(frame: pl.LazyFrame, key_type: pl.DataType) -> pl.LazyFrame:
    """Return the columns of events in their types; the id is of the same type as that of people."""
    types = {name: column.dtype for name, column in Events.columns().items()} | {Events.subject_id.name: key_type}
    return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items())


def _clean_shard(
    subjects: pl.DataFrame,
    events: Mapping[str, pl.LazyFrame],
    rules: CleaningRules,
    folder: Path,
    *,
    keep_dropped: bool,
) -> None:
    """Write the kept rows of a shard, the dropped ones if asked for, and last its account."""
    marked = mark_rows(subjects.lazy(), rules.subjects).collect()
    is_kept = pl.col(DROPPED_BY).is_null()
    cleaned = clean_cohort(
        marked.lazy().filter(is_kept).drop(DROPPED_BY), events, first_rules=rules.events, config=rules.config
    )
    ages = (Subjects.entry_age_days.name, Subjects.exit_age_days.name)
    write_ipc(cleaned.subjects.select(SOURCE_ROW, *ages), folder / _KEPT_SUBJECTS)
    write_ipc(cleaned.events, folder / _KEPT_EVENTS)
    dropped_subjects = pl.concat([marked.filter(~is_kept), cleaned.dropped_subjects])
    if keep_dropped:
        write_ipc(dropped_subjects, folder / _DROPPED_SUBJECTS)
        write_ipc(cleaned.dropped_events, folder / _DROPPED_EVENTS)
    write_json(_account_to_json(_account_of(cleaned, dropped_subjects)), folder / _ACCOUNT_FILE)


def _account_of(cleaned: CleanedCohort, dropped_subjects: pl.DataFrame) -> Account:
    """Account for the rows of one shard."""
    dropped = pl.concat(
        [
            dropped_subjects.select(pl.lit(PEOPLE).alias(TABLE), DROPPED_BY, SOURCE_ROW),
            cleaned.dropped_events.select(TABLE, DROPPED_BY, SOURCE_ROW),
        ]
    )
    by_rule = dropped.group_by(TABLE, DROPPED_BY).agg(pl.len(), pl.col(SOURCE_ROW).sort().head(FIRST_ROWS_SHOWN))
    kept: Counter[TableAndRule] = Counter({(PEOPLE, None): cleaned.subjects.height})
    kept.update({(table, None): rows for table, rows in cleaned.kept_events_of_table.items()})
    codes = cleaned.events.group_by(Events.code.name).agg(
        pl.len().alias("events"), Events.numeric_value.col.count().alias("values")
    )
    return Account(
        rows=kept + Counter({(table, rule): rows for table, rule, rows, _ in by_rule.iter_rows()}),
        first_rows={(table, rule): tuple(first) for table, rule, _, first in by_rule.iter_rows()},
        events_of_code=Counter(dict(codes.select(Events.code.name, "events").iter_rows())),
        values_of_code=Counter(dict(codes.select(Events.code.name, "values").iter_rows())),
        exits_moved=cleaned.exits_moved,
    )


def _first(rows: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(rows)[:FIRST_ROWS_SHOWN])


def _account_to_json(account: Account) -> dict[str, Any]:
    return {
        "rows": [[*key, rows] for key, rows in account.rows.items()],
        "first_rows": [[*key, rows] for key, rows in account.first_rows.items()],
        "events_of_code": account.events_of_code,
        "values_of_code": account.values_of_code,
        "exits_moved": account.exits_moved,
    }


def _account_from_json(content: Mapping[str, Any]) -> Account:
    return Account(
        rows=Counter({(table, rule): rows for table, rule, rows in content["rows"]}),
        first_rows={(table, rule): tuple(rows) for table, rule, rows in content["first_rows"]},
        events_of_code=Counter(content["events_of_code"]),
        values_of_code=Counter(content["values_of_code"]),
        exits_moved=content["exits_moved"],
    )
