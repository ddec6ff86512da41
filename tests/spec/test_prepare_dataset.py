"""Preparing a cohort: what is written, what is fitted on whom, and when it is not run again."""

import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from small_cohort import RARE_DISEASE, write_small_cohort

from data_schemas.cohort import COVARIATE, SPLITS, TRAIN, Events, Subjects
from data_schemas.dataset import Sequences, Vocabulary
from data_schemas.errors import InputContractError, UsageError
from pipelines import prepare_dataset as module
from pipelines.assign_splits import assign_splits
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset, read_manifest
from pipelines.read_dataset import read_reference_rates, read_vocabulary
from pipelines.sequence_files import write_sequences
from pipelines.tables_on_disk import hash_file, read_subjects

CONFIG = PrepareConfig()


@pytest.fixture
def cohort(tmp_path):
    return write_small_cohort(tmp_path / "cohort", n_subjects=120, seed=5, n_event_files=2)


def bytes_of(folder):
    return {str(path.relative_to(folder)): hash_file(path) for path in folder.rglob("*") if path.is_file()}


def read_sequences(dataset):
    return {
        split: pl.read_ipc(sorted((dataset / "sequences" / split).glob("*.arrow")))
        for split in SPLITS
    }  # fmt: skip


def train_ids(cohort):
    subjects = assign_splits(read_subjects(cohort), CONFIG.split_seed, CONFIG.train_share, CONFIG.tuning_share)
    return subjects.filter(pl.col(Subjects.split.name) == TRAIN)[Subjects.subject_id.name].implode()


def change_events(cohort, change):
    for path in sorted((cohort / "events").glob("*.parquet")):
        change(pl.read_parquet(path)).write_parquet(path)


def test_every_person_is_in_one_split_with_all_known_events(cohort, tmp_path):
    prepared = prepare_dataset(cohort, tmp_path / "out", CONFIG)
    sequences = pl.concat(read_sequences(tmp_path / "out").values())
    assert sorted(sequences[Sequences.subject_id.name]) == sorted(read_subjects(cohort)[Subjects.subject_id.name])
    Sequences.validate(sequences)
    Vocabulary.validate(read_vocabulary(tmp_path / "out"))
    counts = prepared.manifest["counts"]
    assert counts["people"] == {split: frame.height for split, frame in read_sequences(tmp_path / "out").items()}
    n_tokens = sequences[Sequences.tokens.name].list.len().sum()
    assert n_tokens == counts["events"] - counts["unknown_code_events"]
    assert counts["unknown_code_events"] >= 3  # the rare disease at least


def test_string_ids_are_kept(tmp_path):
    cohort = write_small_cohort(tmp_path / "cohort", n_subjects=60, string_ids=True)
    prepare_dataset(cohort, tmp_path / "out", CONFIG)
    sequences = pl.concat(read_sequences(tmp_path / "out").values())
    assert sequences.schema[Sequences.subject_id.name] == pl.String
    assert set(sequences[Sequences.subject_id.name]) == set(read_subjects(cohort)[Subjects.subject_id.name])


def test_one_event_file_or_three_give_the_same_people(tmp_path):
    found = []
    for n_files in (1, 3):
        cohort = write_small_cohort(tmp_path / f"c{n_files}", n_subjects=80, n_event_files=n_files)
        prepare_dataset(cohort, tmp_path / f"d{n_files}", CONFIG)
        assert len(list((tmp_path / f"d{n_files}" / "sequences" / "train").iterdir())) == n_files
        found.append(read_sequences(tmp_path / f"d{n_files}"))
    for split in SPLITS:
        assert_frame_equal(found[0][split], found[1][split], check_row_order=False)


def test_the_same_cohort_gives_the_same_bytes(cohort, tmp_path):
    first, second = (prepare_dataset(cohort, tmp_path / name, CONFIG) for name in ("one", "two"))
    assert first.manifest == second.manifest
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert len(first.manifest["content_sha256"]) == 64


