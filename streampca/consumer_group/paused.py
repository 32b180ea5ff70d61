"""Partitions whose records cannot be decoded for now, such as while the schema registry is away."""

from collections.abc import Callable, Collection

from streampca.consumer_group.listener import Listener, PartitionResumed, PartitionStalled
from streampca.sources.base import Source

_PAUSE_S = 1.0


class PausedPartitions:
    """Pauses partitions, and reads them all again when it is time to retry."""

    def __init__(self, source: Source, read: Callable[[Collection[int]], None], listener: Listener) -> None:
        """`read` reads partitions again, from the first record that was not decoded."""
        self._source, self._read, self._listener = source, read, listener
        self._paused: set[int] = set()
        self._stalled: set[int] = set()  # until records of theirs are decoded again
        self._retry_at: float | None = None

    def pause(self, partition: int, lag: int, cause: str) -> None:
        """Read no more records of the partition until it is retried."""
        self._source.pause(frozenset({partition}))
        self._paused.add(partition)
        self._stalled.add(partition)
        self._listener.notify(PartitionStalled(partition, lag, cause))

    def retry_when_due(self, now: float) -> None:
        """Read all paused partitions again when the pause, which starts with the first call after `pause`, is over."""
        if not self._paused:
            return
        if self._retry_at is None:
            self._retry_at = now + _PAUSE_S
        if now >= self._retry_at:
            self._read(self._paused)
            self._paused, self._retry_at = set(), None

    def decoded(self, partition: int) -> None:
        """Records of the partition have been decoded."""
        if partition in self._stalled:
            self._stalled.discard(partition)
            self._listener.notify(PartitionResumed(partition))

    def forget(self, partitions: Collection[int]) -> None:
        """Drop partitions that were revoked or lost."""
        self._paused -= set(partitions)
        self._stalled -= set(partitions)
