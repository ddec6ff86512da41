"""Clean a cohort by rules that are data: which events stay, where follow-up ends, who has none.

Every rule works within one person, so that a cohort is cleaned shard by shard. A row counts under the first rule that
drops it. Unless `later_occurrence` is on, a person's later rows of the same code are kept: they are history, and the
first is found where needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from data_schemas.age_units import MAX_AGE_DAYS, round_to_age_step
from data_schemas.cohort import DEATH_CODE, Events, Subjects
from pipelines.import_cohort.row_rules import DROPPED_BY, RowRule, choose_rules, mark_rows

TABLE, SOURCE_ROW = "table", "source_row"  # which delivered table a row came from, and its number there (from 0)
_ROW = "row"  # working columns: a row's place among all, and its person's first death
_DEATH_AGE = "death_age_days"
_DEATH_ROW = "death_row"

_is_death = Events.code.col == DEATH_CODE
_entry, _exit, _born = Subjects.entry_age_days.col, Subjects.exit_age_days.col, Subjects.birth_date.col
_is_kept = pl.col(DROPPED_BY).is_null()


# UK Biobank coding 819, and the last day a date can have.
_PLACEHOLDER_DATES = (
    date(1900, 1, 1),
    date(1901, 1, 1),
    date(1902, 2, 2),
    date(1903, 3, 3),
    date(1909, 9, 9),
    date(2037, 7, 7),
    date(9999, 12, 31),
)


class CleaningConfig(BaseModel):
    """What a person may decide about cleaning; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: dict[str, bool] = Field(
        default_factory=dict, description="rules to turn on or off by name; the report of an import names them all"
    )
    placeholder_dates: tuple[date, ...] = Field(
        default=_PLACEHOLDER_DATES,
        description="dates that stand for no date: an event on one is dropped where the birth date is known",
    )


NO_BIRTH_DATE = RowRule("no_birth_date", "the date of birth is not known", _born.is_null(), by_default=False)
SUBJECT_RULES = (NO_BIRTH_DATE,)  # about people, whatever their source


def event_rules(config: CleaningConfig) -> tuple[RowRule, ...]:
    """Return the rules about events that hold for every source, in the order in which they are applied."""
    return (*_rules_before_death(config), *_DEATH_RULES, _NO_FOLLOW_UP)


