"""Small JSON files of one value and its checksum: a flipped bit can make another valid value."""

import zlib
from contextlib import suppress
from typing import Any

import orjson
from pydantic import TypeAdapter


def seal(name: str, value: int | str) -> bytes:
    """The content of the file."""
    return orjson.dumps({name: value, "crc32": zlib.crc32(str(value).encode())})


def value_in(content: bytes, name: str, kind: Any) -> Any:
    """The value of this kind that was sealed by this name; other fields are ignored. Raises `ValueError` without."""
    with suppress(ValueError, TypeError, KeyError):
        fields = orjson.loads(content)
        value = TypeAdapter(kind).validate_python(fields[name], strict=True)
        if orjson.dumps({field: fields[field] for field in (name, "crc32")}) == seal(name, value):
            return value
    raise ValueError("not sealed, or damaged")
