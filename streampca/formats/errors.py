"""Why a value holds no vector: the error of all formats, and the phrases that their messages share."""

import codecs
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

NO_VALUE = "no_value"  # the reason of a delete: a tombstone, or null in place of a vector
CONDITION_UNMET = "where"  # the reason of a record that does not meet the conditions of `where`
SKIP_REASONS = (NO_VALUE, CONDITION_UNMET)  # a record is skipped for these reasons, and not rejected
NULL_HINT = " (missing=impute learns vectors with gaps)"

# Limits of what a message lists of a value's names.
_MAX_NAMES = 8
_MAX_NAME_LENGTH = 32
_MAX_LIST_LENGTH = 400

_COMPRESSIONS = {  # how a compressed value begins
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4",
    b"x\x01": "zlib", b"x^": "zlib", b"x\x9c": "zlib", b"x\xda": "zlib",
}  # fmt: skip
# First byte of an array or object of MessagePack → how many bytes follow that hold its number of entries.
_LENGTH_SIZE_BY_FIRST_BYTE = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}

_TYPE_NAMES = {
    dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
}  # fmt: skip


def missing_hint(number: float) -> str:
    """Say why an entry counts as missing, which was NaN or one of `missing_values`, and how to learn its vector."""
    return NULL_HINT if math.isnan(number) else f", one of missing_values{NULL_HINT}"


class VectorError(Exception):
    """A value is not a vector: a short name for the reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MissingFieldError(VectorError):
    """A path leads to a name, or to an element, which does not exist: with missing=impute an entry is missing."""


def missing_field_error(path: str, missing_name: str, parent: Any, value_name: str) -> VectorError:
    """Return the error for a path that leads to a name or an element that does not exist in `parent`."""
    text = f"no field {path!r} in the {value_name}"
    if isinstance(parent, dict):
        return MissingFieldError("undecodable", f"{text}: there is {quote_names(parent)}, but not {missing_name!r}")
    return MissingFieldError("undecodable", f"{text}: {type_name(parent)} has no field {missing_name!r}")


def refuse_missing_fields(errors: Sequence[VectorError], *, path_count: int, impute: bool) -> None:
    """If some of the configured paths lead to fields that do not exist, raise the first of the `errors` for these.

    With `impute`, a field that does not exist is a missing entry of the vectors, and nothing is raised. But if none of
    the fields exists, the paths are wrong, so the error is raised with `impute`, too.
    """
    any_field_exists = len(errors) < path_count
    are_missing_entries = impute and any_field_exists
    if errors and not are_missing_entries:
        hint = NULL_HINT if any_field_exists else ""  # suggests missing=impute
        raise VectorError("undecodable", f"{errors[0]}{hint}")


def quote_names(names: Collection[object]) -> str:
    """Return the first names, quoted and shortened, and the number of further names."""
    quoted = [repr(str(name)[:_MAX_NAME_LENGTH]) for name in itertools.islice(names, _MAX_NAMES)]
    text = ", ".join(quoted)[:_MAX_LIST_LENGTH] or "none"
    if len(names) > _MAX_NAMES:
        return f"{text} and {len(names) - _MAX_NAMES} more"
    return text


def sparse_error() -> VectorError:
    return VectorError("undecodable", "a sparse vector: write dense ones, arrays of all numbers with the zeros")


def condition_unmet_error() -> VectorError:
    return VectorError(CONDITION_UNMET, "it does not meet the conditions of where")


def check_length(length: int, dimensions: int) -> None:
    """Raise `VectorError` unless the vector has d numbers."""
    if length != dimensions:
        raise wrong_length_error(length, dimensions)


def wrong_length_error(length: int, dimensions: int) -> VectorError:
    return VectorError("wrong_length", f"{length} numbers, not {dimensions}")


def check_size(size: int, limit: int) -> None:
    """Raise `VectorError` if a value has more bytes than the limit."""
    if size > limit:
        raise size_error(size, limit)


def size_error(size: int, limit: int) -> VectorError:
    return VectorError("too_many_bytes", f"{size} bytes, more than the limit of {limit}")


def type_name(value: Any) -> str:
    """Return the name of a value's type, in JSON's words."""
    if type(value) in _TYPE_NAMES:
        return _TYPE_NAMES[type(value)]
    if isinstance(value, int | float):
        return "a number"
    return f"a {type(value).__name__}"


def looks_like_utf16(value: bytes) -> bool:
    """Return whether a value seems to be text in UTF-16: it begins with a byte order mark, or with ASCII."""
    return value.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _has_utf16_pairs(value[:8])


def hint_at_encoding(value: bytes) -> str:
    """Return a hint if a value looks compressed, or is UTF-16 or MessagePack; otherwise return ""."""
    for start, compression in _COMPRESSIONS.items():
        # A text may begin with "x^", as bytes of zlib do. But a text of numbers is ASCII, and compressed bytes are not.
        if value.startswith(start) and not value.isascii():
            return f"; it is compressed ({compression}): set compression.type of the producer, which Kafka undoes"
    if looks_like_utf16(value):
        return "; it is text in UTF-16: write UTF-8"
    if _may_be_message_pack(value):
        return "; it seems to be MessagePack: write JSON"
    return ""


def _has_utf16_pairs(value: bytes) -> bool:
    """Return whether, in all pairs of bytes, only the first or only the second byte is zero: ASCII text in UTF-16."""
    pairs = len(value) // 2
    zeros_at_first = value[: 2 * pairs : 2].count(0)
    zeros_at_second = value[1::2].count(0)
    is_only_first_zero = zeros_at_first == pairs and zeros_at_second == 0
    is_only_second_zero = zeros_at_first == 0 and zeros_at_second == pairs
    return pairs > 0 and (is_only_first_zero or is_only_second_zero)


def _may_be_message_pack(value: bytes) -> bool:
    """Return whether a value begins as an array or an object of MessagePack does."""
    first_byte = value[0] if value else 0
    if 0x80 <= first_byte < 0xA0:  # at most 15 entries; no text in UTF-8 begins so
        return True
    length_size = _LENGTH_SIZE_BY_FIRST_BYTE.get(first_byte, 0)
    length_bytes = value[1 : 1 + length_size]
    entry_count = int.from_bytes(length_bytes, "big")
    # Each entry takes at least a byte of the value.
    return length_bytes != b"" and entry_count <= len(value)
