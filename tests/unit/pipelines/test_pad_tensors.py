"""What padding reads off the vocabulary."""

import numpy as np
from drawn_people import OUTCOMES, TOKENS, VOCABULARY

from pipelines.pad_tensors import TokenTables


def test_outcomes_are_numbered_in_token_order_and_scales_stand_at_their_token():
    tables = TokenTables.of(VOCABULARY)
    assert tables.n_outcomes == len(OUTCOMES)
    assert [int(tables.outcome_of_token[TOKENS[outcome]]) for outcome in OUTCOMES] == list(range(len(OUTCOMES)))
    others = [token for code, token in TOKENS.items() if code not in OUTCOMES]
    assert (tables.outcome_of_token[others] == -1).all()
    assert (tables.mean[TOKENS["bmi"]], tables.std[TOKENS["bmi"]]) == (25.0, 2.0)
    assert np.isnan(np.delete(tables.std, TOKENS["bmi"])).all()
