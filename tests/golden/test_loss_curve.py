"""A refactor of cohort, queries, padding, network or training reproduces this loss curve (`make_loss_curve.py`)."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from make_loss_curve import NUMBERS, loss_curve

# Other processors and numbers of threads sum in another order; a change of seed or formula moves the third digit.
TOLERANCE = 1e-4


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_the_loss_curve_is_reproduced(tmp_path):
    expected, found = json.loads(NUMBERS.read_text(encoding="utf-8")), loss_curve(tmp_path)
    for name in ("training_loss", "tuning_loss"):
        np.testing.assert_allclose(found[name], expected[name], rtol=TOLERANCE)
    assert len(found["training_loss"]) == 32
