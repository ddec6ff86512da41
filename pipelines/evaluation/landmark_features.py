"""What a plain regression is given at a landmark: age, sex, latest measurements and history, one column each.

Only events at or before the landmark are looked at. What the columns are, and how values are scaled, is fitted on the
training split.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import CATEGORY_SEPARATOR, DEATH_CODE, FEMALE, SEXES, Events, Subjects
from data_schemas.results import Outcomes
from pipelines.central_scale import central_mean, central_std

MIN_PEOPLE = 20  # a column needs so many people in the training split who have what it says
LARGEST_VALUE = 5.0  # standard deviations; beyond, a value is taken for a typing error and clipped
AGE_CENTRE_YEARS, AGE_SCALE_YEARS = 60.0, 10.0  # age enters in decades around 60, so that its square is of its size

_SUBJECT = Subjects.subject_id.name
_LANDMARK = Outcomes.landmark_age_days.name
_KEYS = (_SUBJECT, _LANDMARK)


@dataclass(frozen=True)
class Measurement:
    """A code with numeric values: the latest one, standardised with the central scale of the training split."""

    code: str
    mean: float
    std: float


@dataclass(frozen=True)
class Category:
    """A variable whose values are codes `variable//level`: the latest one as indicators.

    The most frequent level in the training split has no column: it is what the others are compared with.
    """

    variable: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class LandmarkFeatures:
    """The columns of `landmark_features`, as fitted on the training split."""

    sexes: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    categories: tuple[Category, ...]
    history: tuple[str, ...]


def fit_landmark_features(people: pl.DataFrame, events: pl.LazyFrame, min_people: int = MIN_PEOPLE) -> LandmarkFeatures:
    """Decide on the columns from the training split.

    `people` has subject_id, sex and landmark_age_days, `events` is of schema `Events`. A code with a numeric value is
    a measurement, `variable//level` a category, any other code but death a history flag; each needs at least
    `min_people` people who have it at their landmark.
    """
    latest = _latest_events(people, events)
    has_value = latest.filter(Events.numeric_value.col.is_not_null())
    measured = _counted(has_value, Events.code.col, min_people)
    scales = has_value.group_by(Events.code.name).agg(
        mean=central_mean(Events.numeric_value.col), std=central_std(Events.numeric_value.col)
    )
    scale_of = {code: (mean, std) for code, mean, std in scales.iter_rows()}
    valueless = latest.filter(~Events.code.col.is_in(measured))
    is_category = Events.code.col.str.contains(CATEGORY_SEPARATOR, literal=True)
    sexes = people[Subjects.sex.name].unique()
    return LandmarkFeatures(
        sexes=tuple(sex for sex in SEXES if sex in sexes and sex != FEMALE),
        measurements=tuple(Measurement(code, *scale_of[code]) for code in measured),
        categories=tuple(_fit_categories(_latest_levels(valueless), min_people)),
        history=tuple(_counted(valueless.filter(~is_category), Events.code.col, min_people)),
    )


def landmark_features(people: pl.DataFrame, events: pl.LazyFrame, fitted: LandmarkFeatures) -> pl.DataFrame:
    """Return subject_id, landmark_age_days and one float column a feature, in the order of `people`.

    Age in decades around 60 and its square; an indicator for each sex seen in training but female; for a measurement
    its z-value, clipped to ±5 and 0 where there is none, and an indicator of having none; for a category indicators
    of its levels and of having none; for history 1 where the code was there. Levels and codes unknown to training are
    left out.
    """
    age = (pl.col(_LANDMARK) / DAYS_PER_YEAR - AGE_CENTRE_YEARS) / AGE_SCALE_YEARS
    columns = people.select(
        *_KEYS,
        age.alias("age"),
        age.pow(2).alias("age_squared"),
        *((Subjects.sex.col == sex).cast(pl.Float64).alias(f"sex is {sex}") for sex in fitted.sexes),
    )
    latest = _latest_events(people, events)
    for part in (
        *(_measurement_columns(latest, measurement) for measurement in fitted.measurements),
        *(_category_columns(_latest_levels(latest), category) for category in fitted.categories),
        *(_history_column(latest, code) for code in fitted.history),
    ):
        columns = columns.join(part, on=_KEYS, how="left", maintain_order="left")
    missing = [
        *(_no_value(measurement.code) for measurement in fitted.measurements),
        *(_no_level(category.variable) for category in fitted.categories),
    ]
    return columns.with_columns(pl.col(missing).fill_null(1.0)).with_columns(pl.exclude(*_KEYS).fill_null(0.0))


def feature_names(features: pl.DataFrame) -> list[str]:
    """Return the names of the feature columns of a table of `landmark_features`."""
    return [name for name in features.columns if name not in _KEYS]


def _no_value(code: str) -> str:
    return f"no value of {code}"


def _no_level(variable: str) -> str:
    return f"no level of {variable}"


def _latest_events(people: pl.DataFrame, events: pl.LazyFrame) -> pl.DataFrame:
    """Return the latest event of each person, landmark and code at or before the landmark, death apart.

    Of two values on one day the one that stands later in the table counts; an event without a value never hides one.
    """
    return (
        events.join(people.lazy().select(_KEYS), on=_SUBJECT, how="inner", maintain_order="left")
        .filter((Events.age_days.col <= pl.col(_LANDMARK)) & (Events.code.col != DEATH_CODE))
        .sort(Events.age_days.name, maintain_order=True)
        .group_by(*_KEYS, Events.code.name, maintain_order=True)
        .agg(Events.age_days.col.last(), Events.numeric_value.col.drop_nulls().last())
        .collect()
    )


def _latest_levels(latest: pl.DataFrame) -> pl.DataFrame:
    """Return the latest level of each categorical variable: keys, variable, level."""
    parts = Events.code.col.str.split_exact(CATEGORY_SEPARATOR, 1).struct.rename_fields(["variable", "level"])
    return (
        latest.filter(Events.code.col.str.contains(CATEGORY_SEPARATOR, literal=True))
        .with_columns(parts.alias("parts"))
        .unnest("parts")
        .sort(Events.age_days.name, maintain_order=True)
        .group_by(*_KEYS, "variable", maintain_order=True)
        .agg(pl.col("level").last())
    )


def _counted(latest: pl.DataFrame, what: pl.Expr, min_people: int) -> list[str]:
    """Return the values of a column that enough people have, sorted."""
    counted = latest.group_by(what.alias("what")).agg(n=pl.col(_SUBJECT).n_unique())
    return counted.filter(pl.col("n") >= min_people)["what"].sort().to_list()


def _fit_categories(levels: pl.DataFrame, min_people: int) -> Iterator[Category]:
    """Yield each variable with its levels, the most frequent one left out."""
    for key, rows in levels.sort("variable").group_by("variable", maintain_order=True):
        frequent = set(_counted(rows, pl.col("level"), min_people))
        by_size = rows["level"].value_counts().sort(["count", "level"], descending=[True, False])["level"].to_list()
        if frequent:
            yield Category(str(key[0]), tuple(sorted(frequent - {by_size[0]})))


def _measurement_columns(latest: pl.DataFrame, measurement: Measurement) -> pl.DataFrame:
    z = (Events.numeric_value.col - measurement.mean) / measurement.std
    return latest.filter(
        (Events.code.col == measurement.code) & Events.numeric_value.col.is_not_null()
    ).select(
        *_KEYS,
        z.clip(-LARGEST_VALUE, LARGEST_VALUE).alias(f"latest {measurement.code}"),
        pl.lit(0.0).alias(_no_value(measurement.code)),
    )  # fmt: skip


def _category_columns(levels: pl.DataFrame, category: Category) -> pl.DataFrame:
    return levels.filter(pl.col("variable") == category.variable).select(
        *_KEYS,
        *(
            (pl.col("level") == level).cast(pl.Float64).alias(f"{category.variable} is {level}")
            for level in category.levels
        ),
        pl.lit(0.0).alias(_no_level(category.variable)),
    )


def _history_column(latest: pl.DataFrame, code: str) -> pl.DataFrame:
    return latest.filter(Events.code.col == code).select(*_KEYS, pl.lit(1.0).alias(f"had {code}"))