def test_a_second_run_does_nothing_and_says_so(cohort, tmp_path):
    out = tmp_path / "out"
    assert prepare_dataset(cohort, out, CONFIG).fresh
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = prepare_dataset(cohort, out, CONFIG)
    assert not again.fresh
    assert again.manifest == read_manifest(out)
    assert again.summary_lines[0] == "nothing has changed since it was prepared; kept as it is"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_changed_settings_or_events_are_noticed(cohort, tmp_path):
    out = tmp_path / "out"
    first = prepare_dataset(cohort, out, CONFIG)
    second = prepare_dataset(cohort, out, CONFIG.model_copy(update={"min_subjects": 40}))
    assert second.fresh
    assert second.manifest["content_sha256"] != first.manifest["content_sha256"]
    change_events(cohort, lambda events: events[:-1])
    third = prepare_dataset(cohort, out, CONFIG)
    assert third.fresh
    assert third.manifest["source"] != first.manifest["source"]
    assert not list(tmp_path.glob(".*"))  # no temporary folder is left


def test_what_is_fitted_comes_from_training_people_alone(cohort, tmp_path):
    prepare_dataset(cohort, tmp_path / "one", CONFIG)
    is_train = pl.col(Subjects.subject_id.name).is_in(train_ids(cohort))

    def disturb(events):
        train, others = events.filter(is_train), events.filter(~is_train)
        invented = others.with_columns(pl.lit("invented").alias(Events.code.name))
        scaled = others.with_columns(pl.col(Events.numeric_value.name) * 1000)
        return pl.concat([train, scaled, invented]).sort(Events.subject_id.name, Events.age_days.name)

    change_events(cohort, disturb)
    prepared = prepare_dataset(cohort, tmp_path / "two", CONFIG)
    assert prepared.manifest["counts"]["unknown_code_events"] > 50
    assert_frame_equal(read_vocabulary(tmp_path / "one"), read_vocabulary(tmp_path / "two"))
    assert_frame_equal(read_reference_rates(tmp_path / "one"), read_reference_rates(tmp_path / "two"))

    change_events(cohort, lambda events: events.filter(~is_train | (pl.col(Events.code.name) != "diabetes")))
    prepare_dataset(cohort, tmp_path / "three", CONFIG)
    assert "diabetes" not in read_vocabulary(tmp_path / "three")[Vocabulary.code.name]


def test_codes_of_too_few_people_and_input_only_codes(cohort, tmp_path):
    config = CONFIG.model_copy(update={"input_only_codes": ("fracture",)})
    prepare_dataset(cohort, tmp_path / "out", config)
    roles = dict(read_vocabulary(tmp_path / "out").select("code", "role").iter_rows())
    assert RARE_DISEASE not in roles
    assert {roles[code] for code in ("fracture", "screening", "smoking//yes", "bmi")} == {COVARIATE}


def test_given_splits_are_used(cohort, tmp_path):
    subjects = read_subjects(cohort)
    given = subjects.with_columns(pl.Series(Subjects.split.name, ["held_out"] * 20 + ["train"] * 100))
    given.with_columns(pl.lit(None, pl.String).alias("cluster_id")).write_parquet(cohort / "subjects.parquet")
    counts = prepare_dataset(cohort, tmp_path / "out", CONFIG).manifest["counts"]["people"]
    assert counts == {"train": 100, "tuning": 0, "held_out": 20}


