"""Next-event quality equals sums over people; waiting times are right for the law they were drawn from."""

import math

import numpy as np
import polars as pl
import pytest
from lifelines import KaplanMeierFitter

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import FEMALE, MALE, UNKNOWN, Subjects
from data_schemas.dataset import ReferenceRates
from data_schemas.evaluation_tables import (
    WHAT,
    WHEN,
    IntervalEvents,
    Intervals,
    NextEventQuality,
    WaitingTimes,
)
from data_schemas.results import AGE_SEX, MODEL, FirstOccurrences
from pipelines.evaluation.age_sex_next_events import age_sex_next_events
from pipelines.evaluation.next_event_quality import (
    TOTAL,
    NextEvents,
    next_event_quality,
    waiting_time_calibration,
)


def intervals_of(*rows):
    schema = {**Intervals.create_empty().schema, Intervals.subject_id.name: pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def events_of(*rows):
    schema = {**IntervalEvents.create_empty().schema, IntervalEvents.subject_id.name: pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def draw(rng, n_people, rates, claimed):
    """Draw lives of constant rates, and what someone says who claims other rates."""
    intervals, events = [], []
    for person in range(n_people):
        age, end = 0.0, rng.uniform(1, 30)
        while age < end:
            step = rng.exponential(1 / sum(rates))
            is_event = age + step < end
            until = min(age + step, end)
            intervals.append((person, age, until, (until - age) * sum(claimed), is_event))
            if is_event:
                k = rng.choice(len(rates), p=np.array(rates) / sum(rates))
                events.append((person, until, "ABC"[k], math.log(claimed[k]), math.log(sum(claimed))))
            age = until
    return NextEvents(intervals_of(*intervals), events_of(*events))


RATES, CLAIMED = (0.3, 0.1, 0.1), (0.2, 0.2, 0.2)


@pytest.fixture(scope="module")
def lives():
    return {
        MODEL: draw(np.random.default_rng(1), 200, RATES, RATES),
        AGE_SEX: draw(np.random.default_rng(1), 200, RATES, CLAIMED),
    }


def pick(table, predictor, part):
    return table.filter(NextEventQuality.predictor.col == predictor, NextEventQuality.part.col == part).row(
        0, named=True
    )


def test_equals_the_sums_written_out(lives):
    found = next_event_quality(lives)
    NextEventQuality.validate(found)
    for predictor, claimed in ((MODEL, RATES), (AGE_SEX, CLAIMED)):
        intervals, events = lives[predictor].intervals, lives[predictor].events
        years = (intervals[Intervals.end_age_days.name] - intervals[Intervals.start_age_days.name]).sum()
        n = events.height
        kinds = events[IntervalEvents.outcome.name].to_list()
        what = sum(math.log(claimed["ABC".index(kind)] / sum(claimed)) for kind in kinds) / n
        when = math.log(sum(claimed)) - years * sum(claimed) / n
        assert pick(found, predictor, WHAT)["estimate"] == pytest.approx(what)
        assert pick(found, predictor, WHEN)["estimate"] == pytest.approx(when)
        assert pick(found, predictor, TOTAL)["estimate"] == pytest.approx(what + when)
        assert (pick(found, predictor, TOTAL)["n_events"], pick(found, predictor, TOTAL)["n_people"]) == (n, 200)
    difference = pick(found, f"{MODEL}-{AGE_SEX}", TOTAL)
    both = [pick(found, predictor, TOTAL)["estimate"] for predictor in (MODEL, AGE_SEX)]
    assert difference["estimate"] == pytest.approx(both[0] - both[1])
    assert difference["lower"] > 0  # who knows the rates is better, and this many people show it


def test_the_interval_is_that_of_resampled_people(lives):
    found = pick(next_event_quality(lives), MODEL, TOTAL)
    rng, intervals, events = np.random.default_rng(2), lives[MODEL].intervals, lives[MODEL].events
    lived = np.bincount(intervals["subject_id"].to_numpy(), intervals["total_hazard"].to_numpy(), 200)
    said = np.bincount(events["subject_id"].to_numpy(), events["log_hazard"].to_numpy(), 200)
    n_events = np.bincount(events["subject_id"].to_numpy(), minlength=200)
    drawn = []
    for _ in range(500):
        who = rng.integers(0, 200, 200)
        drawn.append((said - lived)[who].sum() / n_events[who].sum())
    assert (found["upper"] - found["lower"]) / (2 * 1.96) == pytest.approx(np.std(drawn), rel=0.15)


def test_few_events_impossible_events_and_other_people():
    few = NextEvents(intervals_of((1, 0.0, 5.0, 0.1, True)), events_of((1, 5.0, "A", -1.0, 0.0)))
    assert pick(next_event_quality({MODEL: few}), MODEL, TOTAL) == {
        "predictor": MODEL, "part": TOTAL, "estimate": None, "lower": None, "upper": None, "n_people": None,
        "n_events": None,
    }  # fmt: skip
    many = [(i, 0.0, 5.0, 0.1, True) for i in range(20)]
    impossible = NextEvents(intervals_of(*many), events_of(*((i, 5.0, "A", -math.inf, 0.0) for i in range(20))))
    assert pick(next_event_quality({MODEL: impossible}), MODEL, WHAT)["estimate"] is None
    assert pick(next_event_quality({MODEL: impossible}), MODEL, WHEN)["estimate"] == pytest.approx(-0.1)
    with pytest.raises(ValueError, match="not about the same people"):
        next_event_quality({MODEL: impossible, AGE_SEX: few})


def test_people_without_events_count():
    rows = [(i, 0.0, 5.0, 0.1, True) for i in range(10)] + [(i, 0.0, 5.0, 1.0, False) for i in range(10, 15)]
    found = next_event_quality(
        {MODEL: NextEvents(intervals_of(*rows), events_of(*((i, 5.0, "A", 0.0, 0.0) for i in range(10))))}
    )
    assert pick(found, MODEL, TOTAL)["estimate"] == pytest.approx(-(10 * 0.1 + 5 * 1.0) / 10)


# Waiting times


def test_waiting_times_drawn_from_the_law_are_uniform():
    right = draw(np.random.default_rng(3), 1500, RATES, RATES)
    found = waiting_time_calibration({MODEL: right})
    WaitingTimes.validate(found)
    assert ((found["observed"] - found["probability"]).abs() < 0.02).all()
    inside = (found["lower"] <= found["probability"]) & (found["probability"] <= found["upper"])
    assert inside.mean() > 0.8


def test_events_sooner_than_predicted_lie_above():
    slow = draw(np.random.default_rng(3), 300, RATES, (0.1, 0.05, 0.05))
    found = waiting_time_calibration({MODEL: slow})
    assert (found["observed"] > found["probability"]).all()


def test_equals_lifelines_on_the_transformed_times(lives):
    intervals = lives[AGE_SEX].intervals
    fitter = KaplanMeierFitter().fit(intervals["total_hazard"].to_numpy(), intervals["is_event"].to_numpy())
    found = waiting_time_calibration({AGE_SEX: lives[AGE_SEX]}, [0.1, 0.3, 0.6, 0.9])
    at = -np.log1p(-found["probability"].to_numpy())
    np.testing.assert_allclose(1 - found["observed"].to_numpy(), fitter.predict(at).to_numpy(), atol=1e-12)
    limits = fitter.confidence_interval_survival_function_
    for place, moment in enumerate(at):
        row = limits[limits.index <= moment].iloc[-1]
        assert (1 - row.iloc[1], 1 - row.iloc[0]) == pytest.approx(
            (found["lower"][place], found["upper"][place]), abs=1e-9
        )


@pytest.mark.parametrize("n", [0, 1, 9])
def test_no_numbers_on_few_intervals(n):
    rows = [(i, 0.0, 1.0, 0.5, True) for i in range(n)]
    found = waiting_time_calibration({MODEL: NextEvents(intervals_of(*rows), events_of())})
    assert found["observed"].null_count() == found.height


def test_all_censored_is_nothing_observed():
    rows = [(i, 0.0, 1.0, 5.0, False) for i in range(30)]
    found = waiting_time_calibration({MODEL: NextEvents(intervals_of(*rows), events_of())}, [0.5])
    assert found.row(0)[2:] == (0.0, None, None, 30)


# Incidence by age and sex


def reference_rows(*rows):
    return pl.DataFrame(rows, schema=ReferenceRates.create_empty().schema, orient="row")


REFERENCE = reference_rows(
    ("A", FEMALE, 0.0, 0.1, 0.0), ("A", FEMALE, 50.0, 0.2, 0.0), ("A", MALE, 0.0, 0.3, 0.0),
    ("A", UNKNOWN, 0.0, 0.0, 0.0), ("B", FEMALE, 0.0, 0.4, 0.0), ("B", MALE, 0.0, 0.5, 0.0),
    ("B", UNKNOWN, 0.0, 0.45, 0.0),
)  # fmt: skip
POPULATION = {"A": 0.15, "B": 0.44, "C": 0.01}


def days(years):
    return years * DAYS_PER_YEAR


def reprice(sex, start, end, *, ever=(), event=None):
    said = NextEvents(
        intervals_of((1, days(start), days(end), 9.0, event is not None)),
        events_of(*([(1, days(end), event, 0.0, 0.0)] if event else [])),
    )
    subjects = pl.DataFrame({Subjects.subject_id.name: [1], Subjects.sex.name: [sex]})
    first = pl.DataFrame(
        [(1, k, days(age)) for k, age in ever],
        schema={**FirstOccurrences.create_empty().schema, FirstOccurrences.subject_id.name: pl.Int64},
        orient="row",
    )
    found = age_sex_next_events(said, subjects, first, REFERENCE, POPULATION)
    events = found.events.select(IntervalEvents.log_hazard.col.exp(), IntervalEvents.log_total_hazard.col.exp()).rows()
    return found.intervals[Intervals.total_hazard.name].item(), events


@pytest.mark.parametrize(
    ("sex", "start", "end", "ever", "expected"),
    [
        (FEMALE, 40.0, 41.0, (), 0.1 + 0.4 + 0.01),
        (FEMALE, 49.5, 50.5, (), 0.05 + 0.1 + 0.4 + 0.01),
        (MALE, 40.25, 42.75, (), 2.5 * (0.3 + 0.5 + 0.01)),
        (FEMALE, 40.0, 41.0, (("A", 30.0),), 0.4 + 0.01),
        (FEMALE, 40.0, 41.0, (("A", 40.0),), 0.4 + 0.01),  # at the start: at risk no more
        (FEMALE, 40.0, 41.0, (("A", 41.0),), 0.1 + 0.4 + 0.01),
        (UNKNOWN, 40.0, 41.0, (), 0.0015 + 0.45 + 0.01),  # a rate of 0 is a hundredth of the population's
        (FEMALE, 119.0, 125.0, (), 6 * (0.2 + 0.4 + 0.01)),  # the last band is open
        (FEMALE, 40.0, 41.0, (("A", 1.0), ("B", 1.0), ("C", 1.0)), 0.0),
    ],
)
def test_hazards_of_age_and_sex_add_up(sex, start, end, ever, expected):
    assert reprice(sex, start, end, ever=ever)[0] == pytest.approx(expected, abs=1e-12)


def test_events_have_the_rate_of_age_and_sex():
    assert reprice(FEMALE, 49.0, 50.0, ever=(("A", 50.0),), event="A")[1] == [pytest.approx((0.2, 0.61))]
    assert reprice(FEMALE, 49.0, 49.9, ever=(("A", 20.0), ("C", 49.9)), event="C")[1] == [pytest.approx((0.01, 0.41))]
