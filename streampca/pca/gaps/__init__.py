"""Vectors with gaps, which are entries that are NaN: docs/mathematics.md, section 11.

`fill` completes a block to be learned, with `kernel` as its compiled part. `conditional` completes single vectors to be
projected and scored, and says how uncertain that is.
"""

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array


def rows_with_gaps(V: Array) -> NDArray[np.bool_]:
    """Which of the vectors V (n, d) have gaps, (n,). Also true where the sum of the entries overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows: NDArray[np.bool_] = np.isnan(V.sum(axis=1))  # quicker than to look at each entry
    return rows
