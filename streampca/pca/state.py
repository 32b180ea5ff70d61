"""What has been learned of a stream: a small frozen value."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streampca.pca.arrays import F64, Array


@dataclass(frozen=True, eq=False)
class State:
    """Factor, mean and weight: CCᵀ estimates the covariance, within the span of C.

    C has full column rank always: while the stream has shown fewer than K distinct directions, it has fewer columns.
    """

    C: Array  # (d, r), r ≤ K
    N: F64  # (r, r) = CᵀC; kept in float64 also for a float32 factor
    mean: F64  # (d,)
    weight: float  # effective number of messages
    total_variance: float  # of all d dimensions
    count: int  # messages learned
    blocks: int  # since N was last made anew: only the rhythm of upkeep

    @classmethod
    def empty(cls, d: int, dtype: str = "float64") -> "State":
        """Nothing learned yet."""
        return cls(np.zeros((d, 0), dtype), np.zeros((0, 0)), np.zeros(d), 0.0, 0.0, 0, 0)

    @property
    def rank(self) -> int:
        """Columns of C."""
        return int(self.C.shape[1])

    @property
    def S(self) -> F64:  # noqa: N802 - the letter of the paper
        """(CᵀC)⁻¹, (r, r)."""
        return np.asarray(np.linalg.inv(self.N)) if self.rank else self.N

    @property
    def C_pinv(self) -> Array:  # noqa: N802
        """C† = S Cᵀ, (r, d)."""
        return (self.S @ self.C.T).astype(self.C.dtype)

    @cached_property
    def pinv_error(self) -> float:
        """‖C†C − I‖, the largest entry: how far C† is from a pseudo-inverse. Computed once: a product."""
        return float(np.abs(self.C_pinv @ self.C - np.eye(self.rank)).max()) if self.rank else 0.0
