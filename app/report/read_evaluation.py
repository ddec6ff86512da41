"""Read the tables of an evaluation, and take out what may not be shown, whatever wrote them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import dataframely as dy
import polars as pl

from data_schemas.age_units import years_to_days
from data_schemas.errors import InputContractError, Violation
from data_schemas.evaluation_tables import PeopleLeftOut, TruthComparison
from data_schemas.results import (
    AGE_SEX,
    AUC,
    COX,
    GRADIENT_BOOSTING,
    MACRO_MEAN,
    MODEL,
    OUTCOMES_AVERAGED,
    OVERALL,
    POOLED,
    SMALLEST_SHOWN_COUNT,
    TRUTH,
    CalibrationCurve,
    CalibrationGroups,
    CensoringSummary,
    DecisionCurve,
    EvaluatedOutcomes,
    Metrics,
)
from pipelines.import_cohort.check_contract import open_parquet

PREDICTORS = {
    MODEL: "model",
    COX: "Cox",
    GRADIENT_BOOSTING: "gradient boosting",
    AGE_SEX: "age and sex",
    TRUTH: "true risk",
}
OVER_SEVERAL = (MACRO_MEAN, POOLED)  # names in the column `outcome` that stand for several
METRICS, OUTCOMES, CENSORING = "metrics", "outcomes", "censoring"
CALIBRATION, CALIBRATION_CURVE, DECISION_CURVE = "calibration", "calibration_curve", "decision_curve"
LEFT_OUT, TRUTH_TABLE = "left_out", "truth"
# name of the file without its ending -> what it holds; all but the first may be missing
TABLES: dict[str, type[dy.Schema]] = {
    METRICS: Metrics,
    OUTCOMES: EvaluatedOutcomes,
    CENSORING: CensoringSummary,
    CALIBRATION: CalibrationGroups,
    CALIBRATION_CURVE: CalibrationCurve,
    DECISION_CURVE: DecisionCurve,
    LEFT_OUT: PeopleLeftOut,
    TRUTH_TABLE: TruthComparison,
}
_FIRST_LANDMARK, _FIRST_HORIZON_YEARS = "entry", 5.0
_COUNTS = ("n", "n_events", "n_died", "n_censored", "n_without_risk")
_CASES = ("n_events",)
_ESTIMATES = ("estimate", "lower", "upper", "standard_error")
_KEPT_ZERO = ("n_without_risk", "n_died", "n_censored")


@dataclass(frozen=True)
class Evaluation:
    """The tables of one evaluation by name (`TABLES`); a table that is missing is empty and named in `missing`.

    `landmark` and `horizon_days` are those of the first numbers a reader sees: entry and 5 years where there are such.
    """

    tables: dict[str, pl.DataFrame]
    missing: tuple[str, ...]
    landmark: str
    horizon_days: float

    def __getitem__(self, name: str) -> pl.DataFrame:
        """Return one table."""
        return self.tables[name]

    @property
    def metrics(self) -> pl.DataFrame:
        """The table of all numbers."""
        return self.tables[METRICS]

    @property
    def predictors(self) -> list[str]:
        """List the predictors that were judged, the model first."""
        found = set(self.metrics[Metrics.predictor.name])
        return [predictor for predictor in PREDICTORS if predictor in found]

    @property
    def references(self) -> list[str]:
        """List the predictors that the model is compared with."""
        return [predictor for predictor in self.predictors if predictor != MODEL]

    @property
    def landmarks(self) -> list[str]:
        """List the landmarks in the order of the table."""
        return self.metrics[Metrics.landmark.name].unique(maintain_order=True).to_list()

    @property
    def horizons_days(self) -> list[float]:
        """List the horizons, nearest first."""
        return sorted(set(self.metrics[Metrics.horizon_days.name]))

    def first_rows(self, subgroup: str = OVERALL) -> pl.DataFrame:
        """Return the numbers at the first landmark and horizon of a subgroup."""
        return self.metrics.filter(
            Metrics.landmark.col == self.landmark,
            Metrics.horizon_days.col == self.horizon_days,
            Metrics.subgroup.col == subgroup,
        )

    def outcomes_by_cases(self, limit: int | None = None) -> list[str]:
        """List the outcomes that have an AUC at the first landmark and horizon, those with most cases first."""
        rows = self.first_rows().filter(
            Metrics.predictor.col == MODEL,
            Metrics.metric.col == AUC,
            ~Metrics.outcome.col.is_in(OVER_SEVERAL),
            Metrics.estimate.col.is_not_null(),
        )
        ordered = rows.sort([Metrics.n_events.name, Metrics.outcome.name], descending=[True, False])
        names: list[str] = ordered[Metrics.outcome.name].to_list()
        return names[:limit]


def read_evaluation(folder: Path) -> Evaluation:
    """Read an evaluation folder, as written by `deephealth evaluate`.

    Raises:
        InputContractError: there is no `metrics.parquet`, a table breaks its contract, or nothing was judged.
    """
    if not (folder / f"{METRICS}.parquet").is_file():
        rule = "not found; make an evaluation with `deephealth evaluate`"
        raise InputContractError([Violation(str(folder / f"{METRICS}.parquet"), "", rule)])
    there = {name for name in TABLES if (folder / f"{name}.parquet").is_file()}
    tables = {
        name: _withhold(_read(folder, name, schema)) if name in there else pl.DataFrame(schema.create_empty())
        for name, schema in TABLES.items()
    }
    landmarks = tables[METRICS][Metrics.landmark.name].unique(maintain_order=True).to_list()
    if not landmarks:
        rule = "holds no number: no outcome had enough cases to be judged"
        raise InputContractError([Violation(str(folder / f"{METRICS}.parquet"), "", rule)])
    return Evaluation(
        tables=tables,
        missing=tuple(name for name in TABLES if name not in there),
        landmark=_FIRST_LANDMARK if _FIRST_LANDMARK in landmarks else landmarks[0],
        horizon_days=_first_horizon(tables[METRICS][Metrics.horizon_days.name]),
    )


def _read(folder: Path, name: str, schema: type[dy.Schema]) -> pl.DataFrame:
    """Read one table and hold it to its schema.

    Raises:
        InputContractError: names columns that are missing or of another type, and rules that rows break.
    """
    file = folder / f"{name}.parquet"
    table = open_parquet(file).collect()
    lacking = [column for column in schema.column_names() if column not in table.columns]
    if lacking:
        rule = "the column is missing; make the evaluation again with this version"
        raise InputContractError([Violation(str(file), column, rule) for column in lacking])
    try:
        sound, faults = schema.filter(table, cast=True)
    except pl.exceptions.PolarsError as error:
        raise InputContractError([Violation(str(file), "", "a column is of another type than it should be")]) from error
    if faults.counts():
        broken = [(*rule.rpartition("|"), rows) for rule, rows in sorted(faults.counts().items())]
        raise InputContractError([Violation(str(file), column, rule, rows) for column, _, rule, rows in broken])
    return pl.DataFrame(sound)


def _withhold(table: pl.DataFrame) -> pl.DataFrame:
    """Empty counts from 1 to 9, and the estimates of rows that rest on fewer than 10 cases or people."""
    is_small = [pl.col(name).is_null() | (pl.col(name) < SMALLEST_SHOWN_COUNT) for name in _present(table, _CASES)]
    if Metrics.metric.name in table.columns:  # a number of outcomes rests on no case
        is_small = [small & (pl.col(Metrics.metric.name) != OUTCOMES_AVERAGED) for small in is_small]
    rests_on_few = pl.any_horizontal(*is_small) if is_small else pl.lit(value=False)
    return table.with_columns(
        pl.when(~rests_on_few).then(pl.col(*_present(table, _ESTIMATES))) if _present(table, _ESTIMATES) else [],
        *(_withhold_count(name) for name in _present(table, _COUNTS)),
    )


def _withhold_count(name: str) -> pl.Expr:
    column = pl.col(name)
    is_shown = column >= SMALLEST_SHOWN_COUNT
    return pl.when(is_shown | (column == 0) if name in _KEPT_ZERO else is_shown).then(column).alias(name)


def _present(table: pl.DataFrame, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in table.columns]


def _first_horizon(horizons_days: pl.Series) -> float:
    """Return 5 years where there is such a horizon, else the middle one."""
    found = sorted(set(horizons_days))
    wanted = years_to_days(_FIRST_HORIZON_YEARS)
    return wanted if wanted in found else float(found[len(found) // 2])
