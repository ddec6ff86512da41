"""Mean and spread of measured values that a few typing errors cannot move."""

import polars as pl

_CENTRAL_QUANTILES = (0.005, 0.995)  # values outside are left out of the scale, not out of the data


def central_mean(value: pl.Expr) -> pl.Expr:
    """Return the mean of the central 99 % of the values; null where there are none."""
    return _central(value).mean()


def central_std(value: pl.Expr) -> pl.Expr:
    """Return the standard deviation of the central 99 % of the values; null where there are none.

    Values that do not differ have no spread to scale by: 1 leaves them at zero after centring.
    """
    spread = _central(value).std()
    return pl.when(spread > 0).then(spread).when(value.count() > 0).then(1.0)


def _central(value: pl.Expr) -> pl.Expr:
    """Return the central values, sorted: threads gather the rows of a group in any order, and sums differ with it."""
    low, high = (value.quantile(q) for q in _CENTRAL_QUANTILES)
    return value.filter(value.is_between(low, high)).sort()
