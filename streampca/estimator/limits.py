"""Limits on the magnitude of data: squares must neither overflow nor underflow in the dtype of the factor."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.learning import LearningConfig


def refuse_large(V: NDArray[Any], config: LearningConfig) -> None:
    """Raise `ValueError` for vectors (n, d) with an entry so large that squares overflow."""
    peak = _peak(V)
    if peak > config.largest_value:
        raise ValueError(
            f"the largest entry, {peak:.3g}, is beyond {config.largest_value:.3g}: squares of such vectors overflow in "
            f"{config.dtype}; scale the data down"
        )


def refuse_small(V: NDArray[Any], config: LearningConfig) -> None:
    """Raise `ValueError` if the squares of all entries underflow; single small vectors just count as zero."""
    peak = _peak(V)
    if 0 < peak < config.smallest_value:
        raise ValueError(
            f"no entry is beyond {peak:.3g}; below {config.smallest_value:.3g} squares underflow in {config.dtype}; "
            "scale the data up"
        )


def _peak(V: NDArray[Any]) -> float:
    """The largest magnitude of an entry that is not NaN, without a copy of the array."""
    return float(np.maximum(np.fmax.reduce(V, axis=None), -np.fmin.reduce(V, axis=None)))
