"""A topic, its consumer group and its source in memory, for tests; a script controls every single poll.

    topic = MemoryTopic(partitions=2)
    topic.append(0, b"[1, 2]", b"[3, 4]")
    source = MemorySource(topic, script=[1, Pause(), Do(lambda: topic.evict(source)), SourceError("away for good")])

Each poll executes one step of the script; after the last step, polls return all there is. The members of a topic form a
group: when one joins, closes or is evicted, all partitions are revoked and assigned again, as `sources.base` specifies.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from streampca.sources.base import Committed
from streampca.sources.memory_dead_letters import MemoryDeadLetters
from streampca.sources.memory_log import Log
from streampca.stream.record import (
    NO_RECORDS,
    Assigned,
    Event,
    LastRecord,
    Lost,
    OutOfRange,
    Records,
    Revoked,
    SourceStatus,
)

__all__ = ["Do", "MemoryDeadLetters", "MemorySource", "MemoryTopic", "Pause", "Step"]


@dataclass(frozen=True)
class Pause:
    """A poll that returns nothing."""


@dataclass(frozen=True)
class Do:
    """Calls a function just before a poll: it may append records, evict a member, or replace the topic."""

    act: Callable[[], object]


Step = int | Pause | Do | Exception
"""An int is a poll that returns at most so many records of each partition; an exception is raised."""


class MemoryTopic:
    """The broker's side: the logs and the group. The broker does not answer while `away`."""

    def __init__(self, partitions: int = 1, name: str = "memory") -> None:
        self.name = name
        self.away = False
        self.committed: dict[int, int] = {}  # partition → offset
        self.metadata: dict[int, str] = {}  # of the committed offsets
        self.lock = threading.RLock()
        self._members: list[MemorySource] = []
        self._joined: list[MemorySource] | None = None  # during a rebalance: those that gave up their partitions
        self.create(partitions)

    def create(self, partitions: int) -> None:
        """Delete the topic and create it again, empty, with another id; the group does not notice."""
        self.id = uuid.uuid4().hex
        self.logs = [Log() for _ in range(partitions)]

    def append(self, partition: int, *values: bytes | None, timestamp: int = -1, key: bytes | None = None) -> None:
        """Append records with these values."""
        with self.lock:
            for value in values:
                self.logs[partition].append(value, timestamp, key)

    def skip(self, partition: int, offsets: int) -> None:
        """Move the end of the log past offsets without a record, such as the markers of transactions."""
        self.logs[partition].end += offsets

    def trim(self, partition: int, start: int) -> None:
        """Remove the records before an offset, as retention does."""
        self.logs[partition].trim(start)

    def truncate(self, partition: int, end: int) -> None:
        """Remove the records from an offset on, as an unclean leader election does."""
        with self.lock:
            self.logs[partition].truncate(end)

    def add_partitions(self, total: int) -> None:
        """Add partitions, which starts a rebalance."""
        with self.lock:
            self.logs += [Log() for _ in range(total - len(self.logs))]
            self.rebalance()

    def evict(self, member: "MemorySource") -> None:
        """Remove a member as if it had timed out; it notices at its next poll and joins again."""
        with self.lock:
            if member not in self._members:  # it has not joined yet
                return
            self._members.remove(member)
            member.evicted = True
            self.rebalance()

    def join(self, member: "MemorySource") -> None:
        """Add a member to the group."""
        with self.lock:
            self._members.append(member)
            self.rebalance()

    def leave(self, member: "MemorySource") -> None:
        """Remove a member from the group."""
        with self.lock:
            if member in self._members:
                self._members.remove(member)
                self.rebalance()

    def rebalance(self) -> None:
        """Ask every member to give up its partitions; when all have, they are assigned again."""
        self._joined = []

    @property
    def is_settled(self) -> bool:
        """Whether no rebalance is under way."""
        return self._joined is None

    def is_joined(self, member: "MemorySource") -> bool:
        """Whether the member has given up its partitions, or need not."""
        return self._joined is None or member in self._joined

    def give_up(self, member: "MemorySource") -> None:
        """Note that the member has given up its partitions; the last one ends the rebalance."""
        if self._joined is None:
            return
        self._joined.append(member)
        if all(other in self._joined for other in self._members):
            for place, other in enumerate(self._members):
                other.granted = frozenset(range(place, len(self.logs), len(self._members)))
            self._joined = None


