"""The third reference: gradient boosted trees on the features at the landmark, one classifier an outcome and horizon.

Trees find interactions and bends that a Cox model with main effects does not, so a network that reads whole histories
should beat them too. They know nothing of hazards: each horizon is a yes-or-no question of its own, in which people who
were followed stand for those who were not (inverse probability of censoring weights).

n people, H horizons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

from data_schemas.cohort import DEATH_CODE
from data_schemas.results import CENSORED, GRADIENT_BOOSTING, OUTCOME, Outcomes, Risks
from pipelines.evaluation.array_types import BoolArray, FloatArray, IntArray
from pipelines.evaluation.censoring_weights import CensoringCurve, fit_censoring_curve, inverse_censoring_weights
from pipelines.evaluation.landmark_features import (
    LandmarkFeatures,
    feature_names,
    fit_landmark_features,
    landmark_features,
)

MIN_CASES = 20
SEED = 0
# Few leaves and a slow rate: outcomes are rare, and deeper trees would learn the training people by heart.
_SETTINGS = {
    "learning_rate": 0.05,
    "max_iter": 150,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
    "early_stopping": False,
}

_KEYS = (Outcomes.subject_id.name, Outcomes.landmark_age_days.name)


@dataclass(frozen=True)
class BoostedRisk:
    """The risk of one outcome up to one horizon: a classifier, or the same risk for everyone where cases are few."""

    horizon_days: float
    classifier: HistGradientBoostingClassifier | None
    mean_risk: float

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the risk of each row of features: [n]."""
        if self.classifier is None or not len(x):
            return np.full(len(x), self.mean_risk)
        with threadpool_limits(1, user_api="openmp"):
            risk: FloatArray = self.classifier.predict_proba(x)[:, 1].astype(np.float64)
        return risk


@dataclass(frozen=True)
class GradientBoostingReference:
    """The fitted features and classifiers, horizons in order; `not_fitted` says of each outcome without one why."""

    features: LandmarkFeatures
    outcomes: Mapping[str, tuple[BoostedRisk, ...]]
    not_fitted: Mapping[str, str]


def fit_gradient_boosting(
    train_people: pl.DataFrame,
    train_events: pl.LazyFrame,
    train_outcomes: pl.DataFrame,
    outcomes: Sequence[str],
    horizons_days: Sequence[float],
    *,
    min_cases: int = MIN_CASES,
    seed: int = SEED,
) -> GradientBoostingReference:
    """Fit classifiers for the chosen outcomes on the training split at one landmark.

    Arguments as for `fit_cox_reference`; `train_outcomes` needs the rows of `DEATH`, which say how long everyone is
    followed. A case has the outcome by the horizon; not a case is who is free of it then or died before without it.
    Both are weighted by 1/G, people lost before the horizon by 0, G from the training people (Blanche et al. 2013;
    weighting a classifier this way: Vock et al. 2016, J Biomed Inform 61:119–131). A horizon with under `min_cases`
    cases has the weighted mean risk for everyone; an outcome with that few up to the last one is in `not_fitted`. A
    horizon beyond the training follow-up is asked at the last time anyone is followed to. The same seed gives the same
    trees.

    Trees: Ke et al. 2017, NeurIPS 30 (LightGBM), as in scikit-learn's HistGradientBoostingClassifier.
    """
    fitted_features = fit_landmark_features(train_people, train_events)
    features = landmark_features(train_people, train_events, fitted_features)
    followed = train_outcomes.filter(Outcomes.outcome.col == DEATH_CODE)
    censoring = fit_censoring_curve(
        followed[Outcomes.time_days.name].to_numpy(), (followed[Outcomes.status.name] == CENSORED).to_numpy()
    )
    fitted: dict[str, tuple[BoostedRisk, ...]] = {}
    not_fitted: dict[str, str] = {}
    for outcome in dict.fromkeys(outcomes):
        rows = train_outcomes.filter(Outcomes.outcome.col == outcome).join(features, on=_KEYS, how="inner")
        x = rows.select(feature_names(features)).to_numpy()
        time = rows[Outcomes.time_days.name].to_numpy()
        status = rows[Outcomes.status.name].to_numpy().astype(np.int64)
        risks = tuple(
            _fit_horizon(x, time, status, horizon, censoring, min_cases, seed) for horizon in sorted(horizons_days)
        )
        if all(risk.classifier is None for risk in risks):
            not_fitted[outcome] = f"fewer than {min_cases} cases, or none without it, in the training split"
        else:
            fitted[outcome] = risks
    return GradientBoostingReference(fitted_features, fitted, not_fitted)


