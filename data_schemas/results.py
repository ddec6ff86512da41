"""What evaluation and scoring write: outcomes after a landmark, risks, metrics."""

import dataframely as dy

CENSORED, OUTCOME, COMPETING_DEATH = 0, 1, 2
PREVALENT, DEAD, OUTSIDE_FOLLOW_UP = "prevalent", "dead", "outside_follow_up"
REASONS = (PREVALENT, DEAD, OUTSIDE_FOLLOW_UP)
SMALLEST_SHOWN_COUNT = 10  # smaller counts are suppressed in anything meant for others
MODEL, COX, AGE_SEX = "model", "cox", "age_sex"
OVERALL = "all"
ALL_FUTURE, FROZEN_HISTORY, TRUTH = "all_future", "frozen_history", "truth"
METHODS = (ALL_FUTURE, FROZEN_HISTORY, COX, AGE_SEX, TRUTH)

# Names in the column `metric` of `Metrics`; those with a difference are paired over the same people.
CONCORDANCE, AUC = "concordance", "auc"
BRIER, NULL_BRIER, SCALED_BRIER = "brier", "null_brier", "scaled_brier"
OBSERVED_RISK, PREDICTED_RISK, OBSERVED_EXPECTED = "observed_risk", "predicted_risk", "observed_expected"
CALIBRATION_INTERCEPT, CALIBRATION_SLOPE = "calibration_intercept", "calibration_slope"
OUTCOMES_AVERAGED = "outcomes_averaged"
DIFFERENCE_SUFFIX = "_difference"
# Names in the column `outcome` of `Metrics` for numbers over several outcomes.
MACRO_MEAN, POOLED = "macro_mean", "pooled"


class Outcomes(dy.Schema):
    """One row a person at risk × outcome: what happened after the landmark.

    `status`: 0 censored, 1 outcome, 2 competing death. On one day: outcome, then death, then censoring.
    """

    subject_id = dy.Any()
    landmark_age_days = dy.Float64(nullable=False)
    outcome = dy.String(nullable=False)
    time_days = dy.Float64(nullable=False, min_exclusive=0.0)
    status = dy.Int8(nullable=False, min=0, max=2)


class Risks(dy.Schema):
    """`risks/*.parquet`: every person × outcome × horizon has a row, in the order of the cohort.

    `risk` is the cumulative incidence of the first occurrence with death competing, `reference_risk` that of people
    of the same sex and age in the training split. Who cannot be scored has a null risk and a `reason`.
    `method` says where the risk comes from: a prediction of the whole future, or `frozen_history`, the hazards of a
    next_token model as they stand at the landmark, as if no further event changed them.
    """

    subject_id = dy.Any()
    landmark_age_days = dy.Float64(nullable=True)
    outcome = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False, min_exclusive=0.0)
    risk = dy.Float64(nullable=True, min=0.0, max=1.0)
    reference_risk = dy.Float64(nullable=True, min=0.0, max=1.0)
    reason = dy.String(nullable=True, check=lambda column: column.is_in(REASONS))
    method = dy.String(nullable=False, check=lambda column: column.is_in(METHODS))


class Metrics(dy.Schema):
    """One long table of results: one row a number, with its 95 % interval where it has one.

    `landmark` is a name (`entry`, `entry+5y`), `predictor` one of model, cox, age_sex, or `model-cox` for a
    difference; `n` people at risk, `n_events` cases up to the horizon (null where fewer than 10, and the estimate
    with it). `outcome` is `macro_mean` or `pooled` where several are summed up; `n` then counts people once and
    `n_events` cases over all of them.
    """

    predictor = dy.String(nullable=False)
    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False)
    subgroup = dy.String(nullable=False)
    metric = dy.String(nullable=False)
    estimate = dy.Float64(nullable=True)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)
    n = dy.Int64(nullable=True)
    n_events = dy.Int64(nullable=True)


class FirstOccurrences(dy.Schema):
    """One row a person × outcome that ever happened: age at the first occurrence, from the full history.

    For a group: the first of any member. For death: the age at death.
    """

    subject_id = dy.Any()
    outcome = dy.String(nullable=False)
    first_age_days = dy.Float64(nullable=False, min=0.0)


class CalibrationGroups(dy.Schema):
    """Observed against predicted risk, one row a group of people of similar predicted risk.

    `group` counts from 1, lowest predicted risk first: tenths, neighbours merged until each holds 10 cases.
    `predicted` is the mean, `observed` the Aalen–Johansen estimate at the horizon with its 95 % interval; `n_events`
    cases up to the horizon.
    """

    predictor = dy.String(nullable=False)
    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False)
    subgroup = dy.String(nullable=False)
    group = dy.Int64(nullable=False, min=1)
    n = dy.Int64(nullable=False, min=SMALLEST_SHOWN_COUNT)
    n_events = dy.Int64(nullable=False, min=SMALLEST_SHOWN_COUNT)
    predicted = dy.Float64(nullable=False, min=0.0, max=1.0)
    observed = dy.Float64(nullable=True)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)


class EvaluatedOutcomes(dy.Schema):
    """Which outcomes were judged at a landmark, and which had too few cases: one row an outcome, by name.

    `n` people are at risk and have a risk from every predictor, `n_without_risk` are at risk but lack one;
    `n_events` cases up to the largest horizon among the `n`. Counts from 1 to 9 are null, and so is a number of
    cases that is 0.
    """

    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    n = dy.Int64(nullable=True)
    n_without_risk = dy.Int64(nullable=True)
    n_events = dy.Int64(nullable=True)
    is_judged = dy.Bool(nullable=False)
