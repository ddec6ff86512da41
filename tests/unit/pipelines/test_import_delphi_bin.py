"""Delphi's binary files: the shift of tokens, sex and death rows, people that a file border cuts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_schemas.cohort import COVARIATE, DEATH_CODE, DISEASE, TRAIN, TUNING, Codes, Events, Subjects
from data_schemas.errors import InputContractError
from data_schemas.import_report import ImportReport
from pipelines.import_cohort.finish_import import finish_import
from pipelines.import_cohort.from_delphi_bin import DelphiBinOptions, deliver_delphi_bin
from pipelines.tables_on_disk import read_codes, read_subjects, scan_events

LABELS = (
    "Padding", "No event", "Female", "Male", "BMI_low", "BMI_high", "A00 (cholera)", "O01 (hydatidiform mole)",
    "CXX Unknown Cancer", "C00 Malignant neoplasm of lip, nos", "Not a code", "O01 Hydatidiform mole38", "Death",
)  # fmt: skip
NO_EVENT, FEMALE, MALE, BMI_LOW, BMI_HIGH, A00, O01, CXX, C00, OTHER, O01_CANCER, DEATH = range(1, len(LABELS))

Triple = tuple[int, int, int]  # person, age, label (the token after the shift)


def write(
    folder: Path, files: Mapping[str, Sequence[Triple]], *, shift: int = 1, labels: Sequence[str] = LABELS
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    for name, triples in files.items():
        np.array([(who, age, label - shift) for who, age, label in triples], dtype="<u4").tofile(folder / name)
    return folder


TWO_PEOPLE = [(1, 0, FEMALE), (1, 700, A00), (1, 900, DEATH), (2, 0, MALE), (2, 10, BMI_LOW), (2, 800, C00)]


def imported(tmp_path: Path, source: Path, **settings: Any) -> tuple[Path, ImportReport]:
    out = tmp_path / "cohort"
    return out, finish_import(deliver_delphi_bin(source, DelphiBinOptions(**settings)), out)


def events(cohort: Path) -> list[tuple[Any, ...]]:
    return scan_events(cohort).select(Events.subject_id.name, Events.age_days.name, Events.code.name).collect().rows()


def subjects(cohort: Path, *names: str) -> list[tuple[Any, ...]]:
    return read_subjects(cohort).sort(Subjects.subject_id.name).select(names).rows()


@pytest.mark.parametrize("shift", [0, 1])
def test_the_shift_is_derived_and_not_taken_for_granted(tmp_path: Path, shift: int) -> None:
    cohort, report = imported(tmp_path, write(tmp_path / "source", {"train.bin": TWO_PEOPLE}, shift=shift))
    assert events(cohort) == [
        (1, 700.0, "A00"),
        (1, 900.0, DEATH_CODE),
        (2, 10.0, "bmi//low"),
        (2, 800.0, "C00"),
    ]
    assert subjects(cohort, "sex", "entry_age_days", "exit_age_days") == [("female", 0.0, 900.0), ("male", 0.0, 800.0)]
    assert f"{shift} was added" in report.notes[0].text
    assert [(table.rows_read, dict(table.dropped)) for table in report.tables] == [(2, {}), (6, {"sex_row": 2})]


def test_a_shift_that_cannot_be_derived_stops_the_import(tmp_path: Path) -> None:
    triples = [(1, 700, A00), (2, 800, C00)]
    source = write(tmp_path / "source", {"train.bin": triples})
    with pytest.raises(InputContractError, match="under neither shift"):
        deliver_delphi_bin(source, DelphiBinOptions())
    cohort, report = imported(tmp_path, source, token_shift=1)
    assert [code for *_, code in events(cohort)] == ["A00", "C00"]
    assert [note.rows for note in report.notes if note.name == "sex_missing"] == [2]


def test_a_death_in_the_middle_contradicts_a_shift(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"train.bin": [(1, 0, FEMALE), (1, 700, DEATH), (1, 900, A00)]})
    with pytest.raises(InputContractError, match="'Death' in the last row"):
        deliver_delphi_bin(source, DelphiBinOptions())


def test_a_token_without_a_label_stops_the_import_and_the_last_label_does_not(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"train.bin": TWO_PEOPLE, "val.bin": [(3, 0, MALE), (3, 9, len(LABELS))]})
    with pytest.raises(InputContractError) as caught:
        deliver_delphi_bin(source, DelphiBinOptions())
    (fault,) = caught.value.violations
    assert (Path(fault.file).name, fault.column, fault.n_rows, fault.first_rows) == ("val.bin", "token", 1, (1,))


def test_a_person_cut_by_the_border_is_one_person(tmp_path: Path) -> None:
    files = {
        "train.bin": [(1, 0, MALE), (1, 5, A00), (2, 0, FEMALE), (2, 700, A00)],
        "val.bin": [(2, 800, C00), (3, 0, MALE), (3, 4, A00)],
    }
    source = write(tmp_path / "source", files)
    cohort, report = imported(tmp_path, source, split_from_files=True)
    assert subjects(cohort, "subject_id", "sex", "exit_age_days", "split") == [
        (1, "male", 5.0, TRAIN),
        (2, "female", 800.0, TRAIN),
        (3, "male", 4.0, TUNING),
    ]
    assert [note.rows for note in report.notes if note.name == "cut_by_files"] == [1]
    without_split, _ = imported(tmp_path, source)
    assert {split for (split,) in subjects(without_split, "split")} == {None}


def test_one_code_under_two_labels(tmp_path: Path) -> None:
    triples = [*TWO_PEOPLE, (3, 0, FEMALE), (3, 50, O01), (3, 60, O01_CANCER), (3, 70, CXX), (3, 80, OTHER)]
    source = write(tmp_path / "source", {"train.bin": triples})
    merged, report = imported(tmp_path, source)
    assert [code for who, _, code in events(merged) if who == 3] == ["O01", "O01", "CXX", "Not a code"]
    assert "repeated_code" in [note.name for note in report.notes]
    kinds = dict(read_codes(merged).select(Codes.code.name, Codes.kind.name).rows())
    assert (kinds["O01"], kinds["CXX"], kinds["bmi//low"]) == (DISEASE, DISEASE, COVARIATE)
    assert not {"Female", "Male", "Padding", "No event"} & kinds.keys()
    apart, _ = imported(tmp_path, source, merge_repeated_codes=False)
    assert [code for who, _, code in events(apart) if who == 3] == [
        "O01", "O01 Hydatidiform mole38", "CXX", "Not a code",
    ]  # fmt: skip


def test_rows_that_say_nothing_neither_stay_nor_prolong_follow_up(tmp_path: Path) -> None:
    triples = [*TWO_PEOPLE[3:], (2, 9_000, NO_EVENT), (4, 0, MALE), (4, 2**32 - 5, A00), (4, 5, A00)]
    cohort, report = imported(tmp_path, write(tmp_path / "source", {"train.bin": triples}))
    assert subjects(cohort, "exit_age_days") == [(800.0,), (5.0,)]
    assert dict(report.tables[1].dropped) == {"sex_row": 2, "no_event_row": 1, "age_over_120": 1}


def test_who_has_both_sexes_is_unknown(tmp_path: Path) -> None:
    people = [(who, 0, MALE) for who in range(1, 20)] + [(who, 9, A00) for who in range(1, 20)]
    source = write(tmp_path / "source", {"train.bin": [*people, (7, 0, FEMALE)]})
    cohort, report = imported(tmp_path, source, token_shift=1)
    assert [sex for (sex,) in subjects(cohort, "sex")].count("unknown") == 1
    assert [note.rows for note in report.notes if note.name == "sex_contradicts"] == [1]


def test_files_that_are_none(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    with pytest.raises(InputContractError, match=r"holds none of train\.bin, val\.bin"):
        deliver_delphi_bin(source, DelphiBinOptions())
    for content, message in ((b"", "holds no rows"), (b"1234567890123", "is cut: its 13 bytes")):
        (source / "train.bin").write_bytes(content)
        with pytest.raises(InputContractError, match=message):
            deliver_delphi_bin(source, DelphiBinOptions())
    write(source, {"train.bin": TWO_PEOPLE}, labels=["Padding", "", "Male", "Male"])
    with pytest.raises(InputContractError) as caught:
        deliver_delphi_bin(source, DelphiBinOptions())
    assert [fault.rule for fault in caught.value.violations] == [
        "must have one line 'Female', found 0",
        "must have one line 'Male', found 2",
        "must have one line 'Death', found 0",
        "a line must not be empty",
    ]
    (source / "labels.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputContractError, match="cannot be read as UTF-8"):
        deliver_delphi_bin(source, DelphiBinOptions())
    (source / "labels.csv").unlink()
    with pytest.raises(InputContractError, match="not found"):
        deliver_delphi_bin(source, DelphiBinOptions())
