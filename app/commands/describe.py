"""`deephealth cohort describe`: what a cohort holds, in the terminal and on one page."""

from pathlib import Path

from app.terminal import Report, show_progress


def describe(cohort: Path, /, *, html: Path | None = None) -> Report:
    """Show people, ages, follow-up, codes and what the import left out.

    No count from 1 to 9 is shown, so that the page may be shown to others.

    Example: deephealth cohort describe cohorts/2026 --html cohort.html

    Args:
        cohort: Folder written by `deephealth cohort import` or `cohort synthesize`.
        html: File for a page with plots; it needs no network and no other file.
    """
    from dataclasses import asdict

    from app.describe_page import description_lines, write_page
    from pipelines.describe_cohort import describe_cohort

    with show_progress(f"describing {cohort}"):
        description = describe_cohort(cohort)
        if html is not None:
            write_page(description, f"Cohort {cohort.resolve().name}", html)
    return Report(
        last_line=f"page written to {html}"
        if html is not None
        else f"described {cohort}; --html FILE makes a page of it",
        facts={"cohort": cohort, "html": html, **asdict(description)},
        lines=description_lines(description),
    )
