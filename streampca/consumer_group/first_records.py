"""The first records of a partition wait until 100 of them were compared, or for a minute.

Raw bytes of another type are numbers too, and one vector does not show it. So nothing is learned, sent or rejected
before. Formats that name the type of their numbers do not wait.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from streampca.consumer_group.rejects import FIRST
from streampca.errors import RejectLimitError
from streampca.formats.record import Record
from streampca.sources.events import Vectors

_WAIT_S = 60.0

V = TypeVar("V", bound=Vectors)


class FirstRecords:
    """Holds back the events of partitions at their start."""

    def __init__(self, topic: str, oddity: Callable[[Sequence[Record]], str | None]) -> None:
        """`oddity` says why records are not what was sent: "" if they may be, None if they name their type."""
        self._topic, self._oddity = topic, oddity
        self._records: dict[int, list[Record]] = {}  # of partitions at their start, the first
        self._waiting: dict[int, list[Any]] = {}
        self._until: dict[int, float] = {}  # from the first `due` on

    def __contains__(self, partition: int) -> bool:
        """Whether a partition's next records are needed. Any thread may ask."""
        return partition in self._records

    def begin(self, partitions: Collection[int]) -> None:
        """The next events of these partitions are their first ones."""
        self._records |= {partition: [] for partition in partitions}

    def forget(self, partitions: Collection[int]) -> None:
        """Drop what waits: it will be read again."""
        for partition in partitions:
            for of_partitions in (self._records, self._waiting, self._until):
                of_partitions.pop(partition, None)

    def after(self, event: V) -> list[V]:
        """The events that may be handled now that this one has come. Raises `RejectLimitError`."""
        if (records := self._records.get(event.partition)) is None:
            return [event]
        unknown = {reject.index for reject in event.decoded.rejects if reject.reason == "unknown_schema"}  # yet
        first = event.records[: FIRST - len(records)]
        records += [record for index, record in enumerate(first) if index not in unknown]
        if odd := self._oddity(records):
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: the first records are not what was sent: {odd}"
            )
        ready = [*self._waiting.pop(event.partition, []), event]
        if len(records) >= FIRST:
            self.forget([event.partition])
        elif odd is not None:
            self._waiting[event.partition] = ready
            return []
        return ready

    def due(self, now: float) -> list[Any]:
        """The events that have waited for a minute."""
        over = [partition for partition in self._waiting if now >= self._until.setdefault(partition, now + _WAIT_S)]
        return [event for partition in over for event in self._waiting.pop(partition)]
