"""Decodes the values of records into vectors, a batch at a time. A value that is not a vector is rejected."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import StreampcaError
from streampca.formats import plausible, reader_of
from streampca.formats.base import MAX_BATCH_BYTES, MAX_OBJECT_BYTES, Reader
from streampca.formats.errors import NO_VALUE, VectorError, check_size
from streampca.formats.judge import Judge
from streampca.formats.numbers import GuessedNumbers, VectorBytes
from streampca.formats.record import Batch, Decoded, Record, Reject, headers_of, timestamps_of, values_of
from streampca.formats.schemas import SCHEMA_ID_HEADER, Schemas
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

LARGE_BATCH = 8 * 2**20  # bytes of vectors that are decoded at once; the last value may exceed it
_NO_LIMIT = sys.maxsize  # bytes of vectors, which no batch reaches
# A value with an unknown schema costs a request to the registry, which may take seconds. It counts as if its vectors
# had so many bytes: a batch ends after 100 of them, so that the worker can report and save.
_UNKNOWN_SCHEMA_BYTES = LARGE_BATCH // 100
_NUMBER_BYTES = 32  # that each of a vector's numbers may take in a value; topics take 1 MiB by default


class _ReadValues(NamedTuple):
    """The first values of a batch, read: the numbers of each value that holds vectors, and the rejects."""

    numbers: Sequence[VectorBytes]
    indices: ArrayLike  # of the values that hold vectors
    counts: ArrayLike  # of vectors in each of these values
    rejects: list[Reject]
    taken: int  # number of values that were read


@dataclass(frozen=True)
class Codec:
    """Decodes one format."""

    format: str  # a module of this package, or the NumPy type of raw numbers
    judge: Judge  # of the vectors
    field: str = ""  # paths to the numbers in a value that has fields
    schemas: Schemas | None = None  # for avro and protobuf
    allows_several: bool = True  # a value may hold several vectors; if not, such values are rejected

    @cached_property
    def _reader(self) -> Reader:
        return reader_of(self.format, self.judge.dimensions, self.field, self.schemas, impute=self.judge.imputes)

    @property
    def is_batch(self) -> bool:
        """True if every value is a batch, even of one vector."""
        return self._reader.is_batch

    def values_to_decode(self, records: Sequence[Record]) -> list[bytes | None]:
        """Return the values to decode. If a record has the id of its schema in a header, it is put before the value."""
        values = values_of(records)
        if self.schemas is None:
            return values
        headers = headers_of(records)
        if not any(headers):
            return values
        framed: list[bytes | None] = []
        for value, headers_of_record in zip(values, headers, strict=True):
            schema_id = dict(headers_of_record).get(SCHEMA_ID_HEADER) or b""
            framed.append(None if value is None else schema_id + value)
        return framed

    def decode_batch(self, records: Sequence[Record], end: int, stop_after_bytes: int = _NO_LIMIT) -> Batch:
        """Decode records into a batch. Stop early when their vectors have `stop_after_bytes`.

        `end` is the offset that follows the last record. Raises what `decode` raises.
        """
        decoded, taken = self.decode_some(self.values_to_decode(records), stop_after_bytes)
        timestamps = np.array(timestamps_of(records), np.int64)
        return Batch(
            decoded=decoded,
            timestamps=timestamps[decoded.indices],
            records=records[:taken],
            next=end if taken == len(records) else records[taken].offset,
        )

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a batch: every value becomes vectors or a `Reject`.

        Raises only the schema registry's errors: `TimeoutError` while it is away, after which the batch can be decoded
        again, and `SourceError` if it refuses access.
        """
        decoded, _ = self.decode_some(values, _NO_LIMIT)
        return decoded

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Return a sample of each vector in records that do not name the type of their numbers.

        A sample is all d numbers of a vector, or some numbers of a long vector, in the type that they were read as.
        """
        samples = list[Array]()
        for value in self.values_to_decode(records):
            if not value:
                continue
            with suppress(Exception):  # a value that cannot be read is rejected when it is decoded
                read = self._reader.read(value)
                if self._reader.guessed_dtype is not None and not isinstance(read, GuessedNumbers):
                    read = GuessedNumbers(read, self._reader.guessed_dtype)
                if isinstance(read, GuessedNumbers):
                    vectors = np.frombuffer(read.numbers, self._reader.dtype).astype(read.dtype, copy=False)
                    samples += map(plausible.sample_entries, vectors.reshape(-1, self.judge.dimensions))
        return samples

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """If the numbers of `sample_untyped` cannot be of the type that they were read as, say why; else return ""."""
        of_one_type = [sample for sample in samples if sample.dtype == samples[0].dtype]
        if not of_one_type:
            return ""
        is_raw = self._reader.raw_size is not None
        return plausible.explain_problem(np.stack(of_one_type), raw=is_raw, dimensions=self.judge.dimensions)

    @np.errstate(invalid="ignore")  # NumPy warns about signalling NaNs, which are rejected
    def decode_some(self, values: Sequence[bytes | None], stop_after_bytes: int = LARGE_BATCH) -> tuple[Decoded, int]:
        """Decode values. Stop early when their vectors have `stop_after_bytes`. Also return how many were decoded.

        A limit is needed because a few kilobytes of compressed Arrow may unpack to many megabytes. Raises what `decode`
        raises.
        """
        read = self._read(values, stop_after_bytes)
        # Joining copies, even the numbers of a single value.
        data = read.numbers[0] if len(read.numbers) == 1 else b"".join(read.numbers)
        numbers = np.frombuffer(data, self._reader.dtype)  # integers in some formats
        float_type = np.result_type(numbers, np.float32)  # float32, or float64 if float32 cannot hold these numbers
        floats = numbers.astype(float_type, copy=False)
        decoded = self.judge.reject_bad(
            vectors=floats.reshape(-1, self.judge.dimensions),
            indices=np.asarray(read.indices, np.int64),
            counts=np.asarray(read.counts, np.int64),
            rejects=read.rejects,
        )
        return decoded, read.taken

    def _read(self, values: Sequence[bytes | None], stop_after_bytes: int) -> _ReadValues:
        """Read the numbers of values, and reject the values that cannot be read. Stop early at `stop_after_bytes`.

        Raises the schema registry's errors.
        """
        if self._are_raw_vectors(values):
            n = len(values)
            return _ReadValues(values, indices=np.arange(n), counts=np.ones(n, np.int64), rejects=[], taken=n)  # type: ignore[arg-type]  # no value is None
        numbers: list[VectorBytes] = []
        indices = list[int]()
        counts = list[int]()
        rejects: list[Reject] = []
        read_value = self._reader.read
        longest_value = MAX_BATCH_BYTES if self.is_batch else MAX_OBJECT_BYTES + _NUMBER_BYTES * self.judge.dimensions
        vector_bytes = self._reader.dtype.itemsize * self.judge.dimensions
        total_bytes = 0  # of all vectors so far
        for index, value in enumerate(values):
            if total_bytes >= stop_after_bytes:
                break
            try:
                if value is None:
                    raise VectorError(NO_VALUE, "the record has no value (a tombstone)")
                check_size(len(value), longest_value)
                read = read_value(value)
            except VectorError as error:
                rejects.append(_reject_for(index, error))
                if error.reason == "unknown_schema":
                    total_bytes += _UNKNOWN_SCHEMA_BYTES
                continue
            except (StreampcaError, TimeoutError):  # the schema registry does not answer: not the value's fault
                raise
            except Exception as error:  # no value may end the worker
                rejects.append(Reject(index, "undecodable", f"it cannot be decoded ({type(error).__name__})"))
                continue
            vectors = read.numbers if isinstance(read, GuessedNumbers) else read
            value_bytes = memoryview(vectors).nbytes
            total_bytes += value_bytes
            count = value_bytes // vector_bytes
            if count > 1 and not self.allows_several:
                rejects.append(Reject(index, "wrong_length", f"{count} vectors, where outputs hold one"))
                continue
            numbers.append(vectors)
            counts.append(count)
            indices.append(index)
        return _ReadValues(numbers, indices, counts, rejects, taken=len(indices) + len(rejects))

    def _are_raw_vectors(self, values: Sequence[bytes | None]) -> bool:
        """Return whether each value is the numbers of a vector as they lie in memory, so that nothing must be read."""
        raw_size = self._reader.raw_size
        if raw_size is None:  # values of this format are parsed
            return False
        sizes = {None if value is None else len(value) for value in values}
        return sizes == {raw_size}


def _reject_for(index: int, error: VectorError) -> Reject:
    """Return the reject of the value with this index in its batch."""
    # Lone surrogates can be neither logged nor written into a header.
    message = str(error).encode(errors="backslashreplace").decode()
    return Reject(index, error.reason, message)
