"""Bytes → vectors, a batch at a time; what cannot become a vector is told apart with a reason and a sentence.

Reasons: `no_value` (a tombstone), `undecodable`, `wrong_length`, `not_finite` (NaN or infinity), `too_large` (its
squares would overflow).
"""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the letters of field names, and vectors have no fields
}

REASONS = ("no_value", "undecodable", "wrong_length", "not_finite", "too_large")


class Reject(NamedTuple):
    """A value that is no vector: its place in the batch, the short name of the fault, and what was wrong."""

    place: int
    reason: str
    message: str


class Decoded(NamedTuple):
    """The vectors (n, d) of a batch in order, the places they had in it (n,), and the rest by rising place."""

    vectors: Array
    places: NDArray[np.int64]
    rejects: list[Reject]


class _FaultError(Exception):
    """Why one value is no vector."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Codec:
    """How values are encoded, and what a vector must be: d numbers, finite, none larger than `largest_value`."""

    format: str  # json, float32, float64 (raw, little-endian) or npy
    dimensions: int
    largest_value: float
    dtype: str = "float64"
    json_field: str = ""  # dotted path to the array in a JSON object

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Vectors of a batch. Nothing raises: every value becomes a vector or a `Reject`."""
        rejects: list[Reject] = []
        rows: list[Any] = []
        places: list[int] = []
        read = self._reader()
        for index, value in enumerate(values):
            try:
                if value is None:
                    raise _FaultError("no_value", "the record has no value (a tombstone)")
                rows.append(read(value))
                places.append(index)
            except _FaultError as fault:
                rejects.append(Reject(index, fault.reason, str(fault)))
        vectors = self._stacked(rows)
        return self._checked(vectors, np.array(places, np.int64), rejects)

    def _reader(self) -> Callable[[bytes], Any]:
        readers = {"json": self._json, "npy": self._npy, "float32": self._raw, "float64": self._raw}
        return readers[self.format]

    def _json(self, value: bytes) -> list[Any]:
        try:
            row = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise _FaultError("undecodable", f"not JSON: {error}") from None
        for name in self.json_field.split(".") if self.json_field else ():
            if not isinstance(row, dict) or name not in row:
                raise _FaultError("undecodable", f"no field {self.json_field!r} in the JSON object")
            row = row[name]
        if not isinstance(row, list):
            raise _FaultError("undecodable", f"expected a JSON array of numbers, not {_kind(row)}")
        self._check_length(len(row), "numbers")
        if not set(map(type, row)) <= {int, float}:
            place = next(i for i, entry in enumerate(row) if type(entry) not in (int, float))
            raise _FaultError("undecodable", f"entry {place} of the array is {_kind(row[place])}, not a number")
        return row

    def _raw(self, value: bytes) -> bytes:
        size = np.dtype(self.format).itemsize
        if len(value) != size * self.dimensions:
            raise _FaultError(
                "wrong_length",
                f"{len(value)} bytes are not {self.dimensions} numbers of {size} bytes ({self.format})",
            )
        return value

    def _npy(self, value: bytes) -> Array:
        header = value[: _npy_header_size(value)]
        dtype, shape = _npy_header(header)
        if dtype.kind not in "fiu" or dtype.itemsize > 8:
            raise _FaultError("undecodable", f"an .npy array of {dtype.str}, not of real numbers of at most 8 bytes")
        if len(shape) != 1:
            raise _FaultError("wrong_length", f"an .npy array with {len(shape)} axes, not one")
        self._check_length(shape[0], "numbers")
        if len(value) - len(header) != shape[0] * dtype.itemsize:
            raise _FaultError("undecodable", "not an .npy array: its data are not as long as its header says")
        return np.frombuffer(value, dtype, offset=len(header)).astype(np.float64)

    def _check_length(self, length: int, things: str) -> None:
        if length != self.dimensions:
            raise _FaultError("wrong_length", f"{length} {things}, not {self.dimensions}")

    def _stacked(self, rows: list[Any]) -> Array:
        if self.format in ("float32", "float64"):
            flat = np.frombuffer(b"".join(rows), np.dtype(self.format).newbyteorder("<"))
            return flat.reshape(len(rows), self.dimensions)
        return np.array(rows, np.float64).reshape(len(rows), self.dimensions)

    def _checked(self, vectors: Array, places: NDArray[np.int64], rejects: list[Reject]) -> Decoded:
        with np.errstate(invalid="ignore"):  # a signalling NaN would be told of
            good = np.abs(vectors).max(axis=1, initial=0.0) <= np.float64(self.largest_value)  # NaN compares false
        for i in np.flatnonzero(~good):
            rejects.append(Reject(int(places[i]), *self._fault_of(vectors[i])))
        if not good.all():
            vectors, places = vectors[good], places[good]
        return Decoded(vectors.astype(self.dtype, copy=False), places, sorted(rejects))

    def _fault_of(self, vector: Array) -> tuple[str, str]:
        odd = np.flatnonzero(~np.isfinite(vector))
        if len(odd):
            return "not_finite", f"entry {odd[0]} is {vector[odd[0]]}"
        place = int(np.abs(vector).argmax())
        return "too_large", (
            f"entry {place} is {vector[place]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )


def _npy_header_size(value: bytes) -> int:
    """Bytes up to the data, as the magic string's version and the length after it say."""
    width = 2 if value[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(value[8 : 8 + width], "little")


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and reading it is slow
def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of an .npy array. The data are not touched, so a header that promises terabytes costs nothing."""
    stream = io.BytesIO(header)
    try:
        with warnings.catch_warnings(action="ignore"):  # numpy's, about headers that Python 2 wrote
            version = np.lib.format.read_magic(stream)
            shape, _, dtype = _HEADER_READERS[version](stream)
            return dtype, tuple(int(np.intp(length)) for length in shape)  # no array is longer
    except Exception:  # numpy lets a dozen kinds through: TokenError, RecursionError, TypeError …
        raise _FaultError("undecodable", "not an .npy array: its header cannot be read") from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
