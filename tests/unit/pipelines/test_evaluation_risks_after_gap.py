"""Risks after a gap equal those of people who are followed from its end, for hazards that are known."""

import numpy as np
import polars as pl
import pytest

from data_schemas.cohort import DEATH_CODE
from data_schemas.results import ALL_FUTURE, Risks
from pipelines.evaluation.risks_after_gap import horizons_with_gap, risks_after_gap

GAP, HORIZON = 90.0, 1826.25


def constant(rate, death_rate, days):
    """Return the risk within some days with death competing, rates per day."""
    total = rate + death_rate
    return rate / total * -np.expm1(-total * days)


def risks_of(*rows):
    filled = [(1, 20000.0, outcome, days, risk, 0.5, None, ALL_FUTURE) for outcome, days, risk in rows]
    schema = {**Risks.create_empty().schema, Risks.subject_id.name: pl.Int64}
    return pl.DataFrame(filled, schema=schema, orient="row")


def after_gap(rows, outcome="A"):
    found = risks_after_gap(risks_of(*rows), GAP)
    Risks.validate(found)
    assert found[Risks.horizon_days.name].unique().to_list() == [HORIZON]
    return found.filter(Risks.outcome.col == outcome)[Risks.risk.name].item()


@pytest.mark.parametrize(("yearly", "yearly_death"), [(0.02, 0.02), (0.2, 0.01), (0.001, 0.1), (0.3, 0.3)])
def test_constant_rates_start_anew_after_the_gap(yearly, yearly_death):
    a, b = yearly / 365.25, yearly_death / 365.25
    rows = [("A", days, constant(a, b, days)) for days in (GAP, HORIZON)]
    rows += [(DEATH_CODE, days, -np.expm1(-b * days)) for days in (GAP, HORIZON)]
    assert after_gap(rows) == pytest.approx(constant(a, b, HORIZON - GAP), abs=a * b * GAP**2 / 2)
    assert after_gap(rows, DEATH_CODE) == pytest.approx(-np.expm1(-b * (HORIZON - GAP)), rel=1e-9)


def test_without_a_risk_of_death_and_with_horizons_that_went_through_years():
    days = GAP / 365.25 * 365.25 * (1 + 1e-13)
    assert after_gap([("A", days, 0.1), ("A", HORIZON, 0.4)]) == pytest.approx(0.3 / 0.9)


def test_nothing_left_after_the_gap_and_unknown_risks_are_null():
    assert after_gap([("A", GAP, 1.0), ("A", HORIZON, 1.0)]) is None
    assert after_gap([("A", GAP, None), ("A", HORIZON, None)]) is None
    assert after_gap([("A", HORIZON, 0.2)]) is None  # nobody asked about the gap


def test_no_gap_changes_nothing():
    table = risks_of(("A", HORIZON, 0.2))
    assert risks_after_gap(table, 0.0).equals(table)
    assert horizons_with_gap([HORIZON], 0.0) == [HORIZON]
    assert horizons_with_gap([HORIZON], GAP) == [GAP, HORIZON]
