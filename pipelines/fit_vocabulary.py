"""Fit the vocabulary on the training split: which codes there are, their role, how often, and how values scale."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR, round_to_age_step
from data_schemas.cohort import DEATH_CODE, Codes, Events, Subjects
from data_schemas.dataset import (
    COVARIATE,
    DEATH,
    DISEASE,
    GROUP,
    NO_EVENT,
    OUTCOME_ROLES,
    PAD,
    QUERY,
    Vocabulary,
)
from data_schemas.errors import UsageError
from data_schemas.results import SMALLEST_SHOWN_COUNT, FirstOccurrences
from pipelines.central_scale import central_mean, central_std
from pipelines.find_first_occurrences import find_first_tokens
from pipelines.outcome_groups import expand_outcome_groups
from pipelines.prepare_config import PrepareConfig

_SPECIAL_ROWS = ((PAD, PAD), (QUERY, QUERY), (NO_EVENT, NO_EVENT))
_ROLE_ORDER = (DISEASE, GROUP, DEATH, COVARIATE)
_N_VALUES = "n_values"  # of a code
_VALUES_IN_MEMORY = 2_000_000
_N_EVER, _N_EVENTS, _LOST_DAYS, _PERSON_YEARS = (
    "n_ever",
    "n_events",
    "lost_days",
    "person_years",
)  # of an outcome, on the way to its rate


def fit_vocabulary(
    train_subjects: pl.DataFrame,
    train_events: pl.LazyFrame | Sequence[pl.LazyFrame],
    codes: pl.DataFrame,
    config: PrepareConfig,
) -> pl.DataFrame:
    """Return the vocabulary (`Vocabulary`), fitted on the people and events of the training split alone.

    Events may come in parts, all rows of a person in one: they are read part by part. Tokens 0 to 2 are pad, query and
    no_event; then diseases, groups, death and covariates, each by code.

    Raises:
        UsageError: a group has the name of a code, no members, or a member that no training person has; a documented
            group is not known.
    """
    parts = [train_events] if isinstance(train_events, pl.LazyFrame) else train_events
    counts = _count_codes(parts)
    kept = counts.filter((Vocabulary.n_subjects.col >= config.min_subjects) | (Events.code.col == DEATH_CODE))
    rows = _with_death(kept).join(codes, on=Codes.code.name, how="left").with_columns(_role(_input_only(kept, config)))
    groups = _groups(config, counts)
    listed = pl.concat([_special_rows(), rows, _group_rows(groups)], how="diagonal").select(
        pl.lit(None, dtype=pl.Int64).alias(Vocabulary.token.name),
        *(
            pl.col(name)
            for name in Vocabulary.column_names()
            if name in rows.columns or name == Vocabulary.members.name
        ),
    )
    order = pl.col(Vocabulary.role.name).replace_strict({role: i for i, role in enumerate(_ROLE_ORDER)}, default=-1)
    numbered = (
        listed.with_row_index("position")
        .sort(order, pl.when(order < 0).then("position"), Vocabulary.code.name)
        .with_columns(
            pl.int_range(pl.len(), dtype=pl.Int64).alias(Vocabulary.token.name),
            _recurs(_find_recurrent_codes(parts)),
        )
    )
    return _with_rates(numbered, train_subjects, parts)


def _count_codes(parts: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """Return one row a code: people who have it, and the trimmed mean and standard deviation of its values."""
    counted = [
        part.group_by(Events.code.name)
        .agg(Events.subject_id.col.n_unique().cast(pl.Int64).alias(Vocabulary.n_subjects.name), _n_values())
        .collect()
        for part in parts
    ]
    counts = pl.concat(counted).group_by(Events.code.name).sum()
    scales = pl.concat(_scales(parts, codes) for codes in _codes_with_values(counts))
    return counts.drop(_N_VALUES).join(scales, on=Events.code.name, how="left")


def _n_values() -> pl.Expr:
    return Events.numeric_value.col.count().cast(pl.Int64).alias(_N_VALUES)


def _codes_with_values(counts: pl.DataFrame) -> Iterator[list[str]]:
    """Yield codes in lots whose values fit into memory together; one empty lot where there are none."""
    measured = counts.filter(pl.col(_N_VALUES) > 0).sort(Events.code.name)
    lots = measured.group_by(pl.col(_N_VALUES).cum_sum() // _VALUES_IN_MEMORY, maintain_order=True).agg(Events.code.col)
    yield from lots[Events.code.name].to_list() or [[]]


def _scales(parts: Sequence[pl.LazyFrame], codes: list[str]) -> pl.DataFrame:
    """Return the trimmed mean and standard deviation of the values of these codes."""
    return (
        pl.concat(parts)
        .filter(Events.code.col.is_in(codes), Events.numeric_value.col.is_not_null())
        .group_by(Events.code.name)
        .agg(
            central_mean(Events.numeric_value.col).alias(Vocabulary.mean.name),
            central_std(Events.numeric_value.col).alias(Vocabulary.std.name),
        )
        .collect()
    )


def _find_recurrent_codes(parts: Sequence[pl.LazyFrame]) -> list[str]:
    """Return the codes that some person has at two different ages or more, in the full history."""
    age = round_to_age_step(Events.age_days.col)
    found = [
        part.group_by(Events.code.name, Events.subject_id.name)
        .agg((age.min() < age.max()).alias(Vocabulary.recurs.name))
        .filter(Vocabulary.recurs.col)
        .select(Events.code.col.unique())
        .collect()
        for part in parts
    ]
    codes: list[str] = pl.concat(found)[Events.code.name].unique().to_list()
    return codes


def _recurs(recurrent_codes: list[str]) -> pl.Expr:
    """A disease may come back; death, whatever a registry holds, does not; other roles are no event of their own."""
    return (
        pl.when(Vocabulary.role.col == DISEASE).then(Vocabulary.code.col.is_in(recurrent_codes))
        .when(Vocabulary.role.col == DEATH).then(pl.lit(False))
        .alias(Vocabulary.recurs.name)
    )  # fmt: skip


def _with_death(counts: pl.DataFrame) -> pl.DataFrame:
    """Death competes with every outcome and so is always there, also where nobody in training died."""
    if DEATH_CODE in counts[Events.code.name]:
        return counts
    death = pl.DataFrame({Events.code.name: [DEATH_CODE], Vocabulary.n_subjects.name: [0]})
    return pl.concat([counts, death], how="diagonal")


def _input_only(counts: pl.DataFrame, config: PrepareConfig) -> list[str]:
    patterns = config.input_only_codes
    return [code for code in counts[Events.code.name] if any(fnmatch.fnmatchcase(code, p) for p in patterns)]


def _role(input_only: list[str]) -> pl.Expr:
    """Death by its code; input-only by settings or by the cohort; a code with values is a covariate; else a disease."""
    return (
        pl.when(Events.code.col == DEATH_CODE).then(pl.lit(DEATH))
        .when(Events.code.col.is_in(input_only)).then(pl.lit(COVARIATE))
        .when(Codes.kind.col.is_not_null()).then(Codes.kind.col)
        .when(Vocabulary.mean.col.is_not_null()).then(pl.lit(COVARIATE))
        .otherwise(pl.lit(DISEASE))
        .alias(Vocabulary.role.name)
    )  # fmt: skip


def _special_rows() -> pl.DataFrame:
    return pl.DataFrame(
        {
            Vocabulary.code.name: [code for code, _ in _SPECIAL_ROWS],
            Vocabulary.role.name: [role for _, role in _SPECIAL_ROWS],
        }
    )


def _group_rows(groups: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            Vocabulary.code.name: list(groups),
            Vocabulary.role.name: [GROUP] * len(groups),
            Vocabulary.members.name: [list(members) for members in groups.values()],
        },
        schema_overrides={
            Vocabulary.code.name: pl.String,
            Vocabulary.role.name: pl.String,
            Vocabulary.members.name: pl.List(pl.String),
        },
    )


def _groups(config: PrepareConfig, counts: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the members of each group: documented groups as far as this cohort has their codes, and those given."""
    documented = expand_outcome_groups(counts[Events.code.name], config.outcome_groups).groups
    groups = {**documented, **config.groups}
    seen = set(counts[Events.code.name])
    taken = seen | {code for code, _ in _SPECIAL_ROWS} | {DEATH_CODE}
    for name, members in groups.items():
        if name in taken:
            raise UsageError(f"groups: '{name}' is also the name of a code; give the group another name")
        missing = sorted(set(members) - seen)
        if missing or not members:
            raise UsageError(
                f"groups: '{name}' names codes that no training person has: {', '.join(missing) or 'none'}"
            )
    return groups


