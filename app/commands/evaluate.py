"""`deephealth evaluate`: how good a model is on people it has not seen."""

from pathlib import Path

from app.settings import InjectedSettings
from app.terminal import Report


def evaluate(
    dataset: Path,
    /,
    *,
    run: str | None = None,
    model: str | None = None,
    out: Path | None = None,
    settings: InjectedSettings,
) -> Report:
    """Judge a model on the held-out people, beside two references.

    Concordance, time-dependent AUC, Brier score, observed/expected and calibration by groups, at entry and five years
    later, 1, 5 and 10 years ahead, with 95 % intervals by bootstrap over people. The references are the table of age
    and sex and a Cox model an outcome, fitted on the training people. With --run the results are stored in the run.

    Example: deephealth evaluate datasets/2026 --run 0f3a… --out evaluation

    Args:
        dataset: Folder written by `deephealth prepare`.
        run: Id of a run of `deephealth train`; results are stored in it.
        model: models:/NAME@champion, models:/NAME/VERSION or runs:/RUN_ID, in place of --run.
        out: Folder for tables and plots; without it one beside the runs.
    """
    from app.checkpoint_files import DATA_HASH
    from app.evaluate_model import evaluate_model, log_evaluation
    from app.predict_risks import load_risk_model, notes_on_method
    from app.result_table import format_results, overall_results, result_table
    from app.tracking import Run, fetch_model, open_store
    from data_schemas.errors import UsageError
    from pipelines.prepare_dataset import read_manifest

    if (run is None) == (model is None):
        raise UsageError("name what to evaluate by either --run RUN_ID or --model URI")
    data_hash = read_manifest(dataset)["content_sha256"]
    store = open_store(settings)
    fetched = fetch_model(store, model or f"runs:/{run}")
    scoring_model = load_risk_model(fetched.checkpoint)
    same_data = scoring_model.facts[DATA_HASH] == data_hash
    if run is not None and not same_data:
        raise UsageError(
            f"run {run} was trained on another dataset, so its results are not stored in it; "
            f"use --model runs:/{run} to look at it on this one"
        )
    folder = out or settings.home / "evaluations" / f"{fetched.run_id}-{data_hash[:8]}"
    found = evaluate_model(scoring_model, dataset, folder)
    if run is not None:
        log_evaluation(Run(store, run), found)
    notes = notes_on_method(found.method)
    notes += [f"no Cox model for {outcome}: {reason}" for outcome, reason in found.cox_not_fitted.items()]
    if not same_data:
        notes.append("the model was trained on another dataset: some of these people may have been in its training")
    return Report(
        last_line=f"metrics, calibration and plots written to {folder}",
        facts={
            "evaluation": folder,
            "results": result_table(found.metrics).to_dicts(),
            "overall": overall_results(found.metrics),
            "notes": notes,
        },
        lines=[*format_results(found.metrics), *notes],
    )
