"""The Kafka cluster of the simulation: an outage, a cut-off member, sessions that expire, commits that are fenced.

The group's protocol is that of `streampca.sources.memory`; here it gets time, and members that are dead or paused.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from streampca.errors import SourceError
from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.base import Committed, DeadLetters
from streampca.sources.events import Event, Records, SourceStatus
from tests.in_memory import MemorySource, MemoryTopic
from tests.simulation.scheduler import Process, Scheduler, Task

SESSION_S, POLL_INTERVAL_S = 3.0, 8.0  # a member that is silent for so long, or does not poll, is evicted
_BUFFERED = 2  # dead letters that are kept while no broker answers
_ANSWER_S = 1.0  # a request to a broker that does not answer fails after this time


class Cluster(MemoryTopic):
    """One topic, its group and its dead-letter topic."""

    def __init__(self, scheduler: Scheduler, partitions: int, name: str) -> None:
        self.scheduler, self._waiting, self.created = scheduler, list[Task](), 0
        self.dead_letters: set[tuple[int, Record]] = set()  # acknowledged, with their partitions
        self.starts: dict[int, set[int]] = {}  # partition → offsets at which it may begin
        self.delivered: dict[int, int] = {}  # of each partition, the end of what anybody has read
        self.on_commit: Callable[[Mapping[int, int], str], object] = lambda positions, metadata: None
        super().__init__(partitions, name)

    def create(self, partitions: int) -> None:
        super().create(partitions)
        self.created += 1
        self.id = f"id-{self.created}"

    def append(self, partition: int, *values: bytes | None, timestamp: int = -1, key: bytes | None = None) -> None:
        super().append(partition, *values, timestamp=timestamp, key=key)
        self.wake()

    def rebalance(self) -> None:
        super().rebalance()
        self.wake()

    def give_up(self, member: MemorySource) -> None:
        super().give_up(member)
        self.wake()

    def wait(self, until: float) -> None:
        """Wait until something happens in the cluster."""
        self._waiting.append(self.scheduler.current)
        self.scheduler.suspend(until)

    def wake(self) -> None:
        for task in self._waiting:
            self.scheduler.wake(task)
        self._waiting.clear()

    def expire_sessions(self) -> None:
        """Evict members that are dead, paused or cut off for too long, as the coordinator does."""
        for member in [m for m in self._members if isinstance(m, ClusterSource)]:
            if self.away or (member.is_reachable and member.process.is_running):
                member.seen_at = self.scheduler.now
            polled = self.away or self.scheduler.now - member.polled_at < POLL_INTERVAL_S
            if self.scheduler.now - member.seen_at > SESSION_S or not polled:
                self.evict(member)


class ClusterSource(MemorySource):
    """A member of the group, in a process that may be cut off from the cluster."""

    def __init__(self, cluster: Cluster, process: Process, batch: int) -> None:
        self.process, self.cluster, self.cut_until = process, cluster, 0.0
        self.seen_at = self.polled_at = cluster.scheduler.now
        super().__init__(cluster, batch=batch)

    @property
    def is_reachable(self) -> bool:
        """Whether requests are answered."""
        return not self.cluster.away and self.cluster.scheduler.now >= self.cut_until

    def topic_id(self) -> str:
        self._request("topic_id")
        return super().topic_id()

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.process.call("poll")
        scheduler = self.cluster.scheduler
        deadline = scheduler.now + timeout_s
        while True:
            self.polled_at = scheduler.now
            events = super().poll(0) if self.is_reachable else []
            if events or scheduler.now >= deadline:
                self._note_delivered(events)
                return events
            self.cluster.wait(deadline)

    def status(self) -> SourceStatus:
        return SourceStatus(self.is_reachable, super().status().member)

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        self.process.call("seek")
        super().seek(positions, last)

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        self.process.call("commit")
        if self.is_reachable and not self.evicted and self in self.cluster._members:
            ours = {p: offset for p, offset in positions.items() if p in self._owned}
            self.cluster.on_commit(ours, metadata)
            super().commit(ours, metadata)
        self.process.call("committed")

    def committed(self) -> dict[int, Committed]:
        self._request("offsets")
        return super().committed()

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        self._request("offsets")
        offsets = super().offsets_at(partitions, time_ms)
        for partition, offset in offsets.items():
            self.cluster.starts.setdefault(partition, set()).add(offset)
        return offsets

    def close(self) -> None:
        self.process.call("close")
        if self.is_reachable:
            super().close()
        self._closed = True

    def _note_delivered(self, events: Sequence[Event]) -> None:
        delivered = self.cluster.delivered
        for event in events:
            if isinstance(event, Records):
                delivered[event.partition] = max(delivered.get(event.partition, 0), event.next)

    def _request(self, name: str) -> None:
        self.process.call(name)
        if not self.is_reachable:
            self.cluster.scheduler.sleep(_ANSWER_S)
            raise TimeoutError("no broker answers")


class ClusterDeadLetters(DeadLetters):
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, source: ClusterSource) -> None:
        self._source, self._sent = source, list[tuple[int, Record]]()

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        if len(self._sent) >= _BUFFERED and not self._source.is_reachable:
            raise SourceError("no broker answers, and the buffer is full")
        self._sent.append((partition, record))

    def flush(self, timeout_s: float) -> None:
        self._source.process.call("flush")
        if self._sent and not self._source.is_reachable:
            self._source.cluster.scheduler.sleep(timeout_s)
            raise TimeoutError(f"{len(self._sent)} dead letters are not acknowledged yet")
        self._source.cluster.dead_letters.update(self._sent)
        self._sent.clear()
        self._source.process.call("flushed")

    def close(self) -> None:
        self._sent.clear()
