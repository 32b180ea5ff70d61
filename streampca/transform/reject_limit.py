"""Ends `streampca transform` when most records of a partition are rejected, at the limit that workers have.

Unlike there, rejects are not held back: those of a transaction that is committed are final, the others are read again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from streampca.consumer_group.rejects import RejectWindow
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors


class RejectLimit:
    """The rejects of all partitions of a member, each counted from its assignment."""

    def __init__(self, topic: str, share: float) -> None:
        self._topic = topic
        self._windows = defaultdict[int, RejectWindow](lambda: RejectWindow(share))
        self._committed: dict[int, int] = {}  # next offsets, since the assignment

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop partitions; their rejects of the open transaction are read again."""
        for partition in partitions:
            self._windows.pop(partition, None)
            self._committed.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject]) -> None:
        """Count the next records of a partition and the rejects among them. Raises `RejectLimitError`."""
        partition, window = event.partition, self._windows[event.partition]
        if window.add(event, rejects):
            passed = window.count_before(self._committed.get(partition, 0))
            raise window.error(f"partition {partition} of {self._topic}", "format, field", passed)

    def committed(self, positions: Mapping[int, int]) -> None:
        """The rejects before these offsets are final."""
        self._committed |= positions
