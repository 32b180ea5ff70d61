"""Partitions that cannot go on for now, through no fault of their records: held, and read again later."""

from streampca.sources.base import Source
from streampca.worker.listener import Listener, PartitionResumed, PartitionStalled

_WAIT_S = 1.0


class Held:
    """Holds partitions at the position from which they are to be read again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held: dict[int, int | None] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, partition: int, position: int) -> None:
        """Read nothing more of the partition until it is let go, and then from `position` on."""
        self._source.pause(frozenset({partition}))
        self._held[partition] = position

    def let_go(self) -> None:
        """Read all of them again."""
        self._source.seek(self._held)
        self._held = {}

    def forget(self, partition: int) -> None:
        """The partition is no longer ours."""
        self._held.pop(partition, None)


class PausedPartitions:
    """Holds partitions whose records cannot be decoded, and tries again after a while."""

    def __init__(self, source: Source, listener: Listener) -> None:
        self._held, self._listener = Held(source), listener
        self._stalled: set[int] = set()  # until records of theirs are decoded again
        self._until: float | None = None

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, partition: int, position: int, lag: int, cause: str) -> None:
        """Read nothing more of the partition until it is time to read it from `position` on once more."""
        self._held.hold(partition, position)
        self._stalled.add(partition)
        self._listener.notify(PartitionStalled(partition, lag, cause))

    def decoded(self, partition: int) -> None:
        """Records of the partition have been decoded."""
        if partition in self._stalled:
            self._stalled.discard(partition)
            self._listener.notify(PartitionResumed(partition))

    def resume(self, now: float) -> None:
        """Let all go on when they have waited long enough, counted from the first call after they were held."""
        if self._until is None:
            self._until = now + _WAIT_S
        if now >= self._until:
            self._held.let_go()
            self._until = None

    def forget(self, partition: int) -> None:
        """The partition is no longer ours."""
        self._held.forget(partition)
        self._stalled.discard(partition)
