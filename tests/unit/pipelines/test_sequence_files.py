"""Arrow files of sequences: what is written is read back, without a copy."""

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_people import TOKENS, VOCABULARY, Person, events_of, people, subjects_of
from hypothesis import given, settings

from data_schemas.dataset import SEQUENCES_FOLDER, Sequences
from data_schemas.errors import InputContractError
from pipelines.build_sequences import build_sequences
from pipelines.sequence_files import (
    ragged_positions,
    read_shard,
    read_split,
    shard_of,
    shard_of_table,
    write_sequences,
)

FLAT = ("tokens", "ages_days", "values", "first_tokens", "first_ages_days")


def sequences_of(drawn):
    return build_sequences(subjects_of(drawn), events_of(drawn), VOCABULARY)


def lists_of(shard, name):
    offsets = shard.first_offsets if name.startswith("first") else shard.offsets
    flat = getattr(shard, name)
    return [flat[start:end].tolist() for start, end in itertools.pairwise(offsets)]


def assert_same_people(shard, sequences):
    assert shard.subject_id.to_pylist() == sequences[Sequences.subject_id.name].to_list()
    for name in ("sex", "entry_age_days", "exit_age_days"):
        assert getattr(shard, name).tolist() == sequences[name].to_list()
    for name in FLAT:
        expected = [[np.nan if value is None else value for value in values] for values in sequences[name].to_list()]
        for found, wanted in zip(lists_of(shard, name), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@settings(max_examples=40, deadline=None)
@given(drawn=people(8))
def test_a_frame_as_arrays_and_any_choice_of_its_rows_say_the_same(drawn):
    sequences = sequences_of(drawn)
    assert_same_people(shard_of(sequences), sequences)
    assert_same_people(shard_of(sequences[1:]), sequences[1:])
    rows = np.arange(len(drawn))[::-2]
    assert_same_people(shard_of(sequences).take(rows), sequences[rows.tolist()])


@settings(max_examples=40, deadline=None)
@given(drawn=people(8))
def test_owners_and_counts_equal_a_plain_loop(drawn):
    shard = shard_of(sequences_of(drawn))
    assert shard.owner_of_first().tolist() == [
        i for i, ages in enumerate(lists_of(shard, "first_tokens")) for _ in ages
    ]
    assert shard.owner_of_event().tolist() == [i for i, ages in enumerate(lists_of(shard, "tokens")) for _ in ages]
    landmarks = np.array([person.entry for person in drawn])
    expected = [sum(age <= person.entry and code in TOKENS for age, code, _ in person.events) for person in drawn]
    assert shard.count_events_up_to(landmarks).tolist() == expected
    assert shard.count_events_up_to(np.full(len(drawn), np.nan)).tolist() == [0] * len(drawn)


def write(drawn, path):
    sequences = sequences_of(drawn)
    write_sequences(sequences, path)
    return sequences


def person(*events, entry=5.0, exit_=20.0):
    return Person("male", entry, exit_, events)


TWO = [person((1.0, "a", None), (6.0, "bmi", 24.5)), person(), person((7.0, "bmi", None), (8.0, "b", None))]


def test_a_file_is_read_back_as_it_was(tmp_path):
    sequences = write(TWO, tmp_path / "x.arrow")
    assert_same_people(read_shard(tmp_path / "x.arrow"), sequences)
    assert [path.name for path in tmp_path.iterdir()] == ["x.arrow"]


@pytest.mark.parametrize("drawn", [[], [person()]])
def test_nobody_and_nothing_are_read_back(drawn, tmp_path):
    sequences = write(drawn, tmp_path / "x.arrow")
    shard = read_shard(tmp_path / "x.arrow")
    assert_same_people(shard, sequences)
    assert len(shard) == len(drawn)
    assert len(shard.take(np.array([], dtype=np.int64))) == 0


def test_arrays_are_views_of_the_memory_map(tmp_path):
    write(TWO * 2000, tmp_path / "x.arrow")
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "x.arrow"))).read_all()
    allocated = pa.total_allocated_bytes()
    shard = read_shard(tmp_path / "x.arrow")
    assert pa.total_allocated_bytes() - allocated <= 4096  # ages alone would be 64 kB
    same = shard_of_table(table)
    for name in FLAT:
        buffer = table.column(name).chunk(0).values.buffers()[1]
        assert np.shares_memory(getattr(same, name), np.frombuffer(buffer, dtype=np.uint8)), name
        assert not getattr(shard, name).flags.owndata
        assert not getattr(shard, name).flags.writeable
    for name, offsets in (("tokens", same.offsets), ("first_tokens", same.first_offsets)):
        assert np.shares_memory(offsets, np.frombuffer(table.column(name).chunk(0).buffers()[1], dtype=np.uint8))


def test_a_split_is_its_files_in_name_order(tmp_path):
    folder = tmp_path / SEQUENCES_FOLDER / "train"
    write(TWO[1:], folder / "0001.arrow")
    write(TWO[:1], folder / "0000.arrow")
    assert [len(shard) for shard in read_split(tmp_path, "train")] == [1, 2]


def test_a_missing_split_is_named(tmp_path):
    with pytest.raises(InputContractError, match=r"sequences.tuning: not found; make a dataset"):
        read_split(tmp_path, "tuning")


def test_string_ids_survive(tmp_path):
    sequences = sequences_of(TWO).with_columns(pl.Series("subject_id", ["x1", "é", ""]))
    write_sequences(sequences, tmp_path / "x.arrow")
    assert read_shard(tmp_path / "x.arrow").take(np.array([2, 1])).subject_id.to_pylist() == ["", "é"]


def test_ragged_positions_are_the_stretches_one_after_another():
    assert ragged_positions(np.array([7, 3, 9, 0]), np.array([2, 0, 3, 1])).tolist() == [7, 8, 9, 10, 11, 0]
    assert ragged_positions(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
