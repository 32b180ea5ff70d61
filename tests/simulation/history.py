"""The records of the topic, with those that are gone, and all that a fold may rightly have learned of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold
from streampca.formats.record import Record
from streampca.worker.checkpointer import WorkerConfig
from tests.simulation.cluster import Cluster


@dataclass(frozen=True)
class Jump:
    """A worker that had learned up to `at` continued at `to`, and counted the offsets from `lost_from` as lost."""

    at: int
    lost_from: int
    to: int


@dataclass(frozen=True)
class Course:
    """The records of a partition in order, from the start to `end`, as one fold may have learned them."""

    topic_id: str
    records: Sequence[Record]
    end: int
    jump: Jump | None = None  # no checkpoint before it is of this course


class History:
    """Every course of every partition. A topic that nobody cut or replaced has one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._trimmed: dict[int, list[Record]] = {}  # removed by retention
        self._former: dict[int, list[Course]] = {}  # before the log was cut, or the topic was replaced
        self._jumps: dict[int, set[Jump]] = {}
        self.cuts: dict[int, int] = {}  # partition → offset of the first record that was replaced
        self.is_replaced = False

    def now(self, partition: int) -> Course:
        """The log, with the records that retention has removed."""
        log = self._cluster.logs[partition]
        return Course(self._cluster.id, self._trimmed.get(partition, []) + log.records, log.end)

    def courses(self, partition: int) -> list[Course]:
        """All of them; the first is that of the log as it is now."""
        now, former = self.now(partition), self._former.get(partition, [])
        jumps = sorted(self._jumps.get(partition, ()), key=lambda jump: (jump.at, jump.to))
        return [now, *former, *(replace(joined(former[0], now, jump.at, jump.to), jump=jump) for jump in jumps)]

    def trim(self, partition: int, start: int) -> None:
        """Remove the records before an offset, as retention does."""
        gone = [record for record in self._cluster.logs[partition].records if record.offset < start]
        self._trimmed[partition] = self._trimmed.get(partition, []) + gone
        self._cluster.trim(partition, start)

    def truncate(self, partition: int, records: int) -> None:
        """Remove up to so many of the last records, but none that anybody has read or has begun behind."""
        log, begun = self._cluster.logs[partition], self._cluster.starts.get(partition, ())
        read = max(self._cluster.delivered.get(partition, 0), *begun, 0)
        if log.end > read and partition not in self.cuts:
            self._cluster.truncate(partition, max(read, log.end - records))

    def cut(self, partition: int, records: int) -> int:
        """Remove the last records, whether they were read or not; returns how many offsets. Once for each partition."""
        log = self._cluster.logs[partition]
        if partition in self.cuts or partition in self._trimmed or self.is_replaced:
            return 0  # at most one jump in every course
        if not (gone := log.records[-records:]):
            return 0
        self._former[partition], self.cuts[partition] = [self.now(partition)], gone[0].offset
        lost = log.end - gone[0].offset
        self._cluster.truncate(partition, gone[0].offset)
        return lost

    def replace(self) -> None:
        """Delete the topic with its committed offsets, and create it again."""
        if self.cuts:
            return
        for partition in range(len(self._cluster.logs)):
            self._former.setdefault(partition, []).append(self.now(partition))
        self.is_replaced = True
        self._trimmed.clear()
        self._cluster.delivered.clear()
        self._cluster.create(len(self._cluster.logs))

    def jump(self, partition: int, jump: Jump) -> bool:
        """Note that a worker has skipped records; whether the log was cut so that it had to."""
        self._jumps.setdefault(partition, set()).add(jump)
        return self.cuts.get(partition) == jump.lost_from <= jump.at <= jump.to


def joined(former: Course, now: Course, end: int, start: int) -> Course:
    """Join the records before `end` of a former course with those from `start` on of the present one."""
    records = [record for record in former.records if record.offset < end]
    return replace(now, records=records + [record for record in now.records if record.offset >= start])


class Calm:
    """The folds of one course of a partition, learned in one batch from checkpoint to checkpoint, without a worker."""

    def __init__(self, config: WorkerConfig, partition: int, course: Course, start: int = -1) -> None:
        self._config, self._partition, self._course, self._start = config, partition, course, start
        self._jump = course.jump
        self.fold = Fold.empty(config.fold.learning).at(start)
        self.rejected: set[Record] = set()  # that cannot be learned, up to the fold's position

    def checkpoints(self, offsets: Collection[int]) -> dict[int, bytes]:
        """The checkpoint at each of these offsets that the course has; then the fold is at the last of them.

        The first one may lie beyond the end: where a backfill ended, in a topic that was created again.
        """
        first = self._jump.to if self._jump else self._start
        last = max(first, self._course.end)
        return {offset: self._checkpoint(offset) for offset in sorted(offsets) if first <= offset <= last}

    def learn(self, offset: int) -> None:
        """Advance the fold to this offset, beyond the jump if there is one."""
        if self._jump:
            jump, self._jump = self._jump, None
            self.learn(jump.at)
            stats = replace(self.fold.stats, gap=jump.to - jump.lost_from)
            self.fold = replace(self.fold, position=jump.to, last=None, stats=stats)
        records = [record for record in self._course.records if self.fold.position <= record.offset < offset]
        if records:
            batch = self._config.codec.decode_batch(records, records[-1].offset + 1)
            self.fold, _ = self.fold.take(batch, self._config.fold)
            self.rejected |= {records[reject.index] for reject in batch.decoded.rejects}
        self.fold = self.fold.at(offset)

    def _checkpoint(self, offset: int) -> bytes:
        self.learn(offset)
        settings = self._config.fold.as_dict()
        return encode(Checkpoint(self._config.topic, self._course.topic_id, self._partition, self.fold, settings))
