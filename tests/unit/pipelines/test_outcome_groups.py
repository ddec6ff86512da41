"""Named outcomes: patterns find the codes they say and no others, in whatever spelling a cohort has."""

import polars as pl
import pytest
from small_cohort import write_small_cohort

from data_schemas.cohort import DEATH_CODE, FEMALE, MALE
from data_schemas.errors import UsageError
from pipelines.outcome_groups import (
    expand_outcome_groups,
    read_outcome_groups,
    resolve_outcome_names,
    sex_of_outcomes,
)
from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset

EXPECTED = {
    "cardiovascular_disease", "stroke", "type_2_diabetes", "dementia", "copd", "breast_cancer", "prostate_cancer",
    "colorectal_cancer", "lung_cancer", "chronic_kidney_disease", "death",
}  # fmt: skip


def write(tmp_path, text):
    path = tmp_path / "groups.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_documented_set_is_shipped_and_says_what_each_is():
    groups = read_outcome_groups()
    assert set(groups) == EXPECTED
    assert all(group.description for group in groups.values())
    assert {name: group.sex for name, group in groups.items() if group.sex} == {
        "breast_cancer": FEMALE,
        "prostate_cancer": MALE,
    }


@pytest.mark.parametrize(
    ("pattern", "code", "matches"),
    [
        ("I21", "I21", True),
        ("I21", "I21.4", True),
        ("I21", "I214", True),
        ("I21", "i21.4", True),
        ("I21", "ICD10CM//I21.4", True),
        ("I21", "ICD-10/I21", True),
        ("I21", "DIAGNOSIS//ICD//10//I214", True),
        ("I21", "ICD9CM//I21", False),
        ("I21", "DIAGNOSIS//ICD//9//4100", False),
        ("I21", "SNOMED/I21", False),
        ("I21", "I22", False),
        ("I21", "I2", False),
        ("I21", "I21_of_ours", False),
        ("I20-I25", "I20", True),
        ("I20-I25", "I25.9", True),
        ("I20-I25", "I26", False),
        ("I20-I25", "I19.9", False),
        ("F05.1", "F05.1", True),
        ("F05.1", "F0512", True),
        ("F05.1", "F05", False),  # three characters do not say which
        ("F05.1", "F05.10", True),
        ("N03.2-N03.7", "N03.2", True),
        ("N03.2-N03.7", "N03.79", True),
        ("N03.2-N03.7", "N03.8", False),
        ("N03.2-N03.7", "N03", False),
        ("A1A", "A1A", True),
        ("DEATH", "I21", False),
        ("D50", DEATH_CODE, False),
    ],
)
def test_patterns(tmp_path, pattern, code, matches):
    path = write(tmp_path, f"x: {{description: d, codes: ['{pattern}', Z99.9]}}")
    found = expand_outcome_groups([code], path=path)
    assert found.groups == ({"x": (code,)} if matches else {})
    assert found.n_codes == {"x": int(matches)}


def test_groups_expand_against_a_cohort_with_counts_and_notes():
    found = expand_outcome_groups(["I21", "E11", "E11.9", "C50", "bmi", DEATH_CODE, "I61"])
    assert found.groups == {
        "cardiovascular_disease": ("I21",),
        "stroke": ("I61",),
        "type_2_diabetes": ("E11", "E11.9"),
        "breast_cancer": ("C50",),
    }
    assert found.n_codes["type_2_diabetes"] == 2
    assert found.n_codes["dementia"] == 0
    assert "death" not in found.n_codes
    assert len(found.notes) == 6
    assert "'dementia' (F00-F03, F05.1, G30, G31.1) matches no code" in " ".join(found.notes)


def test_groups_are_picked_by_name():
    assert list(expand_outcome_groups(["I61", "I21"], ["stroke", "stroke"]).groups) == ["stroke"]
    with pytest.raises(UsageError, match="no outcome group gout; there are: cardiovascular_disease"):
        expand_outcome_groups(["I61"], ["gout"])


@pytest.mark.parametrize(
    "text",
    [
        "x: {description: d, codes: []}",
        "x: {description: d, codes: [I25-I20]}",
        "x: {description: d, codes: [I20-I25.1]}",
        "x: {description: d, codes: [I2*]}",
        "x: {description: d, codes: [I21], sex: other}",
        "x: {description: d, codes: [I21], typo: 1}",
        "x: {codes: [I21]}",
        "- a",
        "x: [",
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match=r"groups\.yaml|outcome group"):
        read_outcome_groups(write(tmp_path, text))


def test_the_sex_of_outcomes():
    assert sex_of_outcomes(["prostate_cancer", "I21", "stroke", "breast_cancer"]) == {
        "prostate_cancer": MALE,
        "breast_cancer": FEMALE,
    }


def test_names_a_person_writes():
    known = ["I21", "stroke", DEATH_CODE]
    assert resolve_outcome_names(["death", "stroke", "DEATH"], known) == [DEATH_CODE, "stroke"]
    with pytest.raises(UsageError, match="prepared without it"):
        resolve_outcome_names(["dementia"], known)
    with pytest.raises(UsageError, match="events there are: I21, stroke, DEATH"):
        resolve_outcome_names(["gout"], known)


def prepare_with(cohort, out, **settings):
    as_icd10 = pl.col("code").replace({"stroke": "I63", "angina": "I20", "copd": "J44"})
    for path in (cohort / "codes.parquet", *(cohort / "events").glob("*.parquet")):
        pl.read_parquet(path).with_columns(as_icd10).write_parquet(path)
    return prepare_dataset(cohort, out, PrepareConfig(**settings))


def test_prepare_makes_outcomes_of_documented_groups_and_says_which_have_no_code(tmp_path):
    cohort = write_small_cohort(tmp_path / "cohort")
    own = {"stroke": ("I63", "fracture")}  # a group of one's own has precedence
    prepared = prepare_with(cohort, tmp_path / "dataset", outcome_groups=("all",), groups=own)
    found = prepared.manifest["counts"]["codes_of_group"]
    assert {name: n for name, n in found.items() if n} == {"cardiovascular_disease": 2, "copd": 1, "stroke": 2}
    assert found["dementia"] == 0
    assert "group dementia: none of its codes is here; left out" in prepared.summary_lines
    vocabulary = pl.read_parquet(tmp_path / "dataset" / "vocabulary.parquet")
    members = dict(vocabulary.filter(pl.col("role") == "group").select("code", "members").iter_rows())
    assert members["cardiovascular_disease"] == ["I20", "I63"]
    assert members["stroke"] == ["I63", "fracture"]


def test_prepare_without_groups_has_none_and_an_unknown_name_is_wrong_usage(tmp_path):
    cohort = write_small_cohort(tmp_path / "cohort")
    assert prepare_with(cohort, tmp_path / "dataset").manifest["counts"]["codes_of_group"] == {}
    with pytest.raises(UsageError, match="no outcome group gout"):
        prepare_with(cohort, tmp_path / "other", outcome_groups=("gout",))
