"""The design around the metrics, on a small made-up population and a network that was never trained."""

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from app.evaluate_model import _turns, evaluate_model
from app.predict_risks import ScoringModel, layout_of_vocabulary, predict_risks
from app.truth_table import format_truth, truth_results
from data_schemas.age_units import years_to_days
from data_schemas.cohort import DEATH_CODE, HELD_OUT, Subjects
from data_schemas.errors import InputContractError, UsageError
from data_schemas.evaluation_tables import PeopleLeftOut, TruthComparison
from data_schemas.results import (
    AGE_SEX,
    AUC,
    CONCORDANCE,
    COX,
    GRADIENT_BOOSTING,
    MACRO_MEAN,
    MODEL,
    OVERALL,
    POOLED,
    TRUTH,
    Metrics,
    Outcomes,
    Risks,
)
from models.config import TrainConfig
from models.risk_model import seeded_model
from pipelines.evaluation.compare_with_truth import AUC_GAP, TRUE_SLOPE
from pipelines.find_outcomes import landmarks_at
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.read_dataset import (
    outcome_names,
    read_reference_rates,
    read_split_subjects,
    read_vocabulary,
    scan_split_events,
)
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.synthesize_cohort import synthesize_cohort

GAP_DAYS = 60.0


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("design") / "cohort"
    synthesize_cohort(
        folder, 800, 1, SynthesizeConfig(n_codes=12, incidence_scale=3.0, causes_per_code=0.5, entry_from_years=58)
    )
    return folder


@pytest.fixture(scope="module")
def dataset(cohort):
    folder = cohort.parent / "dataset"
    prepare_dataset(cohort, folder, PrepareConfig(train_share=0.5, tuning_share=0.05))
    return folder


@pytest.fixture(scope="module")
def model(dataset):
    vocabulary = read_vocabulary(dataset)
    config = TrainConfig(n_reasoning_rounds=1)
    network = seeded_model(config, layout_of_vocabulary(vocabulary, config.mode))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.03)
    return ScoringModel(network.eval(), vocabulary, read_reference_rates(dataset), {})


@pytest.fixture(scope="module")
def disease(dataset):
    """The disease with most people."""
    vocabulary = read_vocabulary(dataset).filter(pl.col("role") == "disease")
    return vocabulary.sort("n_subjects", descending=True)["code"][0]


@pytest.fixture(scope="module")
def found(model, dataset, cohort, disease):
    return evaluate_model(
        model, dataset, cohort.parent / "evaluation", landmarks=("ages60-70by5", "2014-06-01"), horizons_years=(5.0,),
        outcomes=(disease, "death"), gap_days=GAP_DAYS, subgroups=("sex", "period"), boosting=(disease,), truth=cohort,
        n_bootstrap=0, n_futures=4,
    )  # fmt: skip


def test_every_predictor_is_judged_on_the_same_rows(found, disease):
    rows = found.metrics.filter(
        Metrics.metric.col == CONCORDANCE,
        Metrics.subgroup.col == OVERALL,
        ~Metrics.outcome.col.is_in([MACRO_MEAN, POOLED]),
    )
    predictors = {
        str(outcome): set(part[Metrics.predictor.name])
        for (outcome,), part in rows.drop_nulls(Metrics.estimate.name).group_by(Metrics.outcome.name)
    }
    assert predictors[disease] >= {MODEL, COX, AGE_SEX, GRADIENT_BOOSTING, TRUTH}
    assert GRADIENT_BOOSTING not in predictors.get(DEATH_CODE, set())
    sizes = rows.group_by(Metrics.outcome.name, Metrics.landmark.name).agg(Metrics.n.col.n_unique())
    assert sizes[Metrics.n.name].to_list() == [1] * sizes.height
    assert set(rows[Metrics.outcome.name]) <= {disease, DEATH_CODE}


def test_subgroups_and_macro_means_are_there(found):
    names = set(found.metrics[Metrics.subgroup.name])
    assert {OVERALL, "sex=female", "sex=male"} < names
    assert any(name.startswith("period=20") for name in names)
    macro = found.metrics.filter(Metrics.outcome.col == MACRO_MEAN, Metrics.metric.col == AUC)
    assert macro.drop_nulls(Metrics.estimate.name).height > 0


def test_the_truth_table_compares_every_other_predictor(found, disease):
    TruthComparison.validate(found.truth)
    assert set(found.truth["predictor"]) == {MODEL, COX, AGE_SEX, GRADIENT_BOOSTING}
    assert {"all", "sex=female", "age=60-69"} < set(found.truth["subgroup"])
    gaps = found.truth.filter(TruthComparison.metric.col == AUC_GAP).drop_nulls()
    assert gaps["estimate"].min() >= -1e-9
    rows = truth_results(found.metrics, found.truth)
    whole = next(row for row in rows if row["landmark"] == "ages60-70by5" and row["subgroup"] == OVERALL)
    assert whole["horizon_years"] == 5.0
    assert whole[TRUE_SLOPE] is not None
    lines = format_truth(found.metrics, found.truth)
    assert len(lines) == len(rows) + 1
    assert format_truth(found.metrics, None) == []


