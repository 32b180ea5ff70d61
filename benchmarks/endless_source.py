"""A topic that never ends, without a broker."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from streampca.sources.base import Committed
from streampca.stream.events import Assigned, Event, Records, SourceStatus
from streampca.stream.record import NO_RECORDS, LastRecord, PlainRecord

_VALUES = 1024  # different vectors, which repeat


class EndlessSource:
    """A source whose every poll returns records of the next partition; it first calls `look` with the count so far."""

    def __init__(self, d: int, k: int, partitions: int, batch: int, look: Callable[[int], None]) -> None:
        rng = np.random.default_rng(0)
        plane = rng.standard_normal((k, d))
        rows = (rng.standard_normal((_VALUES, k)) @ plane + 0.1 * rng.standard_normal((_VALUES, d))).astype(np.float32)
        self._values = [row.tobytes() for row in rows]
        self._partitions, self._batch = partitions, batch
        self._next = dict.fromkeys(range(partitions), 0)
        self._turn, self._read, self._look = -1, 0, look

    def topic_id(self) -> str:
        return "endless"

    def partitions(self) -> frozenset[int]:
        return frozenset(self._next)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self._look(self._read)
        self._turn += 1
        if self._turn == 0:
            return [Assigned(self.partitions())]
        partition = self._turn % self._partitions
        start = self._next[partition]
        records = [PlainRecord(start + i, self._values[(start + i) % _VALUES], timestamp=0) for i in range(self._batch)]
        self._next[partition] = end = start + self._batch
        self._read += self._batch
        return [Records(partition, records, end, end)]

    def status(self) -> SourceStatus:
        return SourceStatus(connected=True, member=True)

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        self._next.update({p: position or 0 for p, position in positions.items()})

    def pause(self, partitions: frozenset[int]) -> None: ...

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None: ...

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        return {}

    def close(self) -> None: ...
