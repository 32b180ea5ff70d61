"""Times in columns of files."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streampca.errors import InputError

_FIRST_MS, _END_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1990, 2100))
_UNITS_MS = {"seconds": 1000.0, "microseconds": 1e-3, "nanoseconds": 1e-6}
_TEXTS = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))


def in_milliseconds(column: Any, name: str) -> Any:
    """The times of a column: timestamps, dates, ISO 8601, or milliseconds since 1970. Raises `InputError`."""
    times = _as_text(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        return times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    if not (pa.types.is_integer(times.type) or pa.types.is_null(times.type)):
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    numbers = pc.drop_null(times).to_numpy(zero_copy_only=False)
    wrong = numbers[(numbers < _FIRST_MS) | (numbers >= _END_MS)]
    if len(wrong):
        likely = [unit for unit, ms in _UNITS_MS.items() if _FIRST_MS <= wrong[0] * ms < _END_MS]
        hint = "".join(f"; it may be a time in {unit}" for unit in likely)
        text = f"column {name} holds {wrong[0]}, in milliseconds since 1970 no time between 1990 and 2100{hint}"
        raise InputError(f"{text}: convert the column to milliseconds or to a type of times")
    return times.cast(pa.int64())


def _as_text(column: Any) -> Any:
    for kind in _TEXTS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column
