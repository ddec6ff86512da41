"""Who belongs to which subgroup at a landmark: sex, band of age, calendar period, or any covariate.

Cut points of numbers are fitted on the training split; what is assigned looks at nothing after the landmark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import CATEGORY_SEPARATOR, SUBJECTS_FILE, Events, Subjects
from data_schemas.errors import InputContractError, UsageError, Violation
from data_schemas.evaluation_tables import Subgroups
from data_schemas.results import Outcomes

SEX, AGE, PERIOD = "sex", "age", "period"
AGE_BAND_YEARS, PERIOD_YEARS = 10, 5
N_PARTS = 3  # a number is cut into so many parts of equal size in the training split
MIN_PEOPLE = 20  # so many training people must have a value before it is cut
CUT_DIGITS = 3  # significant digits of a cut point: it is nobody's own value
NONE, YES, NO = "none", "yes", "no"

_KEYS = (Subjects.subject_id.name, Outcomes.landmark_age_days.name)
_VALUE, _LEVEL = "value", "level"


@dataclass(frozen=True)
class SubgroupKind:
    """One way of dividing people; `cuts` are those of a number, increasing, `is_category` of `variable//level`."""

    name: str
    cuts: tuple[float, ...] | None = None
    is_category: bool = False


def fit_subgroups(train_people: pl.DataFrame, train_events: pl.LazyFrame, names: Sequence[str]) -> list[SubgroupKind]:
    """Find out what each name means, and the cut points of numbers, from the training split.

    `sex`, `age` and `period` are known by themselves. Any other name is a code: one with numeric values is cut into
    thirds of the latest value at the landmark (cut points rounded to 3 digits, equal ones merged); the variable of
    `variable//level` codes is divided by latest level; any other code by whether the person had it.
    `train_people` has subject_id and landmark_age_days, a row a person and landmark.

    Raises:
        UsageError: no training person has the code at a landmark, or under 20 have a value of it.
    """
    kinds = []
    for name in dict.fromkeys(names):
        if name in {SEX, AGE, PERIOD}:
            kinds.append(SubgroupKind(name))
            continue
        latest = _latest(train_people, train_events, name)
        values = latest[_VALUE].drop_nulls()
        is_category = bool(latest[_LEVEL].is_not_null().any())
        if latest.is_empty():
            raise UsageError(f"subgroup '{name}': no training person has such a code; {SEX}, {AGE}, {PERIOD} or a code")
        if 0 < values.len() < MIN_PEOPLE:
            raise UsageError(f"subgroup '{name}': fewer than {MIN_PEOPLE} training people have a value")
        kinds.append(SubgroupKind(name, _cut_points(values) if values.len() else None, is_category))
    return kinds


def assign_subgroups(people: pl.DataFrame, events: pl.LazyFrame, kinds: Sequence[SubgroupKind]) -> pl.DataFrame:
    """Return the subgroups of each person and landmark, one row a kind (schema `Subgroups`), people in order.

    `people` has subject_id, landmark_age_days, sex, and birth_date where the period is asked for. Bands of age are 10
    years wide (`age=50-59`), calendar periods 5 (`period=2010-2014`). Who has no value of a covariate is `bmi=none`.

    Raises:
        InputContractError: the period is asked for and people have no birth date.
    """
    parts = [_assign(people, events, kind) for kind in kinds]
    nobody = pl.DataFrame(schema={**{key: people.schema[key] for key in _KEYS}, Subgroups.subgroup.name: pl.String})
    return pl.concat([nobody, *parts])


def _assign(people: pl.DataFrame, events: pl.LazyFrame, kind: SubgroupKind) -> pl.DataFrame:
    value = {SEX: _sex, AGE: _age_band, PERIOD: _period}.get(kind.name)
    if value is not None:
        return people.select(*_KEYS, pl.format(f"{kind.name}={{}}", value(people)).alias(Subgroups.subgroup.name))
    latest = _latest(people, events, kind.name)
    joined = people.select(_KEYS).join(latest, on=_KEYS, how="left", maintain_order="left")
    return joined.select(*_KEYS, pl.format("{}={}", pl.lit(kind.name), _covariate(kind)).alias(Subgroups.subgroup.name))


def _sex(people: pl.DataFrame) -> pl.Expr:
    return Subjects.sex.col


def _age_band(people: pl.DataFrame) -> pl.Expr:
    first = ((Outcomes.landmark_age_days.col / DAYS_PER_YEAR) // AGE_BAND_YEARS * AGE_BAND_YEARS).cast(pl.Int64)
    return pl.format("{}-{}", first, first + AGE_BAND_YEARS - 1)


def _period(people: pl.DataFrame) -> pl.Expr:
    """Divide by the calendar year of the landmark."""
    birth_date = Subjects.birth_date.name
    without = people[birth_date].null_count() if birth_date in people.columns else people.height
    if without:
        rule = "people have no birth date; calendar periods need one"
        raise InputContractError([Violation(SUBJECTS_FILE, birth_date, rule, without)])
    day = Subjects.birth_date.col + pl.duration(days=Outcomes.landmark_age_days.col.floor().cast(pl.Int64))
    first = day.dt.year() // PERIOD_YEARS * PERIOD_YEARS
    return pl.format("{}-{}", first, first + PERIOD_YEARS - 1)


def _covariate(kind: SubgroupKind) -> pl.Expr:
    """Name the part that the latest value, level or presence of a code belongs to."""
    if kind.cuts is not None:
        names = _names_of_parts(kind.cuts)
        part = (
            pl.sum_horizontal((pl.col(_VALUE) >= cut).cast(pl.Int64) for cut in kind.cuts) if kind.cuts else pl.lit(0)
        )
        named = part.replace_strict(dict(enumerate(names)), return_dtype=pl.String)
        return pl.when(pl.col(_VALUE).is_null()).then(pl.lit(NONE)).otherwise(named)
    if kind.is_category:
        return pl.col(_LEVEL).fill_null(NONE)
    return pl.when(Events.age_days.col.is_not_null()).then(pl.lit(YES)).otherwise(pl.lit(NO))


def _names_of_parts(cuts: Sequence[float]) -> list[str]:
    if not cuts:
        return ["any"]
    between = [f"{low:g} to under {high:g}" for low, high in pairwise(cuts)]
    return [f"under {cuts[0]:g}", *between, f"{cuts[-1]:g} or more"]


def _cut_points(values: pl.Series) -> tuple[float, ...]:
    """Return the values that divide the training people into parts of equal size, rounded, each once.

    A cut at or below the smallest value would leave nobody under it and is left out.
    """
    numbers = values.to_numpy().astype(np.float64)
    shares = np.arange(1, N_PARTS) / N_PARTS
    rounded = {float(f"{cut:.{CUT_DIGITS}g}") for cut in np.quantile(numbers, shares)}
    return tuple(sorted(cut for cut in rounded if cut > numbers.min()))


def _latest(people: pl.DataFrame, events: pl.LazyFrame, name: str) -> pl.DataFrame:
    """Return keys, age, latest value and latest level of a code or variable at or before each landmark.

    Of two on one day the one that stands later in the table counts; an event without a value never hides one.
    """
    code = Events.code.col
    level = pl.when(code != name).then(code.str.strip_prefix(name + CATEGORY_SEPARATOR))
    return (
        events.filter((code == name) | code.str.starts_with(name + CATEGORY_SEPARATOR))
        .join(people.lazy().select(_KEYS), on=Subjects.subject_id.name, how="inner", maintain_order="left")
        .filter(Events.age_days.col <= Outcomes.landmark_age_days.col)
        .sort(Events.age_days.name, maintain_order=True)
        .group_by(_KEYS, maintain_order=True)
        .agg(
            Events.age_days.col.last(),
            Events.numeric_value.col.drop_nulls().last().alias(_VALUE),
            level.drop_nulls().last().alias(_LEVEL),
        )
        .collect()
    )
