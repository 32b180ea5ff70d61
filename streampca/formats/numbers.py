"""Python numbers → float64 in memory, with a precise message for anything that is not a number."""

import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streampca.formats.errors import NULL_HINT, VectorError, check_length, type_name
from streampca.pca.arrays import Array

VectorBytes = bytes | memoryview
"""The numbers of a vector in memory, or of several vectors one after the other."""

_STRING_HINT = " (numbers have no quotes)"
_NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
# How MongoDB's extended JSON writes numbers: {"$numberDouble": "1.5"}.
_EXTENDED_NUMBERS = {"$numberDouble": float, "$numberInt": int, "$numberLong": int, "$numberDecimal": Decimal}


class GuessedNumbers(bytes):
    """The numbers of a value that does not name their type. The reader has guessed the type by their length.

    Whether the guess may be right is checked later, see `formats.plausible`.
    """

    dtype: str
    """The NumPy type that was guessed: <f4 or <f8. The bytes are in the type that the reader returns."""

    def __new__(cls, numbers: VectorBytes, dtype: str) -> Self:
        """Copy the numbers, and add the type that was guessed."""
        guessed_numbers = super().__new__(cls, numbers)
        guessed_numbers.dtype = dtype
        return guessed_numbers


def guessed_dtype_of(numbers: VectorBytes) -> str | None:
    """Return the type that was guessed for these numbers; None if it did not have to be guessed."""
    return numbers.dtype if isinstance(numbers, GuessedNumbers) else None


class NumberPacker:
    """Packs lists of d entries: numbers, booleans as 1 and 0, decimals, and "NaN" and "Infinity" as Java writes JSON.

    With `null_as_nan`, an entry may also be None, which becomes NaN.
    """

    def __init__(self, dimensions: int, *, null_as_nan: bool, labels: Sequence[str] | None = None) -> None:
        """Error messages name entry i by `labels[i]`. Without labels, they name it by its index."""
        self._dimensions = dimensions
        self._null_as_nan = null_as_nan
        self._labels = labels
        self.pack_numbers = struct.Struct(f"{dimensions}d").pack
        """Packs d numbers or booleans. Raises `struct.error` and `OverflowError` for anything else."""

    def pack(self, entries: list[Any], *, label_template: str = "entry {}") -> bytes:
        """Return the d entries as float64. Raises `VectorError`.

        Without labels, error messages name entry i by `label_template.format(i)`.
        """
        check_length(len(entries), self._dimensions)
        try:
            return self.pack_numbers(*entries)
        except (struct.error, OverflowError):  # an entry is not a plain number, so each entry is converted
            pass
        labels = self._labels or [label_template.format(index) for index in range(len(entries))]
        return self.pack_numbers(*map(self._convert, entries, labels))

    def _convert(self, value: Any, label: str) -> float:
        """Return an entry as a float: a number, a boolean (1 or 0), or a word such as NaN."""
        value = plain_number(value)  # from {"$numberDouble": "1.5"}, as MongoDB writes it
        is_word = is_number_word(value)
        if isinstance(value, int | float | Decimal) or is_word:
            return float(value)
        if value is None and self._null_as_nan:
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


def plain_number(value: Any) -> Any:
    """Return the number in an object of MongoDB's extended JSON; any other value as it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(name, text)] = value.items()
    if name not in _EXTENDED_NUMBERS or not isinstance(text, str):
        return value
    try:
        return _EXTENDED_NUMBERS[name](text)
    except (ValueError, ArithmeticError):
        return value


def spell_key(key: Any) -> str:
    """Return the key of a map as JSON writes it."""
    return key if isinstance(key, str) else json.dumps(key, default=str)


class RowVectors(NamedTuple):
    """The vectors (n, d) in the rows of a table or a text. Most rows hold one vector."""

    vectors: Array
    counts: NDArray[np.int64]  # for each row, how many vectors it holds
    errors: Iterable[tuple[int, VectorError]]  # of the rows without a vector, in order; "no_value" for a row of null
    guessed_dtypes: Set[str | None] = frozenset({None})  # of the numbers of each row; None: its type was not guessed


def pack_rows(rows: Sequence[Any], pack: Callable[[Any], VectorBytes], dimensions: int) -> RowVectors:
    """Return the vectors of rows, and the error of each row that holds no vector. `pack` reads the numbers of a row."""
    packed_rows: list[VectorBytes] = []
    counts = np.zeros(len(rows), np.int64)
    errors: list[tuple[int, VectorError]] = []
    guessed_dtypes: set[str | None] = set()
    vector_size = 8 * dimensions
    for index, row in enumerate(rows):
        try:
            numbers = pack(row)
            guessed_dtypes.add(guessed_dtype_of(numbers))
            packed_rows.append(numbers)
            counts[index] = memoryview(numbers).nbytes // vector_size
        except VectorError as error:
            errors.append((index, error))
        except RecursionError:
            errors.append((index, VectorError("undecodable", "its arrays are too deep")))
    vectors = np.frombuffer(b"".join(packed_rows)).reshape(-1, dimensions)
    return RowVectors(vectors, counts, errors, guessed_dtypes)


def with_common_guess(numbers: VectorBytes, guessed_dtypes: Set[str | None]) -> VectorBytes:
    """Return the numbers of several vectors as `GuessedNumbers` if the same type was guessed for all of them.

    In `guessed_dtypes`, None stands for a vector whose type did not have to be guessed. If there is such a vector, or
    if several types were guessed, returns the numbers as they are.
    """
    if len(guessed_dtypes) != 1:
        return numbers
    [dtype] = guessed_dtypes
    return numbers if dtype is None else GuessedNumbers(numbers, dtype)


def widen_floats(data: bytes, dimensions: int) -> VectorBytes:
    """Return a vector of d little-endian floats, of 4 or 8 bytes each, as float64."""
    if len(data) == 8 * dimensions:
        return data
    if len(data) == 4 * dimensions:
        return np.frombuffer(data, "<f4").astype(np.float64).data
    raise VectorError("wrong_length", f"{len(data)} bytes are not {dimensions} numbers of 4 or 8 bytes")
