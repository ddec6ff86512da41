"""Make a world of a few hundred diseases: the well-known ones from the tables beside this file, others drawn.

`diseases.csv` holds rates, shapes and ratios, set by hand after what is commonly reported of northern European
populations: plausible, not estimates. `comorbidities.csv` holds known causes and effects; `chapters.csv` says what a
disease looks like that is drawn from a chapter of ICD-10.
"""

from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import polars as pl

from data_schemas.age_units import MAX_AGE_YEARS
from data_schemas.cohort import COVARIATE, DEATH, DEATH_CODE, DISEASE, FEMALE, MALE, Codes
from data_schemas.truth import TrueComorbidities, TrueHazards
from pipelines.evaluation.array_types import BoolArray, FloatArray
from pipelines.import_cohort.normalise_codes import describe_codes, icd10_categories
from pipelines.synthesize.config import SynthesizeConfig
from pipelines.synthesize.world import BMI_CODE, SBP_CODE, SMOKING_CODES

# Columns of the tables beside this file, where they are not those of the truth.
_RATE, _SEX, _MALE_RATIO = "rate_per_1000_years", "sex", "male_ratio"  # rates at 60 of women, of men where men alone
_BMI, _SBP, _SMOKING, _DEATH = "bmi", "sbp", "smoking", "death"  # ratios: a standard deviation, smokers, of death
_CHAPTER, _MEDIAN_RATE, _SHAPE_FROM, _SHAPE_UNTIL = "chapter", "median_rate_per_1000_years", "shape_from", "shape_until"
_FOLDER = Path(__file__).parent
_DISEASES = _FOLDER / "diseases.csv"
_COMORBIDITIES = _FOLDER / "comorbidities.csv"
_CHAPTERS = _FOLDER / "chapters.csv"

_NUMBERS = (
    _RATE,
    TrueHazards.shape.name,
    TrueHazards.from_years.name,
    TrueHazards.until_years.name,
    *(_MALE_RATIO, _BMI, _SBP, _SMOKING, _DEATH),
)
_BOTH = "both"
_SMOKED_SHARE = 0.4  # of the log ratio of people who smoke, for those who did

# What drawn diseases look like, on the log scale.
_RATE_SD, _MALE_SD = 0.6, 0.3
_TRAIT_SHARE, _TRAIT_SD = 0.3, 0.15  # how many diseases a trait acts on, and how much
_DEATH_SHARE, _DEATH_MEAN = 0.15, 0.2
_RATIO_MEAN, _RATIO_SD, _SMALLEST_RATIO = 0.5, 0.2, 0.1  # of a drawn cause
_SAME_CHAPTER_WEIGHT = 3.0
# Codes of one sex: first and last of each range.
_RANGES_OF_SEX = {
    FEMALE: (("C51", "C58"), ("D25", "D28"), ("D39", "D39"), ("E28", "E28"), ("N70", "N98"), ("O00", "O99")),
    MALE: (("C60", "C63"), ("D29", "D29"), ("D40", "D40"), ("E29", "E29"), ("N40", "N51")),
}
_PREGNANCY_CHAPTER, _PREGNANCY_YEARS = "XV", (16.0, 46.0)


