"""What happens after a landmark: who is at risk, when follow-up ends, and what ends it."""

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_schemas.cohort import DEATH_CODE, Subjects
from data_schemas.errors import UsageError
from data_schemas.results import FirstOccurrences, Outcomes
from pipelines.find_outcomes import find_outcomes, landmarks_at

ENTRY, EXIT = 100.0, 200.0
FIRST_COLUMNS = FirstOccurrences.column_names()


def subjects_of(*rows: tuple[object, float, float]) -> pl.DataFrame:
    names = [Subjects.subject_id.name, Subjects.entry_age_days.name, Subjects.exit_age_days.name]
    return pl.DataFrame(rows, schema=names, orient="row")


def first_of(*rows: tuple[object, str, float]) -> pl.DataFrame:
    schema = {name: FirstOccurrences.create_empty().schema[name] for name in FIRST_COLUMNS[1:]}
    return pl.DataFrame(rows, schema={FIRST_COLUMNS[0]: pl.Int64, **schema}, orient="row")


def follow(landmark: float, *first: tuple[str, float], outcomes: tuple[str, ...] = ("A",)) -> list[tuple[object, ...]]:
    landmarks = pl.DataFrame({Outcomes.subject_id.name: [1], Outcomes.landmark_age_days.name: [landmark]})
    found = find_outcomes(
        subjects_of((1, ENTRY, EXIT)), first_of(*((1, *row) for row in first)), landmarks, list(outcomes)
    )
    return found.select(Outcomes.outcome.name, Outcomes.time_days.name, Outcomes.status.name).rows()


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([], ("A", 100.0, 0)),
        ([("A", 150.0)], ("A", 50.0, 1)),
        ([("A", 200.0)], ("A", 100.0, 1)),  # on the last day: the outcome comes first
        ([("A", 201.0)], ("A", 100.0, 0)),  # recorded after exit
        ([(DEATH_CODE, 200.0)], ("A", 100.0, 2)),  # death before the end of follow-up on one day
        ([(DEATH_CODE, 150.0)], ("A", 50.0, 2)),
        ([(DEATH_CODE, 150.0), ("A", 150.0)], ("A", 50.0, 1)),  # the outcome before death on one day
        ([(DEATH_CODE, 150.0), ("A", 160.0)], ("A", 50.0, 2)),  # found after death
        ([(DEATH_CODE, 210.0)], ("A", 100.0, 0)),
        ([("B", 150.0)], ("A", 100.0, 0)),  # other diseases never compete
    ],
)
def test_first_of_outcome_death_and_exit(first: list[tuple[str, float]], expected: tuple[str, float, int]) -> None:
    assert follow(100.0, *first) == [expected]


@pytest.mark.parametrize(
    ("landmark", "first"),
    [
        (99.0, []),  # before entry
        (200.0, []),  # at exit
        (150.0, [("A", 150.0)]),  # on the day of the landmark: history
        (150.0, [("A", 20.0)]),
        (150.0, [(DEATH_CODE, 150.0)]),
    ],
)
def test_not_at_risk(landmark: float, first: list[tuple[str, float]]) -> None:
    assert follow(landmark, *first) == []


def test_death_as_outcome_has_no_competing_event() -> None:
    rows = follow(100.0, ("A", 120.0), (DEATH_CODE, 150.0), outcomes=(DEATH_CODE, "A"))
    assert rows == [(DEATH_CODE, 50.0, 1), ("A", 20.0, 1)]


def test_rows_satisfy_the_contract_in_the_order_of_landmarks_and_outcomes() -> None:
    subjects = subjects_of(("b", 1.0, 9.0), ("a", 2.0, 8.0))
    landmarks = landmarks_at(subjects, "entry")
    first = first_of().with_columns(pl.col(Outcomes.subject_id.name).cast(pl.String))
    found = find_outcomes(subjects, first, landmarks, ["Z", "A"])
    Outcomes.validate(found)
    assert found.select(Outcomes.subject_id.name, Outcomes.outcome.name).rows() == [
        ("b", "Z"), ("b", "A"), ("a", "Z"), ("a", "A"),
    ]  # fmt: skip


def test_several_landmarks_of_one_person() -> None:
    subjects = subjects_of((1, ENTRY, EXIT))
    landmarks = pl.DataFrame({Outcomes.subject_id.name: [1, 1], Outcomes.landmark_age_days.name: [110.0, 160.0]})
    found = find_outcomes(subjects, first_of((1, "A", 150.0)), landmarks, ["A"])
    assert found[Outcomes.landmark_age_days.name].to_list() == [110.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("entry", {1: 3652.5, 2: 7305.0}),
        ("entry+5y", {2: 7305.0 + 1826.25}),  # person 1 leaves exactly then
        ("age20", {2: 7305.0}),
        ("age12.5", {1: 12.5 * 365.25}),
        ("age80", {}),
    ],
)
def test_named_landmarks(name: str, expected: dict[int, float]) -> None:
    subjects = subjects_of((1, 3652.5, 3652.5 + 1826.25), (2, 7305.0, 7305.0 + 1826.5))
    assert dict(landmarks_at(subjects, name).rows()) == expected


@pytest.mark.parametrize("name", ["", "exit", "entry+5", "entry-5y", "agefifty", "entry+5years", "age"])
def test_unknown_landmark_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="landmark"):
        landmarks_at(subjects_of((1, 1.0, 2.0)), name)


ages = st.sampled_from([None, 90.0, 100.0, 110.0, 150.0, 180.0, 200.0, 210.0])


def follow_slowly(landmark: float, first: float | None, death: float | None) -> list[tuple[object, ...]]:
    if not ENTRY <= landmark < EXIT or any(age is not None and age <= landmark for age in (first, death)):
        return []
    candidates = [(age, rank) for age, rank in ((first, 0), (death, 1), (EXIT, 2)) if age is not None and age <= EXIT]
    age, rank = min(candidates)
    return [("A", age - landmark, {0: 1, 1: 2, 2: 0}[rank])]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([90.0, 100.0, 110.0, 150.0, 200.0]), ages, ages)
@example(100.0, 200.0, 200.0)
def test_equals_the_rule_written_out(landmark: float, first: float | None, death: float | None) -> None:
    rows = [(code, age) for code, age in (("A", first), (DEATH_CODE, death)) if age is not None]
    assert follow(landmark, *rows) == follow_slowly(landmark, first, death)
