"""Step sizes η for the paper's own update. The unit gauge needs none: there η is one over the weight learned."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PowerStep:
    """η_t = η₀ / t^γ, t = 1, 2, … (paper, Experiments: γ = 0.8 for the implicit update)."""

    eta0: float = 1.0
    gamma: float = 0.8

    def __call__(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Step sizes of the iterations `t`."""
        eta: NDArray[np.float64] = self.eta0 / np.asarray(t, np.float64) ** self.gamma
        return eta
