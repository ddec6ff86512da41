"""Tables that surround the metrics: who was left out of a gap, subgroups, rates at rows, next events, truth."""

import dataframely as dy

ALL_SEXES, BOTH_SEXES = "all", "both"
WHAT, WHEN = "what", "when"


class PeopleLeftOut(dy.Schema):
    """Who was at risk at the landmark but not beyond the gap after it: one row an outcome.

    `n_at_risk` rows at the landmark; of these `n_with_outcome` had it, `n_died` died before it and `n_not_followed`
    were followed no longer than the gap. Counts from 1 to 9 are null, and those beside them are rounded to tens.
    """

    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    gap_days = dy.Float64(nullable=False, min=0.0)
    n_at_risk = dy.Int64(nullable=True)
    n_with_outcome = dy.Int64(nullable=True)
    n_died = dy.Int64(nullable=True)
    n_not_followed = dy.Int64(nullable=True)


class Subgroups(dy.Schema):
    """Which subgroups a person belongs to at a landmark: one row a person × landmark × kind of subgroup.

    `subgroup` is written `kind=value`: `sex=female`, `age=50-59`, `period=2010-2014`, `smoking=yes`.
    """

    subject_id = dy.Any()
    landmark_age_days = dy.Float64(nullable=False)
    subgroup = dy.String(nullable=False, min_length=3)


class RatesAtRows(dy.Schema):
    """What a model says at rows of histories: one row a person × age × outcome, at the last row of each age."""

    subject_id = dy.Any()
    age_days = dy.Float64(nullable=False, min=0.0)
    outcome = dy.String(nullable=False)
    rate_per_year = dy.Float64(nullable=False, min=0.0, allow_nan=False, allow_inf=False)


class DelphiAuc(dy.Schema):
    """AUC by Delphi's protocol: one row an outcome × offset × sex (`both`: mean over all strata of either sex).

    `auc` is the unweighted mean over 5-year bands of age that hold a case and a control (null: there is none, or
    fewer than 10 cases or controls in all). `n_cases`, `n_controls` are summed over those bands; under 10 are null.
    """

    outcome = dy.String(nullable=False)
    offset_years = dy.Float64(nullable=False, min=0.0)
    sex = dy.String(nullable=False)
    auc = dy.Float64(nullable=True, min=0.0, max=1.0)
    n_strata = dy.Int64(nullable=False, min=0)
    n_cases = dy.Int64(nullable=True)
    n_controls = dy.Int64(nullable=True)


class Intervals(dy.Schema):
    """Stretches without an event, one row each: from one age of a person's rows to the next, up to exit.

    `total_hazard` is Σ_k H_k over the stretch for the causes at risk in it; `is_event` says whether it ends with an
    event (else: with a row that is none, or with the end of follow-up).
    """

    subject_id = dy.Any()
    start_age_days = dy.Float64(nullable=False, min=0.0)
    end_age_days = dy.Float64(nullable=False, min=0.0)
    total_hazard = dy.Float64(nullable=False, min=0.0, allow_nan=False, allow_inf=False)
    is_event = dy.Bool(nullable=False)


class IntervalEvents(dy.Schema):
    """Events that end intervals, one row each; several on one day are several rows.

    `log_hazard` is log h_k at the event, `log_total_hazard` log Σ_k h_k over the causes at risk there, per year.
    """

    subject_id = dy.Any()
    age_days = dy.Float64(nullable=False, min=0.0)
    outcome = dy.String(nullable=False)
    log_hazard = dy.Float64(nullable=False, allow_nan=False)
    log_total_hazard = dy.Float64(nullable=False, allow_nan=False)


class NextEventQuality(dy.Schema):
    """Log-likelihood per event (nats, hazards per year): `part` is `total`, `what` or `when`; total = what + when.

    `predictor` is a name or a difference `model-age_sex`; 95 % intervals by the variance between people.
    """

    predictor = dy.String(nullable=False)
    part = dy.String(nullable=False)
    estimate = dy.Float64(nullable=True)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)
    n_people = dy.Int64(nullable=True)
    n_events = dy.Int64(nullable=True)


class WaitingTimes(dy.Schema):
    """Calibration of waiting times: share of intervals whose transformed time is at most `probability`.

    `observed` is 1 − Kaplan–Meier of the transformed times with its 95 % interval; equal to `probability` when waiting
    times are right, above it where events come sooner than predicted. `n_at_risk` intervals reach that far.
    """

    predictor = dy.String(nullable=False)
    probability = dy.Float64(nullable=False, min=0.0, max=1.0)
    observed = dy.Float64(nullable=True)
    lower = dy.Float64(nullable=True)
    upper = dy.Float64(nullable=True)
    n_at_risk = dy.Int64(nullable=True)


class TruthComparison(dy.Schema):
    """A predictor beside the true risks of the same people: one row an outcome × horizon × subgroup × measure.

    `outcome` may be `macro_mean`, the mean over outcomes. `n` counts people × landmarks with both risks (null under 10,
    and the estimate with it).
    """

    predictor = dy.String(nullable=False)
    outcome = dy.String(nullable=False)
    landmark = dy.String(nullable=False)
    horizon_days = dy.Float64(nullable=False, min_exclusive=0.0)
    subgroup = dy.String(nullable=False)
    metric = dy.String(nullable=False)
    estimate = dy.Float64(nullable=True)
    n = dy.Int64(nullable=True)
