"""`deephealth dataset check`: is there anything in a dataset that a model must not see?"""

from dataclasses import asdict
from pathlib import Path

from app.terminal import Report, show_progress
from data_schemas.errors import UsageError


def check(dataset: Path, /, *, cohort: Path, same_day_share: float = 0.9) -> Report:
    """Check a dataset for leaks between splits and from the future.

    Nobody, and no group of people, may be in two splits; no sequence may hold a row from after the end of follow-up:
    otherwise the command ends with exit code 3 and a list. Codes that nearly always come first on the same day as an
    outcome are listed for you to judge: they may be another name of it (name them in `input_only_codes` or a group).

    Example: deephealth dataset check datasets/2026 --cohort cohorts/2026

    Args:
        dataset: Folder written by `deephealth prepare`.
        cohort: The cohort it was prepared from, which knows who belongs together.
        same_day_share: A code is listed if so many of the training people who have it got it on the day of the outcome.
    """
    from pipelines.check_leakage import check_leakage

    if not 0 < same_day_share <= 1:
        raise UsageError(f"--same-day-share {same_day_share:g}: expected a share above 0 and at most 1")
    with show_progress(f"checking {dataset}"):
        found = check_leakage(dataset, cohort, same_day_share=same_day_share)
    listed = [
        f"{code.code}: {code.share_same_day:.0%} of {code.n_people:,} people have it first on the day of {code.outcome}"
        for code in found.same_day_codes
    ]
    return Report(
        last_line=f"no leak in {dataset}: nobody in two splits, nothing from after follow-up",
        facts={**asdict(found), "dataset": dataset, "cohort": cohort},
        lines=[
            f"{found.people:,} people, {found.clusters:,} groups, {found.events:,} events looked at",
            f"codes that nearly always come on the day of an outcome: {len(listed) or 'none'}",
            *listed,
        ],
    )
