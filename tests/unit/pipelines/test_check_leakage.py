"""The leakage check: a clean dataset passes, and each leak that is put into one is found and named."""

import shutil

import numpy as np
import polars as pl
import pytest
from small_cohort import write_small_cohort

from data_schemas.cohort import SPLITS, Subjects
from data_schemas.dataset import Sequences
from data_schemas.errors import InputContractError, UsageError
from pipelines.check_leakage import check_leakage
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.sequence_files import write_sequences
from pipelines.tables_on_disk import read_subjects, scan_events

CONFIG = PrepareConfig(groups={"any_heart": ("angina", "stroke")})


@pytest.fixture
def dataset(small_dataset, tmp_path):
    return shutil.copytree(small_dataset, tmp_path / "dataset")


def change(dataset, split, changed, number=0):
    path = sorted((dataset / "sequences" / split).glob("*.arrow"))[number]
    write_sequences(changed(pl.read_ipc(path)), path)
    return path


def leaks(dataset, cohort):
    with pytest.raises(InputContractError) as caught:
        check_leakage(dataset, cohort)
    return [(violation.column, violation.rule, violation.n_rows) for violation in caught.value.violations]


def test_a_prepared_dataset_is_clean(small_dataset, small_cohort):
    found = check_leakage(small_dataset, small_cohort)
    subjects = read_subjects(small_cohort)
    assert found.people == subjects.height == 300
    assert found.clusters == subjects[Subjects.cluster_id.name].drop_nulls().n_unique() > 20
    assert found.events > 1000
    assert found.same_day_codes == ()


def test_groups_stay_together_for_many_seeds(small_cohort, tmp_path):
    for seed in range(5):
        prepare_dataset(small_cohort, tmp_path / str(seed), CONFIG.model_copy(update={"split_seed": seed}))
        check_leakage(tmp_path / str(seed), small_cohort)


def test_a_person_in_two_splits_is_found(dataset, small_cohort):
    someone = pl.read_ipc(next((dataset / "sequences" / "held_out").glob("*.arrow"))).head(1)
    change(dataset, "train", lambda people: pl.concat([people, someone]))
    assert (Subjects.subject_id.name, "1 people are there twice, in two splits or in one", None) in leaks(
        dataset, small_cohort
    )


def test_a_group_in_two_splits_is_found_without_a_name(dataset, small_cohort):
    family = read_subjects(small_cohort).filter(pl.col(Subjects.cluster_id.name).is_not_null())
    several = family.filter(pl.len().over(Subjects.cluster_id.name) > 1)[Subjects.subject_id.name].to_list()
    frames = {split: pl.read_ipc(sorted((dataset / "sequences" / split).glob("*.arrow"))) for split in SPLITS}
    someone = frames["train"].filter(pl.col(Subjects.subject_id.name).is_in(several)).head(1)
    one = pl.col(Subjects.subject_id.name) == someone[Subjects.subject_id.name].item()
    for number in (0, 1):
        change(dataset, "train", lambda people: people.filter(~one), number)
    change(dataset, "held_out", lambda people: pl.concat([people, someone]))
    assert leaks(dataset, small_cohort) == [
        (Subjects.cluster_id.name, "1 groups have people in more than one split", None)
    ]


def test_people_who_are_missing_or_of_another_cohort_are_found(dataset, small_cohort):
    identity = pl.col(Subjects.subject_id.name)
    change(dataset, "tuning", lambda people: people.with_columns(pl.when(identity == identity.min()).then(-5).otherwise(
        identity).alias(Subjects.subject_id.name)))  # fmt: skip
    assert [rule for _, rule, _ in leaks(dataset, small_cohort)] == [
        "1 people are not in the cohort",
        "1 people of the cohort are missing",
    ]


