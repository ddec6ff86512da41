"""True risks: who has one, what they depend on, and that they are as large as what happens and worth learning."""

import numpy as np
import polars as pl
import pytest

from data_schemas.age_units import DAYS_PER_YEAR, years_to_days
from data_schemas.cohort import DEATH_CODE, Events
from data_schemas.errors import InputContractError, UsageError
from data_schemas.results import Risks
from pipelines.evaluation.concordance import recode_for_concordance, weighted_concordance
from pipelines.find_outcomes import find_outcomes, landmarks_at
from pipelines.fit_reference_rates import fit_reference_rates, reference_risks
from pipelines.synthesize.age_hazards import NEVER
from pipelines.synthesize.build_world import build_tables
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.draw_people import draw_part
from pipelines.synthesize.synthesize_cohort import synthesize_cohort
from pipelines.synthesize.world import WorldSettings, world_of
from pipelines.tables_on_disk import read_subjects, scan_events
from pipelines.true_risks import STANDARD_ERROR, KnownLives, frailty_posterior, simulate_risks, true_risk, true_risks

CONFIG = SynthesizeConfig(n_codes=60)
FIVE_YEARS = years_to_days(5)
N_PEOPLE, N_JUDGED = 8000, 1500


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    out = tmp_path_factory.mktemp("truth") / "cohort"
    synthesize_cohort(out, N_PEOPLE, 2, CONFIG)
    return out


@pytest.fixture(scope="module")
def subjects(cohort):
    return read_subjects(cohort)


def landmarks_of(rows):
    return pl.DataFrame(rows, schema={"subject_id": pl.Int64, "landmark_age_days": pl.Float64}, orient="row")


def test_every_landmark_outcome_and_horizon_has_a_row_in_order(cohort, subjects):
    landmarks = landmarks_at(subjects.head(20), "entry").reverse()
    found = true_risks(cohort, landmarks, ["I10", DEATH_CODE], [FIVE_YEARS, 365.0], n_futures=4)
    assert Risks.is_valid(found.select(Risks.column_names()))
    assert found["subject_id"].to_list() == [id_ for id_ in landmarks["subject_id"] for _ in range(4)]
    assert found["outcome"].head(4).to_list() == ["I10", "I10", DEATH_CODE, DEATH_CODE]
    assert found["horizon_days"].head(2).to_list() == [FIVE_YEARS, 365.0]
    assert (found["risk"].is_null() == found["reason"].is_not_null()).all()
    assert (found["risk"].is_null() == found[STANDARD_ERROR].is_null()).all()


def test_who_is_not_at_risk_has_a_reason(cohort, subjects):
    events = scan_events(cohort).collect().join(subjects, on="subject_id")
    died, age = events.filter(pl.col("code") == DEATH_CODE).select("subject_id", "age_days").row(0)
    had, onset, exit_age = events.filter(
        (pl.col("code") == "I10") & (pl.col("age_days") > pl.col("entry_age_days")) & (pl.col("subject_id") != died)
    ).select("subject_id", "age_days", "exit_age_days").row(0)  # fmt: skip
    rows = [(died, age), (had, onset), (had, onset - 1), (had, exit_age + 1), (had, 1000.0), (had, None)]
    found = true_risks(cohort, landmarks_of(rows), ["I10"], [365.0], n_futures=4)
    outside = "outside_follow_up"
    assert found["reason"].to_list() == ["dead", "prevalent", None, outside, outside, outside]


def test_a_risk_lies_between_0_and_1_and_grows_with_the_horizon(cohort, subjects):
    landmarks = landmarks_at(subjects.head(100), "entry")
    outcomes = ["I10", "E11", "C61", DEATH_CODE]
    found = true_risks(cohort, landmarks, outcomes, [1.0, 365.0, 3650.0, 36500.0], n_futures=8)
    by_row = found.drop_nulls("risk").group_by("subject_id", "outcome", maintain_order=True).agg("risk")
    risks = np.array(by_row["risk"].to_list())
    assert (risks >= 0).all()
    assert (risks <= 1).all()
    assert (np.diff(risks, axis=1) >= 0).all()
    women = found.join(subjects.filter(pl.col("sex") == "female"), on="subject_id", how="semi")
    assert (women.filter(pl.col("outcome") == "C61")["risk"] == 0).all()
    death = found.filter((pl.col("outcome") == DEATH_CODE) & (pl.col("horizon_days") == 36500.0))
    assert death["risk"].median() > 0.95


