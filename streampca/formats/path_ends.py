"""What is at the end of a path: a number, a null, an array, or a text or bytes that hold an array."""

from typing import Any

import numpy as np

from streampca.formats.errors import VectorError, quote_names
from streampca.formats.numbers import is_number_word, plain_number, widen_floats
from streampca.formats.text import begins_as_array, decode_text
from streampca.formats.walk import SkipReason


def read_path_end(value: Any, dimensions: int, *, may_be_encoded: bool) -> Any:
    """Return the value to which a path of `field` leads: a number, null or array.

    A text such as "[1, 2]" becomes an array. With `may_be_encoded`, bytes and texts of base64 are decoded to the d
    numbers of a vector; if `dimensions` is 0, d follows from the number of bytes. Without `may_be_encoded`, any other
    text is returned as it is. If the value is an object, raises `VectorError`.
    """
    if isinstance(value, dict):
        # `plain_number` converts a number of MongoDB, such as {"$numberLong": "5"}. It returns any other object itself.
        is_mongodb_number = plain_number(value) is not value
        if is_mongodb_number:
            return value  # not converted here, because `NumberPacker` converts all numbers later
        raise VectorError("undecodable", f"expected an array of numbers, not an object with {quote_names(value)}")
    is_text = isinstance(value, str) and not is_number_word(value)  # `NumberPacker` reads words such as NaN
    if is_text and (may_be_encoded or begins_as_array(value)):
        value = decode_text(value)  # an array, or bytes if the text is base64
    if isinstance(value, bytes) and may_be_encoded:
        return NumbersOfBytes(value, dimensions or _guess_dimensions(value))
    return value


class NumbersOfBytes(list[float]):
    """The d numbers that bytes hold: little-endian floats of 4 or 8 bytes. Their number of bytes tells their type."""

    def __init__(self, data: bytes, dimensions: int) -> None:
        super().__init__(np.frombuffer(widen_floats(data, dimensions)).tolist())
        self.dtype = f"<f{len(data) // dimensions}"


def _guess_dimensions(data: bytes) -> int:
    """Return how many floats of 4 bytes the bytes are. If they may also be floats of 8 bytes, raises `VectorError`."""
    size = len(data)
    if data and size % 8 == 0:
        sizes = f"{size // 4} numbers of 4 or {size // 8} of 8"
        raise VectorError("wrong_length", f"{size} bytes may be {sizes}: say --dimensions")
    # If bytes are left over, the caller's `widen_floats` refuses them. It also refuses no bytes, which are not 1 float.
    return max(size // 4, 1)


def innermost_arrays(array: list[Any]) -> list[Any]:
    """Return the innermost arrays of an array, with `SkipReason.NULL` for each null among arrays.

    An array that holds anything but arrays and nulls is innermost. So is an array of nulls.
    """
    has_arrays = any(isinstance(element, list) for element in array)
    has_only_arrays_and_nulls = all(isinstance(element, list | None) for element in array)
    if not has_arrays or not has_only_arrays_and_nulls:
        return [array]
    arrays = list[Any]()
    for element in array:
        arrays += [SkipReason.NULL] if element is None else innermost_arrays(element)
    return arrays