def test_a_split_that_was_given_and_not_followed_is_found(tmp_path):
    cohort = write_small_cohort(tmp_path / "cohort", n_subjects=60)
    subjects = read_subjects(cohort)
    given = subjects.with_columns(
        pl.Series(Subjects.split.name, ["held_out"] * 10 + ["train"] * 50),
        pl.lit(None, pl.String).alias(Subjects.cluster_id.name),
    )
    given.write_parquet(cohort / "subjects.parquet")
    prepare_dataset(cohort, tmp_path / "out", CONFIG.model_copy(update={"min_subjects": 1, "groups": {}}))
    check_leakage(tmp_path / "out", cohort)
    held_out, train = (tmp_path / "out" / "sequences" / split / "0000.arrow" for split in ("held_out", "train"))
    moved = pl.read_ipc(held_out)
    write_sequences(pl.concat([pl.read_ipc(train), moved[:3]]), train)
    write_sequences(moved[3:], held_out)
    assert leaks(tmp_path / "out", cohort) == [
        (Subjects.split.name, "3 people are in another split than the cohort says", None)
    ]


def of_first_person(column, value):
    """Put a row in the place of the last one of the first person who has any."""
    lists = pl.col(column)
    has_rows = lists.list.len() > 0
    is_first = has_rows & (has_rows.cum_sum() == 1)
    others = lists.list.head(lists.list.len() - 1)
    changed = pl.concat_list(others, value.cast(pl.Float64 if "ages" in column else pl.Int32))
    return lambda people: people.with_columns(pl.when(is_first).then(changed).otherwise(lists).alias(column))


EXIT = pl.col(Sequences.exit_age_days.name)


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        (Sequences.ages_days.name, EXIT + 0.01, "an event must not lie after exit_age_days"),
        (Sequences.first_ages_days.name, EXIT + 0.01, "a first occurrence must not lie after exit_age_days"),
        (Sequences.ages_days.name, pl.lit(1.0), "events must be in the order of their ages"),
        (Sequences.tokens.name, pl.lit(9999), "a token must be in the vocabulary"),
    ],
)
@pytest.mark.parametrize("split", SPLITS)
def test_a_row_that_a_model_must_not_see_is_found(dataset, small_cohort, split, column, value, rule):
    path = change(dataset, split, of_first_person(column, value))
    assert leaks(dataset, small_cohort) == [(column, rule, 1)]
    with pytest.raises(InputContractError, match=str(path)):
        check_leakage(dataset, small_cohort)


def test_another_cohort_or_another_state_of_it_is_refused(dataset, small_cohort, tmp_path):
    other = write_small_cohort(tmp_path / "other", n_subjects=60, seed=9)
    with pytest.raises(UsageError, match=r"was not prepared from .*other as it is now"):
        check_leakage(dataset, other)


def test_codes_that_come_with_an_outcome_are_listed(small_cohort, tmp_path):
    cohort = shutil.copytree(small_cohort, tmp_path / "cohort")
    rng = np.random.default_rng(0)
    for path in sorted((cohort / "events").glob("*.parquet")):
        events = pl.read_parquet(path)
        firsts = events.filter(pl.col("code") == "diabetes").unique("subject_id", keep="first", maintain_order=True)
        drawn = pl.Series(rng.random(firsts.height))
        drug = firsts.filter(drawn < 0.8).with_columns(code=pl.lit("insulin"))  # always with diabetes
        test = firsts.filter(drawn > 0.4).with_columns(code=pl.lit("hba1c"), numeric_value=pl.lit(7.0))
        elsewhere = events.unique("subject_id", keep="first", maintain_order=True).with_columns(
            code=pl.lit("hba1c"), numeric_value=pl.lit(5.0)
        )
        pl.concat([events, drug, test, elsewhere]).sort("subject_id", "age_days").write_parquet(path)
    prepare_dataset(cohort, tmp_path / "dataset", CONFIG)
    found = check_leakage(tmp_path / "dataset", cohort).same_day_codes
    assert [(code.code, code.outcome, code.share_same_day) for code in found] == [("insulin", "diabetes", 1.0)]
    train = set(pl.read_ipc(sorted((tmp_path / "dataset/sequences/train").glob("*.arrow")))["subject_id"])
    users = scan_events(cohort).filter(code="insulin").collect()["subject_id"]
    assert found[0].n_people == len(train & set(users))
    lower = check_leakage(tmp_path / "dataset", cohort, same_day_share=0.01).same_day_codes
    assert {("hba1c", "diabetes"), ("diabetes", "insulin")} <= {(code.code, code.outcome) for code in lower}
    assert all(code.n_people >= 10 for code in lower)
    assert ("angina", "any_heart") not in {(code.code, code.outcome) for code in lower}  # a member of the group