def test_what_happens_after_the_landmark_changes_nothing(cohort, subjects, tmp_path):
    (tmp_path / "cut" / "events").mkdir(parents=True)
    (tmp_path / "cut" / "truth").symlink_to(cohort / "truth")
    (tmp_path / "cut" / "subjects.parquet").symlink_to(cohort / "subjects.parquet")
    events = scan_events(cohort).collect().join(subjects, on="subject_id")
    history = events.filter(pl.col("age_days") <= pl.col("entry_age_days")).select(Events.column_names())
    history.write_parquet(tmp_path / "cut" / "events" / "0.parquet")
    landmarks = landmarks_at(subjects.head(50), "entry")
    whole, cut = (true_risks(folder, landmarks, ["E11"], [FIVE_YEARS]) for folder in (cohort, tmp_path / "cut"))
    assert whole.equals(cut)


def test_the_history_before_the_landmark_matters(cohort, subjects):
    """The hazard of chronic kidney disease is higher for those with diabetes, and frail people have had more."""
    landmarks = landmarks_at(subjects.head(1000), "entry")
    found = true_risks(cohort, landmarks, ["I25"], [FIVE_YEARS], n_futures=4).drop_nulls("risk")
    history = scan_events(cohort).join(subjects.lazy(), on="subject_id").filter(
        pl.col("age_days") <= pl.col("entry_age_days"), pl.col("numeric_value").is_null()
    ).group_by("subject_id").len().collect()  # fmt: skip
    joined = found.join(history, on="subject_id")
    assert joined.select(pl.corr("risk", "len", method="spearman")).item() > 0.3


def test_one_person_has_the_risk_of_the_table(cohort, subjects):
    person, entry = subjects.filter(pl.col("sex") == "male").select("subject_id", "entry_age_days").row(0)
    risk, error = true_risk(cohort, person, entry, DEATH_CODE, FIVE_YEARS)
    table = true_risks(cohort, landmarks_of([(person, entry)]), [DEATH_CODE], [FIVE_YEARS], n_futures=1024, seed=5)
    assert risk == pytest.approx(table["risk"][0], abs=4 * (error + table[STANDARD_ERROR][0]))
    assert 0 < error < 0.05 * risk + 1e-4
    assert true_risk(cohort, person, 0.0, DEATH_CODE, FIVE_YEARS) == (None, None)


def test_the_stated_error_holds_and_falls_with_the_futures(cohort, subjects):
    landmarks = landmarks_at(subjects.head(60), "entry")
    few = [
        true_risks(cohort, landmarks, [DEATH_CODE], [FIVE_YEARS], n_futures=16, seed=seed).drop_nulls("risk")
        for seed in range(12)
    ]
    risks = np.array([table["risk"].to_numpy() for table in few])
    stated = np.mean([table[STANDARD_ERROR].to_numpy() for table in few], axis=0)
    seen = risks.std(axis=0, ddof=1)
    assert 0.3 < np.sqrt((seen**2).sum() / (stated**2).sum()) < 1.15
    many = true_risks(cohort, landmarks, [DEATH_CODE], [FIVE_YEARS], n_futures=256).drop_nulls("risk")
    assert many[STANDARD_ERROR].mean() == pytest.approx(stated.mean() / 4, rel=0.3)


def test_requests_that_cannot_be_answered_are_refused(cohort, subjects, tmp_path):
    landmarks = landmarks_of([(1, 20000.0)])
    with pytest.raises(UsageError, match="has no Z99"):
        true_risks(cohort, landmarks, ["Z99"], [365.0])
    with pytest.raises(UsageError, match="at least 2"):
        true_risks(cohort, landmarks, ["I10"], [365.0], n_futures=1)
    with pytest.raises(UsageError, match="above zero"):
        true_risks(cohort, landmarks, ["I10"], [0.0])
    with pytest.raises(InputContractError, match="lacks people"):
        true_risks(cohort, landmarks_of([(N_PEOPLE + 1, 20000.0)]), ["I10"], [365.0])
    (tmp_path / "bad" / "events").mkdir(parents=True)
    (tmp_path / "bad" / "truth").symlink_to(cohort / "truth")
    subjects.write_parquet(tmp_path / "bad" / "subjects.parquet")
    scan_events(cohort).filter(pl.col("code") != "bmi").collect().write_parquet(
        tmp_path / "bad" / "events" / "0.parquet"
    )
    with pytest.raises(InputContractError, match="holds no bmi") as caught:
        true_risks(tmp_path / "bad", landmarks, ["I10"], [365.0])
    assert caught.value.violations[0].n_rows == 1


