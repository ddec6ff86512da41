"""`deephealth score`: a cohort and a registered model into a table of risks."""

import resource
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.settings import InjectedSettings
from app.terminal import Report

_KIB_PER_MIB = 1024


def score(
    cohort: Path,
    /,
    *,
    model: str,
    out: Path,
    landmark_age: str = "exit",
    horizons: str = "1,5,10",
    outcomes: Annotated[str, Parameter(show_default=False)] = "",
    settings: InjectedSettings,
) -> Report:
    """Write the risks of everyone in a cohort.

    Every person, outcome and horizon has a row; who cannot be scored (prevalent, dead, outside follow-up) has a null
    risk and a reason. Beside each risk stands that of people of the same sex and age.

    Example: deephealth score cohorts/2026 --model models:/risk@champion --out risks/2026 --outcomes "htn,DEATH"

    Args:
        cohort: Folder written by `deephealth cohort import`.
        model: models:/NAME@champion, models:/NAME/VERSION or runs:/RUN_ID.
        out: Folder for the risks, written whole or not at all; one file for each event file of the cohort.
        landmark_age: entry, exit, an age in years, or a date such as 2020-01-31 (needs birth dates).
        horizons: Years after the landmark, at most 100, separated by commas.
        outcomes: Names separated by commas; without it all that the model predicts.
    """
    from app.predict_risks import load_risk_model, notes_on_method
    from app.score_cohort import score_cohort
    from app.tracking import fetch_model, open_store

    started = time.perf_counter()
    fetched = fetch_model(open_store(settings), model)
    facts = {"name": fetched.name, "version": fetched.version, "run_id": fetched.run_id}
    scoring_model = load_risk_model(fetched.checkpoint)
    scored = score_cohort(
        scoring_model,
        cohort,
        out,
        landmark=landmark_age,
        horizons_years=_read_years(horizons),
        outcomes=[name.strip() for name in outcomes.split(",") if name.strip()],
        facts=facts,
    )
    seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_MIB
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in scored.rows_without_risk.items()) or "none"
    return Report(
        last_line=f"{scored.rows:,} risks of {scored.people:,} people written to {out}",
        facts={
            "risks": out,
            "people": scored.people,
            "rows": scored.rows,
            "rows_without_risk": scored.rows_without_risk,
            "unknown_code_events": scored.unknown_code_events,
            "model": facts,
            "method": scoring_model.method,
            "seconds": round(seconds, 2),
            "people_per_second": round(scored.people / seconds, 1),
            "peak_memory_mb": round(peak_mb),
        },
        lines=[
            f"model: {fetched.name or 'run'} {fetched.version or fetched.run_id}",
            *notes_on_method(scoring_model.method),
            f"rows without a risk: {reasons}",
            f"events not used, since the model does not know their code: {scored.unknown_code_events:,}",
            f"{seconds:.1f} s, {scored.people / seconds:,.0f} people a second, peak memory {peak_mb:,.0f} MB",
        ],
    )


def _read_years(text: str) -> list[float]:
    from data_schemas.errors import UsageError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--horizons {text}: expected years separated by commas, for example 1,5,10") from None
