"""Times in milliseconds since 1970, and those that are in another unit by mistake."""

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

_FIRST_MS, _END_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1990, 2100))
_UNITS_MS = {"seconds": 1000.0, "microseconds": 1e-3, "nanoseconds": 1e-6}


def odd_times(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """The times that are not between 1990 and 2100."""
    return times[(times < _FIRST_MS) | (times >= _END_MS)]


def oddity(time: int) -> str:
    """What is odd about such a time, and its likely unit."""
    likely = [unit for unit, ms in _UNITS_MS.items() if _FIRST_MS <= time * ms < _END_MS]
    hint = "".join(f"; it may be a time in {unit}" for unit in likely)
    return f"{time}, in milliseconds since 1970 no time between 1990 and 2100{hint}"
