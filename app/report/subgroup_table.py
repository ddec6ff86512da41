"""How well the model does in parts of the population: numbers for the forest plot and its table."""

from collections import defaultdict
from dataclasses import dataclass, replace

import polars as pl

from app.report.format_numbers import NOTHING, count, counts_beside
from app.report.measures import Numbers, Row, key_of, number_text
from app.report.read_evaluation import Evaluation
from data_schemas.results import AUC, MODEL, OBSERVED_EXPECTED, OVERALL, VERSUS_REST_SUFFIX, Metrics

N_OUTCOMES_IN_SUBGROUPS = 6


@dataclass(frozen=True)
class SubgroupRow:
    """One subgroup of one outcome; the counts are None where they are withheld or would give a withheld one away."""

    subgroup: str
    kind: str  # `sex`; empty for everyone
    n: int | None
    n_events: int | None
    auc: Row | None
    observed_expected: Row | None
    versus_rest: str

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """People, cases, AUC, difference to everyone else, observed/expected."""
        auc, ratio = (NOTHING if row is None else number_text(row) for row in (self.auc, self.observed_expected))
        return count(self.n), count(self.n_events), auc, self.versus_rest, ratio


@dataclass(frozen=True)
class SubgroupTable:
    """The subgroups of one outcome, everyone first."""

    outcome: str
    words: str
    rows: tuple[SubgroupRow, ...]


def tabulate_subgroups(evaluation: Evaluation, words: dict[str, str]) -> list[SubgroupTable]:
    """Return the subgroups of the outcomes with most cases; none where the evaluation has no subgroups."""
    names = [
        name
        for name in evaluation.metrics[Metrics.subgroup.name].unique(maintain_order=True).to_list()
        if name != OVERALL
    ]
    if not names:
        return []
    here = evaluation.metrics.filter(
        Metrics.landmark.col == evaluation.landmark, Metrics.horizon_days.col == evaluation.horizon_days
    )
    outcomes = evaluation.outcomes_by_cases(N_OUTCOMES_IN_SUBGROUPS)
    rows = here.filter(Metrics.outcome.col.is_in(outcomes), Metrics.predictor.col == MODEL)
    return [
        SubgroupTable(
            outcome,
            words.get(outcome, ""),
            _rows_of(evaluation, rows.filter(Metrics.outcome.col == outcome), outcome, names),
        )
        for outcome in outcomes
    ]


def kind_of(subgroup: str) -> str:
    """Return `sex` of `sex=female`."""
    return subgroup.partition("=")[0] if subgroup != OVERALL else ""


def subgroup_label(subgroup: str) -> str:
    """Return `sex: female` of `sex=female`, `everyone` for all."""
    return "everyone" if subgroup == OVERALL else subgroup.replace("=", ": ", 1)


def _rows_of(evaluation: Evaluation, rows: pl.DataFrame, outcome: str, names: list[str]) -> tuple[SubgroupRow, ...]:
    numbers = Numbers(rows)
    counts = {
        row[Metrics.subgroup.name]: (row[Metrics.n.name], row[Metrics.n_events.name])
        for row in rows.filter(Metrics.metric.col == AUC).iter_rows(named=True)
    }
    found = [
        SubgroupRow(
            subgroup=subgroup_label(name),
            kind=kind_of(name),
            n=counts[name][0],
            n_events=counts[name][1],
            auc=numbers.find(key_of(evaluation, MODEL, outcome, AUC, name)),
            observed_expected=numbers.find(key_of(evaluation, MODEL, outcome, OBSERVED_EXPECTED, name)),
            versus_rest=numbers.text(key_of(evaluation, MODEL, outcome, f"{AUC}{VERSUS_REST_SUFFIX}", name)),
        )
        for name in (OVERALL, *names)
        if name in counts
    ]
    return tuple(_withhold_complements(found))


def _withhold_complements(rows: list[SubgroupRow]) -> list[SubgroupRow]:
    """Round counts beside a withheld one of the same kind, since those of everyone are known."""
    everyone = next((row for row in rows if not row.kind), None)
    by_kind: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.kind:
            by_kind[row.kind].append(place)
    safe = list(rows)
    for places in by_kind.values():
        n = counts_beside([rows[place].n for place in places], everyone.n if everyone else None)
        cases = counts_beside([rows[place].n_events for place in places], everyone.n_events if everyone else None)
        for place, people, events in zip(places, n, cases, strict=True):
            safe[place] = replace(rows[place], n=people, n_events=events)
    return safe
