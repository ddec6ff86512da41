"""What the arrays' side reads off the vocabulary."""

import numpy as np
import pytest
from drawn_people import OUTCOMES, ROLES, TOKENS, VOCABULARY

from data_schemas.cohort import DEATH_CODE
from data_schemas.dataset import COVARIATE, GROUP
from pipelines.token_tables import TokenTables


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [("all_future", list(OUTCOMES)), ("next_token", [code for code in OUTCOMES if ROLES[code] != GROUP])],
)
def test_outcomes_are_numbered_in_token_order_and_next_token_has_no_groups(mode, outcomes):
    tables = TokenTables.of(VOCABULARY, mode)
    assert tables.n_outcomes == len(outcomes)
    assert [int(tables.outcome_of_token[TOKENS[outcome]]) for outcome in outcomes] == list(range(len(outcomes)))
    others = [token for code, token in TOKENS.items() if code not in outcomes]
    assert (tables.outcome_of_token[others] == -1).all()


def test_scales_and_roles_stand_at_their_token():
    tables = TokenTables.of(VOCABULARY, "next_token")
    assert (tables.mean[TOKENS["bmi"]], tables.std[TOKENS["bmi"]]) == (25.0, 2.0)
    assert np.isnan(np.delete(tables.std, TOKENS["bmi"])).all()
    assert tables.is_covariate.tolist() == [ROLES[code] == COVARIATE for code in TOKENS]
    assert tables.death_token == TOKENS[DEATH_CODE]


def test_a_disease_that_never_came_twice_and_death_are_recorded_once():
    tables = TokenTables.of(VOCABULARY, "next_token")
    once = {code: bool(tables.recorded_once[tables.outcome_of_token[TOKENS[code]]]) for code in ("a", "b", DEATH_CODE)}
    assert once == {"a": False, "b": True, DEATH_CODE: True}