def test_a_folder_with_something_else_is_left_alone(cohort, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years of work")
    with pytest.raises(UsageError, match="is not empty and holds no dataset"):
        prepare_dataset(cohort, tmp_path / "mine", CONFIG)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize("code", ["query", "pad", "no_event"])
def test_codes_and_groups_with_a_name_of_ours_are_refused_in_words(cohort, tmp_path, code):
    group = CONFIG.model_copy(update={"groups": {code: ("angina", "stroke")}})
    with pytest.raises(UsageError, match=f"the group '{code}' has a reserved name"):
        prepare_dataset(cohort, tmp_path / "out", group)
    change_events(cohort, lambda events: events.with_columns(Events.code.col.replace("stroke", code)))
    with pytest.raises(
        InputContractError, match=rf"events: column 'code': the code '{code}' is reserved.*\(\d+ rows\)"
    ):
        prepare_dataset(cohort, tmp_path / "out", CONFIG)
    assert not (tmp_path / "out").exists()


def test_a_failed_run_leaves_the_earlier_dataset(cohort, tmp_path):
    out = tmp_path / "out"
    prepare_dataset(cohort, out, CONFIG)
    before = bytes_of(out)
    with pytest.raises(UsageError, match="names codes that no training person has"):
        prepare_dataset(cohort, out, CONFIG.model_copy(update={"groups": {"any": ("nowhere",)}}))
    assert bytes_of(out) == before
    assert not list(tmp_path.glob(".*"))


def test_a_missing_or_incomplete_cohort_is_named(cohort, tmp_path):
    with pytest.raises(InputContractError, match=r"nowhere.subjects\.parquet: not found; make a cohort with"):
        prepare_dataset(tmp_path / "nowhere", tmp_path / "out", CONFIG)
    shutil.rmtree(cohort / "events")
    with pytest.raises(InputContractError, match=r"events: not found; make a cohort with"):
        prepare_dataset(cohort, tmp_path / "out", CONFIG)
    with pytest.raises(InputContractError, match=r"manifest\.json: not found; make a dataset with"):
        read_manifest(tmp_path)


def test_nobody_in_training_is_an_error(cohort, tmp_path):
    subjects = read_subjects(cohort).with_columns(pl.lit("held_out").alias(Subjects.split.name))
    subjects.write_parquet(cohort / "subjects.parquet")
    with pytest.raises(InputContractError, match="nobody falls into the training split"):
        prepare_dataset(cohort, tmp_path / "out", CONFIG)


def test_a_person_in_two_event_files_is_refused_without_a_name(cohort, tmp_path):
    files = sorted((cohort / "events").glob("*.parquet"))
    moved = pl.read_parquet(files[0])[:1]
    pl.concat([pl.read_parquet(files[1]), moved]).sort("subject_id", "age_days").write_parquet(files[1])
    with pytest.raises(InputContractError, match="1 people have events in more than one file") as caught:
        prepare_dataset(cohort, tmp_path / "out", CONFIG)
    assert str(moved["subject_id"].item()) not in str(caught.value).replace(str(tmp_path), "")


def test_an_interrupted_run_goes_on_where_it_stopped(cohort, tmp_path, monkeypatch):
    prepare_dataset(cohort, tmp_path / "untouched", CONFIG)
    out, written = tmp_path / "out", []

    def write_until(stop_at):
        def write(sequences, path):
            if len(written) == stop_at:
                raise KeyboardInterrupt
            written.append(path.name)
            write_sequences(sequences, path)

        monkeypatch.setattr(module, "write_sequences", write)

    write_until(3)  # the three splits of the first file
    with pytest.raises(KeyboardInterrupt):
        prepare_dataset(cohort, out, CONFIG)
    assert not out.exists()
    monkeypatch.setattr(module, "fit_vocabulary", None)  # what is done is not done again
    write_until(100)
    prepare_dataset(cohort, out, CONFIG)
    assert written == ["0000.arrow"] * 3 + ["0001.arrow"] * 3
    assert bytes_of(out) == bytes_of(tmp_path / "untouched")
    assert not list(tmp_path.glob(".*"))


def test_what_was_left_of_other_settings_is_not_gone_on_with(cohort, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_sequences", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare_dataset(cohort, tmp_path / "out", CONFIG)
    other = CONFIG.model_copy(update={"min_subjects": 40})
    prepare_dataset(cohort, tmp_path / "out", other)
    prepare_dataset(cohort, tmp_path / "fresh", other)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "fresh")


@pytest.mark.parametrize(
    "settings",
    [
        {"train_share": 0.9, "tuning_share": 0.1},
        {"train_share": 0.0},
        {"min_subjects": 0},
        {"split_seed": 10**16},
        {"split_sed": 1},
    ],
)
def test_settings_out_of_range_or_unknown_are_refused(settings):
    with pytest.raises(ValueError, match="validation error"):
        PrepareConfig(**settings)
