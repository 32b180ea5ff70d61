"""Why a value holds no vector: the error of all formats, and the phrases that their messages share."""

import itertools
from collections.abc import Collection
from typing import Any

NO_VALUE = "no_value"  # the reason of a delete: a tombstone, or null in place of a vector; not an error
NULL_HINT = " (missing=impute learns vectors with gaps)"

# Limits of what a message lists of a value's names.
_MAX_NAMES = 8
_MAX_NAME_LENGTH = 32
_MAX_LIST_LENGTH = 400

_TYPE_NAMES = {
    dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
}  # fmt: skip


class VectorError(Exception):
    """A value is not a vector: a short name for the reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def missing_field_error(field: str, name: str, parent: Any, value_name: str) -> VectorError:
    """Return the error for a path that leads to a name which does not exist.

    `field` is the path, and `name` the part of it that is missing in `parent`. Messages call the whole value
    `value_name`. The message goes to the log and to the dead-letter topic, so it lists only the first names that exist.
    """
    text = f"no field {field!r} in the {value_name}"
    if not isinstance(parent, dict):
        return VectorError("undecodable", f"{text}: {type_name(parent)} has no field {name!r}")
    return VectorError("undecodable", f"{text}: there is {quote_names(parent)}, but not {name!r}")


def quote_names(names: Collection[object]) -> str:
    """Return the first names, quoted and shortened, and the number of further names."""
    quoted = [repr(str(name)[:_MAX_NAME_LENGTH]) for name in itertools.islice(names, _MAX_NAMES)]
    text = ", ".join(quoted)[:_MAX_LIST_LENGTH] or "none"
    if len(names) > _MAX_NAMES:
        return f"{text} and {len(names) - _MAX_NAMES} more"
    return text


def check_length(length: int, dimensions: int) -> None:
    """Raise `VectorError` unless the vector has d numbers."""
    if length != dimensions:
        raise wrong_length_error(length, dimensions)


def wrong_length_error(length: int, dimensions: int) -> VectorError:
    return VectorError("wrong_length", f"{length} numbers, not {dimensions}")


def check_size(size: int, limit: int) -> None:
    """Raise `VectorError` if a value has more bytes than the limit."""
    if size > limit:
        raise VectorError("too_many_bytes", f"{size} bytes, more than the limit of {limit}")


def type_name(value: Any) -> str:
    """Return the name of a value's type, in JSON's words."""
    if type(value) in _TYPE_NAMES:
        return _TYPE_NAMES[type(value)]
    if isinstance(value, int | float):
        return "a number"
    return f"a {type(value).__name__}"
