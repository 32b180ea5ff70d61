"""A source in memory: each poll executes one step of its script; after the last step, polls return all there is."""

import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from streampca.formats.record import NO_RECORDS, LastRecord
from streampca.sources.base import Committed
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, SourceStatus
from tests.in_memory.topic import Log, MemoryTopic

# A poll that returns at most that number of records of each partition, or for None nothing; an exception is raised.
# A function is called just before a poll: it may append records, evict a member, or replace the topic.
Step = int | Callable[[], object] | Exception | None


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
        self.membership: int | None = None  # the generation of the last assignment returned

    def topic_id(self) -> str:
        self._topic.require_broker()
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
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step()
        if step is None or self._topic.away:
            return []
        with self._topic.lock:
            if event := self._rebalance_event():
                self.membership = self._topic.generation if isinstance(event, Assigned) else None
                return [event]
            limit = step if isinstance(step, int) else self._batch
            return [event for p in sorted(self._read) if (event := self._records_of(p, limit))]

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

    def committed(self) -> dict[int, Committed]:
        self._topic.require_broker()
        offsets = {p: offset for p, offset in self._topic.committed.items() if p in self.partitions()}
        return {p: Committed(offset, self._topic.metadata.get(p, "")) for p, offset in offsets.items()}

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        self._topic.require_broker()

        def offset(log: Log) -> int:
            later = (r.offset for r in log.records if time_ms is not None and r.timestamp >= time_ms)
            return next(later, log.end)

        return {partition: offset(self._topic.logs[partition]) for partition in partitions}

    def close(self) -> None:
        self._closed = True
        self._topic.leave(self)

    def _rebalance_event(self) -> Event | None:
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

    def _records_of(self, partition: int, limit: int) -> Event | None:
        log, position = self._topic.logs[partition], self._read[partition]
        last = self._last.get(partition)
        if last and (diverged := log.end_of(last.leader_epoch)) <= last.offset:
            del self._read[partition]
            return OutOfRange(partition, last.offset + 1, log.start, log.end, diverged)
        if not log.start <= position <= log.end:
            del self._read[partition]
            return OutOfRange(partition, position, log.start, log.end)
        first = bisect.bisect_left(log.records, position, key=lambda record: record.offset)
        records = log.records[first : first + limit]
        if records:
            self._last[partition] = LastRecord(records[-1].offset, records[-1].leader_epoch)
        whole = not records or records[-1] is log.records[-1]
        self._read[partition] = next_ = log.end if whole else records[-1].offset + 1
        if self._reported.get(partition) == (next_, log.end):
            return None
        self._reported[partition] = (next_, log.end)
        return Records(partition, records, next_, log.end)
