"""Decodes the values of records into vectors, a batch at a time. A value that is not a vector is rejected."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import StreampcaError
from streampca.formats import plausible, reader_of
from streampca.formats.base import MAX_BATCH_BYTES, MAX_OBJECT_BYTES, Reader
from streampca.formats.errors import NO_VALUE, VectorError, size_error
from streampca.formats.judge import Judge
from streampca.formats.labels import NO_LABEL, LabelFinder
from streampca.formats.numbers import VectorBytes, guessed_dtype_of
from streampca.formats.record import Batch, Decoded, Record, Reject, headers_of, timestamps_of, values_of
from streampca.formats.schemas import SCHEMA_ID_HEADER, Schemas
from streampca.formats.seen_names import SeenNames
from streampca.pca.arrays import Array
from streampca.settings.field_paths import dimension_names

REASONS = (
    "undecodable",
    "unknown_schema",  # the registry has no such id
    "wrong_length",
    "not_finite",  # infinity, or NaN with missing=refuse
    "too_few_observed",  # too many entries are missing
    "too_large",  # its squares would overflow
    "too_many_bytes",  # the value is longer than any ordinary one
)

# Bytes of vectors that are decoded at once: a few kilobytes of compressed Arrow may hold many megabytes. The last value
# may exceed the limit.
LARGE_BATCH_BYTES = 8 * 2**20
_NO_LIMIT = sys.maxsize  # bytes of vectors, which no batch reaches
# A value with an unknown schema costs a request to the registry, which may take seconds. The value counts as if its
# vectors had this many bytes: a batch ends after 100 such values, so that the worker can report and save.
_UNKNOWN_SCHEMA_BYTES = LARGE_BATCH_BYTES // 100
_NUMBER_BYTES = 32  # that each of a vector's numbers may take in a value; topics take 1 MiB by default


class _ReadValues(NamedTuple):
    """What was read from the first values of a batch: the numbers of m values that hold vectors, and the rejects."""

    numbers: Sequence[VectorBytes]  # of the vectors in each of the m values
    counts: NDArray[np.int64]  # (m,), how many vectors each of them holds
    rejects: list[Reject]

    @property
    def value_count(self) -> int:
        """How many values were read, including the rejects."""
        return len(self.numbers) + len(self.rejects)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The indices, in the batch, of the m values that were not rejected: (m,)."""
        indices_of_all = np.arange(self.value_count)
        if not self.rejects:
            return indices_of_all
        return np.delete(indices_of_all, [reject.index for reject in self.rejects])