def _rules_before_death(config: CleaningConfig) -> tuple[RowRule, ...]:
    day = Events.age_days.col.floor().cast(pl.Int64, strict=False)
    holds_no_date = (_born.cast(pl.Int32).cast(pl.Int64) + day).is_in(
        [(placeholder - date(1970, 1, 1)).days for placeholder in config.placeholder_dates]
    )
    first_row = (
        pl.col(_ROW)
        .filter(_is_kept)
        .sort_by(Events.age_days.col.filter(_is_kept), pl.col(_ROW).filter(_is_kept))
        .first()
    )
    is_countable = _is_kept & Events.numeric_value.col.is_null() & ~_is_death
    return (
        RowRule(
            "exact_duplicate",
            "the same person, age, code and value stand in an earlier row",
            ~pl.struct(Events.column_names()).is_first_distinct(),
        ),
        RowRule("placeholder_date", "the date is one that stands for no date", holds_no_date),
        RowRule("before_birth", "the age is below 0", Events.age_days.col < 0.0, fixed=True),
        RowRule("age_over_120", "the age is over 120 years", Events.age_days.col > MAX_AGE_DAYS, fixed=True),
        RowRule("unknown_subject", "the person is not among the subjects kept", _exit.is_null(), fixed=True),
        RowRule("after_exit", "the event lies after the end of follow-up", Events.age_days.col > _exit, fixed=True),
        RowRule(
            "later_occurrence",
            "the person had the code before (rows with a value all count)",
            is_countable & (pl.col(_ROW) != first_row.over(Events.subject_id.name, Events.code.name)),
            by_default=False,
        ),
        RowRule(
            "before_entry",
            "the event lies before the start of follow-up",
            Events.age_days.col < _entry,
            by_default=False,
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
_AFTER_DEATH_IS_KNOWN = frozenset(rule.name for rule in (*_DEATH_RULES, _NO_FOLLOW_UP))
EVENT_RULES = event_rules(CleaningConfig())


@dataclass(frozen=True)
class CleanedCohort:
    """The rows that are kept, and those that are dropped with the rule that did."""

    subjects: pl.DataFrame  # in the columns delivered
    events: pl.DataFrame
    dropped_subjects: pl.DataFrame  # with `dropped_by`
    dropped_events: pl.DataFrame  # with `table`, `source_row` and `dropped_by`
    kept_events_of_table: Mapping[str, int]
    exits_moved: int  # people whose exit was set to their death


def clean_cohort(
    subjects: pl.LazyFrame,
    events: Mapping[str, pl.LazyFrame],
    *,
    first_rules: Sequence[RowRule] = (),
    config: CleaningConfig | None = None,
) -> CleanedCohort:
    """Apply the cleaning rules.

    Args:
        subjects: valid `Subjects`, one row a person; other columns are kept as they are.
        events: `DeliveredEvents` by the name of the table they came from, perhaps with `source_row`.
        first_rules: rules of the importer, applied before the general ones.
        config: settings of the general rules, and switches of both.

    Raises:
        UsageError: a switch names no rule, or one that cannot be off.
    """
    config = config or CleaningConfig()
    chosen = choose_rules((*first_rules, *event_rules(config)), config.rules)
    before_death = tuple(rule for rule in chosen if rule.name not in _AFTER_DEATH_IS_KNOWN)
    about_death = tuple(rule for rule in chosen if rule.name in _AFTER_DEATH_IS_KNOWN)
    people = subjects.with_columns(round_to_age_step(_entry), round_to_age_step(_exit))
    marked = mark_events(people, _concat_tables(events), before_death, about_death).collect()
    ended = mark_rows(_join_deaths(people, _final_deaths(marked.lazy())), [_NO_FOLLOW_UP]).collect()
    kept_events = marked.filter(_is_kept)
    kept = ended.filter(_is_kept)
    return CleanedCohort(
        subjects=kept.with_columns(pl.min_horizontal(_exit, pl.col(_DEATH_AGE))).drop(_DEATH_AGE, DROPPED_BY),
        events=kept_events.select(Events.column_names()),
        dropped_subjects=ended.filter(~_is_kept).drop(_DEATH_AGE),
        dropped_events=marked.filter(~_is_kept).select(*Events.column_names(), TABLE, SOURCE_ROW, DROPPED_BY),
        kept_events_of_table=dict(kept_events.group_by(TABLE).len().iter_rows()),
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
            people.select(Subjects.subject_id.name, _entry, _exit, _born),
            on=Events.subject_id.name,
            how="left",
            maintain_order="left",
        )
        .pipe(mark_rows, before_death)
    )
    first_deaths = (
        marked.filter(_is_death, _is_kept)
        .group_by(Events.subject_id.name)
        .agg(
            Events.age_days.col.min().alias(_DEATH_AGE),
            pl.col(_ROW).sort_by(Events.age_days.name, _ROW).first().alias(_DEATH_ROW),
        )
    )
    return _join_deaths(marked, first_deaths).pipe(mark_rows, about_death)


def _concat_tables(events: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    return pl.concat(_named_rows(frame, table) for table, frame in events.items())


def _named_rows(frame: pl.LazyFrame, table: str) -> pl.LazyFrame:
    if SOURCE_ROW not in frame.collect_schema():
        frame = frame.with_row_index(SOURCE_ROW)
    return frame.select(*Events.column_names(), SOURCE_ROW, pl.lit(table).alias(TABLE))


def _final_deaths(marked: pl.LazyFrame) -> pl.LazyFrame:
    """Return each person's one death, also of those whom it leaves without follow-up."""
    ends_follow_up = _is_kept | (pl.col(DROPPED_BY) == _NO_FOLLOW_UP.name)
    return marked.filter(_is_death, ends_follow_up).select(Events.subject_id.name, _DEATH_AGE)


def _join_deaths(frame: pl.LazyFrame, deaths: pl.LazyFrame) -> pl.LazyFrame:
    return frame.join(deaths, on=Events.subject_id.name, how="left", maintain_order="left")
