"""Small JSON files with one value and its checksum.

Without a checksum, a flipped bit could turn a value into another valid one.
"""

import zlib
from contextlib import suppress
from typing import Any

import orjson
from pydantic import TypeAdapter


def encode(name: str, value: int | str) -> bytes:
    """Return the content of a file with this value as the field `name`."""
    return orjson.dumps({name: value, "crc32": zlib.crc32(str(value).encode())})


def decode(content: bytes, name: str, value_type: Any) -> Any:
    """Return the value, of this type, from the field `name`; other fields than the checksum are ignored.

    Raises `ValueError` if the content does not hold such a value with its checksum.
    """
    with suppress(ValueError, TypeError, KeyError):
        fields = orjson.loads(content)
        value = TypeAdapter(value_type).validate_python(fields[name], strict=True)
        value_and_checksum = {name: fields[name], "crc32": fields["crc32"]}
        if orjson.dumps(value_and_checksum) == encode(name, value):  # else the checksum is another value's
            return value
    raise ValueError("not a value with its checksum, or damaged")
