"""JSON: an array of numbers, or an object with such an array in one of its fields."""

from typing import Any

import numpy as np

from streampca.vectors.json import loads, may_hold_booleans
from streampca.vectors.packing import NumberPacker, VectorBytes, VectorError, listed, missing_field, type_name


class JsonReader:
    """See `formats.base.Reader`. With `gaps` an entry may be null or NaN; both give NaN."""

    dtype = np.dtype(np.float64)
    size = None
    is_batch = False

    def __init__(self, dimensions: int, field: str, *, gaps: bool) -> None:
        self._field, self._path = field, field.split(".") if field else []
        self._packer, self._gaps = NumberPacker(dimensions, gaps=gaps), gaps

    def read(self, value: bytes) -> VectorBytes:
        return self._packer.pack(self._array(value), booleans=may_hold_booleans(value))

    def _array(self, value: bytes) -> list[Any]:
        found = loads(value, nan=self._gaps)
        for name in self._path:
            if not isinstance(found, dict) or name not in found:
                raise missing_field(self._field, name, found, "JSON object")
            found = found[name]
        if not isinstance(found, list):
            hint = f" with {listed(found)}: set `field` to where the vector is" if isinstance(found, dict) else ""
            raise VectorError("undecodable", f"expected a JSON array of numbers, not {type_name(found)}{hint}")
        return found
