"""Go through a cohort file by file: the people whose events lie in it, and those events."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from data_schemas.cohort import Events, Subjects
from data_schemas.errors import InputContractError, Violation
from pipelines.tables_on_disk import scan_checked_events

_FILE = "file"  # working column


def pair_people_with_events(cohort: Path, subjects: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.LazyFrame]]:
    """Yield (name of the file, people, their events); every person comes once, who has no events with the first file.

    Raises:
        InputContractError: events break their contract, or a person has events in two files.
    """
    files = scan_checked_events(cohort)
    owners = pl.concat(
        events.select(Events.subject_id.col.unique(), pl.lit(number, dtype=pl.Int32).alias(_FILE)).collect()
        for number, events in enumerate(files.values())
    )
    n_divided = owners.height - owners[Events.subject_id.name].n_unique()
    if n_divided:
        rule = f"{n_divided} people have events in more than one file; all rows of a person belong into one"
        raise InputContractError([Violation(str(cohort / "events"), Events.subject_id.name, rule)])
    placed = subjects.join(owners, on=Subjects.subject_id.name, how="left", maintain_order="left")
    of_file = {number: people for (number,), people in placed.group_by(_FILE, maintain_order=True)}
    nobody = placed.clear()
    for number, (file, events) in enumerate(files.items()):
        people = of_file.pop(number, nobody)
        if number == 0:
            people = pl.concat([people, of_file.pop(None, nobody)])
        yield file.stem, people.drop(_FILE), events
