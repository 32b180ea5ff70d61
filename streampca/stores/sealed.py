"""Small JSON files of one value and its checksum: a flipped bit can make another valid value."""

import zlib
from contextlib import suppress
from typing import Any

import orjson


def seal(name: str, value: int | str) -> bytes:
    """The content of the file."""
    return orjson.dumps({name: value, "crc32": zlib.crc32(str(value).encode())})


def value_in(content: bytes, name: str) -> Any:
    """The value that was sealed by this name. Other fields are ignored. Raises `ValueError` for any other content."""
    with suppress(ValueError, TypeError, KeyError):
        found = orjson.loads(content)
        if orjson.loads(seal(name, found[name])).items() <= found.items():
            return found[name]
    raise ValueError("not sealed, or damaged")
