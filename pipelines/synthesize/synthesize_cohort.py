"""Write a made-up cohort, part by part with flat memory: people, events, codes, report, and the truth behind them.

What is written needs no cleaning: first occurrences alone, none before birth or after exit, one death at exit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from data_schemas.cohort import (
    CODES_FILE,
    DEATH_CODE,
    EVENTS_FOLDER,
    FEMALE,
    IMPORT_REPORT_FILE,
    MALE,
    SUBJECTS_FILE,
    Codes,
    Events,
    Subjects,
)
from data_schemas.import_report import ImportReport, Note, TableReport, report_to_json
from data_schemas.truth import HIDDEN_TRAITS_FILE, TRUTH_FOLDER, HiddenTraits
from pipelines.evaluation.array_types import FloatArray
from pipelines.import_cohort.write_cohort import COHORT_FOLDER, ROWS_PER_FILE, sort_events
from pipelines.synthesize.build_world import build_tables, list_codes
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.draw_people import PEOPLE_PER_PART, People, draw_part
from pipelines.synthesize.truth_files import write_truth
from pipelines.synthesize.world import BMI_CODE, SBP_CODE, SMOKING_CODES, World, WorldSettings, world_of
from pipelines.tables_on_disk import write_json, write_parquet
from pipelines.whole_folders import FolderKind, replace_folder_when_done

KIND = "synthesize"
SYNTHETIC_COHORT_FOLDER = FolderKind(
    "made-up cohort",
    marks=(*COHORT_FOLDER.marks, TRUTH_FOLDER),
    contents=(*COHORT_FOLDER.contents, TRUTH_FOLDER),
)
_SUBJECTS, _HIDDEN = "subjects", "hidden"  # folders of pieces


@dataclass(frozen=True)
class CohortPart:
    """Some people of a cohort: `Subjects`, `Events` and `HiddenTraits`."""

    subjects: pl.DataFrame
    events: pl.DataFrame
    hidden: pl.DataFrame


def synthesize_cohort(
    out: Path,
    n_subjects: int,
    seed: int,
    config: SynthesizeConfig,
    on_people: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Write a cohort of made-up people and its `truth/`; return the report that was written with it.

    The first people are the same however many there are. Ids count from 1.

    Args:
        out: folder of the cohort; a made-up cohort that was there is replaced at the end.
        n_subjects: how many people.
        seed: of the people; the world has a seed of its own in `config`.
        config: the world, and who is seen of it.
        on_people: told how many people were written, each time some are.

    Raises:
        UsageError: `out` holds something else, or cannot be written.
    """
    with replace_folder_when_done(out, SYNTHETIC_COHORT_FOLDER) as folder:
        hazards, comorbidities = build_tables(config)
        made_with = {"subjects": n_subjects, "seed": seed, **config.model_dump(mode="json")}
        settings = WorldSettings(frailty_variance=config.frailty_variance, made_with=made_with)
        write_truth(settings, hazards, comorbidities, folder)
        world = world_of(settings, hazards, comorbidities)
        codes = list_codes(world.codes)
        write_parquet(Codes.validate(codes).sort(Codes.code.name), folder / CODES_FILE)
        counts = _write_people(draw_tables(world, codes, config, n_subjects, seed), folder, on_people)
        report = _account(n_subjects, counts, config)
        write_json(report_to_json(report), folder / IMPORT_REPORT_FILE)
    return report


def draw_tables(
    world: World, codes: pl.DataFrame, config: SynthesizeConfig, n_subjects: int, seed: int
) -> Iterator[CohortPart]:
    """Yield the tables of the population, a part of its people at a time, sorted as a cohort is."""
    for part, first in enumerate(range(0, n_subjects, PEOPLE_PER_PART)):
        people = draw_part(world, config, seed, part)
        people = people.take(np.arange(min(PEOPLE_PER_PART, n_subjects - first)))
        ids = pl.Series(Subjects.subject_id.name, np.arange(first, first + people.frailty.size) + 1, dtype=pl.Int64)
        yield CohortPart(
            subjects=_tabulate_subjects(people, ids),
            events=sort_events(_tabulate_events(world, people, ids), codes),
            hidden=pl.DataFrame({HiddenTraits.subject_id.name: ids, HiddenTraits.frailty.name: people.frailty}),
        )


