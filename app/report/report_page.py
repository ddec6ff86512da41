"""The report of an evaluation as one HTML file: it needs no network and no other file, and may be shown to others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.html_page import render_template, write_html
from app.report.answers import TO_BE_COMPLETED, ReportAnswers
from app.report.compare_predictors import (
    Comparison,
    compare_predictors,
    detail_outcomes,
    references_won,
)
from app.report.follow_up_table import (
    judged_by_landmark,
    people_at_landmarks,
    tabulate_follow_up,
    tabulate_landmarks,
    tabulate_left_out,
)
from app.report.format_numbers import NOTHING, years
from app.report.measures import Numbers, Row, key_of
from app.report.model_card import build_model_card, card_as_json, card_as_xml, card_sections
from app.report.model_facts import ModelFacts
from app.report.outcome_table import tabulate_outcomes
from app.report.read_evaluation import (
    CALIBRATION,
    CALIBRATION_CURVE,
    CENSORING,
    DECISION_CURVE,
    OUTCOMES,
    PREDICTORS,
    Evaluation,
)
from app.report.report_plots import calibration_plots, decision_plots, discrimination_plot, forest_plot
from app.report.state_limits import state_limits
from app.report.subgroup_table import tabulate_subgroups
from app.report.tripod_items import GIVEN, TripodItem, fill_tripod, tripod_as_json
from app.report.truth_comparison import tabulate_truth
from data_schemas.results import AUC, MACRO_MEAN, MODEL, OBSERVED_EXPECTED, POOLED
from pipelines.small_counts import show_count
from pipelines.tables_on_disk import replace_when_done, write_json

CARD_FILE, CARD_XML_FILE, TRIPOD_FILE = "model_card.json", "model_card.xml", "tripod_ai.json"
_TEMPLATE = "report/page.html"
_N_OUTCOMES_DRAWN = 12


@dataclass(frozen=True)
class ReportParts:
    """A finished report: the page, the model card and the items of TRIPOD+AI."""

    html: str
    card: dict[str, Any]
    tripod: list[TripodItem]


def write_report(parts: ReportParts, path: Path) -> list[Path]:
    """Write the page, and beside it the model card (JSON and XML) and the items; return all files.

    Raises:
        UsageError: the page cannot be written there.
    """
    write_html(parts.html, path, "--out")
    files = [path.parent / name for name in (CARD_FILE, CARD_XML_FILE, TRIPOD_FILE)]
    write_json(card_as_json(parts.card), files[0])
    with replace_when_done(files[1]) as temporary:
        temporary.write_text(card_as_xml(parts.card), encoding="utf-8")
    write_json(tripod_as_json(parts.tripod), files[2])
    return [path, *files]


def build_report(evaluation: Evaluation, facts: ModelFacts, answers: ReportAnswers) -> ReportParts:
    """Make the page and the cards of one evaluation of one model.

    Raises:
        UsageError: an answer to a question that nobody asks.
    """
    words = facts.words
    limits = state_limits(evaluation, facts)
    subgroups = tabulate_subgroups(evaluation, words)
    card = build_model_card(evaluation, facts, limits, subgroups, answers.model_card)
    tripod = fill_tripod(evaluation, facts, limits, answers.tripod)
    comparison = compare_predictors(evaluation, words)
    html = render_template(
        _TEMPLATE,
        title=answers.title or "Evaluation of a risk model",
        facts=facts,
        horizon=years(evaluation.horizon_days),
        horizons=[years(days) for days in evaluation.horizons_days],
        landmark=evaluation.landmark,
        figures=_figures(evaluation),
        in_short=_in_short(evaluation, comparison),
        missing=set(evaluation.missing),
        splits=[(split.replace("_", " "), show_count(n)) for split, n in facts.people_by_split.items()],
        at_landmarks=people_at_landmarks(evaluation),
        judged={landmark: (judged, few) for landmark, judged, few in judged_by_landmark(evaluation[OUTCOMES])},
        comparison=comparison,
        details=detail_outcomes(evaluation, words),
        outcomes=tabulate_outcomes(evaluation, words),
        landmarks=tabulate_landmarks(evaluation),
        follow_up=tabulate_follow_up(evaluation),
        subgroups=[(table, forest_plot(table)) for table in subgroups],
        truth=tabulate_truth(evaluation),
        left_out=tabulate_left_out(evaluation),
        discrimination=_discrimination(evaluation),
        calibration=calibration_plots(evaluation),
        decisions=decision_plots(evaluation),
        table_names={
            "calibration": (CALIBRATION, CALIBRATION_CURVE), "decision": DECISION_CURVE, "censoring": CENSORING
        },
        limits=limits,
        card=card_sections(card),
        to_be_completed=TO_BE_COMPLETED,
        tripod=tripod,
        n_given=sum(item.state == GIVEN for item in tripod),
        files=(CARD_FILE, CARD_XML_FILE, TRIPOD_FILE),
    )  # fmt: skip
    return ReportParts(html, card, tripod)


def _figures(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the few numbers a reader meets first."""
    numbers = Numbers(evaluation.first_rows())
    mean, pooled = key_of(evaluation, MODEL, MACRO_MEAN, AUC), key_of(evaluation, MODEL, POOLED, OBSERVED_EXPECTED)
    return [
        ("people at risk", people_at_landmarks(evaluation).get(evaluation.landmark, "")),
        ("outcomes judged", str(len(evaluation.outcomes_by_cases()))),
        ("mean AUC", numbers.text(mean)),
        *(
            (f"mean AUC − {PREDICTORS[reference]}", numbers.difference(mean, reference))
            for reference in evaluation.references
        ),
        ("observed / expected", numbers.text(pooled)),
    ]


def _in_short(evaluation: Evaluation, comparison: Comparison) -> list[str]:
    """Say in a few sentences what the tables show."""
    numbers = Numbers(evaluation.first_rows())
    mean = numbers.text(key_of(evaluation, MODEL, MACRO_MEAN, AUC))
    others = "".join(
        f"; {PREDICTORS[predictor]} {numbers.text(key_of(evaluation, predictor, MACRO_MEAN, AUC), with_limits=False)}"
        for predictor in evaluation.references
    )
    sentences = [
        f"Over {comparison.n_averaged} outcomes within {years(evaluation.horizon_days)}, the model puts people who get "
        f"the outcome before those who do not with a mean AUC of {mean}{others}."
    ]
    if mean == NOTHING:
        sentences = ["No mean over outcomes was made."]
    for reference, (above, below, equal) in references_won(evaluation).items():
        sentences.append(
            f"Against {PREDICTORS[reference]} its AUC is higher for {above} outcomes, lower for {below}, and cannot be "
            f"told apart for {equal} (95 % interval of the difference)."
        )
    return sentences


def _discrimination(evaluation: Evaluation) -> Any:
    """Draw the AUC of the outcomes with most cases, None where there is none."""
    numbers = Numbers(evaluation.first_rows())
    rows: list[tuple[str, Sequence[Row | None]]] = [
        (
            outcome,
            [numbers.find(key_of(evaluation, predictor, outcome, AUC)) for predictor in evaluation.predictors],
        )
        for outcome in evaluation.outcomes_by_cases(_N_OUTCOMES_DRAWN)
    ]
    return discrimination_plot(rows, evaluation.predictors) if rows else None
