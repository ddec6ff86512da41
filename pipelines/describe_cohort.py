"""What a cohort holds, in numbers that may be shown to others: people, ages, follow-up, codes, and who was left out.

Event files are read one after the other, people as counts by whole days, so memory does not grow with the cohort.
Counts under 10 are withheld (`small_counts.py`); a quantile is given where at least 10 people lie on either side, and
the curve of follow-up ends where fewer than 10 are still under observation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from lifelines import KaplanMeierFitter
from lifelines.utils import qth_survival_time

from data_schemas.age_units import DAYS_PER_YEAR
from data_schemas.cohort import (
    COVARIATE,
    DEATH,
    DEATH_CODE,
    DISEASE,
    IMPORT_REPORT_FILE,
    SEXES,
    SUBJECTS_FILE,
    Codes,
    Events,
    Subjects,
)
from data_schemas.errors import InputContractError, Violation
from data_schemas.results import SMALLEST_SHOWN_COUNT
from pipelines.evaluation.array_types import FloatArray, IntArray
from pipelines.small_counts import (
    ShownCount,
    merge_small,
    round_to_ten,
    show_count,
    withhold_small,
    withhold_small_among,
)
from pipelines.tables_on_disk import event_files, read_codes, read_json, require_file

N_TOP_CODES = 30
AGE_BAND_YEARS = 5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_CURVE_STEP_YEARS = 0.25
_EVENT_BIN_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_MOST_EVENT_BINS = 25  # below the 99th percentile
_DAYS, _DIED, _PEOPLE, _ROWS, _BIN, _HAS_VALUE = "days", "died", "people", "rows", "bin", "has_value"  # working columns
_ROWS_READ, _ROWS_ADDED, _ROWS_KEPT = "rows_read", "rows_added", "rows_kept"  # keys of the import report


@dataclass(frozen=True)
class Histogram:
    """People or events by bins that hold none or at least 10; the label says what a bin holds."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """Quantiles (`QUANTILES`) of a number over people, None where too few lie beyond."""

    quantiles: tuple[float | None, ...]

    @property
    def median(self) -> float | None:
        """The middle one."""
        return self.quantiles[QUANTILES.index(0.5)]


@dataclass(frozen=True)
class FollowUp:
    """How long people were observed, by reverse Kaplan–Meier: the end of observation is the event, death the censoring.

    `still_observed` is the share that would still be under observation after `years`, had nobody died.
    """

    person_years: int | None
    median_years: float | None
    lower_quartile_years: float | None
    upper_quartile_years: float | None
    years: tuple[float, ...]
    still_observed: tuple[float, ...]


@dataclass(frozen=True)
class CodeCount:
    """One code: how many people have it, and in how many rows."""

    code: str
    kind: str
    description: str
    people: int
    events: int


@dataclass(frozen=True)
class Drop:
    """Rows that one rule dropped."""

    rule: str
    sentence: str
    rows: ShownCount


@dataclass(frozen=True)
class TableFlow:
    """What became of the rows of one table; `is_derived`: rows the importer made itself.

    `rows_read` is None too where a count that is withheld would follow from it.
    """

    table: str
    is_derived: bool
    rows_read: ShownCount
    rows_kept: ShownCount
    drops: tuple[Drop, ...]


@dataclass(frozen=True)
class ReportNote:
    """Something the import noticed; `rows` is None where it counts nothing."""

    text: str
    rows: str | None


@dataclass(frozen=True)
class CohortDescription:
    """Everything `cohort describe` shows; no count in it is about fewer than 10."""

    kind: str
    people: ShownCount
    events: ShownCount
    deaths: ShownCount
    n_codes: int
    sexes: Mapping[str, ShownCount]
    entry_age_years: Spread
    exit_age_years: Spread
    entry_ages: Histogram
    event_ages: Histogram
    events_per_person: Spread
    people_by_events: Histogram
    follow_up: FollowUp
    top_codes: tuple[CodeCount, ...]
    n_rare_codes: int  # codes of fewer than 10 people
    attrition: tuple[TableFlow, ...]
    notes: tuple[ReportNote, ...]


@dataclass(frozen=True)
class _EventCounts:
    """Sums over event files: rows and people by code, people by number of events, events by band of age; who died."""

    by_code: pl.DataFrame
    by_number: pl.DataFrame
    by_age: pl.DataFrame
    dead: pl.DataFrame


def describe_cohort(cohort: Path, n_top_codes: int = N_TOP_CODES) -> CohortDescription:
    """Describe an imported cohort.

    Raises:
        InputContractError: the folder holds no cohort, or its report is none.
    """
    path = require_file(cohort / SUBJECTS_FILE, "not found; make a cohort with `deephealth cohort import`")
    report = _read_report(cohort)
    counts = _count_events(cohort)
    subjects = pl.scan_parquet(path, glob=False)
    n_of_sex = dict(_collect(subjects.group_by(Subjects.sex.name).len()).iter_rows())
    by_sex = {sex: n_of_sex[sex] for sex in SEXES if sex in n_of_sex}
    n_people = sum(by_sex.values())
    by_number = _with_silent_people(counts.by_number, n_people)
    n_events = int(counts.by_code[_ROWS].sum())
    known = _describe_known(counts.by_code, read_codes(cohort))
    frequent = known.filter(pl.col(_PEOPLE) >= SMALLEST_SHOWN_COUNT)
    n_rare = known.height - frequent.height
    return CohortDescription(
        kind=str(report["kind"]),
        people=withhold_small(n_people),
        events=withhold_small(n_events),
        deaths=withhold_small(counts.dead.height),
        n_codes=known.height,
        sexes=dict(zip(by_sex, withhold_small_among(list(by_sex.values())), strict=True)),
        entry_age_years=_spread_of_ages(subjects, Subjects.entry_age_days.name, n_people),
        exit_age_years=_spread_of_ages(subjects, Subjects.exit_age_days.name, n_people),
        entry_ages=_by_age_band(_collect(_count_age_bands(subjects, Subjects.entry_age_days.name))),
        event_ages=_by_age_band(counts.by_age),
        events_per_person=_spread_of_counts(by_number, n_people),
        people_by_events=_by_number_of_events(by_number),
        follow_up=_follow_up(subjects, counts.dead, n_people),
        top_codes=_top_codes(frequent.head(n_top_codes), are_rounded=n_rare > 0 and frequent.height <= n_top_codes),
        n_rare_codes=n_rare,
        attrition=tuple(_flow(table, report["rules"]) for table in (*report["tables"], *report["derived"])),
        notes=tuple(_note(note) for note in report["notes"]),
    )


def _collect(frame: pl.LazyFrame) -> pl.DataFrame:
    return frame.collect(engine="streaming")


def _count_events(cohort: Path) -> _EventCounts:
    """Go through the event files; a person's rows lie in one of them, so people add up over files."""
    files = [_count_events_of(pl.scan_parquet(file, glob=False)) for file in event_files(cohort)]
    code, number, band = Events.code.name, _ROWS, _BIN
    return _EventCounts(
        by_code=pl.concat([file.by_code for file in files])
        .group_by(code)
        .agg(pl.col(_ROWS, _PEOPLE).sum(), pl.col(_HAS_VALUE).any()),
        by_number=pl.concat([file.by_number for file in files]).group_by(number).agg(pl.col(_PEOPLE).sum()),
        by_age=pl.concat([file.by_age for file in files]).group_by(band).agg(pl.col(_ROWS).sum()),
        dead=pl.concat([file.dead for file in files]),
    )


