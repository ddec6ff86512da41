"""Go through a cohort file by file: the people whose events lie in it, and those events."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from data_schemas.cohort import Events, Subjects
from data_schemas.errors import InputContractError, Violation
from pipelines.tables_on_disk import event_files


def pair_people_with_events(cohort: Path, subjects: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.LazyFrame]]:
    """Yield (name of the file, people, their events); every person comes once, who has no events with the first file.

    Raises:
        InputContractError: a person has events in two files.
    """
    files = event_files(cohort)
    owners = [pl.scan_parquet(file, glob=False).select(Events.subject_id.col.unique()).collect() for file in files]
    everyone = pl.concat([subjects.select(Subjects.subject_id.name).clear(), *owners])
    n_divided = int(everyone.height - everyone.n_unique())
    if n_divided:
        rule = f"{n_divided} people have events in more than one file; all rows of a person belong into one"
        raise InputContractError([Violation(str(cohort / "events"), Events.subject_id.name, rule)])
    without_events = subjects.join(everyone, on=Subjects.subject_id.name, how="anti", maintain_order="left")
    for number, (file, owner) in enumerate(zip(files, owners, strict=True)):
        people = subjects.join(owner, on=Subjects.subject_id.name, how="semi", maintain_order="left")
        if number == 0:
            people = pl.concat([people, without_events])
        yield file.stem, people, pl.scan_parquet(file, glob=False)