def build_tables(config: SynthesizeConfig) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the hazards and comorbidities of the world of these settings (`TrueHazards`, `TrueComorbidities`).

    A small world holds the most frequent of the well-known diseases.
    """
    rng = np.random.default_rng(config.world_seed)
    known = pl.read_csv(_DISEASES, schema_overrides=dict.fromkeys(_NUMBERS, pl.Float64))
    death = known.filter(TrueHazards.code.col == DEATH_CODE)
    frequent = (
        known.filter(TrueHazards.code.col != DEATH_CODE)
        .sort(_RATE, descending=True, maintain_order=True)
        .head(config.n_codes)
    )
    drawn = _draw_diseases(config.n_codes - frequent.height, known[TrueHazards.code.name].to_list(), rng)
    diseases = pl.concat([frequent, drawn.select(known.columns)])
    edges = _keep_edges(pl.read_csv(_COMORBIDITIES), diseases)
    ordered = _order_diseases(diseases, edges, rng)
    comorbidities = [edges, _draw_edges(ordered, edges, config.causes_per_code, rng), _causes_of_death(ordered)]
    hazards = [_as_hazards(ordered, config.incidence_scale), _as_hazards(death, 1.0)]
    return pl.concat(hazards), pl.concat(comorbidities)


def list_codes(codes: Sequence[str]) -> pl.DataFrame:
    """Return `Codes`: the diseases of a world with the texts of ICD-10, its measurements, and death."""
    rows = [
        *((code, DISEASE, None, None) for code in codes if code != DEATH_CODE),
        (BMI_CODE, COVARIATE, "Body mass index at entry, kg/m²", "measurement"),
        (SBP_CODE, COVARIATE, "Systolic blood pressure at entry, mmHg", "measurement"),
        *((code, COVARIATE, f"Smoking at entry: {code.partition('//')[2]}", "lifestyle") for code in SMOKING_CODES),
        (DEATH_CODE, DEATH, "Death of any cause", "death"),
    ]
    table = pl.LazyFrame(rows, schema=dict.fromkeys(Codes.column_names(), pl.String), orient="row")
    return describe_codes(table).collect()


def _chapters_of_codes() -> pl.DataFrame:
    """Return code and chapter (`IX`) of the categories of ICD-10 that are a letter and two digits, by code."""
    return (
        icd10_categories()
        .select(pl.first().alias(TrueHazards.code.name), Codes.chapter.col.str.split(" ").list.first().alias(_CHAPTER))
        .filter(TrueHazards.code.col.str.contains(r"^[A-Z]\d\d$"))
        .sort(TrueHazards.code.name)
    )


def _draw_diseases(n: int, taken: Sequence[str], rng: np.random.Generator) -> pl.DataFrame:
    """Draw n further codes of ICD-10 and what they look like, in the columns of `diseases.csv`."""
    free = (
        _chapters_of_codes()
        .filter(~TrueHazards.code.col.is_in(taken))
        .join(pl.read_csv(_CHAPTERS), on=_CHAPTER, how="inner", maintain_order="left")
    )
    chosen = free[np.sort(rng.choice(free.height, size=n, replace=False))]
    in_pregnancy = pl.col(_CHAPTER) == _PREGNANCY_CHAPTER
    sexless = np.exp(rng.normal(0.0, _MALE_SD, n))
    return chosen.with_columns(
        (pl.col(_MEDIAN_RATE) * pl.lit(pl.Series(np.exp(rng.normal(0.0, _RATE_SD, n))))).alias(_RATE),
        (pl.col(_SHAPE_FROM) + (pl.col(_SHAPE_UNTIL) - pl.col(_SHAPE_FROM)) * pl.lit(pl.Series(rng.random(n)))).alias(
            TrueHazards.shape.name
        ),
        *(
            pl.when(in_pregnancy).then(pl.lit(of_pregnancy)).otherwise(pl.lit(of_life)).alias(column)
            for column, of_pregnancy, of_life in (
                (TrueHazards.from_years.name, _PREGNANCY_YEARS[0], 0.0),
                (TrueHazards.until_years.name, _PREGNANCY_YEARS[1], MAX_AGE_YEARS),
            )
        ),
        _sex_of_code().alias(_SEX),
        pl.when(_sex_of_code() == _BOTH).then(pl.lit(pl.Series(sexless))).otherwise(1.0).alias(_MALE_RATIO),
        *(pl.Series(trait, _draw_trait_ratios(n, rng)) for trait in (_BMI, _SBP, _SMOKING)),
        pl.Series(_DEATH, np.exp(rng.exponential(_DEATH_MEAN, n) * (rng.random(n) < _DEATH_SHARE))),
    )


def _draw_trait_ratios(n: int, rng: np.random.Generator) -> FloatArray:
    ratios: FloatArray = np.exp(rng.normal(0.0, _TRAIT_SD, n) * (rng.random(n) < _TRAIT_SHARE))
    return ratios


def _sex_of_code() -> pl.Expr:
    """Return the sex that a code belongs to, by ranges of ICD-10; codes of three characters sort like text."""
    sex = pl.lit(_BOTH)
    for name, ranges in _RANGES_OF_SEX.items():
        in_ranges = pl.any_horizontal(
            *(TrueHazards.code.col.is_between(pl.lit(first), pl.lit(last)) for first, last in ranges)
        )
        sex = pl.when(in_ranges).then(pl.lit(name)).otherwise(sex)
    return sex


def _keep_edges(edges: pl.DataFrame, diseases: pl.DataFrame) -> pl.DataFrame:
    """Keep the comorbidities between diseases of this world."""
    codes = diseases[TrueHazards.code.name].to_list()
    return edges.filter(TrueComorbidities.cause.col.is_in(codes) & TrueComorbidities.effect.col.is_in(codes))


def _order_diseases(diseases: pl.DataFrame, edges: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Order diseases so that each comes after its known causes; those without any stand at random places."""
    causes: dict[str, list[str]] = {}
    for cause, effect in edges.select(TrueComorbidities.cause.name, TrueComorbidities.effect.name).iter_rows():
        causes.setdefault(effect, []).append(cause)
    linked = list(TopologicalSorter(causes).static_order())
    place = dict(zip(linked, (np.arange(len(linked)) + 0.5) / max(len(linked), 1), strict=True))
    codes = diseases[TrueHazards.code.name]
    at_random = dict(zip(codes, rng.random(codes.len()), strict=True))
    places = np.array([place.get(code, at_random[code]) for code in codes])
    return diseases[np.argsort(places)]