def test_who_is_left_out_in_the_gap_is_counted(found, disease):
    PeopleLeftOut.validate(found.left_out)
    assert set(found.left_out[PeopleLeftOut.outcome.name]) == {disease, DEATH_CODE}
    assert found.left_out[PeopleLeftOut.gap_days.name].unique().to_list() == [GAP_DAYS]


def test_all_tables_are_written(found):
    names = {path.stem for path in found.tables}
    assert {"metrics", "calibration", "outcomes", "truth", "left_out"} <= names
    assert all(path.is_file() for path in (*found.tables, *found.plots))


def test_people_with_several_landmarks_are_scored_as_if_each_were_alone(model, dataset, disease):
    subjects = read_split_subjects(dataset, HELD_OUT)
    events = scan_split_events(dataset, HELD_OUT, model.vocabulary)
    landmarks = landmarks_at(subjects, "ages60-70by5").join(
        subjects, on=Subjects.subject_id.name, maintain_order="left"
    )
    turns = list(_turns(landmarks))
    assert sum(turn.height for turn in turns) == landmarks.height
    assert all(turn[Subjects.subject_id.name].is_unique().all() for turn in turns)
    landmark = Outcomes.landmark_age_days.name
    keys = [Subjects.subject_id.name, landmark]
    parts = [predict_risks(model, turn.drop(landmark), events, turn.select(keys), [disease], [5.0]) for turn in turns]
    at_65 = landmarks_at(subjects, "age65")
    alone = predict_risks(model, subjects.join(at_65, on=keys[0], how="semi"), events, at_65, [disease], [5.0])
    together = pl.concat(parts).filter(Risks.landmark_age_days.col == at_65[landmark][0])
    assert at_65.height > 5
    assert_frame_equal(together.sort(keys), alone.sort(keys), abs_tol=1e-6)


def test_nobody_at_a_landmark_has_no_turns_of_rows(dataset):
    subjects = read_split_subjects(dataset, HELD_OUT)
    landmarks = landmarks_at(subjects, "age119").join(subjects, on=Subjects.subject_id.name)
    assert [turn.height for turn in _turns(landmarks)] == [0]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"landmarks": ("noon",)}, UsageError, "landmark 'noon'"),
        ({"landmarks": ("2015-01-01",)}, UsageError, "--cohort"),
        ({"subgroups": ("period",)}, UsageError, "--cohort"),
        ({"subgroups": ("gout",)}, UsageError, "subgroup 'gout'"),
        ({"outcomes": ("gout",)}, UsageError, "outcome 'gout'"),
        ({"outcomes": ("stroke",)}, UsageError, "prepared without it"),
        ({"boosting": ("gout",)}, UsageError, "outcome 'gout'"),
        ({"gap_days": 400.0}, UsageError, "gap of 400 days"),
        ({"gap_days": -1.0}, UsageError, "gap of -1 days"),
        ({"horizons_years": (0.0,)}, UsageError, "horizons"),
    ],
)
def test_what_cannot_be_done_is_said(model, dataset, tmp_path, options, error, words):
    options = {"landmarks": ("age65",), "horizons_years": (1.0,), "outcomes": ("death",), "n_bootstrap": 0} | options
    with pytest.raises(error, match=words):
        evaluate_model(model, dataset, tmp_path, **options)


def test_another_cohort_is_refused(model, dataset, small_cohort, tmp_path):
    for option in ("cohort", "truth"):
        with pytest.raises(InputContractError, match="is not the cohort"):
            evaluate_model(model, dataset, tmp_path, landmarks=("age65",), **{option: small_cohort})


def test_without_names_all_outcomes_are_asked_for_and_too_few_cases_are_no_error(model, dataset, tmp_path):
    found = evaluate_model(model, dataset, tmp_path, landmarks=("age60",), horizons_years=(5.0,), n_bootstrap=0)
    known = set(read_reference_rates(dataset)[Outcomes.outcome.name]) & set(
        outcome_names(model.vocabulary, "all_future")
    )
    assert set(found.macro_outcomes) == known
    assert set(found.outcomes["outcome"]) == known
    assert found.truth is None
    assert found.left_out is None
    assert set(found.metrics[Metrics.horizon_days.name]) <= {years_to_days(5.0)}
    assert set(found.cox_not_fitted) >= {f"{outcome} at age60" for outcome in known}  # under 20 cases each