def _count_events_of(events: pl.LazyFrame) -> _EventCounts:
    subject = Events.subject_id.name
    by_code = (
        events.group_by(Events.code.name, subject)
        .agg(pl.len().alias(_ROWS), Events.numeric_value.col.is_not_null().any().alias(_HAS_VALUE))
        .group_by(Events.code.name)
        .agg(pl.col(_ROWS).sum(), pl.len().alias(_PEOPLE), pl.col(_HAS_VALUE).any())
    )
    by_number = events.group_by(subject).len(_ROWS).group_by(_ROWS).len(_PEOPLE)
    dead = events.filter(Events.code.col == DEATH_CODE).select(subject).unique()
    by_age = _count_age_bands(events, Events.age_days.name)
    return _EventCounts(*(_collect(frame) for frame in (by_code, by_number, by_age, dead)))


def _count_age_bands(frame: pl.LazyFrame, age_days: str) -> pl.LazyFrame:
    """Count rows by the band of age they lie in (`bin`, in bands of five years from 0)."""
    band = (pl.col(age_days) / (DAYS_PER_YEAR * AGE_BAND_YEARS)).floor().cast(pl.Int64)
    return frame.group_by(band.alias(_BIN)).len(_ROWS)


def _by_age_band(counts: pl.DataFrame) -> Histogram:
    """Lay counts by band out from the first band that holds any to the last, small ones joined."""
    found = {band: rows for band, rows in counts.select(_BIN, _ROWS).iter_rows() if rows}
    low = min(found, default=0)
    groups = merge_small([found.get(band, 0) for band in range(low, max(found, default=-1) + 1)])
    labels = [f"{(low + first) * AGE_BAND_YEARS}–{(low + last + 1) * AGE_BAND_YEARS}" for first, last, _ in groups]
    return Histogram(tuple(labels), tuple(count for *_, count in groups))