class MemorySource:
    """See `streampca.sources.base.Source`. `poll` never waits."""

    def __init__(self, topic: MemoryTopic, script: Iterable[Step] = (), batch: int = 1000) -> None:
        self._topic, self._script, self._batch = topic, iter(script), batch
        self._owned: frozenset[int] = frozenset()
        self._revoking = False  # `Revoked` was returned; the next poll gives the partitions up
        self._read: dict[int, int] = {}  # partitions being read → position
        self._last: dict[int, LastRecord] = {}  # and the record before it, if known
        self._reported: dict[int, tuple[int, int]] = {}
        self._is_member = self._closed = False
        self.evicted = False
        self.granted: frozenset[int] | None = None  # assigned by the group, not returned yet

    def topic_id(self) -> str:
        if self._topic.away:
            raise TimeoutError("no broker answers")
        return self._topic.id

    def partitions(self) -> frozenset[int]:
        return frozenset(range(len(self._topic.logs)))

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if self._closed:
            raise ValueError("the source is closed")
        if not self._is_member:
            self._is_member = True
            self._topic.join(self)
        step = next(self._script, self._batch)
        if isinstance(step, Do):
            step.act()
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Pause) or self._topic.away:
            return []
        with self._topic.lock:
            event = self._rebalance_event()
            return [event] if event else self._records(step if isinstance(step, int) else self._batch)

    def status(self) -> SourceStatus:
        return SourceStatus(
            not self._topic.away, member=self._is_member and not self.evicted and self._topic.is_settled
        )

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        for partition, position in positions.items():
            if partition not in self._owned:
                raise ValueError(f"partition {partition} is not assigned")
            self._read[partition] = self._topic.logs[partition].start if position is None else position
            self._reported.pop(partition, None)
            self._last.pop(partition, None)
        self._last |= last

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._read.pop(partition, None)

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        if not self._topic.away:
            self._topic.committed.update(positions)
            self._topic.metadata.update(dict.fromkeys(positions, metadata))

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        if self._topic.away:
            raise TimeoutError("no broker answers")
        found = {p: offset for p, offset in self._topic.committed.items() if p in partitions}
        return {p: Committed(offset, self._topic.metadata.get(p, "")) for p, offset in found.items()}

    def may_commit(self, partitions: Collection[int]) -> bool:
        """Whether the group still counts these partitions as ours."""
        return not self.evicted and frozenset(partitions) <= self._owned

    def close(self) -> None:
        self._closed = True
        self._topic.leave(self)

    def _rebalance_event(self) -> Event | None:
        """The next event of a rebalance, if there is one."""
        if self.evicted:
            lost = frozenset() if self._revoking else self._owned
            self.evicted, self._revoking = False, False
            self._drop()
            self._topic.join(self)
            return Lost(lost) if lost else None
        if not self._topic.is_joined(self):
            if self._owned and not self._revoking:
                self._revoking, self._read = True, {}
                return Revoked(self._owned)
            self._revoking = False
            self._drop()
            self._topic.give_up(self)
        if self.granted is None:
            return None
        self._owned, self.granted = self.granted, None
        return Assigned(self._owned) if self._owned else None

    def _drop(self) -> None:
        self._owned, self.granted = frozenset(), None
        self._read, self._reported, self._last = {}, {}, {}

    def _records(self, most: int) -> list[Event]:
        return [event for p in sorted(self._read) if (event := self._records_of(p, most))]

    def _records_of(self, partition: int, most: int) -> Event | None:
        log, position = self._topic.logs[partition], self._read[partition]
        last = self._last.get(partition)
        if last and (diverged := log.end_of(last.leader_epoch)) <= last.offset:
            del self._read[partition]
            return OutOfRange(partition, last.offset + 1, log.start, log.end, diverged)
        if not log.start <= position <= log.end:
            del self._read[partition]
            return OutOfRange(partition, position, log.start, log.end)
        records = log.read(position, most)
        if records:
            self._last[partition] = LastRecord(records[-1].offset, records[-1].leader_epoch)
        whole = not records or records[-1] is log.records[-1]
        self._read[partition] = next_ = log.end if whole else records[-1].offset + 1
        if self._reported.get(partition) == (next_, log.end):
            return None
        self._reported[partition] = (next_, log.end)
        return Records(partition, records, next_, log.end)
