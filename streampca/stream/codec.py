"""Bytes → vectors, a batch at a time; what cannot become a vector is told apart with a reason and a sentence.

Reasons: `no_value` (a tombstone), `undecodable`, `wrong_length`, `not_finite` (NaN or infinity), `too_large` (its
squares would overflow).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.stream.formats.base import FaultError, Numbers, Reader
from streampca.stream.formats.json import JsonReader
from streampca.stream.formats.npy import NpyReader
from streampca.stream.formats.raw import RawReader

Array = NDArray[np.floating[Any]]

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


@dataclass(frozen=True)
class Codec:
    """How values are encoded, and what a vector must be: d numbers, finite, none larger than `largest_value`."""

    format: str  # json, float32, float64 (raw, little-endian) or npy
    dimensions: int
    largest_value: float
    dtype: str = "float64"
    field: str = ""  # dotted path to the vector in a JSON object

    @cached_property
    def _reader(self) -> Reader:
        match self.format:
            case "json":
                return JsonReader(self.dimensions, self.field)
            case "npy":
                return NpyReader(self.dimensions)
        return RawReader(self.format, self.dimensions)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Vectors of a batch. Nothing raises: every value becomes a vector or a `Reject`."""
        rows, places, rejects = self._rows(values)
        vectors = np.frombuffer(b"".join(rows), self._reader.dtype).reshape(len(rows), self.dimensions)
        return self._checked(vectors, np.array(places, np.int64), rejects)

    def _rows(self, values: Sequence[bytes | None]) -> tuple[Sequence[Numbers], Sequence[int], list[Reject]]:
        """The numbers of each vector with its place, and what is none."""
        size = self._reader.size
        if size is not None and {None if value is None else len(value) for value in values} == {size}:
            return values, range(len(values)), []  # type: ignore[return-value]  # none of them is None
        rows: list[Numbers] = []
        places: list[int] = []
        rejects: list[Reject] = []
        read = self._reader.read
        for place, value in enumerate(values):
            try:
                if value is None:
                    raise FaultError("no_value", "the record has no value (a tombstone)")
                rows.append(read(value))
                places.append(place)
            except FaultError as fault:
                rejects.append(Reject(place, fault.reason, str(fault)))
        return rows, places, rejects

    def _checked(self, vectors: Array, places: NDArray[np.int64], rejects: list[Reject]) -> Decoded:
        good = self._good(vectors)
        if not good.all():
            rejects += [Reject(int(places[i]), *self._fault_of(vectors[i])) for i in np.flatnonzero(~good)]
            vectors, places = vectors[good], places[good]
        return Decoded(vectors.astype(self.dtype, copy=False), places, sorted(rejects))

    def _good(self, vectors: Array) -> NDArray[np.bool_]:
        """Which vectors are finite and small enough."""
        # Greatest and least instead of the greatest |v|, which would be written out for every number. NaN comes through
        # both, and compares false.
        with np.errstate(invalid="ignore"):  # a signalling NaN would be told of
            limit = np.float64(self.largest_value)
            good: NDArray[np.bool_] = vectors.max(axis=1, initial=0.0) <= limit
            good &= vectors.min(axis=1, initial=0.0) >= -limit
        return good

    def _fault_of(self, vector: Array) -> tuple[str, str]:
        odd = np.flatnonzero(~np.isfinite(vector))
        if len(odd):
            return "not_finite", f"entry {odd[0]} is {vector[odd[0]]}"
        place = int(np.abs(vector).argmax())
        return "too_large", (
            f"entry {place} is {vector[place]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )
