"""`deephealth evaluate`: how good a model is on people it has not seen."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.settings import InjectedSettings
from app.terminal import Report

_Hidden = Annotated[str, Parameter(show_default=False)]


def evaluate(
    dataset: Path,
    /,
    *,
    run: str | None = None,
    model: str | None = None,
    out: Path | None = None,
    landmarks: str = "entry,entry+5y",
    horizons: str = "1,5,10",
    outcomes: _Hidden = "",
    gap_days: float = 0.0,
    subgroups: _Hidden = "",
    cox: _Hidden = "",
    boosting: _Hidden = "",
    truth: Path | None = None,
    cohort: Path | None = None,
    settings: InjectedSettings,
) -> Report:
    """Judge a model on the held-out people, beside references.

    Discrimination, accuracy and calibration with death competing and follow-up that ends, with 95 % intervals. The
    references are the table of age and sex, a Cox model an outcome and, where asked for, gradient boosting, fitted on
    the training people. With --run the results are stored in the run.

    Example: deephealth evaluate datasets/2026 --run 0f3a… --landmarks ages40-80by5 --subgroups sex,age --out evaluation

    Args:
        dataset: Folder written by `deephealth prepare`.
        run: Id of a run of `deephealth train`; results are stored in it.
        model: models:/NAME@champion, models:/NAME/VERSION or runs:/RUN_ID, in place of --run.
        out: Folder for tables and plots; without it one beside the runs.
        landmarks: When risks are asked for, separated by commas: entry, entry+5y, exit-5y, age60, ages40-80by5, a date.
        horizons: Years after the landmark, at most 100, separated by commas.
        outcomes: Names separated by commas, death and groups included; without it all that the model predicts.
        gap_days: Days after the landmark in which nothing counts; who has the outcome or leaves in them is left out.
        subgroups: sex, age, period or codes, each judged by itself too.
        cox: Outcomes that a Cox model is fitted for, or all; without it the 20 that most training people have.
        boosting: Outcomes that gradient boosting is fitted for, separated by commas (slow).
        truth: Folder of the made-up cohort the dataset was prepared from: compare with its true risks.
        cohort: Folder of the cohort the dataset was prepared from; dates and periods need its birth dates.
    """
    from app.checkpoint_files import DATA_HASH
    from app.evaluate_model import evaluate_model, log_evaluation
    from app.predict_risks import load_risk_model, notes_on_method
    from app.result_table import format_results, overall_results, result_table
    from app.tracking import Run, fetch_model, open_store
    from app.truth_table import format_truth, truth_results
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
    found = evaluate_model(
        scoring_model,
        dataset,
        folder,
        landmarks=_read_names("landmarks", landmarks),
        horizons_years=_read_years(horizons),
        outcomes=_split(outcomes),
        gap_days=gap_days,
        subgroups=_split(subgroups),
        cox=_split(cox) or None,
        boosting=_split(boosting),
        truth=truth,
        cohort=cohort,
    )
    if run is not None:
        log_evaluation(Run(store, run), found)
    notes = notes_on_method(found.method)
    if found.outcomes_of_cox is not None:
        notes.append(
            f"Cox models were fitted for {len(found.outcomes_of_cox)} outcomes alone; --cox all fits every one"
        )
    notes += [f"no Cox model for {outcome}: {reason}" for outcome, reason in found.cox_not_fitted.items()]
    notes += [f"no gradient boosting for {outcome}: {reason}" for outcome, reason in found.boosting_not_fitted.items()]
    if not same_data:
        notes.append("the model was trained on another dataset: some of these people may have been in its training")
    return Report(
        last_line=f"metrics, calibration and plots written to {folder}",
        facts={
            "evaluation": folder,
            "results": result_table(found.metrics).to_dicts(),
            "overall": overall_results(found.metrics),
            "truth": truth_results(found.metrics, found.truth),
            "left_out_in_gap": [] if found.left_out is None else found.left_out.to_dicts(),
            "notes": notes,
        },
        lines=[*format_results(found.metrics), *format_truth(found.metrics, found.truth), *notes],
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_names(option: str, text: str) -> list[str]:
    """Read names that commas separate; at least one is needed."""
    from data_schemas.errors import UsageError

    if not _split(text):
        raise UsageError(f"--{option}: expected names separated by commas")
    return list(dict.fromkeys(_split(text)))


def _read_years(text: str) -> list[float]:
    from data_schemas.errors import UsageError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--horizons {text}: expected years separated by commas, for example 1,5,10") from None
