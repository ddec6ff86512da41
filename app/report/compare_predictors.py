"""The first table of a report: the model's numbers with every reference's beside them, and the paired differences."""

from dataclasses import dataclass, replace

import polars as pl

from app.report.format_numbers import NOTHING, count
from app.report.measures import MEASURES, Numbers, key_of, present_measures
from app.report.read_evaluation import OVER_SEVERAL, PREDICTORS, Evaluation
from data_schemas.results import (
    AUC,
    CALIBRATION_SLOPE,
    CONCORDANCE,
    CONCORDANCE_IPCW,
    DIFFERENCE_SUFFIX,
    MACRO_MEAN,
    MODEL,
    NULL_BRIER,
    OBSERVED_EXPECTED,
    OBSERVED_RISK,
    OUTCOMES_AVERAGED,
    POOLED,
    SCALED_BRIER,
    Metrics,
)

N_OUTCOMES_COMPARED = 20
N_OUTCOMES_IN_DETAIL = 10
_OVERALL_MEASURES = (AUC, CONCORDANCE_IPCW, CONCORDANCE, SCALED_BRIER, OBSERVED_EXPECTED, CALIBRATION_SLOPE)
_SAME_FOR_ALL = (NULL_BRIER, OBSERVED_RISK)  # whoever predicts


@dataclass(frozen=True)
class ComparedNumber:
    """One measure: the model's number, each reference's, and the differences to the references."""

    label: str
    hint: str
    cases: str
    numbers: tuple[str, ...]  # the model, then the references
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The table: names of the predictors, what holds over all outcomes, and single outcomes by number of cases."""

    predictors: tuple[str, ...]
    references: tuple[str, ...]
    overall: tuple[ComparedNumber, ...]
    outcomes: tuple[ComparedNumber, ...]
    n_averaged: str


def compare_predictors(evaluation: Evaluation, words: dict[str, str]) -> Comparison:
    """Lay out the numbers at the first landmark and horizon; `words` says what an outcome's code means."""
    rows = evaluation.first_rows()
    numbers = Numbers(rows)
    averaged = numbers.value(key_of(evaluation, MODEL, MACRO_MEAN, OUTCOMES_AVERAGED))
    overall = [
        _compare(evaluation, numbers, outcome, metric, MEASURES[metric].label)
        for outcome in OVER_SEVERAL
        for metric in present_measures(rows.filter(Metrics.outcome.col == outcome), _OVERALL_MEASURES)
    ]
    single = [
        _compare(evaluation, numbers, outcome, AUC, outcome, words.get(outcome, ""))
        for outcome in evaluation.outcomes_by_cases(N_OUTCOMES_COMPARED)
    ]
    return Comparison(
        predictors=tuple(PREDICTORS[predictor] for predictor in evaluation.predictors),
        references=tuple(PREDICTORS[predictor] for predictor in evaluation.references),
        overall=tuple(overall),
        outcomes=tuple(single),
        n_averaged=NOTHING if averaged is None else f"{averaged:.0f}",
    )


def _compare(
    evaluation: Evaluation, numbers: Numbers, outcome: str, metric: str, label: str, hint: str | None = None
) -> ComparedNumber:
    """Return one row; the hint of an overall number says how to read the measure."""
    key = key_of(evaluation, MODEL, outcome, metric)
    row = numbers.find(key)
    over = {MACRO_MEAN: "mean over outcomes", POOLED: "all outcomes together"}.get(outcome, "")
    return ComparedNumber(
        label=f"{label}, {over}" if over else label,
        hint=MEASURES[metric].reads if hint is None else hint,
        cases=NOTHING if row is None else count(row[Metrics.n_events.name]),
        numbers=tuple(
            numbers.text(key_of(evaluation, predictor, outcome, metric)) for predictor in evaluation.predictors
        ),
        differences=tuple(numbers.difference(key, reference) for reference in evaluation.references),
    )


@dataclass(frozen=True)
class OutcomeDetail:
    """Every measure of one outcome: a row a measure, a number a predictor."""

    outcome: str
    words: str
    people: str
    cases: str
    rows: tuple[ComparedNumber, ...]


def detail_outcomes(evaluation: Evaluation, words: dict[str, str]) -> list[OutcomeDetail]:
    """Return all measures of the outcomes with most cases, at the first landmark and horizon."""
    rows = evaluation.first_rows()
    numbers = Numbers(rows)
    details = []
    for outcome in evaluation.outcomes_by_cases(N_OUTCOMES_IN_DETAIL):
        metrics = present_measures(rows.filter(Metrics.outcome.col == outcome))
        first = numbers.find(key_of(evaluation, MODEL, outcome, AUC))
        assert first is not None  # listed because it has one
        details.append(
            OutcomeDetail(
                outcome=outcome,
                words=words.get(outcome, ""),
                people=count(first[Metrics.n.name]),
                cases=count(first[Metrics.n_events.name]),
                rows=tuple(_detail(evaluation, numbers, outcome, metric) for metric in metrics),
            )
        )
    return details


def _detail(evaluation: Evaluation, numbers: Numbers, outcome: str, metric: str) -> ComparedNumber:
    row = _compare(evaluation, numbers, outcome, metric, MEASURES[metric].label)
    if metric in _SAME_FOR_ALL:
        return replace(row, numbers=(row.numbers[0], *("" for _ in row.numbers[1:])))
    return row


def references_won(evaluation: Evaluation) -> dict[str, tuple[int, int, int]]:
    """Count, for each reference, outcomes where the model's AUC is above, below, or not told apart (95 % interval)."""
    rows = evaluation.first_rows().filter(
        ~Metrics.outcome.col.is_in(OVER_SEVERAL), Metrics.metric.col == f"{AUC}{DIFFERENCE_SUFFIX}"
    )
    found = {}
    for reference in evaluation.references:
        of_pair = rows.filter(Metrics.predictor.col == f"{MODEL}-{reference}").drop_nulls(
            [Metrics.lower.name, Metrics.upper.name]
        )
        above, below = (
            of_pair.select(pl.col(Metrics.lower.name).gt(0).sum()).item(),
            of_pair.select(pl.col(Metrics.upper.name).lt(0).sum()).item(),
        )
        if of_pair.height:
            found[reference] = (int(above), int(below), of_pair.height - int(above) - int(below))
    return found
