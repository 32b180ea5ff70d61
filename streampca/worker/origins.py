"""The records that messages come from: of those in a batch that are learned, and of those that are still pending."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array
from streampca.stores.worker_status import LONGEST_KEY
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors
from streampca.stream.record import keys_of, offsets_of

_MOST_KEY_BYTES = 256 * LONGEST_KEY  # of a batch's pending messages; if there are more, long keys are cut


class Origin(NamedTuple):
    """Where a message comes from."""

    offset: int  # of its record
    vector: int  # its place among the record's vectors
    key: bytes | None  # of the record


class LearnedMessages(NamedTuple):
    """The n messages of an event that were not rejected."""

    event: Vectors
    rows: NDArray[np.int64] | None  # (n,): among the event's vectors; None: all
    places: NDArray[np.int64]  # (n,): of their records
    numbers: NDArray[np.int64] | None  # (n,): their places in their records; None: they are alone

    @classmethod
    def of(cls, event: Vectors, rejects: Sequence[Reject]) -> "LearnedMessages":
        """`rejects` are all of the event, also those of records that were decoded."""
        V, places, undecoded, counts = event.decoded
        rows = numbers = None
        if len(V) > len(places):
            numbers = np.arange(len(V)) - np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(places, counts)
        if len(rejects) > len(undecoded):
            rows = np.flatnonzero(~np.isin(places, [reject.place for reject in rejects]))
            places, numbers = places[rows], None if numbers is None else numbers[rows]
        return cls(event, rows, places, numbers)

    def vector(self, i: int) -> Array:
        """Message i, (d,)."""
        vector: Array = self.event.decoded.vectors[i if self.rows is None else self.rows[i]]
        return vector

    def origin(self, i: int) -> Origin:
        """Of message i."""
        record = self.event.records[int(self.places[i])]
        return Origin(record.offset, 0 if self.numbers is None else int(self.numbers[i]), record.key)


class _Origins(NamedTuple):
    """The origins of n messages, without their records."""

    offsets: NDArray[np.int64]  # (m,): of records
    keys: Sequence[bytes | None]  # (m,): of the same
    places: NDArray[np.int64]  # (n,): of the messages' records among these
    numbers: NDArray[np.int64] | None  # (n,), as in a batch

    @classmethod
    def of(cls, batch: LearnedMessages, last: int) -> "_Origins":
        """Of the last messages of a batch, so many."""
        places, numbers = batch.places[-last:], batch.numbers
        first = int(places[0])
        records = batch.event.records[first : int(places[-1]) + 1]
        keys = keys_of(records)
        if len(b"".join(filter(None, keys))) > _MOST_KEY_BYTES:
            keys = [key and key[:LONGEST_KEY] for key in keys]
        return cls(offsets_of(records), keys, places - first, None if numbers is None else numbers[-last:].copy())

    def origin(self, i: int) -> Origin:
        """Of message i."""
        place = int(self.places[i])
        return Origin(int(self.offsets[place]), 0 if self.numbers is None else int(self.numbers[i]), self.keys[place])


class PendingOrigins:
    """The origins of a partition's last pending messages, as far as they are known."""

    def __init__(self) -> None:
        self._columns: deque[_Origins] = deque()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, batch: LearnedMessages, pending: int) -> None:
        """Add a batch. After it so many messages are pending, and those of the batch are the newest."""
        last = min(pending, len(batch.places))
        if last:
            self._columns.append(_Origins.of(batch, last))
        self._total += last
        while self._columns and self._total - len(self._columns[0].places) >= pending:
            self._total -= len(self._columns.popleft().places)

    def origin(self, from_end: int) -> Origin:
        """Of one message; −1 is the last one."""
        for columns in reversed(self._columns):
            if from_end >= -len(columns.places):
                return columns.origin(from_end)
            from_end += len(columns.places)
        raise IndexError(from_end)