@dataclass(frozen=True)
class Codec:
    """Decodes one format."""

    format: str  # a module of this package, or the NumPy type of raw numbers
    judge: Judge  # of the vectors
    field: str = ""  # paths to the numbers in a value that has fields
    schemas: Schemas | None = None  # for avro and protobuf
    where: str = ""  # conditions that a record must meet; if it does not, it is skipped
    label: str = ""  # the path to the label of a record; "": records have none
    allows_several: bool = True  # whether a value may hold several vectors; if not, such values are rejected

    @cached_property
    def _reader(self) -> Reader:
        """Reads the numbers of one value at a time. The `judge` checks the vectors of many values afterwards."""
        return reader_of(
            self.format,
            self.judge.dimensions,
            self.field,
            self.schemas,
            impute=self.judge.imputes,
            where=self.where,  # conditions
            label=self.label,  # a path
        )

    def create_seen_names(self) -> SeenNames:
        """Create a `SeenNames`, which has seen no vector yet.

        It looks for the names that `field` gives the d numbers. If `field` has only one path, or not a path for each of
        the d numbers, there are no names to look for.
        """
        return SeenNames(dimension_names(self.field, self.judge.dimensions))

    @property
    def is_batch(self) -> bool:
        """Whether every value is a batch of vectors, even if it holds one vector."""
        return self._reader.is_batch

    def values_to_decode(self, records: Sequence[Record]) -> list[bytes | None]:
        """Return the values of records. If a header holds a schema prefix, put the prefix before the value."""
        values = values_of(records)
        if self.schemas is None:
            return values
        headers = headers_of(records)
        if not any(headers):
            return values
        values_with_prefix: list[bytes | None] = []
        for value, headers_of_record in zip(values, headers, strict=True):
            prefix = dict(headers_of_record).get(SCHEMA_ID_HEADER) or b""  # a header may hold None
            values_with_prefix.append(None if value is None else prefix + value)
        return values_with_prefix

    def read_labels(self, records: Sequence[Record], counts: NDArray[np.int64]) -> list[str]:
        """Return the label of each vector in m records. `counts` (m,) are the numbers of vectors in each record.

        If a record has neither one label nor one for each vector, its vectors have none.
        """
        finder = LabelFinder(self.label)
        labels_of_vectors: list[str] = []
        for value, count in zip(self.values_to_decode(records), counts.tolist(), strict=True):
            labels = [NO_LABEL]
            with suppress(Exception):  # a value that cannot be parsed has no label; nor has a delete, which is None
                tree = self._reader.read_tree(value or b"")
                labels = finder.find_all(tree)
            if len(labels) == 1:
                labels *= count
            labels_of_vectors += labels if len(labels) == count else [NO_LABEL] * count
        return labels_of_vectors

    def decode_batch(self, records: Sequence[Record], next_offset: int, stop_after_bytes: int = _NO_LIMIT) -> Batch:
        """Decode records into a batch, until the vectors so far take `stop_after_bytes` bytes.

        `next_offset` is the offset that follows the last record.
        """
        # The batch has the first `count` records. `decoded.indices` are those of the records that hold vectors.
        decoded, count = self.decode_some(self.values_to_decode(records), stop_after_bytes)
        are_all_decoded = count == len(records)
        timestamps = np.array(timestamps_of(records), np.int64)
        return Batch(
            decoded=decoded,
            timestamps=timestamps[decoded.indices],
            records=records[:count],
            next=next_offset if are_all_decoded else records[count].offset,
        )

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode values: each becomes vectors or a `Reject`.

        Raises only the schema registry's errors: `TimeoutError` while it is away, and `SourceError` if it refuses
        access.
        """
        decoded, _ = self.decode_some(values, _NO_LIMIT)
        return decoded

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Return some entries of each vector in values that do not name the type of their numbers.

        The numbers are read as the configured type, which may be wrong: by the samples, the caller can check it. Values
        that cannot be decoded are left out.
        """
        samples = list[Array]()
        for value in self.values_to_decode(records):
            if not value:  # a delete, or an empty value
                continue
            with suppress(Exception):  # it is rejected when it is decoded
                samples += self._sample_value(value)
        return samples

    def _sample_value(self, value: bytes) -> list[Array]:
        """If the type of a value's numbers is uncertain, return some entries of each vector in this type; else [].

        The type is uncertain if the reader has guessed it from this value, or if the type that the setting `format`
        names must be checked. The entries show whether the type may be right.
        """
        data = self._reader.read(value)
        uncertain_dtype = guessed_dtype_of(data) or self._reader.dtype_to_check
        if uncertain_dtype is None:
            return []
        # The reader returns all numbers in the type `dtype`. Convert them back to the type in which they were read.
        numbers = np.frombuffer(data, self._reader.dtype).astype(uncertain_dtype, copy=False)
        vectors = self.judge.missing_values.to_nan(numbers).reshape(-1, self.judge.dimensions)
        return [plausible.sample_entries(vector) for vector in vectors]

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """If samples seem to be read as a wrong type, say why; otherwise return ""."""
        if not samples:
            return ""
        # The type is guessed for each value, so it may differ. Only samples of the first sample's type are judged.
        samples_of_one_type = [sample for sample in samples if sample.dtype == samples[0].dtype]
        is_raw_format = self._reader.raw_size is not None
        vectors = np.stack(samples_of_one_type)
        return plausible.explain_problem(vectors, is_raw_format=is_raw_format, dimensions=self.judge.dimensions)

    @np.errstate(invalid="ignore")  # NumPy warns about signalling NaNs, which are rejected
    def decode_some(
        self, values: Sequence[bytes | None], stop_after_bytes: int = LARGE_BATCH_BYTES
    ) -> tuple[Decoded, int]:
        """Decode values until the vectors so far take `stop_after_bytes` bytes.

        Also return how many values were decoded.
        """
        if self._are_raw_vectors(values):
            # Each value is the bytes of one vector. All values are decoded, without regard to `stop_after_bytes`: the
            # vectors take at most eight times as many bytes as the values (int8 may become float64).
            one_each = np.ones(len(values), np.int64)
            read = _ReadValues(values, one_each, rejects=[])  # type: ignore[arg-type]  # no value is None
        else:
            read = self._read(values, stop_after_bytes)
        decoded = self.judge.reject_bad(
            vectors=self._join_vectors(read.numbers),
            indices=read.indices,
            counts=read.counts,
            earlier_rejects=read.rejects,
        )
        # In arrays such as [{"id": "temp", "value": 20.5}], the reader remembers the index of each element. If elements
        # have changed their order, `warning` says so; otherwise it is "".
        element_indices = self._reader.numbers.element_indices
        return decoded._replace(warning=element_indices.warning), read.value_count

    def _join_vectors(self, numbers: Sequence[VectorBytes]) -> Array:
        """Return the vectors of several values as one array (n, d) of floats that can hold their numbers.

        `numbers` are the bytes of each value's numbers.
        """
        # `join` would copy the bytes of a single value.
        data = numbers[0] if len(numbers) == 1 else b"".join(numbers)
        joined = np.frombuffer(data, self._reader.dtype)
        float_type = np.result_type(joined, np.float32)  # float64 if float32 cannot hold these numbers
        return joined.astype(float_type, copy=False).reshape(-1, self.judge.dimensions)

    def _read(self, values: Sequence[bytes | None], stop_after_bytes: int) -> _ReadValues:
        """Read the numbers of values until the vectors so far take `stop_after_bytes` bytes.

        Rejects a value that cannot be read. Rejects a value of several vectors if only one is allowed.
        """
        numbers_of_values: list[VectorBytes] = []
        sizes: list[int] = []  # bytes of the numbers in each of these values
        rejects: list[Reject] = []
        read_value = self._reader.read
        vector_size = self._reader.dtype.itemsize * self.judge.dimensions
        max_value_size = self._max_value_size
        total_size = 0
        for index, value in enumerate(values):
            if total_size >= stop_after_bytes:
                break
            if value is None or len(value) > max_value_size:
                # None is a delete. By its reason, the judge moves it from the rejects to the skipped records.
                rejects.append(_create_reject(index, _refusal(value, max_value_size)))
                continue
            try:
                numbers = read_value(value)
            except (StreampcaError, TimeoutError):  # not the value's fault, such as a registry that is away
                raise
            except Exception as error:  # the value's fault: whatever the error is, it must not end the worker
                reject = _create_reject(index, error)
                rejects.append(reject)
                if reject.reason == "unknown_schema":
                    # The request to the registry took time. It counts as bytes, so that the batch ends earlier.
                    total_size += _UNKNOWN_SCHEMA_BYTES
                continue
            # `len` of a memoryview counts its items, not bytes.
            size = len(numbers) if isinstance(numbers, bytes) else memoryview(numbers).nbytes
            total_size += size
            if size > vector_size and not self.allows_several:
                count = size // vector_size
                rejects.append(Reject(index, "wrong_length", f"{count} vectors, where a value must hold one"))
                continue
            numbers_of_values.append(numbers)
            sizes.append(size)
        # How many vectors each value holds: a reader returns only whole vectors. All are counted at once, since a
        # division for each value would take 2 % of the time of small values.
        counts = np.array(sizes, np.int64) // vector_size
        return _ReadValues(numbers_of_values, counts, rejects)

    @property
    def _max_value_size(self) -> int:
        """Bytes of the longest value that is read."""
        return MAX_BATCH_BYTES if self.is_batch else MAX_OBJECT_BYTES + _NUMBER_BYTES * self.judge.dimensions

    def _are_raw_vectors(self, values: Sequence[bytes | None]) -> bool:
        """Return whether each value is the numbers of a vector as they lie in memory."""
        raw_size = self._reader.raw_size
        if raw_size is None:  # values of this format are parsed
            return False
        sizes = {None if value is None else len(value) for value in values}
        return sizes == {raw_size}


def _refusal(value: bytes | None, max_size: int) -> VectorError:
    """Return the error of a value that is not read: a delete, or a value that is too long."""
    if value is None:
        return VectorError(NO_VALUE, "the record has no value (a tombstone)")
    return size_error(len(value), max_size)


def _create_reject(index: int, error: Exception) -> Reject:
    """Return the reject of the value with this index in its batch, which cannot be read because of the error."""
    if not isinstance(error, VectorError):
        return Reject(index, "undecodable", f"it cannot be decoded ({type(error).__name__})")
    # Lone surrogates can be neither logged nor written into a header.
    message = str(error).encode(errors="backslashreplace").decode()
    return Reject(index, error.reason, message)