def test_true_risks_are_as_large_as_what_happens_and_the_posterior_is_that_of_the_frailties():
    """On a fresh population without censoring: observed over expected, over all outcomes and people, in ±3.5 errors."""
    config = SynthesizeConfig(n_codes=60, loss_per_year=0)
    hazards, comorbidities = build_tables(config)
    world = world_of(WorldSettings(frailty_variance=config.frailty_variance, made_with={}), hazards, comorbidities)
    places = np.arange(len(world.codes))
    difference, surprise = [], []
    for part in range(3):
        people = draw_part(world, config, 77, part)
        landmark, ages = people.entry_days / DAYS_PER_YEAR, people.ages_days / DAYS_PER_YEAR
        known = KnownLives(people.traits, landmark, np.where(ages <= landmark, ages, NEVER))
        risk, _ = simulate_risks(world, known, places, np.array([10.0]), 4, part)
        is_free = ~np.isfinite(known.ages)
        happened = is_free & (ages <= landmark + 10)
        difference.append(happened.sum(axis=0) - np.where(is_free, risk[:, :, 0].T, 0).sum(axis=0))
        shape, rate = frailty_posterior(world, known)
        surprise.append((people.frailty - shape / rate) / (np.sqrt(shape) / rate))
    by_person, z = np.concatenate(difference), np.concatenate(surprise)
    assert abs(by_person.mean()) < 3.5 * by_person.std() / np.sqrt(by_person.size)
    assert abs(z.mean()) < 3.5 / np.sqrt(z.size)
    assert z.std() == pytest.approx(1, abs=0.05)


def test_there_is_something_to_learn_beyond_age_and_sex(cohort, subjects):
    """Macro concordance 5 years after entry exceeds that of the reference of age and sex by 0.05 and more."""
    events = scan_events(cohort).collect()
    first = events.filter(pl.col("numeric_value").is_null() & ~pl.col("code").str.contains("//")).select(
        "subject_id", pl.col("code").alias("outcome"), pl.col("age_days").alias("first_age_days")
    )
    training, judged = subjects.head(N_PEOPLE - N_JUDGED), subjects.tail(N_JUDGED)
    outcomes = sorted(first["outcome"].unique())
    landmarks = landmarks_at(judged, "entry")
    after = find_outcomes(judged, first, landmarks, outcomes)
    truth = true_risks(cohort, landmarks, outcomes, [FIVE_YEARS], n_futures=16)
    rates = fit_reference_rates(training, first, outcomes)
    with_sex = landmarks.join(judged.select("subject_id", "sex"), on="subject_id")
    reference = reference_risks(rates, with_sex, outcomes, [FIVE_YEARS])
    keys = ["subject_id", "outcome"]
    joined = after.join(truth.select(*keys, truth="risk"), on=keys).join(
        reference.select(*keys, reference="risk"), on=keys
    )
    values = {"truth": [], "reference": []}
    for outcome in joined.partition_by("outcome"):
        rows = outcome.drop_nulls(["truth", "reference"])
        time, is_case = recode_for_concordance(
            rows["time_days"].to_numpy(), rows["status"].to_numpy().astype(np.int64), FIVE_YEARS
        )
        if is_case.sum() >= 20:
            for name, found in values.items():
                found.append(float(weighted_concordance(rows[name].to_numpy(), time, is_case)))
    means = {name: np.mean(found) for name, found in values.items()}
    print(f"macro concordance over {len(values['truth'])} outcomes: {means}")
    assert len(values["truth"]) > 30
    assert means["truth"] - means["reference"] > 0.05
    assert means["reference"] > 0.55
