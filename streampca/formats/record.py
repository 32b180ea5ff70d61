"""Records as sources read them, one by one and by columns."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Record(Protocol):
    """One message of a partition. kafka-python's ConsumerRecord satisfies this, so it is not copied."""

    @property
    def offset(self) -> int:
        """Position in the partition; offsets may have gaps (transactions, compaction)."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, set by the producer or the broker; -1 if unknown."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...

    @property
    def leader_epoch(self) -> int | None:
        """Number of the partition's leaders before the one that wrote the record; -1 or None if unknown."""


class LastRecord(NamedTuple):
    """The last record that was read of a partition: a log that was cut and has grown again has another one there."""

    offset: int
    leader_epoch: int


NO_RECORDS: Mapping[int, LastRecord] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """A record with all its fields."""

    offset: int
    value: bytes | None
    timestamp: int = -1
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1


class Columns(Sequence[Record]):
    """Records that provide their columns without creating an object for each record."""

    @abstractmethod
    def values(self) -> list[bytes | None]: ...

    @abstractmethod
    def timestamps(self) -> list[int]: ...

    @abstractmethod
    def offsets(self) -> list[int]: ...

    @abstractmethod
    def keys(self) -> list[bytes | None]: ...

    @abstractmethod
    def headers(self) -> list[Sequence[tuple[str, bytes | None]]]: ...


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    return records.values() if isinstance(records, Columns) else [record.value for record in records]


def timestamps_of(records: Sequence[Record]) -> list[int]:
    return records.timestamps() if isinstance(records, Columns) else [record.timestamp for record in records]


def keys_of(records: Sequence[Record]) -> list[bytes | None]:
    return records.keys() if isinstance(records, Columns) else [record.key for record in records]


def headers_of(records: Sequence[Record]) -> list[Sequence[tuple[str, bytes | None]]]:
    return records.headers() if isinstance(records, Columns) else [record.headers for record in records]


def offsets_of(records: Sequence[Record]) -> NDArray[np.int64]:
    """The offset of each of n records, (n,)."""
    if not records:
        return np.zeros(0, np.int64)
    first, last = records[0].offset, records[-1].offset
    if last - first == len(records) - 1:  # there are no gaps: spares reading the records in between
        return np.arange(first, last + 1, dtype=np.int64)
    offsets = records.offsets() if isinstance(records, Columns) else [record.offset for record in records]
    return np.array(offsets, np.int64)


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """The last of these records; None if its epoch is unknown."""
    epoch = records[-1].leader_epoch if len(records) else None
    return None if epoch is None or epoch < 0 else LastRecord(records[-1].offset, epoch)
