"""The description of a cohort: exact on a cohort that is counted by hand, and silent about the few."""

import json
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import median_survival_times
from small_cohort import write_small_cohort

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.errors import InputContractError
from pipelines.describe_cohort import describe_cohort

N_WOMEN, N_MEN = 60, 40
BORN_TO_ENTRY = 50 * DAYS_PER_YEAR


def write_cohort(folder, *, events, codes=None, n_women=N_WOMEN, n_men=N_MEN, n_unknown=0, drops=None, follow_up=10.0):
    n = n_women + n_men + n_unknown
    (folder / "events").mkdir(parents=True)
    pl.DataFrame(
        {
            "subject_id": range(n),
            "sex": ["female"] * n_women + ["male"] * n_men + ["unknown"] * n_unknown,
            "entry_age_days": [BORN_TO_ENTRY] * n,
            "exit_age_days": BORN_TO_ENTRY + DAYS_PER_YEAR * np.broadcast_to(np.array(follow_up, dtype=float), n),
        }
    ).write_parquet(folder / "subjects.parquet")
    rows = pl.DataFrame(
        events,
        schema={"subject_id": pl.Int64, "age_days": pl.Float64, "code": pl.String, "numeric_value": pl.Float64},
        orient="row",
    )
    for number in range(2):  # a person's rows are in one file
        rows.filter(pl.col("subject_id") % 2 == number).write_parquet(folder / "events" / f"{number}.parquet")
    if codes:
        schema = dict.fromkeys(("code", "kind", "description", "chapter"), pl.String)
        pl.DataFrame(codes, schema=schema, orient="row").write_parquet(folder / "codes.parquet")
    drops = drops or {}
    table = {
        "table": "events", "rows_read": len(events) + sum(drops.values()), "rows_kept": len(events),
        "rows_dropped": sum(drops.values()), "dropped": drops,
    }  # fmt: skip
    report = {
        "kind": "parquet", "cohort": {}, "tables": [table], "derived": [{**table, "rows_added": table["rows_read"]}],
        "rules": {rule: f"because of {rule}" for rule in drops},
        "notes": [
            {"note": "few", "rows": 3, "text": "people without weight"}, {"note": "x", "rows": None, "text": "y"},
        ],
    }  # fmt: skip
    del report["derived"][0]["rows_read"]
    (folder / "import_report.json").write_text(json.dumps(report))
    return folder


def events_of(people, code, age_years=55.0, value=None):
    return [(person, age_years * DAYS_PER_YEAR, code, value) for person in people]


@pytest.fixture
def cohort(tmp_path):
    events = [
        *events_of(range(50), "htn"),
        *events_of(range(20), "htn", 57.0),  # a second time
        *events_of(range(30), "bmi", 50.0, 27.0),
        *events_of(range(9), "porphyria"),
        *events_of(range(12), "DEATH", 60.0),
    ]
    codes = [("htn", "disease", "Hypertension", None)]
    return write_cohort(tmp_path / "cohort", events=events, codes=codes, drops={"before_birth": 25})


def test_people_events_and_codes_are_counted(cohort):
    found = describe_cohort(cohort)
    assert (found.people, found.events, found.deaths, found.n_codes) == (100, 121, 12, 4)
    assert found.sexes == {"female": 60, "male": 40}
    listed = [(code.code, code.kind, code.description, code.people, code.events) for code in found.top_codes]
    assert listed == [
        ("htn", "disease", "Hypertension", 50, 70),
        ("bmi", "covariate", "", 30, 30),  # it carries a value
        ("DEATH", "death", "", 12, 10),  # rows rounded: those of porphyria would follow
    ]
    assert found.n_rare_codes == 1
    assert "porphyria" not in str(asdict(found))


def test_rows_of_codes_are_exact_where_not_all_frequent_codes_are_listed(cohort):
    found = describe_cohort(cohort, n_top_codes=2)
    assert [code.events for code in found.top_codes] == [70, 30]


def test_events_a_person_include_people_without_any(cohort):
    found = describe_cohort(cohort)
    events = np.zeros(100)
    for number in (50, 20, 30, 9, 12):
        events[:number] += 1
    labels = found.people_by_events.labels
    assert [int((events == number).sum()) for number in range(6)] == [50, 20, 10, 8, 3, 9]
    assert labels == ("0", "1", "2", "3 or more")
    assert found.people_by_events.counts == (50, 20, 10, 20)
    assert found.events_per_person.quantiles == (None, 0.0, 0.0, 2.0, None)  # 5 people lie beyond the outermost


def test_events_a_person_are_in_bins_of_one_width(tmp_path):
    """100 people with 0 to 99 events: the 99th percentile is 98, so bins are 5 wide and joined in pairs to hold 10."""
    events = [row for person in range(100) for row in events_of([person] * person, "htn")]
    found = describe_cohort(write_cohort(tmp_path / "c", events=events)).people_by_events
    assert found.labels[:2] + found.labels[-2:] == ("0–10", "11–20", "71–80", "81 or more")
    assert found.counts == (11, 10, 10, 10, 10, 10, 10, 10, 19)


