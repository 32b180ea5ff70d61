"""Python numbers → float64 in memory, with a precise message for anything that is not a number."""

import base64
import math
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.formats.errors import NULL_HINT, VectorError, check_length, type_name
from streampca.pca.arrays import Array

VectorBytes = bytes | memoryview
"""The numbers of a vector in memory, or of several vectors one after the other."""

_STRING_HINT = " (numbers have no quotes)"
_NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")


class Guessed(NamedTuple):
    """The numbers of a value whose type the reader guessed by their length (`formats.plausible`)."""

    numbers: VectorBytes  # in the type that the reader returns
    kind: str  # the NumPy type that was guessed: <f4 or <f8


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


class RowVectors(NamedTuple):
    """The vectors (n, d) in the rows of a table or a text; most rows hold one."""

    vectors: Array
    counts: NDArray[np.int64]  # of each row
    misfits: Iterable[tuple[int, VectorError]]  # rows without, in order, and why; no_value: null instead of a vector
    guessed: str | None = None  # the type, if it was guessed for all of them


def packed_rows(rows: Sequence[Any], pack: Callable[[Any], VectorBytes | Guessed], dimensions: int) -> RowVectors:
    """The vectors that `pack` finds in rows; what it raises becomes a misfit."""
    found: list[VectorBytes] = []
    counts = np.zeros(len(rows), np.int64)
    misfits: list[tuple[int, VectorError]] = []
    kinds: set[str | None] = set()
    for i, row in enumerate(rows):
        try:
            packed = pack(row)
            kind = None
            if isinstance(packed, Guessed):
                packed, kind = packed
            kinds.add(kind)
            found.append(packed)
            counts[i] = memoryview(packed).nbytes // (8 * dimensions)
        except VectorError as error:
            misfits.append((i, error))
        except RecursionError:
            misfits.append((i, VectorError("undecodable", "its arrays are too deep")))
    vectors = np.frombuffer(b"".join(found)).reshape(-1, dimensions)
    return RowVectors(vectors, counts, misfits, only_kind(kinds))


def only_kind(kinds: Collection[str | None]) -> str | None:
    """The type that was guessed for all numbers, if it is the same; None is a type that was not guessed."""
    return next(iter(kinds)) if len(kinds) == 1 else None


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
