"""How fast, and in how much memory, a made-up population is synthesized, imported and prepared; beside pandas.

Each stage runs in a process of its own, so that its peak memory is its own (the one that starts them stays small: Linux
counts it in). The pandas form does the same steps on
whole tables, without apply or a loop over people: categories for codes, one sort, lists from offsets. Its output is
compared with ours. What is numpy in both is shared: the hash of the splits and the fit of the reference rates. Ratios
are the median of interleaved pairs.

    .venv/bin/python benchmarks/prepare.py [--subjects N ...] [--pairs 1] [--no-pandas] [--quick] [--json FILE]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.testing import assert_frame_equal

from data_schemas.age_units import AGE_STEPS_PER_DAY, DAYS_PER_YEAR, MAX_AGE_DAYS
from data_schemas.cohort import DEATH_CODE, SEXES, SPLITS, TRAIN
from pipelines.assign_splits import assign_splits
from pipelines.fit_reference_rates import fit_rates_of_outcomes
from pipelines.fit_vocabulary import log_population_rates
from pipelines.import_cohort.importers import import_cohort, import_config
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset
from pipelines.read_dataset import read_reference_rates, read_vocabulary
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.synthesize_cohort import synthesize_cohort
from pipelines.tables_on_disk import read_subjects, scan_events

FULL, QUICK = 500_000, 10_000
SEED = 1
STAGES = ("synthesize", "import", "prepare")
KEYS = ["subject_id", "age_days", "rank", "code", "numeric_value"]
KIB_PER_MIB = 1024


# ---- the stages, each in a process of its own ----


def run_ours(stage: str, folder: Path, n_subjects: int) -> None:
    """Run one stage as the command line does."""
    if stage == "synthesize":
        synthesize_cohort(folder / "source", n_subjects, SEED, SynthesizeConfig())
    elif stage == "import":
        import_cohort("parquet", folder / "source", folder / "cohort", import_config("parquet")())
    else:
        prepare_dataset(folder / "cohort", folder / "dataset", PrepareConfig())


def run_pandas(stage: str, folder: Path, n_subjects: int) -> None:
    """Run the pandas form of one stage."""
    del n_subjects
    if stage == "import":
        import_with_pandas(folder / "source", folder / "pandas_cohort")
    else:
        prepare_with_pandas(folder / "cohort", folder / "pandas_dataset", PrepareConfig())


def measure(form: str, stage: str, folder: Path, n_subjects: int) -> dict[str, float]:
    """Run one stage here and return its seconds and the peak memory of this process."""
    started = time.perf_counter()
    {"ours": run_ours, "pandas": run_pandas, "compare": compare}[form](stage, folder, n_subjects)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB}


def measure_in_child(form: str, stage: str, folder: Path, n_subjects: int) -> dict[str, float]:
    """Run one stage in a process of its own and return what `measure` does."""
    command = [sys.executable, __file__, "--child", form, stage, str(folder), "--subjects", str(n_subjects)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{form} {stage} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


# ---- the pandas form ----


def read_events(folder: Path, columns: list[str]) -> pd.DataFrame:
    """Read all events with codes as categories."""
    files = sorted((folder / "events").glob("*.parquet"))
    tables = [pq.read_table(file, columns=columns, read_dictionary=["code"]) for file in files]
    return pa.concat_tables(tables).unify_dictionaries().to_pandas()


def round_ages(ages: pd.Series) -> pd.Series:
    """Round ages (days) to the nearest 1/256 day."""
    return (ages * AGE_STEPS_PER_DAY).round() / AGE_STEPS_PER_DAY


def import_with_pandas(source: Path, out: Path) -> None:
    """Check, clean, sort and write a cohort by the default rules."""
    subjects = pd.read_parquet(source / "subjects.parquet")
    codes = pd.read_parquet(source / "codes.parquet")
    events = read_events(source, ["subject_id", "age_days", "code", "numeric_value"])
    is_valid = (
        not subjects["subject_id"].duplicated().any()
        and subjects["sex"].isin(SEXES).all()
        and (subjects["exit_age_days"] > subjects["entry_age_days"]).all()
        and subjects[["entry_age_days", "exit_age_days"]].stack().between(0, MAX_AGE_DAYS).all()
        and not events[["subject_id", "age_days", "code"]].isna().any(axis=None)
        and np.isfinite(events["age_days"]).all()
        and (events["numeric_value"].isna() | np.isfinite(events["numeric_value"])).all()
    )
    assert is_valid
    for name in ("entry_age_days", "exit_age_days"):
        subjects[name] = round_ages(subjects[name])
    events["age_days"] = round_ages(events["age_days"])
    events["row"] = np.arange(len(events))
    dated = events.merge(
        subjects[["subject_id", "entry_age_days", "exit_age_days", "birth_date"]], on="subject_id", how="left"
    )
    duplicated = events.duplicated(["subject_id", "age_days", "code", "numeric_value"])
    born = pd.to_datetime(dated["birth_date"]).to_numpy().astype("datetime64[D]")
    day = born + np.floor(dated["age_days"].to_numpy()).astype("timedelta64[D]")
    placeholders = np.array(["1900-01-01", "1901-01-01", "1902-02-02", "1903-03-03", "1909-09-09", "2037-07-07"])
    is_kept = (
        ~duplicated
        & ~np.isin(day, placeholders.astype("datetime64[D]"))
        & dated["age_days"].between(0, MAX_AGE_DAYS)
        & dated["exit_age_days"].notna()
        & (dated["age_days"] <= dated["exit_age_days"])
    )
    kept = dated[is_kept]
    deaths = kept[kept["code"] == DEATH_CODE].sort_values(["subject_id", "age_days", "row"])
    first_death = deaths.drop_duplicates("subject_id").set_index("subject_id")
    death_age = kept["subject_id"].map(first_death["age_days"])
    death_row = kept["subject_id"].map(first_death["row"])
    later_death = (kept["code"] == DEATH_CODE) & (kept["row"] != death_row)
    ended = kept["exit_age_days"].where(death_age.isna(), np.minimum(kept["exit_age_days"], death_age))
    kept = kept[~later_death & ~(kept["age_days"] > death_age) & (ended > kept["entry_age_days"])]
    died = subjects["subject_id"].map(first_death["age_days"])
    subjects["exit_age_days"] = subjects["exit_age_days"].where(
        died.isna(), np.minimum(subjects["exit_age_days"], died)
    )
    subjects = subjects[subjects["exit_age_days"] > subjects["entry_age_days"]]
    rank = codes.set_index("code")["kind"].map({"covariate": 0, "disease": 1, "death": 2})
    kept = kept.assign(
        rank=kept["code"].map(rank).astype("int8"), code=kept["code"].astype("category").cat.as_ordered()
    )
    kept["code"] = kept["code"].cat.reorder_categories(sorted(kept["code"].cat.categories))
    ordered = kept.sort_values(KEYS)[["subject_id", "age_days", "code", "numeric_value"]]
    out.mkdir(exist_ok=True)
    subjects.to_parquet(out / "subjects.parquet")
    ordered.assign(code=ordered["code"].astype(str)).to_parquet(out / "events.parquet")
    codes.to_parquet(out / "codes.parquet")


def prepare_with_pandas(cohort: Path, out: Path, config: PrepareConfig) -> None:
    """Split, fit and encode a cohort; writes the vocabulary, the reference rates and one file a split."""
    subjects = assign_splits(read_subjects(cohort), config.split_seed, config.train_share, config.tuning_share)
    people = subjects.to_pandas()
    codes = pd.read_parquet(cohort / "codes.parquet")
    events = read_events(cohort, ["subject_id", "age_days", "code", "numeric_value"])
    is_valid = (
        not people["subject_id"].duplicated().any()
        and not events[["subject_id", "age_days", "code"]].isna().any(axis=None)
        and events["age_days"].between(0, MAX_AGE_DAYS).all()
        and (events["numeric_value"].isna() | np.isfinite(events["numeric_value"])).all()
    )
    assert is_valid
    row_of = pd.Series(np.arange(len(people)), index=people["subject_id"])
    events["person"] = events["subject_id"].map(row_of).astype(np.int64)
    is_train = (people["split"] == TRAIN).to_numpy()
    vocabulary = fit_with_pandas(people, events[is_train[events["person"]]], codes, config)
    tokens = vocabulary.set_index("code")["token"]
    first = first_occurrences(events, vocabulary)

    out.mkdir(exist_ok=True)
    train_row = np.cumsum(is_train) - 1
    train_firsts = first[is_train[first["person"]]]
    spans = {
        token: (train_row[part["person"].to_numpy()], part["age_days"].to_numpy())
        for token, part in train_firsts.groupby("token", sort=True)
    }
    outcomes = vocabulary[vocabulary["role"].isin(["disease", "death"])]
    nobody = (np.empty(0, np.int64), np.empty(0))
    rates = fit_rates_of_outcomes(
        subjects.filter(pl.Series(is_train)),
        spans.get(tokens[DEATH_CODE], nobody),
        ((code, spans.get(token, nobody)) for code, token in zip(outcomes["code"], outcomes["token"], strict=True)),
    )
    rates.write_parquet(out / "reference_rates.parquet")
    vocabulary.to_parquet(out / "vocabulary.parquet")

    events["token"] = events["code"].map(tokens).astype("float").fillna(-1).astype(np.int32)
    known = events[events["token"] >= 0]
    order = vocabulary["role"].map({"covariate": 0, "disease": 1, "death": 2}).fillna(-1).to_numpy()
    known = known.assign(rank=order[known["token"]]).sort_values(
        ["person", "age_days", "rank", "token", "numeric_value"]
    )
    first = first.sort_values(["person", "token"])
    for split in SPLITS:
        members = np.flatnonzero((people["split"] == split).to_numpy())
        write_lists(people.iloc[members], known, first, members, out / f"{split}.arrow")


def fit_with_pandas(
    people: pd.DataFrame, train: pd.DataFrame, codes: pd.DataFrame, config: PrepareConfig
) -> pd.DataFrame:
    """Return token, code, role, n_subjects, log_rate_per_year, mean and std."""
    pairs = train[["code", "person"]].drop_duplicates()
    n_subjects = pairs["code"].value_counts()
    n_subjects = n_subjects[(n_subjects >= config.min_subjects) | (n_subjects.index == DEATH_CODE)]
    values = train.loc[train["numeric_value"].notna(), ["code", "numeric_value"]]
    bounds = values.groupby("code", observed=True)["numeric_value"].quantile([0.005, 0.995], interpolation="nearest")
    low, high = (bounds.xs(quantile, level=1) for quantile in (0.005, 0.995))
    central = values[
        (values["numeric_value"] >= values["code"].map(low).astype(float))
        & (values["numeric_value"] <= values["code"].map(high).astype(float))
    ]
    scales = central.groupby("code", observed=True)["numeric_value"].agg(["mean", "std"])
    table = pd.DataFrame({"code": n_subjects.index.astype(str), "n_subjects": n_subjects.to_numpy()})
    table = table.merge(codes[["code", "kind"]], on="code", how="left").rename(columns={"kind": "role"})
    table = table.merge(scales, left_on="code", right_index=True, how="left")
    table["order"] = table["role"].map({"disease": 0, "death": 2, "covariate": 3})
    table = table.sort_values(["order", "code"])
    special = pd.DataFrame({"code": ["pad", "query", "no_event"], "role": ["pad", "query", "no_event"]})
    table = pd.concat([special, table], ignore_index=True).drop(columns="order")
    table.insert(0, "token", np.arange(len(table)))
    first = first_occurrences(train, table)
    entry, exit_age = (people[name].to_numpy()[first["person"]] for name in ("entry_age_days", "exit_age_days"))
    age = first["age_days"].to_numpy()
    first["lost"] = np.where(age <= entry, exit_age - entry, np.where(age < exit_age, exit_age - age, 0.0))
    first["happened"] = (age > entry) & (age <= exit_age)
    sums = first.groupby("token")[["lost", "happened"]].sum().reindex(table["token"])
    is_outcome = table["role"].isin(["disease", "death"]).to_numpy()
    in_train = people[people["split"] == TRAIN]
    all_days = (in_train["exit_age_days"] - in_train["entry_age_days"]).sum()
    is_shown = sums["happened"].fillna(0).to_numpy() >= 10
    n_events = np.where(is_shown, sums["happened"], 5)
    years = np.where(is_shown, all_days - sums["lost"], all_days) / DAYS_PER_YEAR
    counted = pl.DataFrame(
        {"events": pl.Series(n_events).cast(pl.Int64), "years": years, "is_outcome": is_outcome}
    ).with_columns(
        pl.when("is_outcome").then("events").alias("events"), pl.when("is_outcome").then("years").alias("years")
    )
    table["log_rate_per_year"] = (
        counted.select(log_population_rates(pl.col("events"), pl.col("years"))).to_series().to_numpy()
    )
    return table


def first_occurrences(events: pd.DataFrame, vocabulary: pd.DataFrame) -> pd.DataFrame:
    """Return person, token and first age of each outcome."""
    outcomes = vocabulary[vocabulary["role"].isin(["disease", "death"])]
    token = events["code"].map(outcomes.set_index("code")["token"]).astype("float")
    had = events[token.notna()].assign(token=token[token.notna()].astype(np.int32))
    return had.groupby(["person", "token"], sort=False)["age_days"].min().reset_index()


def write_lists(
    people: pd.DataFrame, events: pd.DataFrame, first: pd.DataFrame, members: np.ndarray, path: Path
) -> None:
    """Write one row a person of a split; both tables are sorted by person."""
    columns: dict[str, Any] = {
        "subject_id": people["subject_id"].to_numpy(),
        "sex": people["sex"].map({sex: number for number, sex in enumerate(SEXES)}).astype("int8").to_numpy(),
        "entry_age_days": people["entry_age_days"].to_numpy(),
        "exit_age_days": people["exit_age_days"].to_numpy(),
    }
    is_member = np.zeros(int(max(events["person"].max(), members.max())) + 1, dtype=bool)
    is_member[members] = True
    for table, lists in (
        (events, {"tokens": "token", "ages_days": "age_days", "values": "numeric_value"}),
        (first, {"first_tokens": "token", "first_ages_days": "age_days"}),
    ):
        own = table[is_member[table["person"]]]
        counts = np.bincount(own["person"], minlength=is_member.size)[members]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int64())
        for name, column in lists.items():
            kind = {"token": np.int32, "numeric_value": np.float32}.get(column, np.float64)
            columns[name] = pa.LargeListArray.from_arrays(offsets, own[column].to_numpy().astype(kind))
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


# ---- that both forms give the same ----


def compare(stage: str, folder: Path, n_subjects: int) -> None:
    """Stop unless both forms of a stage have written the same."""
    del n_subjects
    if stage == "import":
        ours, theirs = folder / "cohort", folder / "pandas_cohort"
        subjects = pl.read_parquet(theirs / "subjects.parquet")
        assert_frame_equal(
            read_subjects(ours).select("subject_id", "entry_age_days", "exit_age_days"),
            subjects.select("subject_id", "entry_age_days", "exit_age_days"),
        )
        mine = scan_events(ours).collect().sort("subject_id", maintain_order=True)
        assert_frame_equal(mine, pl.read_parquet(theirs / "events.parquet").select(mine.columns))
        return
    ours, theirs = folder / "dataset", folder / "pandas_dataset"
    vocabulary = read_vocabulary(ours)
    shared = ["token", "code", "role", "log_rate_per_year", "mean", "std"]
    assert_frame_equal(
        vocabulary.select(shared), pl.read_parquet(theirs / "vocabulary.parquet").select(shared).fill_nan(None),
        rel_tol=1e-9,
    )  # fmt: skip
    assert_frame_equal(read_reference_rates(ours), pl.read_parquet(theirs / "reference_rates.parquet"), rel_tol=1e-9)
    for split in SPLITS:
        mine = pl.read_ipc(sorted((ours / "sequences" / split).glob("*.arrow"))).sort("subject_id")
        assert_frame_equal(mine, pl.read_ipc(theirs / f"{split}.arrow").sort("subject_id"))


# ---- the table ----


def run_size(n_subjects: int, folder: Path, n_pairs: int, with_pandas: bool) -> list[dict[str, Any]]:
    """Run all stages on one population and return a row a stage."""
    rows = []
    for stage in STAGES:
        pairs = n_pairs if with_pandas and stage != "synthesize" else 1
        measured, ratios = [], []
        for _ in range(pairs):
            measured.append(measure_in_child("ours", stage, folder, n_subjects))
            if with_pandas and stage != "synthesize":
                theirs = measure_in_child("pandas", stage, folder, n_subjects)
                ratios.append(theirs["seconds"] / measured[-1]["seconds"])
                print(f"  pandas {stage}: {theirs['seconds']:.1f} s, {theirs['peak_memory_mb']:,.0f} MB", flush=True)
        if ratios:
            measure_in_child("compare", stage, folder, n_subjects)
        cohort = folder / ("source" if stage == "synthesize" else "cohort")
        n_events = scan_events(cohort).select(pl.len()).collect().item()
        seconds = statistics.median(run["seconds"] for run in measured)
        rows.append(
            {
                "stage": stage,
                "subjects": n_subjects,
                "events": n_events,
                "seconds": round(seconds, 2),
                "events_per_second": round(n_events / seconds),
                "peak_memory_mb": round(max(run["peak_memory_mb"] for run in measured)),
                "ratio_pandas": round(statistics.median(ratios), 2) if ratios else None,
            }
        )
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    return rows


def growth_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Say how time and memory grow from the smallest population to each larger one."""
    first = {row["stage"]: row for row in reversed(rows)}
    return [
        f"{row['stage']}: {row['subjects'] / first[row['stage']]['subjects']:g} x the people take "
        f"{row['seconds'] / first[row['stage']]['seconds']:.1f} x the time and "
        f"{row['peak_memory_mb'] / first[row['stage']]['peak_memory_mb']:.2f} x the memory"
        for row in rows
        if row["subjects"] != first[row["stage"]]["subjects"]
    ]


def main() -> None:
    """Run the sizes and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, nargs="+", help=f"sizes of the population (default {FULL})")
    parser.add_argument("--pairs", type=int, default=1, help="interleaved runs of both forms")
    parser.add_argument("--no-pandas", action="store_true", help="leave the pandas form out")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} people")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("FORM", "STAGE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = arguments.subjects or [QUICK if arguments.quick else FULL]
    if arguments.child:
        form, stage, folder = arguments.child
        print(json.dumps(measure(form, stage, Path(folder), sizes[0])))
        return
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, polars {version('polars')}, "
        f"pandas {version('pandas')}, pyarrow {version('pyarrow')}, numpy {version('numpy')}"
    )
    rows = []
    for n_subjects in sizes:
        with tempfile.TemporaryDirectory() as temporary:
            rows += run_size(n_subjects, Path(temporary), arguments.pairs, not arguments.no_pandas)
    for line in growth_lines(rows):
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
