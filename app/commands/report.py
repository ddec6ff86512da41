"""`deephealth report`: what an evaluation found, on one page for others."""

from pathlib import Path

from app.settings import InjectedSettings
from app.terminal import Report, show_progress


def report(
    run: str,
    /,
    *,
    out: Path,
    evaluation: Path | None = None,
    dataset: Path | None = None,
    cohort: Path | None = None,
    answers: Path | None = None,
    settings: InjectedSettings,
) -> Report:
    """Write the evaluation of a run as one page, with a model card.

    The page needs no network and no other file, can be printed, and shows no count from 1 to 9. Beside it lie the model
    card (`model_card.json`, `model_card.xml`) and the items of TRIPOD+AI (`tripod_ai.json`); what only people can say
    stands there as to be completed, until --answers says it.

    Example: deephealth report 0f3a… --out report.html --cohort cohorts/2026

    Args:
        run: Id of a run of `deephealth train` that was evaluated.
        out: File for the page.
        evaluation: Folder of tables written by `deephealth evaluate --out`; without it those stored in the run.
        dataset: The dataset the model was trained on; needed only where it was moved.
        cohort: The cohort behind it; shows who was in it and what its import left out.
        answers: YAML file with a title, and texts for elements of the model card and items of TRIPOD+AI.
    """
    from tempfile import TemporaryDirectory

    from app.config_files import read_config
    from app.report.answers import TO_BE_COMPLETED, ReportAnswers
    from app.report.find_run import fetch_evaluation, read_model_facts
    from app.report.read_evaluation import read_evaluation
    from app.report.report_page import build_report, write_report
    from app.report.tripod_items import GIVEN
    from app.tracking import open_store

    given = read_config(ReportAnswers, answers)
    store = open_store(settings)
    with show_progress("making the report"), TemporaryDirectory() as temporary:
        facts = read_model_facts(store, run, dataset, cohort)
        tables = evaluation or fetch_evaluation(store, run, Path(temporary))
        parts = build_report(read_evaluation(tables), facts, given)
        files = write_report(parts, out)
    n_open = sum(item.state != GIVEN for item in parts.tripod)
    return Report(
        last_line=f"report written to {out}",
        facts={"report": out, "model_card": files[1], "tripod": files[3], "tripod_items_open": n_open},
        lines=[
            f"model card: {files[1]} and {files[2].name}",
            f"TRIPOD+AI: {files[3]}; {n_open} of {len(parts.tripod)} items are {TO_BE_COMPLETED.lower()} (--answers)",
        ],
    )
