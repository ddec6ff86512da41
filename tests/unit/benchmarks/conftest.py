"""A few made-up people in the files that Delphi's simulated cohort comes in."""

from pathlib import Path

import numpy as np
import pytest

N_LABELS = 1270
DEATH = 1268
N_DISEASES = 4  # file tokens 12 to 15


def write_triples(path: Path, rows: list[tuple[int, int, int]]) -> None:
    path.write_bytes(np.array(rows, dtype="<u4").tobytes())


def made_up_labels() -> list[str]:
    diseases = [f"C{number:04d} made-up disease" for number in range(N_LABELS - 5)]
    diseases[3] = diseases[2]  # one code names two tokens, as O01 does
    return ["Padding", "No event", "Female", "Male", *diseases, "Death"]


def made_up_life(rng: np.random.Generator, person: int) -> list[tuple[int, int, int]]:
    """Everybody gets most diseases between 30 and 75; the first one doubles the rate of the second."""
    sex = int(rng.integers(1, 3))
    onset = 365 * rng.uniform(30, 75, size=N_DISEASES)
    onset[1] = onset[0] + 365 * rng.exponential(8)
    has = rng.random(N_DISEASES) < 0.8
    rows = [(person, int(onset[k]), 12 + k) for k in np.flatnonzero(has) if onset[k] < 365 * 79]
    if rng.random() < 0.4:
        rows.append((person, max([age for _, age, _ in rows], default=365 * 50) + 500, DEATH))
    return [(person, 0, sex), *sorted(rows or [(person, 365 * 60, 12)], key=lambda row: row[1])]


@pytest.fixture(scope="session")
def delphi_source(tmp_path_factory) -> Path:
    """Two files of 80 people, cut by rows as the real ones are. Read only."""
    folder = tmp_path_factory.mktemp("source") / "delphi_simulated"
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = [row for person in range(100, 260) for row in made_up_life(rng, person)]
    first_of_second_file = next(place for place, row in enumerate(rows) if row[0] == 180) + 2
    write_triples(folder / "train.bin", rows[1:first_of_second_file])
    write_triples(folder / "val.bin", rows[first_of_second_file:])
    (folder / "labels.csv").write_text("\n".join(made_up_labels()) + "\n", encoding="utf-8")
    return folder
