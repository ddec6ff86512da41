"""The `truth/` folder of a made-up cohort: everything from which the true risks follow, and what stayed hidden.

`world.json`: the settings the world was made with, the variance of the frailty, and how measurements are scaled.
"""

import dataframely as dy
import polars as pl

from data_schemas.age_units import MAX_AGE_YEARS

TRUTH_FOLDER = "truth"
WORLD_FILE = "world.json"
HAZARDS_FILE = "hazards.parquet"
COMORBIDITIES_FILE = "comorbidities.parquet"
HIDDEN_TRAITS_FILE = "hidden_traits.parquet"

GOMPERTZ, WEIBULL = "gompertz", "weibull"
FORMS = (GOMPERTZ, WEIBULL)
REFERENCE_AGE_YEARS = 60.0  # the age at which rates are stated


class TrueHazards(dy.Schema):
    """`truth/hazards.parquet`, one row a code; a code depends on codes of earlier rows alone, and death is the last.

    Hazard a year at age a of a person with frailty z, in [from_years, until_years), 0 outside:

        z · rate(sex) · f(a) · exp(Σ log_ratio · trait) · Π ratio over past diseases that are causes of it

    with f(a) = exp(shape · (a − 60)) (gompertz) or (a/60)^(shape − 1) (weibull). Traits: body mass index and systolic
    pressure in standard deviations (`world.json`), and whether a person smoked once or smokes (0 or 1).
    """

    code = dy.String(nullable=False, min_length=1, primary_key=True)
    form = dy.String(nullable=False, check=lambda column: column.is_in(FORMS))
    shape = dy.Float64(nullable=False, min_exclusive=0.0)
    female_rate_per_year = dy.Float64(nullable=False, min=0.0, allow_nan=False, allow_inf=False)
    male_rate_per_year = dy.Float64(nullable=False, min=0.0, allow_nan=False, allow_inf=False)
    from_years = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_YEARS)
    until_years = dy.Float64(nullable=False, min=0.0, max=MAX_AGE_YEARS)
    log_ratio_bmi = dy.Float64(nullable=False, allow_nan=False, allow_inf=False)
    log_ratio_sbp = dy.Float64(nullable=False, allow_nan=False, allow_inf=False)
    log_ratio_smoked = dy.Float64(nullable=False, allow_nan=False, allow_inf=False)
    log_ratio_smokes = dy.Float64(nullable=False, allow_nan=False, allow_inf=False)

    @dy.rule()
    def window_is_not_empty(cls) -> pl.Expr:
        """A code that can never happen is none."""
        return cls.until_years.col > cls.from_years.col


class TrueComorbidities(dy.Schema):
    """`truth/comorbidities.parquet`: after its `cause` the hazard of an `effect` is `ratio` times as high.

    Ratios of several causes multiply. The graph has no cycle; the effect may be death.
    """

    cause = dy.String(nullable=False)
    effect = dy.String(nullable=False)
    ratio = dy.Float64(nullable=False, min_exclusive=0.0, allow_nan=False, allow_inf=False)


class HiddenTraits(dy.Schema):
    """`truth/hidden_traits.parquet`, one row a person: what nobody who scores the cohort may know.

    `frailty` multiplies all hazards of the person; its mean is 1 at birth, and lower among those alive at entry.
    """

    subject_id = dy.Int64(nullable=False, primary_key=True)
    frailty = dy.Float64(nullable=False, min_exclusive=0.0)
