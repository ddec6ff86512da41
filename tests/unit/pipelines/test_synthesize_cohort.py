"""A made-up cohort on disk: its contract, its truth, and lives that follow the hazards they were drawn from."""

import json

import numpy as np
import polars as pl
import pytest
from lifelines import NelsonAalenFitter
from made_up_worlds import hazard_row, make_tables, make_world

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import DEATH_CODE, Codes, Events, Subjects
from data_schemas.errors import InputContractError, UsageError
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.synthesize import draw_people
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.draw_people import draw_part
from pipelines.synthesize.synthesize_cohort import synthesize_cohort
from pipelines.synthesize.truth_files import read_truth, write_truth
from pipelines.synthesize.world import WorldSettings
from pipelines.tables_on_disk import read_subjects, scan_events

SMALL = SynthesizeConfig(n_codes=30)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    out = tmp_path_factory.mktemp("made up") / "cohort"
    synthesize_cohort(out, 2500, 4, SMALL)
    return out


@pytest.fixture(scope="module")
def subjects(cohort):
    return read_subjects(cohort)


@pytest.fixture(scope="module")
def events(cohort):
    return scan_events(cohort).collect()


def test_it_keeps_the_contract_of_a_cohort(cohort, subjects, events):
    assert Subjects.is_valid(subjects)
    assert Events.is_valid(events)
    assert Codes.is_valid(pl.read_parquet(cohort / "codes.parquet"))
    assert subjects["subject_id"].to_list() == list(range(1, 2501))
    assert events.equals(events.sort("subject_id", "age_days", maintain_order=True))
    report = json.loads((cohort / "import_report.json").read_text())
    assert report["kind"] == "synthesize"
    assert report["cohort"]["subjects"] == 2500
    assert report["cohort"]["events"] == events.height
    assert report["cohort"]["deaths"] == (events["code"] == DEATH_CODE).sum()
    assert {(table["rows_read"], table["rows_dropped"]) for table in report["tables"]} == {
        (2500, 0),
        (events.height, 0),
    }


def test_each_code_happens_once_and_nothing_after_exit(subjects, events):
    joined = events.join(subjects, on="subject_id")
    assert not events.select("subject_id", "code").is_duplicated().any()
    assert (joined["age_days"] <= joined["exit_age_days"]).all()
    deaths = joined.filter(pl.col("code") == DEATH_CODE)
    assert deaths.height > 10
    assert (deaths["age_days"] == deaths["exit_age_days"]).all()
    assert (deaths["age_days"] > deaths["entry_age_days"]).all()


def test_people_are_recruited_and_censored_as_the_settings_say(subjects):
    entry, exit_age = subjects["entry_age_days"].to_numpy(), subjects["exit_age_days"].to_numpy()
    assert 40 * DAYS_PER_YEAR - 1 <= entry.min() <= entry.max() <= 70 * DAYS_PER_YEAR
    born = subjects["birth_date"].to_numpy()
    recruited = born + entry.astype("timedelta64[D]")
    assert np.datetime64("2006-03-13") <= recruited.min() <= recruited.max() <= np.datetime64("2010-09-30")
    assert (born + np.floor(exit_age).astype("timedelta64[D]")).max() == np.datetime64("2022-10-31")


def test_everyone_is_measured_at_entry_and_smokes_or_not(subjects, events):
    measured = events.filter(pl.col("code").is_in(["bmi", "sbp"]) | pl.col("code").str.starts_with("smoking//"))
    assert measured.height == 3 * subjects.height
    joined = measured.join(subjects, on="subject_id")
    assert (joined["age_days"] == joined["entry_age_days"]).all()
    assert events.filter(pl.col("code") == "bmi")["numeric_value"].is_between(14, 60).all()
    assert (joined["numeric_value"].is_null() == joined["code"].str.starts_with("smoking")).all()


