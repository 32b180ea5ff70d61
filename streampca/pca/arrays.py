"""Types of arrays for annotations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 or float64
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
