"""A prepared dataset read back as tables says what the cohort said."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data_schemas.cohort import DEATH_CODE, SPLITS, TRAIN, Events, Subjects
from data_schemas.dataset import ReferenceRates, Vocabulary
from data_schemas.errors import InputContractError
from data_schemas.results import FirstOccurrences
from pipelines.assign_splits import assign_splits
from pipelines.find_first_occurrences import find_first_occurrences
from pipelines.prepare_config import PrepareConfig
from pipelines.read_dataset import (
    outcome_names,
    read_reference_rates,
    read_split_first_occurrences,
    read_split_subjects,
    read_vocabulary,
    scan_split_events,
)
from pipelines.tables_on_disk import read_subjects, scan_events

CONFIG = PrepareConfig()


@pytest.fixture(scope="module")
def vocabulary(small_dataset):
    return read_vocabulary(small_dataset)


def people_of(cohort, split):
    subjects = assign_splits(read_subjects(cohort), CONFIG.split_seed, CONFIG.train_share, CONFIG.tuning_share)
    return subjects.filter(pl.col(Subjects.split.name) == split)


def events_of(cohort, split):
    ids = people_of(cohort, split).lazy().select(Subjects.subject_id.name)
    return scan_events(cohort).join(ids, on=Subjects.subject_id.name, how="semi")


@pytest.mark.parametrize("split", SPLITS)
def test_people_of_a_split(small_cohort, small_dataset, split):
    found = read_split_subjects(small_dataset, split)
    assert_frame_equal(found, people_of(small_cohort, split).select(found.columns), check_row_order=False)


@pytest.mark.parametrize("split", SPLITS)
def test_events_of_a_split_are_those_with_a_known_code(small_cohort, small_dataset, vocabulary, split):
    known = vocabulary[Vocabulary.code.name].implode()
    expected = events_of(small_cohort, split).filter(pl.col(Events.code.name).is_in(known)).collect()
    found = scan_split_events(small_dataset, split, vocabulary).collect()
    assert_frame_equal(found, expected.select(found.columns), check_row_order=False, rel_tol=1e-6)
    Events.validate(found)


@pytest.mark.parametrize("split", SPLITS)
def test_first_occurrences_of_a_split(small_cohort, small_dataset, vocabulary, split):
    expected = find_first_occurrences(events_of(small_cohort, split), vocabulary).collect()
    found = read_split_first_occurrences(small_dataset, split, vocabulary)
    assert_frame_equal(found, expected, check_row_order=False)
    FirstOccurrences.validate(found)


def test_outcomes_are_in_token_order(vocabulary):
    assert outcome_names(vocabulary, "all_future") == [
        "angina", "cancer", "copd", "diabetes", "fracture", "stroke", "any_heart", DEATH_CODE,
    ]  # fmt: skip


def test_reference_rates_cover_every_outcome_and_sex(small_dataset, vocabulary):
    rates = ReferenceRates.validate(read_reference_rates(small_dataset))
    assert set(rates[ReferenceRates.outcome.name]) == set(outcome_names(vocabulary, "all_future"))
    assert set(rates[ReferenceRates.sex.name]) == {"female", "male", "unknown"}


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(InputContractError, match=r"vocabulary\.parquet: not found; make a dataset with"):
        read_vocabulary(tmp_path)
    with pytest.raises(InputContractError, match=r"reference_rates\.parquet: not found"):
        read_reference_rates(tmp_path)
    with pytest.raises(InputContractError, match=r"sequences.train: not found"):
        read_split_subjects(tmp_path, TRAIN)
