"""Times in columns of files."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.errors import InputError

_FIRST_MS, _END_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1990, 2100))
_UNITS_MS = {"seconds": 1000.0, "microseconds": 1e-3, "nanoseconds": 1e-6}
_TEXTS = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))


def in_milliseconds(column: Any, name: str) -> NDArray[np.int64]:
    """The times of a column: timestamps, dates, ISO 8601, or milliseconds since 1970; -1: null. Raises `InputError`."""
    times = _as_text(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"), safe=False)
    elif pa.types.is_integer(times.type):
        numbers = pc.drop_null(times).to_numpy(zero_copy_only=False)
        wrong = numbers[(numbers < _FIRST_MS) | (numbers >= _END_MS)]
        if len(wrong):
            likely = [unit for unit, ms in _UNITS_MS.items() if _FIRST_MS <= wrong[0] * ms < _END_MS]
            raise InputError(
                f"column {name} holds {wrong[0]}, in milliseconds since 1970 no time between 1990 and 2100"
                f"{''.join(f'; it may be a time in {unit}' for unit in likely)}: convert the column to milliseconds "
                "or to a type of times"
            )
    elif not pa.types.is_null(times.type):
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    return np.asarray(pc.fill_null(times.cast(pa.int64()), -1).to_numpy(zero_copy_only=False))


def _as_text(column: Any) -> Any:
    for kind in _TEXTS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column
