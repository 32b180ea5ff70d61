"""Python numbers → float64 in memory, with a precise message for anything that is not a number; arrays → bytes."""

import base64
import itertools
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.pca.arrays import Array

VectorBytes = bytes | memoryview
"""The numbers of a vector in memory, or of several vectors one after the other."""

NOTED: ContextVar[list[Array] | None] = ContextVar("NOTED", default=None)
"""What `note_untyped` notes in this thread: the numbers of vectors, to be compared (`formats.plausible`)."""

NO_VALUE = "no_value"  # the reason of a delete: a tombstone, or null in place of a vector; no error
NULL_HINT = " (missing=impute learns vectors with gaps)"
_STRING_HINT = " (numbers have no quotes)"
_NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
_MAX_NAMES, _NAME_LENGTH, _MAX_LENGTH = 8, 32, 400


class VectorError(Exception):
    """A value is not a vector: a short name for the reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NumberPacker:
    """Packs lists of d entries: numbers, decimals, and "NaN" and "Infinity" as Java's JSON writers spell them.

    With `impute` an entry may also be None, which becomes NaN.
    """

    def __init__(self, dimensions: int, *, impute: bool = False) -> None:
        self._dimensions, self._impute = dimensions, impute
        self.pack_numbers = struct.Struct(f"{dimensions}d").pack
        """Packs d numbers, and booleans. Raises `struct.error` and `OverflowError` for anything else."""

    def pack(
        self, row: list[Any], *, booleans: bool, entry: str = "entry {}", labels: Sequence[str] | None = None
    ) -> bytes:
        """The d entries as float64. Raises `VectorError`; `entry` is what it calls one without a label.

        `booleans`: whether to look for them and refuse them; `struct` accepts them as numbers.
        """
        check_length(len(row), self._dimensions)
        if not (booleans and bool in set(map(type, row))):
            try:
                return self.pack_numbers(*row)
            except (struct.error, OverflowError):
                pass
        if not booleans:  # those that there are count as numbers
            row = [float(value) if isinstance(value, bool) else value for value in row]
        named = labels or [entry.format(i) for i in range(len(row))]
        return self.pack_numbers(*map(self._number, row, named))

    def _number(self, value: Any, label: str) -> float:
        if type(value) in (int, float) or isinstance(value, Decimal) or is_number_word(value):
            return float(value)
        if value is None and self._impute:
            return math.nan
        hint = NULL_HINT if value is None else _STRING_HINT if isinstance(value, str) else ""
        raise VectorError("undecodable", f"{label} must be a number, not {type_name(value)}{hint}")


def is_number_word(value: Any) -> bool:
    """Return whether a value is a number that JSON lacks, as Protobuf's JSON and Jackson write it: as a string."""
    return isinstance(value, str) and value in _NUMBER_WORDS


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


class RowVectors(NamedTuple):
    """The vectors (n, d) in the rows of a table or a text; most rows hold one."""

    vectors: Array
    counts: NDArray[np.int64]  # of each row
    misfits: Iterable[tuple[int, VectorError]]  # rows without, in order, and why; no_value: null instead of a vector


def packed_rows(rows: Sequence[Any], pack: Callable[[Any], VectorBytes], dimensions: int) -> RowVectors:
    """The vectors that `pack` finds in rows; what it raises becomes a misfit."""
    found, counts, misfits = list[VectorBytes](), np.zeros(len(rows), np.int64), list[tuple[int, VectorError]]()
    for i, row in enumerate(rows):
        try:
            found.append(pack(row))
            counts[i] = memoryview(found[-1]).nbytes // (8 * dimensions)
        except VectorError as error:
            misfits.append((i, error))
        except RecursionError:
            misfits.append((i, VectorError("undecodable", "its arrays are too deep")))
    return RowVectors(np.frombuffer(b"".join(found)).reshape(-1, dimensions), counts, misfits)


def note_untyped(data: bytes, kind: str) -> None:
    """Note that this data was read as numbers of a type that it does not name."""
    if (noted := NOTED.get()) is not None:
        noted.append(np.frombuffer(data, kind))


def unpacked(text: str) -> Any:
    """The JSON array in a text, or the bytes that it is in base64. Raises `VectorError`."""
    try:
        return orjson.loads(text) if text.lstrip().startswith("[") else base64.b64decode(text, validate=True)
    except ValueError:
        hint = "expected an array of numbers, not a string, unless it is base64 of them or a JSON array"
        raise VectorError("undecodable", hint) from None


def float64_of(data: bytes, dimensions: int) -> VectorBytes:
    """The vector in a field of bytes: d little-endian floats of 4 or 8 bytes each."""
    if len(data) == 8 * dimensions:
        return data
    if len(data) == 4 * dimensions:
        return np.frombuffer(data, "<f4").astype(np.float64).data
    raise VectorError("wrong_length", f"{len(data)} bytes are not {dimensions} numbers of 4 or 8 bytes")


def type_name(value: Any) -> str:
    """A value's type, in JSON's words."""
    names = {
        dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def side_by_side(fields: Mapping[str, Array]) -> Array:
    """The numbers of all fields, (n, width)."""
    columns = list(fields.values())
    return columns[0] if len(columns) == 1 and columns[0].ndim == 2 else np.column_stack(columns)


def bytes_of_rows(rows: NDArray[Any], counts: NDArray[np.int64] | None = None) -> list[bytes]:
    """Each row's bytes; with `counts`, the bytes of each group of rows."""
    rows = np.ascontiguousarray(rows)
    if counts is None:
        values: list[bytes] = rows.view(f"V{rows.strides[0]}")[:, 0].tolist()
        return values
    data, size = rows.tobytes(), rows.strides[0]
    return [data[i * size : j * size] for i, j in bounds(counts, len(rows))]


def bounds(counts: NDArray[np.int64] | None, n: int) -> list[tuple[int, int]]:
    """Where the rows of each value begin and end, of n rows: one a value, or as many as `counts` says."""
    ends = range(1, n + 1) if counts is None else np.cumsum(counts).tolist()
    return list(itertools.pairwise([0, *ends]))


def interleaved(parts: Sequence[bytes | Array]) -> list[bytes]:
    """The bytes of n rows that consist of bytes, the same in all, and of float64 numbers (n,) or (n, width)."""
    n = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (n, len(part)))
        if isinstance(part, bytes)
        else np.ascontiguousarray(part.reshape(n, -1), "<f8").view(np.uint8)
        for part in parts
    ]
    return bytes_of_rows(np.hstack(columns))


def joined(parts: Sequence[bytes | NDArray[Any] | list[bytes]]) -> list[bytes]:
    """The bytes of rows that consist of bytes, the same in all, of float64 numbers, and of other bytes in each."""
    runs = list[Iterable[bytes]]()
    for differs, group in itertools.groupby(parts, lambda part: isinstance(part, list)):
        run: list[Any] = list(group)
        same = all(isinstance(part, bytes) for part in run)
        runs += run if differs else [itertools.repeat(b"".join(run)) if same else interleaved(run)]
    return [b"".join(row) for row in zip(*runs, strict=False)] if len(runs) > 1 else list(runs[0])


def as_bytes(item: str | bytes) -> bytes:
    return item.encode() if isinstance(item, str) else item


def varint(number: int) -> bytes:
    """A non-negative number in Avro and Protobuf: seven bits a byte, the lowest first; the last has no eighth bit."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
