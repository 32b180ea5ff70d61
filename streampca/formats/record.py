"""Records as sources read them, one by one and by columns."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a partition. kafka-python's ConsumerRecord has the same fields, so it is not copied."""

    offset: int  # position in the partition; offsets may have gaps (transactions, compaction)
    value: bytes | None
    timestamp: int = -1  # milliseconds since 1970, set by the producer or the broker; -1: unknown
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1  # number of leaders before the one that wrote it; -1, and None of clients: unknown


class LastRecord(NamedTuple):
    """The last record that was read of a partition: a log that was cut and has grown again has another one there."""

    offset: int
    leader_epoch: int


NO_RECORDS: Mapping[int, LastRecord] = MappingProxyType({})


class Columns(Sequence[Record]):
    """Records that provide their columns without creating an object for each record."""

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """The field of this name of each record."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "value")


def timestamps_of(records: Sequence[Record]) -> list[int]:
    return _column(records, "timestamp")


def keys_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "key")


def headers_of(records: Sequence[Record]) -> list[Sequence[tuple[str, bytes | None]]]:
    return _column(records, "headers")


def offsets_of(records: Sequence[Record]) -> NDArray[np.int64]:
    """The offset of each of n records, (n,)."""
    if not records:
        return np.zeros(0, np.int64)
    first, last = records[0].offset, records[-1].offset
    if last - first == len(records) - 1:  # there are no gaps: spares reading the records in between
        return np.arange(first, last + 1, dtype=np.int64)
    return np.array(_column(records, "offset"), np.int64)


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """The last of these records; None if its epoch is unknown."""
    epoch = records[-1].leader_epoch if len(records) else None
    return None if epoch is None or epoch < 0 else LastRecord(records[-1].offset, epoch)


def _column(records: Sequence[Record], name: str) -> list[Any]:
    return records.column(name) if isinstance(records, Columns) else [getattr(record, name) for record in records]
