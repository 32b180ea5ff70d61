"""Ends `streampca transform` when most records of a partition are rejected, at the limit that workers have.

Unlike there, rejects are not held back: those of a transaction that is committed are final, the others are read again.
"""

from collections.abc import Iterable, Mapping, Sequence

from streampca.member.reject_window import RejectWindow
from streampca.stream.decoded import Reject
from streampca.stream.record import Vectors


class RejectLimit:
    """The rejects of all partitions of a member, each counted from its assignment."""

    def __init__(self, topic: str, share: float) -> None:
        self._topic, self._share = topic, share
        self._windows: dict[int, RejectWindow] = {}
        self._committed: dict[int, int] = {}  # next offsets, since the assignment

    def begin(self, partitions: Iterable[int]) -> None:
        """Count from here: these partitions were just assigned."""
        self._windows |= {partition: RejectWindow(self._share) for partition in partitions}

    def forget(self, partition: int) -> None:
        """Drop a partition; its rejects of the open transaction are read again."""
        self._windows.pop(partition, None)
        self._committed.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject]) -> None:
        """Count the next records of a partition and the rejects among them. Raises `RejectLimitError`."""
        partition, window = event.partition, self._windows[event.partition]
        if window.is_exceeded_by(event, rejects):
            passed = window.before(self._committed.get(partition, 0))
            raise window.error(f"partition {partition} of {self._topic}", "format, field", passed)

    def committed(self, positions: Mapping[int, int]) -> None:
        """The rejects before these offsets are final."""
        self._committed |= positions
