"""From people to risks: who gets a number, who gets a reason, and that the future never leaks."""

import itertools
import math
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from app.predict_risks import layout_of_vocabulary, load_risk_model, predict_risks
from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, Events, Subjects
from data_schemas.dataset import Vocabulary
from data_schemas.errors import ModelRefusedError, UsageError
from data_schemas.results import DEAD, OUTSIDE_FOLLOW_UP, PREVALENT, Outcomes, Risks
from models.checkpoints import save_checkpoint
from models.config import TrainConfig
from models.risk_model import seeded_model
from pipelines.fit_reference_rates import reference_risks
from pipelines.read_dataset import read_reference_rates, read_vocabulary
from pipelines.tables_on_disk import hash_file, read_subjects, scan_events

HORIZONS = (1.0, 5.0, 10.0)


@pytest.fixture(scope="module")
def checkpoint(small_dataset, tmp_path_factory):
    """A network of two rounds whose weights were never trained but are all away from zero."""
    folder = tmp_path_factory.mktemp("scoring") / "checkpoint"
    vocabulary = read_vocabulary(small_dataset)
    network = seeded_model(TrainConfig(n_reasoning_rounds=2), layout_of_vocabulary(vocabulary, "all_future"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    tables = ("vocabulary", "reference_rates")
    save_checkpoint(
        folder, network, {f"{name}_sha256": hash_file(small_dataset / f"{name}.parquet") for name in tables}
    )
    for name in tables:
        shutil.copyfile(small_dataset / f"{name}.parquet", folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_risk_model(checkpoint)


def subjects(*rows):
    """Make people of (id, entry age in years, exit age in years, sex)."""
    return pl.DataFrame(
        {
            Subjects.subject_id.name: [row[0] for row in rows],
            Subjects.sex.name: [row[3] if len(row) > 3 else "female" for row in rows],
            Subjects.entry_age_days.name: [row[1] * DAYS_PER_YEAR for row in rows],
            Subjects.exit_age_days.name: [row[2] * DAYS_PER_YEAR for row in rows],
        }
    )


def events(*rows):
    """Make events of (id, age in years, code, value)."""
    rows = [(person, age * DAYS_PER_YEAR, code, value) for person, age, code, value in rows]
    types = (pl.Int64, pl.Float64, pl.String, pl.Float64)
    return pl.LazyFrame(rows, schema=dict(zip(Events.column_names(), types, strict=True)), orient="row")


def landmarks(ages):
    """Make landmarks of id: age in years or None."""
    days = [None if age is None else age * DAYS_PER_YEAR for age in ages.values()]
    return pl.DataFrame(
        {Subjects.subject_id.name: list(ages), Outcomes.landmark_age_days.name: pl.Series(days, dtype=pl.Float64)}
    )


def reasons_of(risks, person):
    chosen = risks.filter(pl.col(Risks.subject_id.name) == person)
    return dict(chosen.select(Risks.outcome.name, Risks.reason.name).iter_rows())


@pytest.fixture(scope="module")
def scored(model, small_cohort):
    """Everybody of the small cohort at entry."""
    people = read_subjects(small_cohort)
    at_entry = people.select(
        Subjects.subject_id.name, pl.col(Subjects.entry_age_days.name).alias(Outcomes.landmark_age_days.name)
    )
    return people, predict_risks(model, people, scan_events(small_cohort), at_entry, [], HORIZONS)


def test_rows_are_people_times_outcomes_times_horizons_in_order(model, scored):
    people, risks = scored
    expected = itertools.product(
        people[Subjects.subject_id.name], model.outcomes, [years * DAYS_PER_YEAR for years in HORIZONS]
    )
    assert risks.select(Risks.subject_id.name, Risks.outcome.name, Risks.horizon_days.name).rows() == list(expected)
    Risks.validate(risks)


def test_a_risk_or_a_reason_and_a_reference_beside_every_risk(scored):
    _, risks = scored
    has_risk = risks[Risks.risk.name].is_not_null()
    assert (has_risk == risks[Risks.reason.name].is_null()).all()
    assert (has_risk == risks[Risks.reference_risk.name].is_not_null()).all()
    assert 0.5 < has_risk.mean() < 1.0
    assert set(risks[Risks.reason.name].drop_nulls()) == {PREVALENT}


def test_risks_grow_with_the_horizon_and_differ_between_people(scored):
    _, risks = scored
    risk = risks[Risks.risk.name].to_numpy().reshape(-1, len(HORIZONS))
    risk = risk[~np.isnan(risk).any(axis=1)]
    assert (np.diff(risk, axis=1) > 0).all()
    assert risk[:, 1].std() > 1e-3


def test_a_prevalent_outcome_has_a_reason_and_its_group_too(model):
    history = events((1, 50.0, "angina", None), (1, 62.0, "stroke", None))
    risks = predict_risks(model, subjects((1, 55, 70)), history, landmarks({1: 60.0}), [], [5.0])
    assert reasons_of(risks, 1) == {
        "angina": PREVALENT, "any_heart": PREVALENT, **dict.fromkeys(
            ("cancer", "copd", "diabetes", "fracture", "stroke", DEATH_CODE)
        ),
    }  # fmt: skip


def test_a_diagnosis_on_the_day_of_the_landmark_is_prevalent(model):
    history = events((1, 60.0, "angina", None))
    risks = predict_risks(model, subjects((1, 55, 70)), history, landmarks({1: 60.0}), ["angina", "stroke"], [5.0])
    assert reasons_of(risks, 1) == {"angina": PREVALENT, "stroke": None}


def test_the_dead_and_those_outside_follow_up_have_reasons(model):
    people = subjects((1, 55, 60), (2, 55, 60), (3, 55, 60), (4, 55, 60), (5, 55, 60))
    history = events((1, 60.0, DEATH_CODE, None), (1, 50.0, "angina", None))
    at = landmarks({1: 60.0, 2: 60.0, 3: 54.9, 4: 60.1, 5: None})
    risks = predict_risks(model, people, history, at, ["angina", DEATH_CODE], [1.0])
    assert set(reasons_of(risks, 1).values()) == {DEAD}
    assert set(reasons_of(risks, 2).values()) == {None}  # the last day of observation of a living person
    for person in (3, 4, 5):
        assert set(reasons_of(risks, person).values()) == {OUTSIDE_FOLLOW_UP}
    unscored = risks.filter(pl.col(Risks.reason.name).is_not_null())
    assert unscored[Risks.risk.name].null_count() == unscored.height == 8
    assert risks.filter(pl.col(Risks.subject_id.name) == 5)[Risks.landmark_age_days.name].null_count() == 2


def test_a_person_without_a_landmark_row_is_outside_follow_up(model):
    risks = predict_risks(model, subjects((1, 55, 60), (2, 55, 60)), events(), landmarks({1: 56.0}), ["copd"], [1.0])
    assert risks[Risks.reason.name].to_list() == [None, OUTSIDE_FOLLOW_UP]


def test_events_after_the_landmark_never_change_a_risk(model):
    people, at = subjects((1, 50, 70), (2, 50, 70, "male")), landmarks({1: 60.0, 2: 60.0})
    history = [(1, 55.0, "diabetes", None), (1, 59.0, "bmi", 31.0), (2, 58.0, "sbp", 150.0)]
    future = [(1, 60.001, "bmi", 60.0), (1, 61.0, "angina", None), (2, 65.0, DEATH_CODE, None)]
    before = predict_risks(model, people, events(*history), at, [], HORIZONS)
    after = predict_risks(model, people, events(*history, *future), at, [], HORIZONS)
    assert_frame_equal(before, after, abs_tol=1e-7)
    seen = predict_risks(model, people, events(*history, (1, 59.5, "bmi", 60.0)), at, [], HORIZONS)
    changed = (seen[Risks.risk.name] - before[Risks.risk.name]).abs()
    is_first = before[Risks.subject_id.name] == 1
    assert changed.filter(is_first & changed.is_not_null()).min() > 0
    assert changed.filter(~is_first).max() < 1e-7


def test_company_and_order_do_not_change_a_risk(model, small_cohort, scored):
    people, together = scored
    few = people.sample(7, seed=1)
    at_entry = few.select(
        Subjects.subject_id.name, pl.col(Subjects.entry_age_days.name).alias(Outcomes.landmark_age_days.name)
    ).reverse()
    alone = predict_risks(model, few, scan_events(small_cohort), at_entry, [], HORIZONS)
    assert alone[Risks.subject_id.name].unique(maintain_order=True).to_list() == few["subject_id"].to_list()
    key = [Risks.subject_id.name, Risks.outcome.name, Risks.horizon_days.name]
    both = alone.join(together, on=key, suffix="_together", maintain_order="left")
    assert both.height == alone.height
    difference = (both[Risks.risk.name] - both["risk_together"]).abs().max()
    assert difference < 1e-6


def test_the_reference_is_that_of_the_same_sex_and_age(model):
    people, at = subjects((1, 50, 70), (2, 50, 70, "male"), (3, 50, 70, "unknown")), {1: 55.0, 2: 65.0, 3: 60.0}
    risks = predict_risks(model, people, events(), landmarks(at), ["stroke", DEATH_CODE], [5.0])
    expected = reference_risks(
        model.reference_rates,
        people.join(risks.select("subject_id", "landmark_age_days").unique(), on="subject_id", maintain_order="left"),
        ["stroke", DEATH_CODE],
        [5 * DAYS_PER_YEAR],
    )
    assert risks[Risks.reference_risk.name].to_list() == expected[Risks.reference_risk.name].to_list()
    assert risks[Risks.reference_risk.name].n_unique() == 6


def test_outcomes_keep_the_order_asked_for_and_horizons_are_sorted_once(model):
    people, at = subjects((1, 50, 70)), landmarks({1: 55.0})
    risks = predict_risks(model, people, events(), at, ["stroke", "copd", "stroke"], [5.0, 1.0, 5.0])
    assert risks[Risks.outcome.name].to_list() == ["stroke", "stroke", "copd", "copd"]
    assert risks[Risks.horizon_days.name].to_list() == [365.25, 5 * 365.25] * 2
    everything = predict_risks(model, people, events(), at, [], [1.0, 5.0])
    key = [Risks.outcome.name, Risks.horizon_days.name]
    both = risks.join(everything, on=key, suffix="_all")
    assert (both[Risks.risk.name] - both["risk_all"]).abs().max() < 1e-9


def test_a_history_longer_than_max_events_is_scored_and_its_prevalent_outcomes_are_known(checkpoint, small_dataset):
    vocabulary = read_vocabulary(small_dataset)
    network = seeded_model(
        TrainConfig(n_reasoning_rounds=1, max_events=2), layout_of_vocabulary(vocabulary, "all_future")
    ).eval()
    model = load_risk_model(checkpoint).__class__(network, vocabulary, read_reference_rates(small_dataset), {})
    history = events((1, 40.0, "copd", None), *((1, 50.0 + i / 10, "sbp", 120.0) for i in range(9)))
    risks = predict_risks(model, subjects((1, 50, 70)), history, landmarks({1: 60.0}), ["copd", "stroke"], [1.0])
    assert reasons_of(risks, 1) == {"copd": PREVALENT, "stroke": None}


def test_an_unknown_outcome_is_refused_with_what_there_is(model):
    with pytest.raises(UsageError, match="does not predict gout, warts; it knows: angina, cancer"):
        predict_risks(model, subjects((1, 50, 70)), events(), landmarks({1: 55.0}), ["warts", "gout", "copd"], [1.0])


@pytest.mark.parametrize("horizons", [[], [0.0], [5.0, -1.0], [math.nan], [1.0, math.inf], [100.5]])
def test_horizons_must_be_above_zero_and_at_most_100(model, horizons):
    with pytest.raises(UsageError, match="horizons are years above zero and at most 100"):
        predict_risks(model, subjects((1, 50, 70)), events(), landmarks({1: 55.0}), [], horizons)


def test_nobody_gives_no_rows(model):
    nobody = subjects((1, 50, 70)).clear()
    risks = predict_risks(model, nobody, events(), landmarks({1: 55.0}).clear(), [], [1.0])
    assert risks.is_empty()
    assert risks.columns == Risks.column_names()


@pytest.fixture
def copied(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "train_config.json", "vocabulary.parquet", "reference_rates.parquet"]
)
def test_a_checkpoint_without_one_of_its_files_is_refused(copied, name):
    (copied / name).unlink()
    with pytest.raises(ModelRefusedError, match=name.replace(".", r"\.")):
        load_risk_model(copied)


def test_another_vocabulary_is_refused(copied):
    vocabulary = pl.read_parquet(copied / "vocabulary.parquet")
    swapped = vocabulary.with_columns(pl.col(Vocabulary.code.name).replace({"angina": "stroke", "stroke": "angina"}))
    swapped.write_parquet(copied / "vocabulary.parquet")
    with pytest.raises(ModelRefusedError, match=r"vocabulary\.parquet: is not the file this model was trained with"):
        load_risk_model(copied)


def test_other_reference_rates_are_refused(copied):
    rates = pl.read_parquet(copied / "reference_rates.parquet")
    rates.with_columns(pl.col("rate_per_year") * 2).write_parquet(copied / "reference_rates.parquet")
    with pytest.raises(
        ModelRefusedError, match=r"reference_rates\.parquet: is not the file this model was trained with"
    ):
        load_risk_model(copied)


def test_the_layout_says_what_the_vocabulary_says(small_dataset):
    vocabulary = read_vocabulary(small_dataset)
    layout = layout_of_vocabulary(vocabulary, "all_future")
    codes = vocabulary[Vocabulary.code.name].to_list()
    assert {codes[i] for i, carries in enumerate(layout.carries_value) if carries} == {"bmi", "sbp"}
    assert [codes[token] for token in layout.outcome_tokens][layout.death_outcome] == DEATH_CODE
    rates = vocabulary[Vocabulary.log_rate_per_year.name]
    assert layout.log_rate_per_year == tuple(rates[token] for token in layout.outcome_tokens)
