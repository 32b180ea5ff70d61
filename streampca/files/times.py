"""Times in columns of files."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.errors import InputError
from streampca.formats.epoch import odd_times, oddity

_TEXTS = (pa.int64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)))


def in_milliseconds(column: Any, name: str) -> NDArray[np.int64]:
    """The times of a column: timestamps, dates, ISO 8601, or milliseconds since 1970; -1: null. Raises `InputError`."""
    times = _as_text(column) if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
    if pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"), safe=False)
    elif not (pa.types.is_integer(times.type) or pa.types.is_null(times.type)):
        raise InputError(f"column {name} holds {column.type}, not times or milliseconds")
    elif len(odd := odd_times(pc.drop_null(times).to_numpy(zero_copy_only=False))):
        raise InputError(
            f"column {name} holds {oddity(odd[0])}: convert the column to milliseconds or to a type of times"
        )
    return np.asarray(pc.fill_null(times.cast(pa.int64()), -1).to_numpy(zero_copy_only=False))


def _as_text(column: Any) -> Any:
    for kind in _TEXTS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column