def test_ages_are_in_bands_from_the_first_to_the_last(cohort):
    found = describe_cohort(cohort)
    assert found.entry_ages.labels == ("50–55",)
    assert found.entry_ages.counts == (100,)
    assert dict(zip(found.event_ages.labels, found.event_ages.counts, strict=True)) == {
        "50–55": 30, "55–60": 79, "60–65": 12,
    }  # fmt: skip
    assert found.entry_age_years.quantiles == (None, 50.0, 50.0, 50.0, None)
    assert found.entry_age_years.median == 50.0


def test_attrition_is_that_of_the_report(cohort):
    events, derived = describe_cohort(cohort).attrition
    assert (events.table, events.is_derived, events.rows_read, events.rows_kept) == ("events", False, 146, 121)
    assert [(drop.rule, drop.sentence, drop.rows) for drop in events.drops] == [
        ("before_birth", "because of before_birth", 25)
    ]
    assert derived.is_derived
    assert [(note.text, note.rows) for note in describe_cohort(cohort).notes] == [
        ("people without weight", "under 10"), ("y", None),
    ]  # fmt: skip


def test_few_dropped_rows_are_withheld_and_do_not_follow_from_the_others(tmp_path):
    events = events_of(range(98), "htn")
    found = describe_cohort(write_cohort(tmp_path / "c", events=events, drops={"after_exit": 3, "no_code": 40}))
    flow = found.attrition[0]
    assert (flow.rows_read, flow.rows_kept, [drop.rows for drop in flow.drops]) == (None, 98, [None, 40])


def test_few_of_one_sex_are_withheld_and_do_not_follow_from_the_others(tmp_path):
    found = describe_cohort(write_cohort(tmp_path / "c", events=events_of(range(50), "htn"), n_unknown=4))
    assert found.people == 104
    assert found.sexes == {"female": 60, "male": 40, "unknown": None}
    found = describe_cohort(write_cohort(tmp_path / "d", events=events_of(range(50), "htn"), n_women=63, n_unknown=4))
    assert found.sexes == {"female": 60, "male": 40, "unknown": None}


def test_hardly_anybody_is_not_described(tmp_path):
    found = describe_cohort(write_cohort(tmp_path / "c", events=events_of(range(4), "htn"), n_women=3, n_men=3))
    assert (found.people, found.events, found.deaths) == (None, None, 0)
    assert found.top_codes == ()
    assert set(found.entry_age_years.quantiles) == set(found.events_per_person.quantiles) == {None}
    assert found.follow_up.person_years is None
    assert found.follow_up.years == ()


def test_follow_up_is_reverse_kaplan_meier(tmp_path):
    rng = np.random.default_rng(0)
    planned, death = rng.uniform(2, 12, 100), rng.exponential(20, 100)
    died = death < planned
    years = np.round(np.minimum(planned, death) * DAYS_PER_YEAR) / DAYS_PER_YEAR
    deaths = [
        (person, BORN_TO_ENTRY + years[person] * DAYS_PER_YEAR, "DEATH", None)
        for person in np.flatnonzero(died).tolist()
    ]
    found = describe_cohort(write_cohort(tmp_path / "c", events=deaths, follow_up=years)).follow_up
    fitted = KaplanMeierFitter().fit(years, ~died)
    assert found.median_years == pytest.approx(median_survival_times(fitted.survival_function_), abs=0.006)
    assert found.person_years == round(years.sum())
    expected = fitted.survival_function_at_times(list(found.years)).to_numpy()
    np.testing.assert_allclose(found.still_observed, expected, rtol=1e-9)
    still = (years[:, None] >= np.array(found.years)).sum(axis=0)
    assert still.min() >= 10
    assert (years >= found.years[-1] + 0.25).sum() < 10
    assert found.lower_quartile_years < found.median_years < found.upper_quartile_years


def test_quantiles_reached_only_by_the_last_few_are_not_given(tmp_path):
    """Twelve people are observed for 10 years, eight of twenty for longer: the upper quartile lies beyond."""
    follow_up = [10.0] * 12 + [20.0] * 8
    found = describe_cohort(
        write_cohort(tmp_path / "c", events=events_of(range(20), "htn"), n_women=10, n_men=10, follow_up=follow_up)
    ).follow_up
    assert found.median_years == 10.0
    assert found.upper_quartile_years is None
    assert max(found.years) <= 10.0


def test_a_cohort_of_many_files_gives_the_numbers_of_one_file(tmp_path):
    one, many = (
        describe_cohort(write_small_cohort(tmp_path / f"{n}", n_event_files=n, string_ids=True)) for n in (1, 3)
    )
    assert one == many


@pytest.mark.parametrize("content", ["[]", "{}", '{"tables": 1}', "no json", '{"tables": [{}], "derived": []}'])
def test_a_report_that_is_none_is_refused(cohort, content):
    (cohort / "import_report.json").write_text(content)
    with pytest.raises(InputContractError, match="is no report of an import"):
        describe_cohort(cohort)


def test_a_folder_without_a_cohort_is_refused(tmp_path):
    with pytest.raises(InputContractError, match="make a cohort with"):
        describe_cohort(tmp_path)
