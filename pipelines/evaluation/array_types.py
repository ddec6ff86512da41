"""The array types of the metrics and how person weights are laid out.

n people, R bootstrap replicates. A weight array is [n] (one estimate) or [R, n] (one estimate a replicate); every
metric works on the last axis, so its result has the shape of the weights without that axis: [] or [R].
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def person_weights(weights: npt.ArrayLike | None, n_people: int) -> FloatArray:
    """Return the weights as float64 [..., n]; None is weight one for everyone.

    Raises ValueError where the last axis is not the people.
    """
    if weights is None:
        return np.ones(n_people)
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] != n_people:
        raise ValueError(f"weights of shape {array.shape} do not fit {n_people} people")
    return array


def divide_or_nan(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Return numerator / denominator, NaN where the denominator is not positive: an estimate that does not exist."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    ratio: FloatArray = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
    return ratio


def sum_by_label(label: IntArray, values: FloatArray, n_labels: int) -> FloatArray:
    """Sum values [n] over people of one label [n], counted from 0: [n_labels]."""
    return np.asarray(np.bincount(label, weights=values, minlength=n_labels), dtype=np.float64)
