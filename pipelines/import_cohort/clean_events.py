"""Clean a cohort by rules that are data: which events stay, where follow-up ends, who has none.

Every rule works within one person, so that a cohort may be cleaned shard by shard. A row counts under the first rule
that drops it. A person's later rows of the same code are kept: they are history, and the first is found where needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from data_schemas.age_units import MAX_AGE_DAYS, round_to_age_step
from data_schemas.cohort import DEATH_CODE, Events, Subjects
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule, choose_rules, mark_rows

TABLE = "table"  # working columns: which delivered table a row came from, its place, and its person's first death
_ROW = "row"
_DEATH_AGE = "death_age_days"
_DEATH_ROW = "death_row"

_is_death = Events.code.col == DEATH_CODE
_entry, _exit = Subjects.entry_age_days.col, Subjects.exit_age_days.col

_BEFORE_DEATH_RULES = (
    RowRule(
        "exact_duplicate",
        "the same person, age, code and value stand in an earlier row",
        ~pl.struct(Events.column_names()).is_first_distinct(),
    ),
    RowRule("before_birth", "the age is below 0", Events.age_days.col < 0.0, fixed=True),
    RowRule("age_over_120", "the age is over 120 years", Events.age_days.col > MAX_AGE_DAYS, fixed=True),
    RowRule("unknown_subject", "the person is not among the subjects kept", _exit.is_null(), fixed=True),
    RowRule("after_exit", "the event lies after the end of follow-up", Events.age_days.col > _exit, fixed=True),
    RowRule(
        "before_entry", "the event lies before the start of follow-up", Events.age_days.col < _entry, by_default=False
    ),
)
_DEATH_RULES = (
    RowRule(
        "several_deaths",
        "the person's first death is kept, this is a later one",
        _is_death & (pl.col(_ROW) != pl.col(_DEATH_ROW)),
        fixed=True,
    ),
    RowRule(
        "after_death", "the event lies after the person's death", Events.age_days.col > pl.col(_DEATH_AGE), fixed=True
    ),
)
_NO_FOLLOW_UP = RowRule(
    "no_follow_up",
    "the person's exit or death is not after entry",
    pl.min_horizontal(_exit, pl.col(_DEATH_AGE)) <= _entry,
    fixed=True,
)
EVENT_RULES = (*_BEFORE_DEATH_RULES, *_DEATH_RULES, _NO_FOLLOW_UP)
_NAMES_BEFORE_DEATH = frozenset(rule.name for rule in _BEFORE_DEATH_RULES)


@dataclass(frozen=True)
class CleanedCohort:
    """The kept rows, and how many rows fell to each rule (`None`: kept), for events by the table they came from."""

    subjects: pl.DataFrame
    events: pl.DataFrame
    subject_counts: Mapping[str | None, int]
    event_counts: Mapping[tuple[str, str | None], int]
    rules: tuple[RowRule, ...]  # of events, in order
    exits_moved: int  # people whose exit was set to their death


def clean_cohort(
    subjects: pl.LazyFrame,
    events: Mapping[str, pl.LazyFrame],
    *,
    first_rules: Sequence[RowRule] = (),
    switches: Mapping[str, bool] | None = None,
) -> CleanedCohort:
    """Apply the cleaning rules.

    Args:
        subjects: valid `Subjects`, one row a person.
        events: `DeliveredEvents` by the name of the table they came from.
        first_rules: rules of the importer, applied before the general ones.
        switches: rules of `EVENT_RULES` to turn on or off, by name.

    Raises:
        UsageError: a switch names no rule, or one that cannot be off.
    """
    chosen = choose_rules(EVENT_RULES, switches or {})
    before_death = (*first_rules, *(rule for rule in chosen if rule.name in _NAMES_BEFORE_DEATH))
    about_death = tuple(rule for rule in chosen if rule.name not in _NAMES_BEFORE_DEATH)
    people = subjects.with_columns(round_to_age_step(_entry), round_to_age_step(_exit))
    marked = mark_events(people, _concat_tables(events), before_death, about_death).collect()
    ended = mark_rows(_join_deaths(people, _final_deaths(marked.lazy())), [_NO_FOLLOW_UP]).collect()
    kept = ended.filter(pl.col(DROPPED_BY).is_null())
    return CleanedCohort(
        subjects=kept.with_columns(pl.min_horizontal(_exit, pl.col(_DEATH_AGE))).select(Subjects.column_names()),
        events=marked.filter(pl.col(DROPPED_BY).is_null()).select(Events.column_names()),
        subject_counts=dict(ended.group_by(DROPPED_BY).len().iter_rows()),
        event_counts={
            (table, rule): rows for table, rule, rows in marked.group_by(TABLE, DROPPED_BY).len().iter_rows()
        },
        rules=(*before_death, *about_death),
        exits_moved=kept.filter(pl.col(_DEATH_AGE) < _exit).height,
    )


def mark_events(
    people: pl.LazyFrame, events: pl.LazyFrame, before_death: Sequence[RowRule], about_death: Sequence[RowRule]
) -> pl.LazyFrame:
    """Mark each event with the first rule that drops it.

    A person's death is known only once the rules before it have passed: a death before birth, say, ends nobody's
    follow-up.
    """
    marked = (
        events.with_row_index(_ROW)
        .with_columns(round_to_age_step(Events.age_days.col))
        .join(
            people.select(Subjects.subject_id.name, _entry, _exit),
            on=Events.subject_id.name,
            how="left",
            maintain_order="left",
        )
        .pipe(mark_rows, before_death)
    )
    first_deaths = (
        marked.filter(_is_death, pl.col(DROPPED_BY).is_null())
        .group_by(Events.subject_id.name)
        .agg(
            Events.age_days.col.min().alias(_DEATH_AGE),
            pl.col(_ROW).sort_by(Events.age_days.name, _ROW).first().alias(_DEATH_ROW),
        )
    )
    return _join_deaths(marked, first_deaths).pipe(mark_rows, about_death)


def _concat_tables(events: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    return pl.concat(
        frame.select(Events.column_names()).with_columns(pl.lit(table).alias(TABLE)) for table, frame in events.items()
    )


def _final_deaths(marked: pl.LazyFrame) -> pl.LazyFrame:
    """Return each person's one death, also of those whom it leaves without follow-up."""
    ends_follow_up = pl.col(DROPPED_BY).is_null() | (pl.col(DROPPED_BY) == _NO_FOLLOW_UP.name)
    return marked.filter(_is_death, ends_follow_up).select(Events.subject_id.name, _DEATH_AGE)


def _join_deaths(frame: pl.LazyFrame, deaths: pl.LazyFrame) -> pl.LazyFrame:
    return frame.join(deaths, on=Events.subject_id.name, how="left", maintain_order="left")
