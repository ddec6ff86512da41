"""What a registered model is given: one row a person, so that no engine can tear a person's history apart."""

import dataframely as dy

from data_schemas.age_units import MAX_AGE_DAYS
from data_schemas.cohort import SEXES


class PersonRows(dy.Schema):
    """The input of a registered model, one row a person: the same for pandas, HTTP and Spark.

    `codes`, `ages_days` and `values` have one entry an event and the same length; a value is null where an event
    carries none. Events after `landmark_age_days`, the age at which the risk is asked for, are not used.
    `subject_id` is a whole number or a string, returned as it came; it need not be unique.
    """

    subject_id = dy.Any()
    sex = dy.String(nullable=False, check=lambda column: column.is_in(SEXES))
    codes = dy.List(dy.String(nullable=False, min_length=1), nullable=False)
    ages_days = dy.List(dy.Float64(nullable=False, min=0.0, max=MAX_AGE_DAYS), nullable=False)
    values = dy.List(dy.Float64(nullable=True), nullable=False)
    landmark_age_days = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_DAYS)
