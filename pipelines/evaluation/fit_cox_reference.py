"""The second reference: a Cox model per outcome and one for death, fitted by lifelines at the same landmark.

Absolute risks come from the two cause-specific models together, on the grid of the outcome's own event times.

n people, J event times of the outcome in the training split.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import pandas as pd
import polars as pl
from lifelines import CoxPHFitter
from lifelines.exceptions import ConvergenceError, ConvergenceWarning

from data_schemas.cohort import DEATH_CODE
from data_schemas.results import COX, OUTCOME, Outcomes, Risks
from pipelines.evaluation.aalen_johansen import distinct_times, sum_per_time, weight_at_risk
from pipelines.evaluation.array_types import BoolArray, FloatArray
from pipelines.evaluation.landmark_features import (
    LandmarkFeatures,
    feature_names,
    fit_landmark_features,
    landmark_features,
)

PENALIZER, PENALIZER_OF_RETRY = 0.01, 0.03  # lifelines multiplies them by the number of people
MIN_CASES = 20
# lifelines warns below 1e-4; a column that hardly varies among cases would separate them from the others.
SMALLEST_VARIANCE = 1e-4
PEOPLE_PER_CHUNK = 4096  # bounds the array people × event times

_KEYS = (Outcomes.subject_id.name, Outcomes.landmark_age_days.name)
_DURATION, _EVENT = "duration", "event"


@dataclass(frozen=True)
class CoxFit:
    """One cause-specific model: hazard(t | x) = baseline(t) · exp((x − centre) · coefficients).

    `penalizer` is the one the fit converged with; it is None where no covariate could be used (too few deaths, nothing
    that varies), and the baseline then is the Nelson–Aalen estimate.
    """

    columns: tuple[str, ...]
    coefficients: FloatArray  # [columns]
    centre: FloatArray  # [columns]
    times_days: FloatArray  # [J] increasing, times of events only
    hazard_steps: FloatArray  # [J] baseline increments
    n: int
    n_events: int
    penalizer: float | None

    def relative_hazards(self, features: pl.DataFrame) -> FloatArray:
        """Return exp((x − centre) · coefficients) for each row: [n]."""
        if not self.columns:
            return np.ones(features.height)
        x = features.select(self.columns).to_numpy()
        relative: FloatArray = np.exp((x - self.centre) @ self.coefficients)
        return relative

    def cumulative_baseline_before(self, times_days: FloatArray) -> FloatArray:
        """Return the baseline cumulative hazard just before each time."""
        cumulative = np.concatenate([[0.0], np.cumsum(self.hazard_steps)])
        return cumulative[np.searchsorted(self.times_days, times_days, side="left")]

    def cumulative_baseline_at(self, time_days: float) -> float:
        """Return the baseline cumulative hazard up to and with a time."""
        return float(self.hazard_steps[self.times_days <= time_days].sum())


@dataclass(frozen=True)
class CoxReference:
    """The fitted features and models; `not_fitted` says of each outcome without a model why."""

    features: LandmarkFeatures
    death: CoxFit
    outcomes: Mapping[str, CoxFit]
    not_fitted: Mapping[str, str]


def fit_cox_reference(
    train_people: pl.DataFrame,
    train_events: pl.LazyFrame,
    train_outcomes: pl.DataFrame,
    outcomes: Sequence[str],
    *,
    min_cases: int = MIN_CASES,
    penalizer: float = PENALIZER,
) -> CoxReference:
    """Fit one cause-specific Cox model an outcome, and one for death, on the training split at one landmark.

    `train_people` has subject_id, sex and landmark_age_days; `train_outcomes` (schema `Outcomes`) the people at risk,
    with rows of the outcome `DEATH`, which every risk needs. Deaths are censored for other outcomes. Each model
    leaves out columns that hardly vary among its people, its cases or its others. A fit that does not converge is
    repeated with the larger penaliser; what then fails, and outcomes with under `min_cases` cases, are in
    `not_fitted`. With under `min_cases` deaths the hazard of death is the same for everyone.
    """
    fitted_features = fit_landmark_features(train_people, train_events)
    features = landmark_features(train_people, train_events, fitted_features)
    fits: dict[str, CoxFit] = {}
    not_fitted: dict[str, str] = {}
    for outcome in dict.fromkeys((DEATH_CODE, *outcomes)):
        rows = train_outcomes.filter(Outcomes.outcome.col == outcome).join(features, on=_KEYS, how="inner")
        n_cases = int((rows[Outcomes.status.name] == OUTCOME).sum())
        if n_cases < min_cases:
            not_fitted[outcome] = f"fewer than {min_cases} cases in the training split"
            continue
        fit = _fit_cause(rows, feature_names(features), penalizer)
        if fit is None:
            not_fitted[outcome] = f"no convergence with penalisers {penalizer:g} and {PENALIZER_OF_RETRY:g}"
        else:
            fits[outcome] = fit
    deaths = train_outcomes.filter(Outcomes.outcome.col == DEATH_CODE)
    death = fits[DEATH_CODE] if DEATH_CODE in fits else _fit_without_covariates(deaths)
    chosen = {outcome: fits[outcome] for outcome in outcomes if outcome in fits}
    return CoxReference(fitted_features, death, chosen, not_fitted)


def _fit_cause(rows: pl.DataFrame, columns: Sequence[str], penalizer: float) -> CoxFit | None:
    """Fit one model by lifelines; None where no penaliser leads to convergence."""
    is_case = (rows[Outcomes.status.name] == OUTCOME).to_numpy()
    x = rows.select(columns).to_numpy()
    is_kept = _varies(x) & _varies(x[is_case]) & _varies(x[~is_case])
    if not is_kept.any():
        return _fit_without_covariates(rows)
    x = x[:, is_kept]
    frame = pd.DataFrame(x, columns=[f"x{position}" for position in range(x.shape[1])])
    frame[_DURATION] = rows[Outcomes.time_days.name].to_numpy()
    frame[_EVENT] = is_case
    for strength in (penalizer, PENALIZER_OF_RETRY):
        fitter = _try_lifelines(frame, strength)
        if fitter is not None:
            baseline = fitter.baseline_cumulative_hazard_.iloc[:, 0]
            steps = np.diff(baseline.to_numpy(dtype=np.float64), prepend=0.0)
            times = baseline.index.to_numpy(dtype=np.float64)
            is_step = steps > 0
            return CoxFit(
                columns=tuple(compress(columns, is_kept)),
                coefficients=fitter.params_.to_numpy(dtype=np.float64),
                centre=x.mean(axis=0),
                times_days=times[is_step],
                hazard_steps=steps[is_step],
                n=rows.height,
                n_events=int(is_case.sum()),
                penalizer=strength,
            )
    return None


def _varies(x: FloatArray) -> BoolArray:
    """Say which columns vary; none where there are under two rows."""
    if len(x) < 2:
        return np.zeros(x.shape[1], dtype=bool)
    varies: BoolArray = x.var(axis=0, ddof=1) > SMALLEST_VARIANCE
    return varies


def _try_lifelines(frame: pd.DataFrame, penalizer: float) -> CoxPHFitter | None:
    """Fit, and return None where lifelines says in any way that it did not converge."""
    fitter = CoxPHFitter(penalizer=penalizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return fitter.fit(frame, duration_col=_DURATION, event_col=_EVENT)
        except (ConvergenceError, ConvergenceWarning):
            return None


def _fit_without_covariates(rows: pl.DataFrame) -> CoxFit:
    """Return the Nelson–Aalen hazard, the same for everyone."""
    rows = rows.sort(Outcomes.time_days.name)
    time = rows[Outcomes.time_days.name].to_numpy()
    is_event = (rows[Outcomes.status.name] == OUTCOME).to_numpy().astype(np.float64)
    none = np.empty(0)
    if time.size == 0:
        return CoxFit((), none, none, none, none, 0, 0, None)
    first = distinct_times(time)
    steps = sum_per_time(is_event, first) / weight_at_risk(np.ones(time.size), first)
    is_step = steps > 0
    return CoxFit((), none, none, time[first][is_step], steps[is_step], time.size, int(is_event.sum()), None)


def predict_cox_risks(fitted: CoxReference, features: pl.DataFrame, horizons_days: Sequence[float]) -> pl.DataFrame:
    """Return absolute risks, one row a person × fitted outcome × horizon (schema `Risks`, no reference risk).

    risk_k(h | x) = Σ_{t_j ≤ h} exp(−H_k(t_j− | x) − H_death(t_j− | x)) (1 − exp(−dH_k(t_j | x))), t_j the event times
    of the outcome: without deaths it sums to 1 − exp(−H_k(h)). For death 1 − exp(−H_death(h)). `features` come from
    `landmark_features(people, events, fitted.features)`; a horizon beyond the training follow-up has the risk at its
    end.
    """
    horizons = np.asarray(horizons_days, dtype=np.float64)
    relative_death = fitted.death.relative_hazards(features)
    risks = np.empty((features.height, len(fitted.outcomes), horizons.size))
    for k, (outcome, fit) in enumerate(fitted.outcomes.items()):
        if outcome == DEATH_CODE:
            baseline = np.array([fit.cumulative_baseline_at(horizon) for horizon in horizons])
            risks[:, k] = -np.expm1(-relative_death[:, None] * baseline)
            continue
        relative = fit.relative_hazards(features)
        for start in range(0, features.height, PEOPLE_PER_CHUNK):
            chunk = slice(start, start + PEOPLE_PER_CHUNK)
            risks[chunk, k] = _risk_with_death(fit, fitted.death, relative[chunk], relative_death[chunk], horizons)
    wanted = pl.DataFrame(
        {Risks.outcome.name: list(fitted.outcomes)}, schema={Risks.outcome.name: pl.String}
    ).join(pl.DataFrame({Risks.horizon_days.name: horizons}), how="cross")  # fmt: skip
    return (
        features.select(_KEYS)
        .join(wanted, how="cross")
        .with_columns(
            pl.Series(Risks.risk.name, risks.ravel()),
            pl.lit(None, dtype=pl.Float64).alias(Risks.reference_risk.name),
            pl.lit(None, dtype=pl.String).alias(Risks.reason.name),
            pl.lit(COX).alias(Risks.method.name),
        )
    )


def _risk_with_death(
    fit: CoxFit, death: CoxFit, relative: FloatArray, relative_death: FloatArray, horizons: FloatArray
) -> FloatArray:
    """Return the risk with death competing of people with given relative hazards: [n, H]."""
    within = fit.times_days <= horizons.max()
    times, steps = fit.times_days[within], fit.hazard_steps[within]
    cumulative = np.cumsum(steps) - steps
    free = np.exp(-relative[:, None] * cumulative - relative_death[:, None] * death.cumulative_baseline_before(times))
    incidence = np.cumsum(free * -np.expm1(-relative[:, None] * steps), axis=1)
    incidence = np.concatenate([np.zeros((len(relative), 1)), incidence], axis=1)
    return incidence[:, np.searchsorted(times, horizons, side="right")]
