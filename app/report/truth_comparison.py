"""A made-up population's true risks beside the model's: what only a cohort with known hazards can show."""

from dataclasses import dataclass

from app.report.format_numbers import NOTHING, count, decimals
from app.report.read_evaluation import PREDICTORS, TRUTH_TABLE, Evaluation
from data_schemas.evaluation_tables import TruthComparison
from data_schemas.results import MACRO_MEAN, OVERALL
from pipelines.evaluation.compare_with_truth import (
    AUC_GAP,
    MEAN_ABSOLUTE_DIFFERENCE,
    ORACLE_AUC,
    TRUE_AUC,
    TRUE_OBSERVED_EXPECTED,
    TRUE_SLOPE,
)

_SHOWN = {
    TRUE_AUC: "AUC",
    ORACLE_AUC: "AUC of the true risks",
    AUC_GAP: "gap",
    TRUE_OBSERVED_EXPECTED: "true / predicted risk",
    TRUE_SLOPE: "slope of true on predicted",
    MEAN_ABSOLUTE_DIFFERENCE: "mean distance",
}
_PLACES = 3


@dataclass(frozen=True)
class TruthTable:
    """A row a predictor, at the first landmark and horizon: means over outcomes where there are such."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]  # predictor, people, numbers
    over: str


def tabulate_truth(evaluation: Evaluation) -> TruthTable | None:
    """Return the comparison with the true risks, None where the evaluation has none."""
    rows = evaluation[TRUTH_TABLE].filter(
        TruthComparison.landmark.col == evaluation.landmark,
        TruthComparison.horizon_days.col == evaluation.horizon_days,
        TruthComparison.subgroup.col == OVERALL,
        TruthComparison.outcome.col == MACRO_MEAN,
    )
    if rows.is_empty():
        return None
    found = {
        (row[TruthComparison.predictor.name], row[TruthComparison.metric.name]): row
        for row in rows.iter_rows(named=True)
    }
    table = []
    for predictor, label in PREDICTORS.items():
        of_predictor = [found.get((predictor, metric)) for metric in _SHOWN]
        known = [row for row in of_predictor if row is not None]
        if known:
            numbers = tuple(
                NOTHING if row is None else decimals(row[TruthComparison.estimate.name], _PLACES)
                for row in of_predictor
            )
            table.append((label, count(known[0][TruthComparison.n.name]), numbers))
    return TruthTable(tuple(_SHOWN.values()), tuple(table), "mean over outcomes")
