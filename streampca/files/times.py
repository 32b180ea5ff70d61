"""Times in columns of files."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streampca.errors import InputError
from streampca.formats.epoch import odd_times, oddity

_TEXTS = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))


def in_milliseconds(column: Any, name: str) -> Any:
    """The times of a column: timestamps, dates, ISO 8601, or milliseconds since 1970. Raises `InputError`."""
    times = _as_text(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        return times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    if not (pa.types.is_integer(times.type) or pa.types.is_null(times.type)):
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    if len(odd := odd_times(pc.drop_null(times).to_numpy(zero_copy_only=False))):
        text = f"column {name} holds {oddity(odd[0])}"
        raise InputError(f"{text}: convert the column to milliseconds or to a type of times")
    return times.cast(pa.int64())


def _as_text(column: Any) -> Any:
    for kind in _TEXTS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column
