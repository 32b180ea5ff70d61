"""Bytes → vectors, a batch at a time; what cannot become a vector is told apart with a reason and a sentence.

Reasons: `no_value` (a tombstone), `undecodable`, `unknown_schema` (to the registry), `wrong_length`, `not_finite` (NaN
or infinity), `too_large` (its squares would overflow).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array
from streampca.stream.formats import reader_of
from streampca.stream.formats.base import Reader
from streampca.stream.formats.schemas import Schemas
from streampca.stream.record import Decoded, Records, Reject, Undecoded, Vectors, offsets_of, timestamps_of, values_of
from streampca.vectors.packing import VectorBytes, VectorError

REASONS = ("no_value", "undecodable", "unknown_schema", "wrong_length", "not_finite", "too_large")


@dataclass(frozen=True)
class Codec:
    """How values are encoded, and what a vector must be: d numbers, finite, none larger than `largest_value`."""

    format: str  # json, float32, float64 (raw, little-endian), npy, avro, protobuf or arrow
    dimensions: int
    largest_value: float
    dtype: str = "float64"
    field: str = ""  # where the vector lies in a value that has fields: a dotted path
    schemas: Schemas | None = None  # for avro and protobuf

    @cached_property
    def _reader(self) -> Reader:
        return reader_of(self.format, self.dimensions, self.field, self.schemas)

    def vectors_of(self, event: Records) -> Vectors | Undecoded:
        """The vectors of one event's records, in whichever thread; `Undecoded` while the schema registry is away.

        Raises `SourceError` when it refuses us.
        """
        records = event.records
        try:
            decoded = self.decode(values_of(records))
        except TimeoutError as error:
            return Undecoded(event.partition, records[0].offset, len(records), event.end, str(error))
        timestamps = np.array(timestamps_of(records), np.int64)[decoded.places]
        rejected = [records[reject.place] for reject in decoded.rejects]
        return Vectors(
            event.partition, decoded, timestamps, rejected, offsets_of(records), event.next, event.end
        )  # fmt: skip

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Vectors of a batch: every value becomes vectors or a `Reject`.

        Nothing raises but the schema registry: `TimeoutError` when it does not give what is needed now, `SourceError`
        when it refuses us. Then nothing was decoded, and it can be tried again.
        """
        with np.errstate(invalid="ignore"):  # a signalling NaN, which is told of, would be told of by NumPy too
            return self._decoded(values)

    def _decoded(self, values: Sequence[bytes | None]) -> Decoded:
        rows, places, rejects = self._rows(values)
        vectors = np.frombuffer(b"".join(rows), self._reader.dtype).reshape(-1, self.dimensions)
        counts = np.ones(len(rows), np.int64)
        if self._reader.is_batch:
            sizes = np.array([memoryview(row).nbytes for row in rows], np.int64)
            counts = sizes // (self._reader.dtype.itemsize * self.dimensions)
        return self._checked(vectors, np.array(places, np.int64), counts, rejects)

    def _rows(self, values: Sequence[bytes | None]) -> tuple[Sequence[VectorBytes], Sequence[int], list[Reject]]:
        """The numbers of each vector with its place, and what is none."""
        size = self._reader.size
        if size is not None and {None if value is None else len(value) for value in values} == {size}:
            return values, range(len(values)), []  # type: ignore[return-value]  # none of them is None
        rows: list[VectorBytes] = []
        places: list[int] = []
        rejects: list[Reject] = []
        read = self._reader.read
        for place, value in enumerate(values):
            try:
                if value is None:
                    raise VectorError("no_value", "the record has no value (a tombstone)")
                rows.append(read(value))
                places.append(place)
            except VectorError as fault:
                rejects.append(Reject(place, fault.reason, str(fault)))
        return rows, places, rejects

    def _checked(
        self, vectors: Array, places: NDArray[np.int64], counts: NDArray[np.int64], rejects: list[Reject]
    ) -> Decoded:
        good = self._good(vectors)
        if not good.all():
            values = np.repeat(np.arange(len(places)), counts)  # of each vector
            bad, first = np.unique(values[~good], return_index=True)
            faulty = np.flatnonzero(~good)[first]
            rejects += [Reject(int(places[v]), *self._fault_of(vectors[i])) for v, i in zip(bad, faulty, strict=True)]
            vectors, counts = vectors[~np.isin(values, bad)], np.where(np.isin(np.arange(len(places)), bad), 0, counts)
        vectors = vectors.astype(self.dtype, copy=False)
        return Decoded(vectors, places[counts > 0], sorted(rejects), counts[counts > 0])

    def _good(self, vectors: Array) -> NDArray[np.bool_]:
        """Which vectors are finite and small enough."""
        # Greatest and least instead of the greatest |v|, which would be written out for every number. NaN comes through
        # both, and compares false.
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
