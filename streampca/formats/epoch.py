"""Timestamps in milliseconds since 1970. One outside the years 1990 to 2100 is probably in another unit by mistake."""

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

_FIRST_MS = int(datetime(1990, 1, 1, tzinfo=UTC).timestamp() * 1000)
_END_MS = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
_UNITS_MS = {"seconds": 1000.0, "microseconds": 1e-3, "nanoseconds": 1e-6}


def find_odd_timestamps(timestamps_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the timestamps that are not between 1990 and 2100."""
    is_odd = (timestamps_ms < _FIRST_MS) | (timestamps_ms >= _END_MS)
    return timestamps_ms[is_odd]


def describe_odd_timestamp(timestamp: int) -> str:
    """Say that a timestamp is not between 1990 and 2100, and in which units it would be."""
    likely_units = [unit for unit, ms in _UNITS_MS.items() if _FIRST_MS <= timestamp * ms < _END_MS]
    hint = "".join(f"; it may be a time in {unit}" for unit in likely_units)
    return f"{timestamp}, in milliseconds since 1970 no time between 1990 and 2100{hint}"
