"""The cohort: who was observed when, what happened, and what is known about each code.

A cohort is a folder: `subjects.parquet`, `events/*.parquet`, `codes.parquet` (optional), `import_report.json`.
"""

import dataframely as dy
import polars as pl

from data_schemas.age_units import MAX_AGE_DAYS

SUBJECTS_FILE = "subjects.parquet"
EVENTS_FOLDER = "events"
CODES_FILE = "codes.parquet"
IMPORT_REPORT_FILE = "import_report.json"

FEMALE, MALE, UNKNOWN = "female", "male", "unknown"
SEXES = (FEMALE, MALE, UNKNOWN)  # the row of the sex embedding is the position here
DEATH_CODE = "DEATH"
TRAIN, TUNING, HELD_OUT = "train", "tuning", "held_out"
SPLITS = (TRAIN, TUNING, HELD_OUT)
CATEGORY_SEPARATOR = "//"  # `smoking//yes`: category `yes` of the variable `smoking`

DISEASE, COVARIATE, DEATH = "disease", "covariate", "death"
CODE_KINDS = (DISEASE, COVARIATE, DEATH)


class Subjects(dy.Schema):
    """`cohort/subjects.parquet`, one row a person, any order.

    `subject_id` is int64 or string, as delivered. The person was under observation from `entry_age_days` (left
    truncation) to `exit_age_days` (right censoring or death), both in days since birth. People who share a
    `cluster_id` (family, matched set) go to one split; null is alone. A `split`, where given, is used as it is.
    """

    subject_id = dy.Any()
    sex = dy.String(nullable=False, check=lambda column: column.is_in(SEXES))
    birth_date = dy.Date(nullable=True)
    entry_age_days = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_DAYS)
    exit_age_days = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_DAYS)
    cluster_id = dy.String(nullable=True)
    split = dy.String(nullable=True, check=lambda column: column.is_in(SPLITS))

    @dy.rule()
    def exit_after_entry(cls) -> pl.Expr:
        """A person without follow-up can be neither trained on nor judged."""
        return cls.exit_age_days.col > cls.entry_age_days.col


class Events(dy.Schema):
    """`cohort/events/*.parquet`, one row an event, sorted by subject and age; all rows of a subject in one file.

    Diseases, death (code `DEATH`) and measurements are all events. `age_days` is days since birth;
    `numeric_value` is in the unit of the source and null where there is none.
    """

    subject_id = dy.Any()
    age_days = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_DAYS)
    code = dy.String(nullable=False, min_length=1)
    numeric_value = dy.Float64(nullable=True, allow_nan=False, allow_inf=False)


class DeliveredEvents(Events):
    """Events as an importer hands them to cleaning: an age may still lie out of range, a rule drops and counts it."""

    age_days = dy.Float64(nullable=False, allow_nan=False, allow_inf=False)


class Codes(dy.Schema):
    """`cohort/codes.parquet`, one row a code the importer knows something about; codes may be missing here.

    `kind`: `disease` may be predicted; `covariate` is input only (measurements, and diseases that were used to
    select people). A code not listed is a covariate where it carries a value, else a disease.
    """

    code = dy.String(nullable=False, min_length=1, primary_key=True)
    kind = dy.String(nullable=False, check=lambda column: column.is_in(CODE_KINDS))
    description = dy.String(nullable=True)
    chapter = dy.String(nullable=True)
