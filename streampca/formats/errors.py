"""Why a value holds no vector: the error of all formats, and the phrases that their messages share."""

import itertools
from collections.abc import Collection
from typing import Any

NO_VALUE = "no_value"  # the reason of a delete: a tombstone, or null in place of a vector; no error
NULL_HINT = " (missing=impute learns vectors with gaps)"
_MAX_NAMES, _NAME_LENGTH, _MAX_LENGTH = 8, 32, 400


class VectorError(Exception):
    """A value is not a vector: a short name for the reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def missing_field(field: str, name: str, value: Any, kind: str) -> VectorError:
    """The error for a value without the field `name`, the part of the path `field` that is missing.

    It lists the fields that there are, bounded in length, since it goes to the log and to the dead-letter topic.
    """
    text = f"no field {field!r} in the {kind}"
    if not isinstance(value, dict):
        return VectorError("undecodable", f"{text}: {type_name(value)} has no field {name!r}")
    return VectorError("undecodable", f"{text}: there is {listed(value)}, but not {name!r}")


def listed(names: Collection[object]) -> str:
    """The first of these names, quoted and shortened."""
    first = ", ".join(repr(str(name)[:_NAME_LENGTH]) for name in itertools.islice(names, _MAX_NAMES)) or "none"
    return first[:_MAX_LENGTH] + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


def check_length(length: int, dimensions: int) -> None:
    """Raise `VectorError` unless the vector has d numbers."""
    if length != dimensions:
        raise wrong_length(length, dimensions)


def wrong_length(length: int, dimensions: int) -> VectorError:
    return VectorError("wrong_length", f"{length} numbers, not {dimensions}")


def check_size(size: int, limit: int) -> None:
    """Raise `VectorError` if a value has more bytes than the limit."""
    if size > limit:
        raise VectorError("too_many_bytes", f"{size} bytes, more than the limit of {limit}")


def type_name(value: Any) -> str:
    """A value's type, in JSON's words."""
    names = {
        dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
