"""Which sizes of numbers can be learned: their squares must neither overflow nor vanish in the factor's dtype."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.learning import LearningConfig


def refuse_large(V: NDArray[Any], config: LearningConfig) -> None:
    """`ValueError` for vectors (n, d) with an entry whose square overflows."""
    peak = _peak(V)
    if peak > config.largest_value:
        raise ValueError(
            f"the largest entry, {peak:.3g}, is beyond {config.largest_value:.3g}: squares of such vectors overflow in "
            f"{config.dtype}; scale the data down"
        )


def refuse_small(V: NDArray[Any], config: LearningConfig) -> None:
    """Only of a whole stream: a small vector among others is as good as zero, and welcome."""
    peak = _peak(V)
    if 0 < peak < config.smallest_value:
        raise ValueError(
            f"no entry is beyond {peak:.3g}; below {config.smallest_value:.3g} squares vanish in {config.dtype}; "
            "scale the data up"
        )


def _peak(V: NDArray[Any]) -> float:
    """The largest size of an entry, without a copy of the array."""
    return float(np.maximum(V.max(), -V.min()))