def _draw_edges(
    diseases: pl.DataFrame, known: pl.DataFrame, causes_per_code: float, rng: np.random.Generator
) -> pl.DataFrame:
    """Draw further causes for each disease among those before it, frequent ones and those of its chapter more often.

    None is drawn twice; a disease with few others before it has few causes.
    """
    codes = diseases[TrueHazards.code.name].to_list()
    chapters = diseases.join(_chapters_of_codes(), on=TrueHazards.code.name, how="left", maintain_order="left")[
        _CHAPTER
    ].to_numpy()
    frequency = np.sqrt(diseases[_RATE].to_numpy())
    sexes = diseases[_SEX].to_numpy()
    taken = set(known.select(TrueComorbidities.cause.name, TrueComorbidities.effect.name).iter_rows())
    rows: list[tuple[str, str, float]] = []
    for effect, code in enumerate(codes):
        is_free = np.array([(cause, code) not in taken for cause in codes[:effect]], dtype=np.bool_)
        is_free &= _can_share_a_person(sexes[:effect], sexes[effect])
        n_causes = min(rng.poisson(causes_per_code), int(is_free.sum()))
        weights = frequency[:effect] * np.where(chapters[:effect] == chapters[effect], _SAME_CHAPTER_WEIGHT, 1.0)
        shares = weights * is_free / max((weights * is_free).sum(), np.finfo(np.float64).tiny)
        causes: Sequence[int] = rng.choice(effect, size=n_causes, replace=False, p=shares).tolist() if n_causes else []
        log_ratios = np.maximum(rng.normal(_RATIO_MEAN, _RATIO_SD, n_causes), _SMALLEST_RATIO)
        rows += [(codes[cause], code, float(np.exp(ratio))) for cause, ratio in zip(causes, log_ratios, strict=True)]
    return pl.DataFrame(rows, schema=known.schema, orient="row")


def _can_share_a_person(sexes: np.ndarray, sex: str) -> BoolArray:
    shared: BoolArray = (sexes == sex) | (sexes == _BOTH) | np.full(sexes.size, sex == _BOTH)
    return shared


def _causes_of_death(diseases: pl.DataFrame) -> pl.DataFrame:
    return diseases.filter(pl.col(_DEATH) != 1.0).select(
        TrueHazards.code.col.alias(TrueComorbidities.cause.name),
        pl.lit(DEATH_CODE).alias(TrueComorbidities.effect.name),
        pl.col(_DEATH).alias(TrueComorbidities.ratio.name),
    )


def _as_hazards(diseases: pl.DataFrame, scale: float) -> pl.DataFrame:
    """Bring the columns of `diseases.csv` to those of `TrueHazards`."""
    rate = pl.col(_RATE) * (scale / 1000.0)
    smoking = pl.col(_SMOKING).log()
    return diseases.select(
        TrueHazards.code.col,
        TrueHazards.form.col,
        TrueHazards.shape.col,
        pl.when(pl.col(_SEX) != MALE).then(rate).otherwise(0.0).alias(TrueHazards.female_rate_per_year.name),
        pl.when(pl.col(_SEX) != FEMALE)
        .then(rate * pl.col(_MALE_RATIO))
        .otherwise(0.0)
        .alias(TrueHazards.male_rate_per_year.name),
        TrueHazards.from_years.col,
        TrueHazards.until_years.col,
        pl.col(_BMI).log().alias(TrueHazards.log_ratio_bmi.name),
        pl.col(_SBP).log().alias(TrueHazards.log_ratio_sbp.name),
        (smoking * _SMOKED_SHARE).alias(TrueHazards.log_ratio_smoked.name),
        smoking.alias(TrueHazards.log_ratio_smokes.name),
    )
