"""What evaluation and scoring write: outcomes after a landmark, risks, metrics."""

import dataframely as dy

CENSORED, OUTCOME, COMPETING_DEATH = 0, 1, 2
PREVALENT, DEAD, OUTSIDE_FOLLOW_UP = "prevalent", "dead", "outside_follow_up"
REASONS = (PREVALENT, DEAD, OUTSIDE_FOLLOW_UP)
SMALLEST_SHOWN_COUNT = 10  # smaller counts are suppressed in anything meant for others
MODEL, COX, AGE_SEX, GRADIENT_BOOSTING = "model", "cox", "age_sex", "gradient_boosting"
OVERALL = "all"
ALL_FUTURE, FROZEN_HISTORY, TRUTH = "all_future", "frozen_history", "truth"
METHODS = (ALL_FUTURE, FROZEN_HISTORY, COX, AGE_SEX, GRADIENT_BOOSTING, TRUTH)

# Names in the column `metric` of `Metrics`; those with a difference are paired over the same people.
CONCORDANCE, CONCORDANCE_IPCW, AUC = "concordance", "concordance_ipcw", "auc"
BRIER, NULL_BRIER, SCALED_BRIER, INTEGRATED_BRIER = "brier", "null_brier", "scaled_brier", "integrated_brier"
OBSERVED_RISK, PREDICTED_RISK, OBSERVED_EXPECTED = "observed_risk", "predicted_risk", "observed_expected"
CALIBRATION_INTERCEPT, CALIBRATION_SLOPE = "calibration_intercept", "calibration_slope"
# Mean, median and 90th percentile over people of |smooth observed risk − predicted risk|.
ICI, E50, E90 = "ici", "e50", "e90"
AVERAGE_PRECISION = "average_precision"
# Among the people with the highest risks: which share of all cases is there, which share of them are cases.
TOP_SHARES = (0.01, 0.05, 0.1)
RECALL_AT = {share: f"recall_top_{share * 100:g}pct" for share in TOP_SHARES}
PRECISION_AT = {share: f"precision_top_{share * 100:g}pct" for share in TOP_SHARES}
OUTCOMES_AVERAGED = "outcomes_averaged"
DIFFERENCE_SUFFIX = "_difference"  # between two predictors: `predictor` is then `model-cox`
VERSUS_REST_SUFFIX = "_versus_rest"  # a subgroup minus everyone else, one predictor
# Names in the column `interval` of `Metrics`: how the limits were found.
INFLUENCE, BOOTSTRAP = "influence", "bootstrap"
SMALLEST_FOLLOWED_PROBABILITY = 0.2  # below, few people stand for many: numbers at that horizon are flagged
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
    """`metrics.parquet`, one long table of results: one row a number, with its 95 % interval where it has one.

    `landmark` is a name (`entry`, `entry+5y`), `predictor` one of model, cox, age_sex, gradient_boosting, or
    `model-cox` for a difference. `subgroup` is `all` or as given (`sex=female`). `n` rows at risk (people, or people ×
    landmarks where a person has several), `n_events` cases up to the horizon (null where fewer than 10, and the
    estimate with it). `outcome` is `macro_mean` or `pooled` where several are summed up; `n` then counts each row once
    and `n_events` cases over all of them. `integrated_brier` stands at the largest horizon and runs from the smallest.
    `standard_error` is from the influence functions, on the scale of the estimate. `interval` says where `lower` and
    `upper` come from: `influence` (standard error, on the scale that docs/evaluation.md names) or `bootstrap`
    (percentiles over people); null without an interval.
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
    standard_error = dy.Float64(nullable=True, min=0.0)
    interval = dy.String(nullable=True, check=lambda column: column.is_in([INFLUENCE, BOOTSTRAP]))


class FirstOccurrences(dy.Schema):
    """One row a person × outcome that ever happened: age at the first occurrence, from the full history.

    For a group: the first of any member. For death: the age at death.
    """

    subject_id = dy.Any()
    outcome = dy.String(nullable=False)
    first_age_days = dy.Float64(nullable=False, min=0.0)


class CalibrationGroups(dy.Schema):
    """`calibration.parquet`: observed against predicted risk, a row a group of people of similar predicted risk.

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


class CalibrationCurve(dy.Schema):
    """`calibration_curve.parquet`: observed risk as a smooth function of predicted risk, about 40 rows a curve.

    `predicted` rises from the 1st to the 99th percentile of the predictions, so that no row shows one person. Curves
    of outcomes and horizons with fewer than 10 cases, or that cannot be fitted, are not there. `lower` and `upper` are
    pointwise 95 % limits.
    """

    predictor = dy.String(nullable=False)
    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False)
    subgroup = dy.String(nullable=False)
    predicted = dy.Float64(nullable=False, min=0.0, max=1.0)
    observed = dy.Float64(nullable=False, min=0.0, max=1.0)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)


class DecisionCurve(dy.Schema):
    """`decision_curve.parquet`: net benefit of acting on risks at or above a threshold, one row a threshold.

    `net_benefit` is in true positives a person; acting on nobody has 0, acting on everybody `treat_all`. Null where
    from 1 to 9 people, or fewer than 10 cases among some people, are at or above the threshold; 0 where nobody is.
    """

    predictor = dy.String(nullable=False)
    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False)
    subgroup = dy.String(nullable=False)
    threshold = dy.Float64(nullable=False, min_exclusive=0.0, max_exclusive=1.0)
    net_benefit = dy.Float64(nullable=True)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)
    treat_all = dy.Float64(nullable=True)


class CensoringSummary(dy.Schema):
    """`censoring.parquet`: what is known at each horizon, one row an outcome × horizon.

    `n` at risk at the landmark; up to the horizon `n_events` had the outcome, `n_died` died without it, `n_censored`
    were lost; the rest were followed beyond (counts from 1 to 9 are null). `followed_probability` is the Kaplan–Meier
    probability of being followed beyond the horizon; `effective_sample_size` (Σw)² / Σw² of the weights by inverse
    probability of censoring, null where nobody is followed so long. `is_unstable`: that probability is below 0.2, so
    that few people stand for many.
    """

    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False)
    n = dy.Int64(nullable=True)
    n_events = dy.Int64(nullable=True)
    n_died = dy.Int64(nullable=True)
    n_censored = dy.Int64(nullable=True)
    followed_probability = dy.Float64(nullable=False, min=0.0, max=1.0)
    effective_sample_size = dy.Float64(nullable=True)
    is_unstable = dy.Bool(nullable=False)


class EvaluatedOutcomes(dy.Schema):
    """`outcomes.parquet`: which outcomes were judged at a landmark, which had too few cases; a row an outcome, by name.

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
