"""Decodes the values of records into vectors, a batch at a time; rejects the others with a reason and a message.

Reasons: `no_value` (a tombstone), `undecodable`, `unknown_schema` (the registry has no such id), `wrong_length`,
`not_finite` (infinity, or NaN where gaps are refused), `too_few_observed` (too many gaps), `too_large` (its squares
would overflow), `too_many_bytes` (the value is longer than any ordinary one).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampca.errors import StreampcaError
from streampca.pca.arrays import Array
from streampca.stream.decoded import Decoded, Reject
from streampca.stream.events import Records, Undecoded, Vectors
from streampca.stream.formats import reader_of
from streampca.stream.formats.base import MAX_BATCH_BYTES, Reader
from streampca.stream.formats.schemas import Schemas
from streampca.stream.record import timestamps_of, values_of
from streampca.vectors.packing import NULL_HINT, VectorBytes, VectorError, check_size

REASONS = (
    "no_value",
    "undecodable",
    "unknown_schema",
    "wrong_length",
    "not_finite",
    "too_few_observed",
    "too_large",
    "too_many_bytes",
)


# Limits of a value with one vector: for each number, and for all else. Topics take 1 MiB by default; the Python objects
# that a value becomes may take a hundred times its bytes.
_NUMBER_BYTES, _MAX_OTHER_BYTES = 32, 8 * 2**20
_LARGE_BATCH = 8 * 2**20  # bytes of vectors that are decoded at once; the last value may exceed it
_UNKNOWN_BYTES = _LARGE_BATCH // 100  # that an unknown schema counts as: each is a request, which may take seconds


@dataclass(frozen=True)
class Codec:
    """Decodes one format. A vector must have d finite numbers, none of them larger than `largest_value`.

    If `min_observed` is given, entries may be missing, and are NaN, as long as so many are not.
    """

    format: str  # json, float32, float64 (raw, little-endian), npy, avro, protobuf or arrow
    dimensions: int
    largest_value: float
    dtype: str = "float64"
    field: str = ""  # dotted path to the vector in a value that has fields
    schemas: Schemas | None = None  # for avro and protobuf
    min_observed: int | None = None  # None: vectors with gaps are rejected

    @cached_property
    def _reader(self) -> Reader:
        gaps = self.min_observed is not None
        return reader_of(self.format, self.dimensions, self.field, self.schemas, gaps=gaps)

    @cached_property
    def _max_bytes(self) -> int:
        return MAX_BATCH_BYTES if self.is_batch else _MAX_OTHER_BYTES + _NUMBER_BYTES * self.dimensions

    @property
    def is_batch(self) -> bool:
        """Whether a value may hold several vectors."""
        return self._reader.is_batch

    def vectors_of(self, event: Records) -> Vectors | Undecoded:
        """Decode the records of one event; `Undecoded` while the schema registry is away. Any thread may call it.

        Stops early, with `next` at the first record that is left, when the vectors have become large: a few kilobytes
        of compressed Arrow may unpack to many megabytes.

        Raises `SourceError` if the registry refuses access.
        """
        records = event.records
        try:
            decoded, taken = self._decoded(values_of(records), _LARGE_BATCH)
        except TimeoutError as error:
            return Undecoded(event.partition, records[0].offset, len(records), event.end, str(error))
        timestamps = np.array(timestamps_of(records), np.int64)[decoded.places]
        after = event.next if taken == len(records) else records[taken].offset
        return Vectors(event.partition, decoded, timestamps, records[:taken], after, event.end)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a batch: every value becomes vectors or a `Reject`.

        Raises only the schema registry's errors: `TimeoutError` while it is away, after which the batch can be decoded
        again, and `SourceError` if it refuses access.
        """
        return self._decoded(values, sys.maxsize)[0]

    def _decoded(self, values: Sequence[bytes | None], enough: int) -> tuple[Decoded, int]:
        """The decoded values, and how many: fewer than all if their vectors reach `enough` bytes before."""
        with np.errstate(invalid="ignore"):  # NumPy warns about signalling NaNs, which are rejected
            rows, places, rejects, taken = self._rows(values, enough)
            return self._joined(rows, np.array(places, np.int64), rejects), taken

    def _joined(self, rows: Sequence[VectorBytes], places: NDArray[np.int64], rejects: list[Reject]) -> Decoded:
        joined = rows[0] if len(rows) == 1 else b"".join(rows)
        vectors = np.frombuffer(joined, self._reader.dtype).reshape(-1, self.dimensions)
        counts = np.ones(len(rows), np.int64)
        if self._reader.is_batch:
            sizes = np.array([memoryview(row).nbytes for row in rows], np.int64)
            counts = sizes // (self._reader.dtype.itemsize * self.dimensions)
        return self._checked(vectors, places, counts, rejects)

    def checked(self, vectors: Array, places: NDArray[np.int64], rejects: list[Reject]) -> Decoded:
        """Vectors (n, d) that were decoded elsewhere, at these places of a batch: those that cannot be learned go to
        the rejects."""
        with np.errstate(invalid="ignore"):
            return self._checked(vectors, places, np.ones(len(places), np.int64), rejects)

    def _rows(
        self, values: Sequence[bytes | None], enough: int
    ) -> tuple[Sequence[VectorBytes], Sequence[int], list[Reject], int]:
        """The numbers of each vector with its place in the batch, the rejected values, and the number of both."""
        size = self._reader.size
        if size is not None and {None if value is None else len(value) for value in values} == {size}:
            return values, range(len(values)), [], len(values)  # type: ignore[return-value]  # none of them is None
        rows: list[VectorBytes] = []
        places: list[int] = []
        rejects: list[Reject] = []
        read, size = self._read, 0
        for place, value in enumerate(values):
            if size >= enough:
                return rows, places, rejects, place
            try:
                if value is None:
                    raise VectorError("no_value", "the record has no value (a tombstone)")
                row = read(value)
                size += memoryview(row).nbytes
                rows.append(row)
                places.append(place)
            except VectorError as error:
                size += _UNKNOWN_BYTES * (error.reason == "unknown_schema")
                rejects.append(Reject(place, error.reason, _printable(str(error))))
            except (StreampcaError, TimeoutError):  # the schema registry's
                raise
            except Exception as error:  # no value may end the worker
                rejects.append(Reject(place, "undecodable", f"it cannot be decoded ({type(error).__name__})"))
        return rows, places, rejects, len(values)

    def _read(self, value: bytes) -> VectorBytes:
        check_size(len(value), self._max_bytes)
        return self._reader.read(value)

    def _checked(
        self, vectors: Array, places: NDArray[np.int64], counts: NDArray[np.int64], rejects: list[Reject]
    ) -> Decoded:
        squares = np.vdot(vectors, vectors)
        if not squares <= np.float64(self.largest_value) ** 2 / 2:  # or no square is NaN or large; half: for rounding
            if self.min_observed is not None and np.isnan(squares):
                vectors = np.where(np.isnan(vectors), np.nan, vectors)  # one NaN of the many, for the same bits
            good = self._good(vectors)
            values = np.repeat(np.arange(len(places)), counts)  # the value of each vector
            bad, first = np.unique(values[~good], return_index=True)
            rows = np.flatnonzero(~good)[first]
            rejects += [Reject(int(places[v]), *self._reason_of(vectors[i])) for v, i in zip(bad, rows, strict=True)]
            vectors, counts = vectors[~np.isin(values, bad)], np.where(np.isin(np.arange(len(places)), bad), 0, counts)
        vectors = vectors.astype(self.dtype, copy=False)
        return Decoded(vectors, places[counts > 0], sorted(rejects), counts[counts > 0])

    def _good(self, vectors: Array) -> NDArray[np.bool_]:
        """Which vectors are finite and small enough, apart from gaps, and have enough entries."""
        sizes, found = np.abs(vectors), self.dimensions
        if self.min_observed is not None:
            missing = np.isnan(vectors)
            sizes[missing], found = 0.0, self.dimensions - missing.sum(axis=1)
        good: NDArray[np.bool_] = sizes.max(axis=1, initial=0.0) <= np.float64(self.largest_value)  # false for NaN
        return good & (found >= (self.min_observed or 0))

    def _reason_of(self, vector: Array) -> tuple[str, str]:
        missing = np.isnan(vector)
        odd = np.flatnonzero(np.isinf(vector) if self.min_observed is not None else ~np.isfinite(vector))
        if len(odd):
            hint = NULL_HINT if missing[odd[0]] else ""
            return "not_finite", f"entry {odd[0]} is {vector[odd[0]]}{hint}"
        if missing.any() and (found := self.dimensions - int(missing.sum())) < (self.min_observed or 0):
            text = f"{found} of {self.dimensions} entries are there, at least {self.min_observed} are needed"
            return "too_few_observed", text
        vector = np.where(missing, 0.0, vector)
        place = int(np.abs(vector).argmax())
        return "too_large", (
            f"entry {place} is {vector[place]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )


def _printable(message: str) -> str:
    """The message without lone surrogates, which can be neither logged nor written into a header."""
    return message.encode(errors="backslashreplace").decode()
