"""A topic and its consumer group in memory: the broker's side."""

import threading
import uuid
from dataclasses import dataclass, field
from typing import Protocol

from streampca.formats.record import Record
from tests.in_memory.coordinator import Coordinator


@dataclass
class Log:
    """Records in order of offset, start <= offset < end, possibly with gaps."""

    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list)
    leader_epoch: int = 0

    def end_of(self, epoch: int) -> int:
        """The end of the records that were written until that leader epoch."""
        return next((record.offset for record in self.records if record.leader_epoch > epoch), self.end)


class Member(Protocol):
    """A member of the group."""

    evicted: bool
    granted: frozenset[int] | None  # assigned by the group, not noticed by the member yet


class MemoryTopic:
    """The logs and the group. The broker does not answer while `away`."""

    def __init__(self, partitions: int = 1, name: str = "memory") -> None:
        self.name = name
        self.away = False
        self.lock = threading.RLock()
        self._members: list[Member] = []
        self._joined: list[Member] | None = None  # during a rebalance: those that gave up their partitions
        self.generation = 0  # of assignments
        self.coordinator = Coordinator(self)
        self.create(partitions)

    def create(self, partitions: int) -> None:
        """Delete the topic, and its committed offsets, and create it again, empty, with another id."""
        self.id = uuid.uuid4().hex
        self.logs = [Log() for _ in range(partitions)]
        self.committed: dict[int, int] = {}  # partition → offset
        self.metadata: dict[int, str] = {}  # of the committed offsets

    def require_broker(self) -> None:
        """Raise `TimeoutError` while the broker is away."""
        if self.away:
            raise TimeoutError("no broker answers")

    def append(self, partition: int, *values: bytes | None, timestamp: int = -1, key: bytes | None = None) -> None:
        """Append records with these values."""
        with self.lock:
            log = self.logs[partition]
            for value in values:
                log.records.append(Record(log.end, value, timestamp, key, (), log.leader_epoch))
                log.end += 1

    def skip(self, partition: int, offsets: int) -> None:
        """Move the end of the log past offsets without a record, such as the markers of transactions."""
        self.logs[partition].end += offsets

    def trim(self, partition: int, start: int) -> None:
        """Remove the records before an offset, as retention does."""
        log = self.logs[partition]
        log.records = [record for record in log.records if record.offset >= start]
        log.start, log.end = start, max(start, log.end)

    def truncate(self, partition: int, end: int) -> None:
        """Remove the records from an offset on, as an unclean leader election does; another leader writes the next."""
        with self.lock:
            log = self.logs[partition]
            log.records = [record for record in log.records if record.offset < end]
            log.end, log.leader_epoch = end, log.leader_epoch + 1

    def add_partitions(self, total: int) -> None:
        """Add partitions, which starts a rebalance."""
        with self.lock:
            self.logs += [Log() for _ in range(total - len(self.logs))]
            self.rebalance()

    def evict(self, member: Member) -> None:
        """Remove a member as if it had timed out; it notices at its next poll and joins again."""
        with self.lock:
            if member not in self._members:  # it has not joined yet
                return
            self._members.remove(member)
            member.evicted = True
            self.rebalance()

    def join(self, member: Member) -> None:
        """Add a member to the group."""
        with self.lock:
            self._members.append(member)
            self.rebalance()

    def leave(self, member: Member) -> None:
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
        """Return whether no rebalance is under way."""
        return self._joined is None

    def is_joined(self, member: Member) -> bool:
        """Return whether the member has given up its partitions, or need not."""
        return self._joined is None or member in self._joined

    def give_up(self, member: Member) -> None:
        """Note that the member has given up its partitions; the last one ends the rebalance."""
        if self._joined is None:
            return
        self._joined.append(member)
        if all(other in self._joined for other in self._members):
            for index, other in enumerate(self._members):
                other.granted = frozenset(range(index, len(self.logs), len(self._members)))
            self._joined = None
            self.generation += 1

    def counts_in(self, member: Member, generation: int) -> bool:
        """Whether the group still counts the member in, with the assignment of that generation (KIP-447)."""
        return member in self._members and generation == self.generation