def _with_rates(vocabulary: pl.DataFrame, subjects: pl.DataFrame, parts: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """Add the rate of each outcome under observation and the people of each group; counts under 10 are not kept."""
    entry, exit_, first = Subjects.entry_age_days.col, Subjects.exit_age_days.col, FirstOccurrences.first_age_days.col
    all_days = subjects.select((exit_ - entry).sum()).item()
    lost = pl.when(first <= entry).then(exit_ - entry).when(first < exit_).then(exit_ - first).otherwise(0.0)
    happened = (first > entry) & (first <= exit_)
    follow_up = subjects.lazy().select(Subjects.subject_id.name, entry, exit_)
    follow_ups = [
        find_first_tokens(part, vocabulary)
        .join(follow_up, on=Subjects.subject_id.name)
        .group_by(Vocabulary.token.name)
        .agg(
            pl.len().cast(pl.Int64).alias(_N_EVER),
            happened.sum().cast(pl.Int64).alias(_N_EVENTS),
            lost.sum().alias(_LOST_DAYS),
        )
        .collect()
        for part in parts
    ]
    person_years = (all_days - pl.col(_LOST_DAYS)) / DAYS_PER_YEAR
    by_outcome = (
        pl.concat(follow_ups).group_by(Vocabulary.token.name).sum().with_columns(person_years.alias(_PERSON_YEARS))
    )
    is_outcome = Vocabulary.role.col.is_in(OUTCOME_ROLES)
    # A count under 10 must not be read off a rate that is passed on: it enters as 5, in everybody's years.
    is_shown = pl.col(_N_EVENTS) >= SMALLEST_SHOWN_COUNT
    counted = pl.when(is_shown).then(pl.col(_N_EVENTS)).otherwise(SMALLEST_SHOWN_COUNT // 2)
    years = pl.when(is_shown).then(pl.col(_PERSON_YEARS)).otherwise(all_days / DAYS_PER_YEAR)
    n_events, person_years = pl.when(is_outcome).then(counted), pl.when(is_outcome).then(years)
    n_people = pl.when(Vocabulary.role.col == GROUP).then(pl.col(_N_EVER)).otherwise(Vocabulary.n_subjects.col)
    return (
        vocabulary.join(by_outcome, on=Vocabulary.token.name, how="left", maintain_order="left")
        .with_columns(
            pl.when(n_people >= SMALLEST_SHOWN_COUNT).then(n_people).alias(Vocabulary.n_subjects.name),
            log_population_rates(n_events, person_years).alias(Vocabulary.log_rate_per_year.name),
        )
        .select(Vocabulary.column_names())
        .pipe(Vocabulary.validate, cast=True)
    )


def log_population_rates(n_events: pl.Expr, person_years: pl.Expr) -> pl.Expr:
    """Return b_k = log((events_k + 0.5) / (person_years_k + 0.5 / overall_rate)), per year; null for nulls.

    The half event keeps an outcome without cases finite; spread over the exposure that an average outcome needs for
    half an event, it pulls rare outcomes towards the overall rate, events of all causes / person-years of all causes.
    """
    overall = n_events.sum().cast(pl.Float64).clip(lower_bound=0.5) / person_years.sum().clip(lower_bound=1.0)
    return ((n_events + 0.5) / (person_years + 0.5 / overall)).log()