def test_the_first_people_do_not_depend_on_how_many_follow(cohort, subjects, events, tmp_path):
    synthesize_cohort(tmp_path / "few", 100, 4, SMALL)
    first = read_subjects(tmp_path / "few")
    assert first.equals(subjects.head(100))
    assert scan_events(tmp_path / "few").collect().equals(events.filter(pl.col("subject_id") <= 100))
    hidden = pl.read_parquet(cohort / "truth" / "hidden_traits.parquet")
    assert pl.read_parquet(tmp_path / "few" / "truth" / "hidden_traits.parquet").equals(hidden.head(100))
    synthesize_cohort(tmp_path / "few", 100, 5, SMALL)  # replaces its own kind
    assert not read_subjects(tmp_path / "few").equals(first)


def test_events_are_written_to_several_files_with_each_person_in_one(events, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.synthesize.synthesize_cohort.ROWS_PER_FILE", 1000)
    told = []
    synthesize_cohort(tmp_path / "cohort", 2500, 4, SMALL, on_people=told.append)
    files = sorted((tmp_path / "cohort" / "events").iterdir())
    assert [file.name for file in files] == ["0000.parquet", "0001.parquet"]
    people = [set(pl.read_parquet(file)["subject_id"]) for file in files]
    assert told == [draw_people.PEOPLE_PER_PART, 2500 - draw_people.PEOPLE_PER_PART] == [len(ids) for ids in people]
    assert scan_events(tmp_path / "cohort").collect().equals(events)
    assert {entry.name for entry in (tmp_path / "cohort").iterdir()} == {
        "subjects.parquet", "events", "codes.parquet", "import_report.json", "truth",
    }  # fmt: skip


def test_prepare_takes_it_like_any_cohort(cohort, tmp_path):
    prepared = prepare_dataset(cohort, tmp_path / "dataset", PrepareConfig())
    assert prepared.manifest["counts"]["outcomes"] > 20


def test_another_folder_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("important")
    with pytest.raises(UsageError, match="holds no made-up cohort"):
        synthesize_cohort(tmp_path / "mine", 10, 0, SMALL)
    assert (tmp_path / "mine" / "thesis.txt").exists()


# What follows looks at lives by the thousand, without files.


def lives_in(world, config, n_parts=8):
    parts = [draw_part(world, config, 9, part) for part in range(n_parts)]
    return (
        np.concatenate([part.entry_days for part in parts]) / DAYS_PER_YEAR,
        np.concatenate([part.exit_days for part in parts]) / DAYS_PER_YEAR,
        np.concatenate([part.ages_days for part in parts], axis=1) / DAYS_PER_YEAR,
        np.concatenate([part.frailty for part in parts]),
    )


def test_without_graph_and_frailty_nelson_aalen_is_the_hazard_put_in():
    world = make_world(
        [
            hazard_row("A", "gompertz", 0.06, 0.01),
            hazard_row("B", "weibull", 3.0, 0.008),
            hazard_row(DEATH_CODE, "gompertz", 0.09, 0.01),
        ]
    )
    entry, exit_age, ages, _ = lives_in(world, SynthesizeConfig(frailty_variance=0))
    for place, hazard in enumerate(world.hazards):
        free = ages[place] > entry
        end = np.minimum(ages[place], exit_age)
        fitted = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(
            end[free], ages[place][free] <= exit_age[free], entry=entry[free]
        )
        for low, high in ((45.0, 60.0), (60.0, 75.0)):
            found = float(np.diff(fitted.cumulative_hazard_at_times([low, high]))[0])
            true = world.rate_per_year[0, place] * float(np.diff(hazard.cumulative(np.array([low, high])))[0])
            n_events = ((end > low) & (end <= high) & (ages[place] <= exit_age) & free).sum()
            assert found == pytest.approx(true, rel=3.5 / np.sqrt(n_events))
            assert n_events > 300


def test_before_entry_diseases_follow_the_same_hazard():
    """Nobody dies here, so recruitment selects nobody and the share with A before 40 is 1 − exp(−H)."""
    world = make_world([hazard_row("A", "gompertz", 0.06, 0.05), hazard_row(DEATH_CODE, "gompertz", 0.09, 0.0)])
    *_, ages, _ = lives_in(world, SynthesizeConfig(frailty_variance=0), n_parts=4)
    expected = -np.expm1(-0.05 * world.hazards[0].cumulative(np.array([40.0]))[0])
    error = np.sqrt(expected * (1 - expected) / ages.shape[1])
    assert (ages[0] <= 40).mean() == pytest.approx(expected, abs=3.5 * error)


def test_the_frail_are_fewer_among_those_alive_at_entry():
    """With gamma frailty of variance v, the mean among survivors of a hazard H is 1/(1 + vH)."""
    world = make_world([hazard_row(DEATH_CODE, "gompertz", 0.09, 0.05)], frailty_variance=0.5)
    config = SynthesizeConfig(frailty_variance=0.5, entry_from_years=69, entry_until_years=70)
    entry, exit_age, ages, frailty = lives_in(world, config, n_parts=4)
    assert (exit_age > entry).all()
    survived = 0.05 * world.hazards[0].cumulative(entry)
    assert frailty.mean() == pytest.approx((1 / (1 + 0.5 * survived)).mean(), rel=0.03)
    assert (ages[0] > entry).all()


def test_traits_and_causes_multiply_the_hazard():
    smokers = make_world(
        [
            hazard_row("A", "weibull", 1.0, 0.01, log_ratios=(0.0, 0.0, 0.0, np.log(4))),
            hazard_row("B", "weibull", 1.0, 0.01),
            hazard_row(DEATH_CODE, "gompertz", 0.09, 0.0),
        ],
        [("A", "B", 3.0)],
    )
    parts = [draw_part(smokers, SynthesizeConfig(frailty_variance=0), 1, part) for part in range(8)]
    ages = np.concatenate([part.ages_days for part in parts], axis=1) / DAYS_PER_YEAR
    smoking = np.concatenate([part.traits.smoking for part in parts])
    share = {smokes: (ages[0][(smoking == 2) == smokes] <= 40).mean() for smokes in (True, False)}
    assert share[True] == pytest.approx(-np.expm1(-0.04 * 40), abs=0.03)
    assert share[False] == pytest.approx(-np.expm1(-0.01 * 40), abs=0.015)
    first, then = ages[0], ages[1]
    exposed = (np.minimum(then, 40) - first)[first < np.minimum(then, 40)].sum()
    n_after = ((first < then) & (then <= 40)).sum()
    assert n_after / exposed == pytest.approx(0.03, rel=3.5 / np.sqrt(n_after))


def test_truth_comes_back_from_its_files_as_it_was(cohort):
    world = read_truth(cohort)
    assert world.settings.made_with["subjects"] == 2500
    assert world.settings.made_with["n_codes"] == 30
    assert world.codes[-1] == DEATH_CODE
    assert len(world.codes) == len(world.hazards) == len(world.causes) == 31


ROWS = [hazard_row("A", "weibull", 1.0, 0.01), hazard_row("B", "weibull", 1.0, 0.01)]
DEATH_ROW = hazard_row(DEATH_CODE, "gompertz", 0.09, 0.01)


@pytest.mark.parametrize(
    ("rows", "edges", "complaint"),
    [
        ([*ROWS, DEATH_ROW], [("B", "A", 2.0)], "must stand in an earlier row"),
        ([*ROWS, DEATH_ROW], [("X", "A", 2.0)], "must stand in an earlier row"),
        ([DEATH_ROW, *ROWS], [], "must end with DEATH"),
    ],
)
def test_a_truth_that_cannot_be_lived_in_is_refused(rows, edges, complaint, tmp_path):
    write_truth(WorldSettings(frailty_variance=0.0, made_with={}), *make_tables(rows, edges), tmp_path)
    with pytest.raises(InputContractError, match=complaint):
        read_truth(tmp_path)


def test_a_cohort_without_truth_says_so(tmp_path):
    with pytest.raises(InputContractError, match="only a cohort of `deephealth cohort synthesize`"):
        read_truth(tmp_path)
    write_truth(WorldSettings(frailty_variance=0.0, made_with={}), *make_tables([*ROWS, DEATH_ROW]), tmp_path)
    (tmp_path / "truth" / "world.json").write_text('{"format": 2}')
    with pytest.raises(InputContractError, match="not a truth that this version can read"):
        read_truth(tmp_path)
