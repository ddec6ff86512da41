"""What people of UK Biobank answered and what was measured at an assessment, as covariates."""

from collections.abc import Mapping

import polars as pl

from data_schemas.cohort import CATEGORY_SEPARATOR, COVARIATE, Codes, Events, Subjects
from pipelines.import_cohort.calendar_ages import DAY, at_ages, first_reason
from pipelines.import_cohort.source_tables import read_day, read_number
from pipelines.import_cohort.ukb_cells import INSTANCE, VALUE
from pipelines.import_cohort.ukb_fields import ASSESSMENT_DATE_FIELD, FIELD

ASSESSMENT_RULES = {
    "no_answer": "the answer is 'do not know' or 'prefer not to answer'",
    "no_value": "a measurement that is no number",
}
_NO_ANSWER = ("-1", "-3", "do not know", "prefer not to answer")
_ANSWER_WORDS = {  # field -> category <- code and wording of the Showcase
    1239: {
        "most days": ("1", "yes, on most or all days"),
        "occasionally": ("2", "only occasionally"),
        "no": ("0", "no"),
    },
    1558: {
        "daily": ("1", "daily or almost daily"),
        "three or four times a week": ("2", "three or four times a week"),
        "once or twice a week": ("3", "once or twice a week"),
        "one to three times a month": ("4", "one to three times a month"),
        "special occasions": ("5", "special occasions only"),
        "never": ("6", "never"),
    },
}


def make_assessments(
    cells: pl.LazyFrame, people: pl.LazyFrame, measurements: Mapping[int, str], answers: Mapping[int, str]
) -> pl.LazyFrame:
    """Return one event for each measurement and answer, dated by the assessment of the same instance.

    Args:
        cells: the filled cells of the export.
        people: `Subjects`.
        measurements: fields whose number is the value of a code -> that code.
        answers: fields whose answer is a category -> the variable.
    """
    key = [Subjects.subject_id.name, INSTANCE]
    assessed = cells.filter(pl.col(FIELD) == ASSESSMENT_DATE_FIELD)
    assessed = assessed.select(*key, read_day(pl.col(VALUE), pl.String()).alias(DAY))
    is_number, number = pl.col(FIELD).is_in(list(measurements)), read_number(pl.col(VALUE), pl.String())
    dated = (
        cells.filter(pl.col(FIELD).is_in([*measurements, *answers]))
        .join(assessed, on=key, how="left", maintain_order="left")
        .select(
            Subjects.subject_id.name,
            DAY,
            _code(measurements, answers).alias(Events.code.name),
            pl.when(is_number).then(number).alias(Events.numeric_value.name),
            first_reason(
                [
                    ("no_answer", ~is_number & pl.col(VALUE).str.to_lowercase().is_in(_NO_ANSWER)),
                    ("no_value", is_number & number.is_null()),
                    ("no_date", pl.col(DAY).is_null()),
                ]
            ),
        )
    )
    return at_ages(dated, people)


def describe_covariates(
    cells: pl.LazyFrame, measurements: Mapping[int, str], answers: Mapping[int, str]
) -> pl.LazyFrame:
    """Return `Codes` of all measurements and answers that occur."""
    return (
        cells.filter(pl.col(FIELD).is_in([*measurements, *answers]))
        .select(_code(measurements, answers).alias(Codes.code.name), FIELD)
        .unique()
        .sort(Codes.code.name)
        .select(
            Codes.code.name,
            pl.lit(COVARIATE).alias(Codes.kind.name),
            pl.format("UK Biobank field {}", FIELD).alias(Codes.description.name),
            pl.lit(None, dtype=pl.String).alias(Codes.chapter.name),
        )
    )


def _code(measurements: Mapping[int, str], answers: Mapping[int, str]) -> pl.Expr:
    """Name a measurement by its code, an answer by its category; answers without a word of ours keep their own."""
    field, answer = pl.col(FIELD), pl.col(VALUE).str.to_lowercase()
    category = answer
    for coded_field, words in _ANSWER_WORDS.items():
        spellings = {spelling: word for word, both in words.items() for spelling in both}
        category = pl.when(field == coded_field).then(answer.replace(spellings)).otherwise(category)
    name = field.replace_strict({**answers, **measurements}, default=None, return_dtype=pl.String)
    with_category = pl.concat_str(name, category, separator=CATEGORY_SEPARATOR)
    return pl.when(field.is_in(list(measurements))).then(name).otherwise(with_category)
