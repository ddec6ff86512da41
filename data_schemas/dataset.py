"""The dataset that `prepare` writes and a model is trained on: vocabulary, sequences a split, manifest."""

import dataframely as dy

from data_schemas.results import SMALLEST_SHOWN_COUNT

VOCABULARY_FILE = "vocabulary.parquet"
REFERENCE_FILE = "reference_rates.parquet"
SEQUENCES_FOLDER = "sequences"
MANIFEST_FILE = "manifest.json"

PAD, QUERY, NO_EVENT, DISEASE, GROUP, DEATH, COVARIATE = (
    "pad", "query", "no_event", "disease", "group", "death", "covariate",
)  # fmt: skip
ROLES = (PAD, QUERY, NO_EVENT, DISEASE, GROUP, DEATH, COVARIATE)
OUTCOME_ROLES = (DISEASE, GROUP, DEATH)  # what a model may predict, in token order
# A group is the first of any member: a target of its own in all_future; next_token predicts the members.
OUTCOME_ROLES_OF_MODE = {"all_future": OUTCOME_ROLES, "next_token": (DISEASE, DEATH)}
PAD_TOKEN, QUERY_TOKEN, NO_EVENT_TOKEN = 0, 1, 2


class Vocabulary(dy.Schema):
    """`dataset/vocabulary.parquet`, one row a token in token order; everything is fitted on the training split only.

    `n_subjects` people had the code (null: fewer than 10, or no code at all). `log_rate_per_year` is the logarithm of
    an outcome's rate under observation, rare ones pulled towards the overall rate (null for codes that are no
    outcome); events and person-years are not kept, because a model carries this table. `mean` and `std` scale a
    covariate's value (null where it carries none): they are those of the central 99 % of training values, so that a
    typing error of three digits does not set the scale.
    `members` are the codes of a group. `recurs` says of a disease that some training person has it at two ages or more;
    a disease that never does is recorded once and leaves the risk set when it has happened (so does death; null for
    other roles).
    """

    token = dy.Int64(nullable=False, primary_key=True, min=0)
    code = dy.String(nullable=False, unique=True)
    role = dy.String(nullable=False, check=lambda column: column.is_in(ROLES))
    description = dy.String(nullable=True)
    chapter = dy.String(nullable=True)
    n_subjects = dy.Int64(nullable=True, min=SMALLEST_SHOWN_COUNT)
    log_rate_per_year = dy.Float64(nullable=True)
    mean = dy.Float64(nullable=True)
    std = dy.Float64(nullable=True, min_exclusive=0.0)
    members = dy.List(dy.String(), nullable=True)
    recurs = dy.Bool(nullable=True)


class Sequences(dy.Schema):
    """`dataset/sequences/{train,tuning,held_out}/*.arrow`, one row a subject, memory-mapped Arrow IPC.

    `tokens`, `ages_days`, `values` are one entry an event, by age and within a day covariates, diseases, death.
    Values are as delivered (NaN: none). `first_tokens` and `first_ages_days` are the first occurrence of each
    outcome of the full history, groups included, by token: what at-risk flags and targets are read from.
    """

    subject_id = dy.Any()
    sex = dy.Int8(nullable=False, min=0, max=2)
    entry_age_days = dy.Float64(nullable=False)
    exit_age_days = dy.Float64(nullable=False)
    tokens = dy.List(dy.Int32(), nullable=False)
    ages_days = dy.List(dy.Float64(), nullable=False)
    values = dy.List(dy.Float32(allow_nan=True), nullable=False)
    first_tokens = dy.List(dy.Int32(), nullable=False)
    first_ages_days = dy.List(dy.Float64(), nullable=False)


class ReferenceRates(dy.Schema):
    """`dataset/reference_rates.parquet`: incidence by sex and age in the training split, one row a band of age.

    Nelson–Aalen increments on the age scale with delayed entry, prevalent cases excluded, spread evenly over the
    band: what the reference risk of the same age and sex is computed from. The last band is open. Every rate rests on
    10 events or more or on none at all; an outcome with fewer in both sexes together has no rows.
    """

    outcome = dy.String(nullable=False)
    sex = dy.String(nullable=False)
    age_from_years = dy.Float64(nullable=False, min=0.0)
    rate_per_year = dy.Float64(nullable=False, min=0.0)
    death_rate_per_year = dy.Float64(nullable=False, min=0.0)
