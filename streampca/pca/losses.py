"""How well the model predicted messages before it learned them."""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64


class Losses(NamedTuple):
    """Losses of n messages, each measured before it was learned, about the running mean m before it."""

    residual: F64  # (n,): ‖r‖², the part of v − m outside the span of the k served components
    norm: F64  # (n,): ‖v − m‖²


NO_LOSSES = Losses(np.zeros(0), np.zeros(0))
