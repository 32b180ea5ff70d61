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


class GuessedNumbers(NamedTuple):
    """The numbers of a value that does not name their type. The reader has guessed the type by their length.

    Whether the guess may be right is checked later, see `formats.plausible`.
    """

    numbers: VectorBytes  # converted to the type that the reader returns
    dtype: str  # the NumPy type that was guessed: <f4 or <f8


class NumberPacker:
    """Packs lists of d entries: numbers, decimals, and "NaN" and "Infinity" as Java's JSON writers spell them.

    With `impute` an entry may also be None, which becomes NaN.
    """

    def __init__(self, dimensions: int, *, impute: bool = False) -> None:
        self._dimensions = dimensions
        self._impute = impute
        self.pack_numbers = struct.Struct(f"{dimensions}d").pack
        """Packs d numbers or booleans. Raises `struct.error` and `OverflowError` for anything else."""

    def pack(
        self, row: list[Any], *, refuse_booleans: bool, entry: str = "entry {}", labels: Sequence[str] | None = None
    ) -> bytes:
        """Return the d entries as float64. Raises `VectorError`.

        Messages call the entries by their `labels` or, without labels, by `entry` with the index in place of {}.
        With `refuse_booleans`, a boolean is an error; otherwise it is packed as 0 or 1. Searching for booleans takes
        time: if there cannot be any, `refuse_booleans` should be False.
        """
        check_length(len(row), self._dimensions)
        must_refuse = refuse_booleans and bool in set(map(type, row))
        if not must_refuse:
            try:
                return self.pack_numbers(*row)
            except (struct.error, OverflowError):  # an entry is not a plain number
                pass
        if not refuse_booleans:
            row = [float(value) if isinstance(value, bool) else value for value in row]
        if not labels:
            labels = [entry.format(index) for index in range(len(row))]
        return self.pack_numbers(*map(self._convert, row, labels))

    def _convert(self, value: Any, label: str) -> float:
        """Return an entry as a float. Raises `VectorError`."""
        if type(value) in (int, float) or isinstance(value, Decimal) or is_number_word(value):
            return float(value)
        if value is None and self._impute:
            return math.nan
        hint = ""
        if value is None:
            hint = NULL_HINT
        elif isinstance(value, str):
            hint = _STRING_HINT
        raise VectorError("undecodable", f"{label} must be a number, not {type_name(value)}{hint}")


def is_number_word(value: Any) -> bool:
    """Return whether a value is the text of a number that JSON lacks, such as NaN. Protobuf and Jackson write these."""
    return isinstance(value, str) and value in _NUMBER_WORDS


class RowVectors(NamedTuple):
    """The vectors (n, d) in the rows of a table or a text. Most rows hold one vector."""

    vectors: Array
    counts: NDArray[np.int64]  # for each row, how many vectors it holds
    errors: Iterable[tuple[int, VectorError]]  # of the rows without a vector, in order; no_value: null in its place
    guessed_dtype: str | None = None  # the type of all numbers, if it was guessed


def pack_rows(rows: Sequence[Any], pack: Callable[[Any], VectorBytes | GuessedNumbers], dimensions: int) -> RowVectors:
    """Return the vectors of rows. `pack` returns the float64 numbers of a row, or raises the error of the row."""
    packed_rows: list[VectorBytes] = []
    counts = np.zeros(len(rows), np.int64)
    errors: list[tuple[int, VectorError]] = []
    dtypes: set[str | None] = set()
    for index, row in enumerate(rows):
        try:
            packed = pack(row)
            dtype = None
            if isinstance(packed, GuessedNumbers):
                packed, dtype = packed
            dtypes.add(dtype)
            packed_rows.append(packed)
            counts[index] = memoryview(packed).nbytes // (8 * dimensions)
        except VectorError as error:
            errors.append((index, error))
        except RecursionError:
            errors.append((index, VectorError("undecodable", "its arrays are too deep")))
    vectors = np.frombuffer(b"".join(packed_rows)).reshape(-1, dimensions)
    return RowVectors(vectors, counts, errors, common_dtype(dtypes))


def common_dtype(guessed_dtypes: Collection[str | None]) -> str | None:
    """If all numbers were guessed to have the same type, return it; else None.

    `guessed_dtypes` are the different types; None stands for a type that did not have to be guessed.
    """
    return next(iter(guessed_dtypes)) if len(guessed_dtypes) == 1 else None


def decode_text(text: str) -> Any:
    """Return the JSON array in a text, or the bytes that the text is in base64. Raises `VectorError`."""
    try:
        if text.lstrip().startswith("["):
            return orjson.loads(text)
        return base64.b64decode(text, validate=True)
    except ValueError:
        message = "expected an array of numbers, not a string, unless it is base64 of them or a JSON array"
        raise VectorError("undecodable", message) from None


def widen_floats(data: bytes, dimensions: int) -> VectorBytes:
    """Return a vector of d little-endian floats, of 4 or 8 bytes each, as float64."""
    if len(data) == 8 * dimensions:
        return data
    if len(data) == 4 * dimensions:
        return np.frombuffer(data, "<f4").astype(np.float64).data
    raise VectorError("wrong_length", f"{len(data)} bytes are not {dimensions} numbers of 4 or 8 bytes")
