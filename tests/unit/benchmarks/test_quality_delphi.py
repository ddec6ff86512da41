"""The benchmark's own command: its table, its keys, and that a training is not done twice."""

import json

import pytest

from benchmarks.quality_delphi import StepsInEpochs, main

KEYS = {
    "backbone", "head", "steps", "batch", "learning_rate", "parameters", "seconds", "log_likelihood_per_event",
    "macro_auc", "delphi_auc", "death_auc",
}  # fmt: skip
SMALL = (
    "--steps", "8", "--batch", "40", "--learning-rates", "0.01", "0.00001", "--backbones", "traj_mixer_v5",
    "--heads", "next_token", "mixed",
    "--set", "n_layer=1", "d_model=20", "n_head=2",
)  # fmt: skip


class CountedPasses:
    """Passes of three steps, each said by its pass and place."""

    def count(self):
        return 3

    def training(self, epoch, skip):
        return iter([(epoch, place) for place in range(skip, 3)])

    def tuning(self):
        return iter(["tuning"])


@pytest.mark.parametrize("skip", range(5))
def test_epochs_of_any_length_are_cut_from_passes_one_after_another(skip):
    steps = StepsInEpochs(CountedPasses(), 5)
    endless = [(number, place) for number in range(9) for place in range(3)]
    for epoch in range(4):
        assert list(steps.training(epoch, skip)) == endless[5 * epoch + skip : 5 * epoch + 5]
    assert steps.count() == 5
    assert list(steps.tuning()) == ["tuning"]


def test_the_table_and_a_second_call_that_finds_the_training_done(delphi_source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEEPHEALTH_TEST_DATA", str(delphi_source.parent))
    work, file = tmp_path / "work", tmp_path / "rows.json"
    assert main([*SMALL, "--work", str(work), "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [row["backbone"] for row in rows] == ["age_sex", "log_linear", "traj_mixer_v5", "traj_mixer_v5"]
    assert [row["head"] for row in rows] == [None, None, "next_token", "mixed"]
    assert all(set(row) == KEYS for row in rows)
    trained = rows[2]
    assert (trained["steps"], trained["batch"]) == (8, 40)
    assert trained["learning_rate"] == 0.01  # the other has hardly moved
    assert all(-12 < row["log_likelihood_per_event"] < -2 and 0 < row["delphi_auc"] < 1 for row in rows)
    assert "log_likelihood_per_event" in capsys.readouterr().out

    assert main([*SMALL, "--no-floors", "--work", str(work), "--json", str(file)]) == 0
    assert json.loads(file.read_text()) == rows[2:]
    assert "steps, " not in capsys.readouterr().err.partition("backbone")[0]  # no epoch was run


def test_without_the_data_it_says_what_to_set(monkeypatch, capsys):
    monkeypatch.delenv("DEEPHEALTH_TEST_DATA", raising=False)
    assert main(["--quick"]) == 2
    assert "DEEPHEALTH_TEST_DATA" in capsys.readouterr().err
