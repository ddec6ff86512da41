"""People drawn by hypothesis, as plain objects for slow loops and as tables for the code under test."""

from dataclasses import dataclass

import polars as pl
from hypothesis import strategies as st

from data_schemas.cohort import DEATH_CODE, SEXES, Events, Subjects
from data_schemas.dataset import COVARIATE, DEATH, DISEASE, GROUP, NO_EVENT, OUTCOME_ROLES, PAD, QUERY, Vocabulary

# Code: role, mean, std, members; token is the place. `rare` and `new` are no tokens, but `rare` belongs to a group.
_ROWS = [
    (PAD, PAD, None, None, None),
    (QUERY, QUERY, None, None, None),
    (NO_EVENT, NO_EVENT, None, None, None),
    ("a", DISEASE, None, None, None),
    ("b", DISEASE, None, None, None),
    ("a_or_rare", GROUP, None, None, ["a", "rare"]),
    ("b_or_visit", GROUP, None, None, ["b", "visit"]),
    (DEATH_CODE, DEATH, None, None, None),
    ("bmi", COVARIATE, 25.0, 2.0, None),
    ("visit", COVARIATE, None, None, None),
]
VOCABULARY = pl.DataFrame(
    {
        Vocabulary.token.name: range(len(_ROWS)),
        Vocabulary.code.name: [row[0] for row in _ROWS],
        Vocabulary.role.name: [row[1] for row in _ROWS],
        Vocabulary.description.name: pl.Series([None] * len(_ROWS), dtype=pl.String),
        Vocabulary.chapter.name: pl.Series([None] * len(_ROWS), dtype=pl.String),
        Vocabulary.n_subjects.name: [10] * len(_ROWS),
        Vocabulary.log_rate_per_year.name: [-3.0 if row[1] in OUTCOME_ROLES else None for row in _ROWS],
        Vocabulary.mean.name: [row[2] for row in _ROWS],
        Vocabulary.std.name: [row[3] for row in _ROWS],
        Vocabulary.recurs.name: [{"a": True, "b": False, DEATH_CODE: False}.get(row[0]) for row in _ROWS],
        Vocabulary.members.name: pl.Series([row[4] for row in _ROWS], dtype=pl.List(pl.String)),
    }
)
TOKENS = {row[0]: token for token, row in enumerate(_ROWS)}
ROLES = {row[0]: row[1] for row in _ROWS}
# Outcome: the codes any of which makes it happen, in token order.
OUTCOMES = {
    "a": {"a"},
    "b": {"b"},
    "a_or_rare": {"a", "rare"},
    "b_or_visit": {"b", "visit"},
    DEATH_CODE: {DEATH_CODE},
}
_VALUES = (None, 12.0, 24.5, 27.0, 400.0)  # the last one is a typing error far beyond 5 standard deviations


@dataclass(frozen=True)
class Person:
    """One person; ages in days, `events` are (age, code, value) in no order."""

    sex: str
    entry: float
    exit: float
    events: tuple[tuple[float, str, float | None], ...]

    def first_age(self, codes: set[str]) -> float | None:
        """Return the age at the first of these codes in the full history."""
        ages = [age for age, code, _ in self.events if code in codes]
        return min(ages) if ages else None


@st.composite
def people(draw, largest: int = 5) -> list[Person]:
    """Draw a few people with short lives, so that events often fall on one day, on entry, on exit and after it."""
    return [draw(_person()) for _ in range(draw(st.integers(1, largest)))]


@st.composite
def _person(draw) -> Person:
    entry = draw(st.integers(0, 10))
    exit_ = entry + draw(st.integers(1, 12))
    age = st.integers(0, 2 * exit_ + 6).map(lambda half_days: half_days / 2)
    plain = st.tuples(age, st.sampled_from(["a", "b", "rare", "visit", "new"]), st.none())
    measured = st.tuples(age, st.just("bmi"), st.sampled_from(_VALUES))
    events = draw(st.lists(st.one_of(plain, measured), max_size=8))
    if draw(st.booleans()):
        events.append((float(exit_), DEATH_CODE, None))
    return Person(draw(st.sampled_from(SEXES)), float(entry), float(exit_), tuple(events))


def subjects_of(drawn: list[Person]) -> pl.DataFrame:
    """Return the people as `Subjects`, numbered from 0."""
    return pl.DataFrame(
        {
            Subjects.subject_id.name: range(len(drawn)),
            Subjects.sex.name: [person.sex for person in drawn],
            Subjects.entry_age_days.name: [person.entry for person in drawn],
            Subjects.exit_age_days.name: [person.exit for person in drawn],
        },
        schema_overrides={Subjects.subject_id.name: pl.Int64, Subjects.sex.name: pl.String},
    )


def events_of(drawn: list[Person]) -> pl.LazyFrame:
    """Return their events as `Events`, in the order drawn."""
    rows = [(i, age, code, value) for i, person in enumerate(drawn) for age, code, value in person.events]
    schema = dict(zip(Events.column_names(), (pl.Int64, pl.Float64, pl.String, pl.Float64), strict=True))
    return pl.LazyFrame(rows, schema=schema, orient="row")