def _with_silent_people(by_number: pl.DataFrame, n_people: int) -> pl.DataFrame:
    """Add the people without any event, and sort by number of events."""
    silent = pl.DataFrame({_ROWS: [0], _PEOPLE: [n_people - int(by_number[_PEOPLE].sum())]}, schema=by_number.schema)
    return pl.concat([silent, by_number]).filter(pl.col(_PEOPLE) > 0).sort(_ROWS)


def _by_number_of_events(by_number: pl.DataFrame) -> Histogram:
    """Count people by number of events: none, then bins of one width, the last open above the 99th percentile."""
    number, people = (by_number[column].to_numpy().astype(np.int64) for column in (_ROWS, _PEOPLE))
    if not people.size:
        return Histogram((), ())
    usual = int(number[np.searchsorted(np.cumsum(people), 0.99 * people.sum())])
    width = next((width for width in _EVENT_BIN_WIDTHS if usual <= width * _MOST_EVENT_BINS), _EVENT_BIN_WIDTHS[-1])
    n_bins = -(-usual // width) + 2  # none, those up to the usual, those beyond
    places = np.minimum(-(-number // width), n_bins - 1)
    counts = np.bincount(places, weights=people, minlength=n_bins).astype(int).tolist()
    groups = merge_small(counts)
    labels = [_label_of_bins(first, last, n_bins, width) for first, last, _ in groups]
    return Histogram(tuple(labels), tuple(count for *_, count in groups))


def _label_of_bins(first: int, last: int, n_bins: int, width: int) -> str:
    """Say which numbers of events the bins from first to last hold; bin 0 is none, bin 1 is 1 to `width`."""
    low, high = (first - 1) * width + 1 if first else 0, last * width
    if last == n_bins - 1:
        return f"{low} or more"
    return f"{low}" if low == high else f"{low}–{high}"


def _shown_quantiles(n_people: int) -> list[bool]:
    """Say which quantiles have at least 10 people on either side."""
    return [min(share, 1.0 - share) * n_people >= SMALLEST_SHOWN_COUNT for share in QUANTILES]


def _spread_of_ages(subjects: pl.LazyFrame, age_days: str, n_people: int) -> Spread:
    years = pl.col(age_days) / DAYS_PER_YEAR
    row = _collect(subjects.select(years.quantile(share, "linear").alias(f"{share}") for share in QUANTILES)).row(0)
    shown = _shown_quantiles(n_people)
    return Spread(tuple(round(value, 1) if show else None for value, show in zip(row, shown, strict=True)))


def _spread_of_counts(by_number: pl.DataFrame, n_people: int) -> Spread:
    """Read the quantiles of events a person off the counts."""
    reached = by_number[_PEOPLE].cum_sum().to_numpy()
    values = [
        float(by_number[_ROWS][int(np.searchsorted(reached, share * n_people))]) if show else None
        for share, show in zip(QUANTILES, _shown_quantiles(n_people), strict=True)
    ]
    return Spread(tuple(values))


def _follow_up(subjects: pl.LazyFrame, dead: pl.DataFrame, n_people: int) -> FollowUp:
    """Estimate how long people are observed, from counts by whole days of follow-up."""
    days = (Subjects.exit_age_days.col - Subjects.entry_age_days.col).round().cast(pl.Int64)
    counts = _collect(
        subjects.join(
            dead.lazy().with_columns(pl.lit(value=True).alias(_DIED)), on=Subjects.subject_id.name, how="left"
        )
        .group_by(days.alias(_DAYS), pl.col(_DIED).fill_null(value=False))
        .len(_PEOPLE)
    ).sort(_DAYS, _DIED)
    duration, people = counts[_DAYS].to_numpy() / DAYS_PER_YEAR, counts[_PEOPLE].to_numpy()
    if n_people < SMALLEST_SHOWN_COUNT:
        return FollowUp(None, None, None, None, (), ())
    fitted = KaplanMeierFitter().fit(duration, ~counts[_DIED].to_numpy(), weights=people)
    # Beyond, fewer than 10 are under observation and every step of the curve would be about one of them.
    last_shown = _time_with_at_least(duration, people, SMALLEST_SHOWN_COUNT)
    years = np.arange(0.0, last_shown + _CURVE_STEP_YEARS, _CURVE_STEP_YEARS)
    years = years[years <= last_shown]

    def quantile(share: float) -> float | None:
        time = float(qth_survival_time(share, fitted.survival_function_))
        return round(time, 2) if time <= last_shown else None

    return FollowUp(
        person_years=round(float(duration @ people)),
        median_years=quantile(0.5),
        lower_quartile_years=quantile(0.75),
        upper_quartile_years=quantile(0.25),
        years=tuple(years.tolist()),
        still_observed=tuple(np.asarray(fitted.survival_function_at_times(years), dtype=float).tolist()),
    )


def _time_with_at_least(duration: FloatArray, people: IntArray, least: int) -> float:
    """Return the latest time at which at least so many people are still under observation."""
    still = np.cumsum(people[::-1])[::-1]  # durations ascend
    return float(duration[still >= least][-1])


def _describe_known(by_code: pl.DataFrame, codes: pl.DataFrame) -> pl.DataFrame:
    """Add what is known of each code, the most frequent first; the rule for unlisted codes is that of `Codes`."""
    unlisted = (
        pl.when(Codes.code.col == DEATH_CODE).then(pl.lit(DEATH)).when(pl.col(_HAS_VALUE)).then(pl.lit(COVARIATE))
    )
    return (
        by_code.join(codes, on=Codes.code.name, how="left")
        .with_columns(Codes.kind.col.fill_null(unlisted.otherwise(pl.lit(DISEASE))))
        .sort([_PEOPLE, Codes.code.name], descending=[True, False])
    )


def _top_codes(frequent: pl.DataFrame, *, are_rounded: bool) -> tuple[CodeCount, ...]:
    """List codes; rows are rounded to tens where those withheld would follow from the rows of all codes."""
    rows = frequent.select(
        Codes.code.name, Codes.kind.name, Codes.description.col.fill_null(""), _PEOPLE, _ROWS
    ).iter_rows()
    return tuple(
        CodeCount(code, kind, description, people, round_to_ten(events) if are_rounded else events)
        for code, kind, description, people, events in rows
    )


def _read_report(cohort: Path) -> dict[str, Any]:
    """Read the account of the import, and see that it is one."""
    path = require_file(cohort / IMPORT_REPORT_FILE, "not found; make a cohort with `deephealth cohort import`")
    try:
        report: dict[str, Any] = read_json(path)
        tables = [*report["tables"], *report["derived"]]
        is_whole = (
            report.keys() >= {"kind", "rules", "notes"}
            and all(table.keys() >= {"table", _ROWS_KEPT, "dropped"} for table in tables)
            and all(rule in report["rules"] for table in tables for rule in table["dropped"])
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        is_whole = False
    if not is_whole:
        raise InputContractError([Violation(str(path), "", "is no report of an import")])
    return report


def _flow(table: Mapping[str, Any], rules: Mapping[str, str]) -> TableFlow:
    """Say what became of the rows of a table."""
    dropped: dict[str, int] = table["dropped"]
    is_derived = _ROWS_ADDED in table
    kept = withhold_small(table[_ROWS_KEPT])
    drops = tuple(Drop(rule, rules[rule], withhold_small(rows)) for rule, rows in dropped.items())
    is_any_withheld = kept is None or any(drop.rows is None for drop in drops)
    read = table[_ROWS_ADDED if is_derived else _ROWS_READ]
    return TableFlow(str(table["table"]), is_derived, None if is_any_withheld else withhold_small(read), kept, drops)


def _note(note: Mapping[str, Any]) -> ReportNote:
    rows = note["rows"]
    return ReportNote(str(note["text"]), None if rows is None else show_count(withhold_small(rows)))