def _tabulate_subjects(people: People, ids: pl.Series) -> pl.DataFrame:
    sex = pl.Series(people.traits.is_male).replace_strict({False: FEMALE, True: MALE}, return_dtype=pl.String)
    return pl.DataFrame(
        {
            Subjects.subject_id.name: ids,
            Subjects.sex.name: sex,
            Subjects.birth_date.name: pl.Series(people.birth_day.astype(np.int32)).cast(pl.Date),
            Subjects.entry_age_days.name: people.entry_days,
            Subjects.exit_age_days.name: people.exit_days,
            Subjects.cluster_id.name: pl.Series([None] * ids.len(), dtype=pl.String),
            Subjects.split.name: pl.Series([None] * ids.len(), dtype=pl.String),
        }
    )


def _tabulate_events(world: World, people: People, ids: pl.Series) -> pl.DataFrame:
    """Return diseases and death at their ages, and what is measured at entry (`Events`, in no order)."""
    person, place = np.nonzero(np.isfinite(people.ages_days.T))
    smoking = pl.Series(SMOKING_CODES).gather(people.traits.smoking)
    return pl.concat(
        [
            _events(ids.gather(person), people.ages_days[place, person], pl.Series(world.codes).gather(place), None),
            _events(ids, people.entry_days, pl.repeat(BMI_CODE, ids.len(), eager=True), people.traits.bmi),
            _events(ids, people.entry_days, pl.repeat(SBP_CODE, ids.len(), eager=True), people.traits.sbp),
            _events(ids, people.entry_days, smoking, None),
        ]
    )


def _events(ids: pl.Series, ages_days: FloatArray, codes: pl.Series, values: FloatArray | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            Events.subject_id.name: ids,
            Events.age_days.name: ages_days,
            Events.code.name: codes,
            Events.numeric_value.name: pl.Series(
                values if values is not None else [None] * ids.len(), dtype=pl.Float64
            ),
        }
    )


def _write_people(parts: Iterator[CohortPart], folder: Path, on_people: Callable[[int], None]) -> dict[str, int]:
    """Write the tables of all parts; return how many events there are of each code.

    Events go to files of about `ROWS_PER_FILE` rows, the other tables to as many pieces that are joined at the end.
    """
    (folder / EVENTS_FOLDER).mkdir()
    counts: dict[str, int] = {}
    with TemporaryDirectory(dir=folder, prefix=".pieces") as pieces:
        for number, held in enumerate(_hold_back(parts)):
            events = pl.concat([part.events for part in held])
            write_parquet(Events.validate(events), folder / EVENTS_FOLDER / f"{number:04d}.parquet")
            for code, rows in events.group_by(Events.code.name).len().iter_rows():
                counts[code] = counts.get(code, 0) + rows
            subjects = Subjects.validate(pl.concat([part.subjects for part in held]))
            write_parquet(subjects, Path(pieces) / _SUBJECTS / f"{number:04d}.parquet")
            hidden = HiddenTraits.validate(pl.concat([part.hidden for part in held]))
            write_parquet(hidden, Path(pieces) / _HIDDEN / f"{number:04d}.parquet")
            on_people(subjects.height)
        _join_pieces(Path(pieces) / _SUBJECTS, folder / SUBJECTS_FILE)
        _join_pieces(Path(pieces) / _HIDDEN, folder / TRUTH_FOLDER / HIDDEN_TRAITS_FILE)
    return counts


def _hold_back(parts: Iterator[CohortPart]) -> Iterator[list[CohortPart]]:
    """Yield neighbouring parts together, as many as fill a file of events."""
    held: list[CohortPart] = []
    for part in parts:
        held.append(part)
        if sum(other.events.height for other in held) >= ROWS_PER_FILE:
            yield held
            held = []
    if held:
        yield held


def _join_pieces(pieces: Path, path: Path) -> None:
    files = sorted(pieces.glob("*.parquet"))
    pl.scan_parquet(files, glob=False).sink_parquet(path)


def _account(n_subjects: int, counts: Mapping[str, int], config: SynthesizeConfig) -> ImportReport:
    n_events = sum(counts.values())
    return ImportReport(
        kind=KIND,
        subjects=n_subjects,
        events=n_events,
        codes=len(counts),
        deaths=counts.get(DEATH_CODE, 0),
        tables=(
            TableReport("people drawn", n_subjects, n_subjects, {}),
            TableReport("events drawn", n_events, n_events, {}),
        ),
        derived=(),
        rules={},
        notes=(
            Note("made_up", f"made-up people of world {config.world_seed}; the true hazards lie in {TRUTH_FOLDER}/"),
            Note("first_occurrences", "each disease is recorded once, at its first occurrence, from birth on"),
        ),
    )
