"""Rows of numbers in a JSON object, parsed by simdjson: no Python object is created for a number.

`parse_rows` accepts only what it is certain to parse as orjson would; the caller parses the rest with orjson, which
also reports what is wrong.
"""

from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np

from streampca.pca.arrays import F64
from streampca.vectors.json import BYTE_ORDER_MARK, import_simdjson
from streampca.vectors.json_sizes import count


def parse_rows(text: bytes, names: Collection[str]) -> dict[str, Any] | None:
    """The object's fields, an array of rows as float64 (n, width); None if orjson might find others, or an error.

    Also None if a field is not in `names`, if two are arrays, and if rows differ in length or are empty.
    """
    simdjson = _simdjson()
    if simdjson is None or text.startswith(BYTE_ORDER_MARK):  # simdjson would ignore the mark
        return None
    try:
        found = simdjson.Parser().parse(text)  # as fast as one that is kept, and for any thread
        if type(found) is not simdjson.Object or len(found) > len(names):
            return None
        fields: dict[str, Any] = {}
        for name in found:
            if name not in names or name in fields:  # of duplicates, simdjson would take the first
                return None
            value = found[name]
            if type(value) is simdjson.Object:
                return None
            fields[name] = _array(value, count(text, b"[")) if type(value) is simdjson.Array else value
    except Exception:  # of any kind: orjson reports what is wrong, if anything is
        return None
    return fields


def _array(rows: Any, brackets: int) -> F64:
    """The rows as one array. Raises an error unless they are arrays of equal length that hold nothing but numbers.

    `brackets`: opening ones in the whole text. simdjson flattens nested arrays: require that all brackets belong to the
    rows and to the array of rows.
    """
    (width,) = {len(row) if type(row) is type(rows) else -1 for row in rows}
    if width < 1 or brackets != len(rows) + 1:
        raise ValueError("not a table")
    return np.frombuffer(rows.as_buffer(of_type="d")).reshape(len(rows), width)


@cache
def _simdjson() -> Any:
    return import_simdjson()
