"""Decodes the values of records into vectors, a batch at a time; rejects the others with a reason and a message."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import StreampcaError
from streampca.formats import plausible, reader_of
from streampca.formats.base import MAX_BATCH_BYTES, MAX_OBJECT_BYTES, Reader
from streampca.formats.errors import NO_VALUE, VectorError, check_size
from streampca.formats.judge import Judge
from streampca.formats.numbers import Guessed, VectorBytes
from streampca.formats.record import Batch, Decoded, Record, Reject, headers_of, timestamps_of, values_of
from streampca.formats.schemas import HEADER, Schemas
from streampca.pca.arrays import Array

REASONS = (
    "undecodable",
    "unknown_schema",  # the registry has no such id
    "wrong_length",
    "not_finite",  # infinity, or NaN with missing=refuse
    "too_few_observed",  # too many entries are missing
    "too_large",  # its squares would overflow
    "too_many_bytes",  # the value is longer than any ordinary one
)

_NUMBER_BYTES = 32  # that each of a vector's numbers may take in a value; topics take 1 MiB by default
LARGE_BATCH = 8 * 2**20  # bytes of vectors that are decoded at once; the last value may exceed it
_UNKNOWN_BYTES = LARGE_BATCH // 100  # that an unknown schema counts as: each is a request, which may take seconds


@dataclass(frozen=True)
class Codec:
    """Decodes one format."""

    format: str  # a module of this package, or the NumPy type of raw numbers
    judge: Judge  # of the vectors
    field: str = ""  # paths to the numbers in a value that has fields
    schemas: Schemas | None = None  # for avro and protobuf
    several: bool = True  # values with several vectors are read; otherwise they are rejected

    @cached_property
    def _reader(self) -> Reader:
        impute = self.judge.min_observed is not None
        return reader_of(self.format, self.judge.dimensions, self.field, self.schemas, impute=impute)

    @property
    def is_batch(self) -> bool:
        """True if every value is a batch, even of one vector."""
        return self._reader.is_batch

    def values_of(self, records: Sequence[Record]) -> list[bytes | None]:
        """The values to decode: of formats with schemas, each behind the frame that its header holds, if any."""
        values = values_of(records)
        if self.schemas is None or not any(headers := headers_of(records)):
            return values
        frames = [dict(of_record).get(HEADER) or b"" for of_record in headers]
        return [value if value is None else frame + value for frame, value in zip(frames, values, strict=True)]

    def batch_of(self, records: Sequence[Record], end: int, enough: int = sys.maxsize) -> Batch:
        """Decode records before the position `end`, or the first that `decode_some` takes. Raises as `decode`."""
        decoded, taken = self.decode_some(self.values_of(records), enough)
        timestamps = np.array(timestamps_of(records), np.int64)[decoded.indices]
        return Batch(decoded, timestamps, records[:taken], end if taken == len(records) else records[taken].offset)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a batch: every value becomes vectors or a `Reject`.

        Raises only the schema registry's errors: `TimeoutError` while it is away, after which the batch can be decoded
        again, and `SourceError` if it refuses access.
        """
        return self.decode_some(values, sys.maxsize)[0]

    def oddity(self, records: Sequence[Record]) -> str | None:
        """Why records cannot be what their producer meant; "" if they can, None if all name the type of their numbers.

        The bytes of other numbers are numbers too, in formats that do not name their type (`formats.plausible`).
        """
        return self.oddity_of(self.untyped(records))

    def untyped(self, records: Sequence[Record]) -> list[Array]:
        """Numbers of those vectors in records whose type is not named: all, or a sample, of each (d,)."""
        numbers = list[Array]()
        for value in filter(None, self.values_of(records)):
            with suppress(Exception):  # it is rejected, for whatever reason
                read = self._reader.read(value)
                found = read if isinstance(read, Guessed) else Guessed(read, self._reader.guessed or "")
                if found.kind:
                    vectors = np.frombuffer(found.numbers, self._reader.dtype).astype(found.kind, copy=False)
                    numbers += map(plausible.sample, vectors.reshape(-1, self.judge.dimensions))
        return numbers

    def oddity_of(self, numbers: Sequence[Array]) -> str | None:
        """Why the numbers that `untyped` returns are odd; "" if they are not, None if there are none."""
        rows = [row for row in numbers if row.dtype == numbers[0].dtype]
        if not rows:
            return None
        is_raw = self._reader.size is not None
        return plausible.explanation_of(np.stack(rows), raw=is_raw, dimensions=self.judge.dimensions)

    @np.errstate(invalid="ignore")  # NumPy warns about signalling NaNs, which are rejected
    def decode_some(self, values: Sequence[bytes | None], enough: int = LARGE_BATCH) -> tuple[Decoded, int]:
        """As `decode`, and the number of values taken: fewer than all once their vectors have `enough` bytes.

        A few kilobytes of compressed Arrow may unpack to many megabytes.
        """
        rows, indices, counts, rejects, taken = self._rows(values, enough)
        joined = rows[0] if len(rows) == 1 else b"".join(rows)
        numbers = np.frombuffer(joined, self._reader.dtype)
        numbers = numbers.astype(np.result_type(numbers, np.float32), copy=False)  # integers too
        vectors = numbers.reshape(-1, self.judge.dimensions)
        return self.judge.checked(vectors, np.asarray(indices, np.int64), np.asarray(counts, np.int64), rejects), taken

    def _rows(
        self, values: Sequence[bytes | None], enough: int
    ) -> tuple[Sequence[VectorBytes], ArrayLike, ArrayLike, list[Reject], int]:
        """The numbers of values, their indices in the batch and counts of vectors; the rejects; how many both are."""
        size = self._reader.size
        if size is not None and {None if value is None else len(value) for value in values} == {size}:
            return values, np.arange(len(values)), np.ones(len(values), np.int64), [], len(values)  # type: ignore[return-value]  # none is None
        rows: list[VectorBytes] = []
        indices, counts = list[int](), list[int]()
        rejects: list[Reject] = []
        longest = MAX_BATCH_BYTES if self.is_batch else MAX_OBJECT_BYTES + _NUMBER_BYTES * self.judge.dimensions
        read, size, one = self._reader.read, 0, self._reader.dtype.itemsize * self.judge.dimensions
        for index, value in enumerate(values):
            if size >= enough:
                return rows, indices, counts, rejects, index
            try:
                if value is None:
                    raise VectorError(NO_VALUE, "the record has no value (a tombstone)")
                check_size(len(value), longest)
                found = read(value)
                row = found.numbers if isinstance(found, Guessed) else found
                nbytes = memoryview(row).nbytes
                size += nbytes
                if nbytes > one and not self.several:
                    raise VectorError("wrong_length", f"{nbytes // one} vectors, where outputs hold one")
                rows.append(row)
                counts.append(nbytes // one)
                indices.append(index)
            except VectorError as error:
                size += _UNKNOWN_BYTES * (error.reason == "unknown_schema")
                # Lone surrogates can be neither logged nor written into a header.
                message = str(error).encode(errors="backslashreplace").decode()
                rejects.append(Reject(index, error.reason, message))
            except (StreampcaError, TimeoutError):  # the schema registry's
                raise
            except Exception as error:  # no value may end the worker
                rejects.append(Reject(index, "undecodable", f"it cannot be decoded ({type(error).__name__})"))
        return rows, indices, counts, rejects, len(values)
