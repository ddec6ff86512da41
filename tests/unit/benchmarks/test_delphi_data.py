"""Delphi's files become a cohort: who is in which split, when they were observed, what their codes are called."""

import polars as pl
import pytest

from benchmarks.delphi_data import deliver_delphi, make_codes, prepare_delphi, read_triples
from data_schemas.cohort import DEATH_CODE, HELD_OUT, TRAIN, TUNING, Codes, Events, Subjects
from pipelines.read_dataset import read_split_subjects, read_vocabulary

LABELS = ["Padding", "No event", "Female", "Male", "O01 (one)", "O02 two", "O01 again"]
TRIPLES = {"person": pl.Int64, "age": pl.Int64, "token": pl.Int64}


def triples(*rows):
    return pl.DataFrame(rows, schema=TRIPLES, orient="row")


@pytest.fixture
def delivered():
    """Person 1 lacks a head; person 3 is cut over both files."""
    train = triples((1, 900, 3), (2, 0, 1), (2, 400, 4), (2, 800, 1268), (3, 0, 2), (3, 500, 5))
    held_out = triples((3, 700, 4), (4, 0, 2), (4, 650, 3))
    labels = LABELS + ["X"] * (1269 - len(LABELS)) + ["Death"]
    return deliver_delphi(train, held_out, labels)


def test_people_who_begin_in_another_file_are_left_out_and_counted(delivered):
    people = delivered.subjects.collect()
    assert people[Subjects.subject_id.name].to_list() == [2, 3, 4]
    assert people[Subjects.exit_age_days.name].to_list() == [800.0, 500.0, 650.0]
    assert people[Subjects.sex.name].to_list() == ["female", "male", "male"]
    (note,) = delivered.notes
    assert note.rows == 2


def test_sex_is_no_event_and_death_is_ours(delivered):
    train, held_out = (table.collect() for table in delivered.events.values())
    assert train[Events.code.name].to_list() == ["O02", DEATH_CODE, "O01#5"]
    assert held_out[Events.code.name].to_list() == ["O01#3"]


def test_a_token_is_named_by_the_label_two_lines_below_its_number():
    codes = make_codes(LABELS)
    assert codes.select("token", Codes.code.name).rows() == [(3, "O01#3"), (4, "O02"), (5, "O01#5")]


def test_every_tenth_training_person_is_tuning(delphi_source, tmp_path):
    dataset = prepare_delphi(delphi_source, tmp_path)
    ids = {
        split: read_split_subjects(dataset, split)[Subjects.subject_id.name].to_list()
        for split in (TRAIN, TUNING, HELD_OUT)
    }
    assert ids[TUNING] == [110, 120, 130, 140, 150, 160, 170, 180]  # person 100 has no head: 101 is the first
    assert len(ids[TRAIN]) == 72
    assert ids[HELD_OUT] == list(range(181, 260))
    people = read_split_subjects(dataset, TRAIN)
    assert people[Subjects.entry_age_days.name].unique().to_list() == [0.0]


def test_no_code_of_a_training_person_is_too_rare(delphi_source, tmp_path):
    dataset = prepare_delphi(delphi_source, tmp_path, n_people=10)
    rows = read_triples(delphi_source / "train.bin").filter(pl.col("person") < 109)
    tokens = set(rows["token"]) - {1, 2, 1268}
    assert len(read_vocabulary(dataset)) == 3 + len(tokens) + 1
