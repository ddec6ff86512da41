"""The scale of a measurement: what a few errors cannot move, and the order of rows neither."""

import numpy as np
import polars as pl

from pipelines.central_scale import central_mean, central_std


def scale_of(values):
    table = pl.DataFrame({"code": "sbp", "value": values})
    return table.group_by("code").agg(mean=central_mean(pl.col("value")), std=central_std(pl.col("value"))).row(0)


def test_every_order_of_rows_gives_the_same_bits():
    rng = np.random.default_rng(3)
    values = rng.normal(130, 15, 500)
    found = {scale_of(rng.permutation(values)) for _ in range(30)}
    assert len(found) == 1


def test_a_few_typing_errors_move_nothing():
    values = np.random.default_rng(3).normal(130, 15, 2_000)
    with_errors = np.concatenate([values, [1e9, -1e9, 13_000.0]])
    np.testing.assert_allclose(scale_of(with_errors)[1:], scale_of(values)[1:], rtol=0.02)


def test_equal_values_have_spread_one_and_none_have_none():
    assert scale_of(np.full(20, 7.0))[1:] == (7.0, 1.0)
    assert scale_of([None, None])[1:] == (None, None)
