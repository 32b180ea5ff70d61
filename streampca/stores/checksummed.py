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
    return orjson.dumps({name: value, "crc32": _checksum(value)})


def decode(content: bytes, name: str, value_type: Any) -> Any:
    """Return the value of the field `name`.

    Raises `ValueError` if the content does not hold a value of this type with its checksum.
    """
    with suppress(ValueError, TypeError, KeyError):
        fields = orjson.loads(content)
        value = TypeAdapter(value_type).validate_python(fields[name], strict=True)
        if fields["crc32"] == _checksum(value):
            return value
    raise ValueError("not a value with its checksum, or damaged")


def _checksum(value: int | str) -> int:
    """Return the CRC-32 of the text of a value."""
    return zlib.crc32(str(value).encode())