def _fit_horizon(
    x: FloatArray,
    time: FloatArray,
    status: IntArray,
    horizon_days: float,
    censoring: CensoringCurve,
    min_cases: int,
    seed: int,
) -> BoostedRisk:
    """Fit the classifier of one outcome up to one horizon."""
    asked_days = _within_follow_up(horizon_days, censoring)
    weights = inverse_censoring_weights(time, status, asked_days, censoring)
    is_known = weights > 0  # NaN is not: nobody is followed at all
    is_case: BoolArray = ((status == OUTCOME) & (time <= asked_days))[is_known]
    weights = weights[is_known]
    if min(is_case.sum(), (~is_case).sum()) < min_cases or x.shape[1] == 0:
        mean = float(np.average(is_case, weights=weights)) if is_case.size else 0.0
        return BoostedRisk(horizon_days, None, mean)
    classifier = HistGradientBoostingClassifier(random_state=seed, **_SETTINGS)
    # One thread: the same sums on every machine, and no threads that wait for each other where cores are shared.
    with threadpool_limits(1, user_api="openmp"):
        classifier.fit(x[is_known], is_case, sample_weight=weights)
    return BoostedRisk(horizon_days, classifier, float(np.average(is_case, weights=weights)))


def _within_follow_up(horizon_days: float, censoring: CensoringCurve) -> float:
    """Return the horizon, or the last time somebody is followed beyond where that is earlier."""
    reached = censoring.times[censoring.survival[1:] > 0]
    if censoring.at(horizon_days) > 0 or not reached.size:
        return horizon_days
    return float(reached[-1])


def predict_boosted_risks(fitted: GradientBoostingReference, features: pl.DataFrame) -> pl.DataFrame:
    """Return risks, one row a person × fitted outcome × horizon (schema `Risks`, no reference risk).

    Classifiers of different horizons do not know of each other; a later one that says less takes over the risk of the
    one before (cumulative maximum), so that risk never falls with the horizon. That a risk and the risk of death add up
    to at most one is not enforced. `features` come from `landmark_features(people, events, fitted.features)`.
    """
    x = features.select(feature_names(features)).to_numpy()
    blocks = [np.stack([risk.predict(x) for risk in risks], axis=1) for risks in fitted.outcomes.values()]
    horizons = next(([risk.horizon_days for risk in risks] for risks in fitted.outcomes.values()), [])
    values = np.maximum.accumulate(np.stack(blocks, axis=1), axis=2).ravel() if blocks else np.empty(0)
    wanted = pl.DataFrame({Risks.outcome.name: list(fitted.outcomes)}, schema={Risks.outcome.name: pl.String}).join(
        pl.DataFrame({Risks.horizon_days.name: horizons}, schema={Risks.horizon_days.name: pl.Float64}), how="cross"
    )
    return (
        features.select(_KEYS)
        .join(wanted, how="cross")
        .with_columns(
            pl.Series(Risks.risk.name, values, dtype=pl.Float64),
            pl.lit(None, dtype=pl.Float64).alias(Risks.reference_risk.name),
            pl.lit(None, dtype=pl.String).alias(Risks.reason.name),
            pl.lit(GRADIENT_BOOSTING).alias(Risks.method.name),
        )
    )
