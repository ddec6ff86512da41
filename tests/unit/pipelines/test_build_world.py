"""The world that settings make: which codes, which sexes, an order without cycles, the same every time."""

import polars as pl
import pytest
from pydantic import ValidationError

from data_schemas.cohort import DEATH_CODE, Codes
from data_schemas.truth import TrueComorbidities, TrueHazards
from pipelines.synthesize.build_world import build_tables, list_codes
from pipelines.synthesize.config import SynthesizeConfig


@pytest.fixture(scope="module")
def tables():
    return build_tables(SynthesizeConfig())


def test_a_world_keeps_its_contract_and_has_as_many_codes_as_asked_for(tables):
    hazards, comorbidities = tables
    assert TrueHazards.is_valid(hazards)
    assert TrueComorbidities.is_valid(comorbidities)
    assert hazards.height == 301
    assert hazards["code"].n_unique() == 301
    assert hazards["code"][-1] == DEATH_CODE
    assert hazards["code"].head(300).str.contains(r"^[A-Z]\d\d$").all()


@pytest.mark.parametrize("n_codes", [2, 40, 1000])
def test_worlds_may_be_small_and_large(n_codes):
    hazards, comorbidities = build_tables(SynthesizeConfig(n_codes=n_codes, world_seed=3))
    assert hazards["code"].n_unique() == n_codes + 1
    assert set(comorbidities["cause"]) | set(comorbidities["effect"]) <= set(hazards["code"])


def test_every_cause_stands_before_its_effect(tables):
    hazards, comorbidities = tables
    place = {code: position for position, code in enumerate(hazards["code"])}
    assert all(place[cause] < place[effect] for cause, effect in comorbidities.select("cause", "effect").iter_rows())
    assert not comorbidities.select("cause", "effect").is_duplicated().any()
    assert DEATH_CODE not in set(comorbidities["cause"])


def test_known_comorbidities_are_kept_and_others_are_drawn(tables):
    _, comorbidities = tables
    ratios = {(cause, effect): ratio for cause, effect, ratio in comorbidities.iter_rows()}
    assert ratios["E11", "N18"] > 1
    without = build_tables(SynthesizeConfig(causes_per_code=0))[1]
    assert 300 < comorbidities.height - without.height < 600  # 1.5 a code
    assert (comorbidities["ratio"] > 1).all()


def test_codes_of_one_sex_have_no_rate_in_the_other(tables):
    rates = {code: (female, male) for code, female, male in tables[0].select(
        "code", "female_rate_per_year", "male_rate_per_year"
    ).iter_rows()}  # fmt: skip
    assert rates["C61"][0] == 0 < rates["C61"][1]
    assert rates["C54"][1] == 0 < rates["C54"][0]
    for code, (female, male) in rates.items():
        assert female + male > 0
        if code.startswith("O"):
            assert male == 0
        if "N70" <= code <= "N98":
            assert male == 0
        if "C60" <= code <= "C63":
            assert female == 0
    one_sex = {code for code, both in rates.items() if 0 in both}
    pairs = tables[1].filter(pl.col("cause").is_in(one_sex) & pl.col("effect").is_in(one_sex))
    for cause, effect in pairs.select("cause", "effect").iter_rows():
        assert (rates[cause][0] == 0) == (rates[effect][0] == 0)


def test_a_world_depends_on_its_seed_alone(tables):
    again = build_tables(SynthesizeConfig(loss_per_year=0.1, entry_until_years=60))
    assert all(first.equals(second) for first, second in zip(tables, again, strict=True))
    other = build_tables(SynthesizeConfig(world_seed=1))
    assert not tables[0].equals(other[0])


def test_incidence_scale_acts_on_diseases_and_not_on_death(tables):
    doubled = build_tables(SynthesizeConfig(incidence_scale=2))[0]
    ratio = doubled["female_rate_per_year"] + doubled["male_rate_per_year"]
    ratio /= tables[0]["female_rate_per_year"] + tables[0]["male_rate_per_year"]
    assert ratio.head(300).to_list() == pytest.approx([2] * 300)
    assert ratio[-1] == 1


def test_codes_are_described_by_icd_10():
    codes = list_codes(["I10", "C34", DEATH_CODE])
    assert Codes.is_valid(codes)
    rows = {row["code"]: row for row in codes.iter_rows(named=True)}
    assert "hypertension" in rows["I10"]["description"]
    assert rows["C34"]["chapter"].startswith("II ")
    assert {rows[code]["kind"] for code in ("bmi", "sbp", "smoking//never")} == {"covariate"}
    assert rows[DEATH_CODE]["kind"] == "death"


@pytest.mark.parametrize(
    "settings",
    [
        {"n_codes": 1},
        {"n_codes": 1001},
        {"entry_from_years": 60, "entry_until_years": 60},
        {"recruited_from": "2011-01-01"},
        {"censored_on": "2010-01-01"},
        {"censored_on": "2060-01-01"},
        {"frailty": 1},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValidationError):
        SynthesizeConfig(**settings)
