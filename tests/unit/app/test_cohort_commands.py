"""`cohort synthesize` and `cohort describe`: what they report, and what they refuse."""

import json
import sys

import pytest

from app.commands.describe import describe
from app.commands.synthesize import synthesize
from app.terminal import print_report
from data_schemas.errors import UsageError


def test_a_made_up_cohort_is_written_and_described(tmp_path, capsys):
    cohort, page = tmp_path / "cohort", tmp_path / "page.html"
    made = synthesize(subjects=200, out=cohort, seed=3, overrides=("n_codes=20",))
    assert made.last_line == f"made-up cohort written to {cohort}, its true hazards to {cohort / 'truth'}"
    assert made.facts["subjects"] == 200
    assert made.facts["settings"]["n_codes"] == 20
    assert (cohort / "truth" / "hazards.parquet").exists()

    described = describe(cohort, html=page)
    assert described.last_line == f"page written to {page}"
    assert described.lines[0].startswith("200 people (female ")
    assert page.read_text().startswith("<!DOCTYPE html>")
    print_report(described, as_json=True, out=sys.stdout)
    facts = json.loads(capsys.readouterr().out)
    assert facts["people"] == 200
    assert facts["attrition"][0]["rows_kept"] == 200
    assert "--html" in describe(cohort).last_line


@pytest.mark.parametrize("wrong", [{"subjects": 0}, {"subjects": 5, "seed": -1}])
def test_numbers_out_of_range_are_refused(tmp_path, wrong):
    with pytest.raises(UsageError, match="--subjects must be at least 1 and --seed at least 0"):
        synthesize(out=tmp_path / "cohort", **wrong)


def test_settings_are_read_like_all_others(tmp_path):
    config = tmp_path / "world.yaml"
    config.write_text("n_kodes: 5\n")
    with pytest.raises(UsageError, match="did you mean 'n_codes'"):
        synthesize(subjects=10, out=tmp_path / "cohort", config=config)
    assert not (tmp_path / "cohort").exists()
