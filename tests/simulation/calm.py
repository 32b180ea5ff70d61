"""The undisturbed run: every partition learned in one batch from checkpoint to checkpoint, without a worker."""

from collections.abc import Collection
from dataclasses import replace

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold
from streampca.fold.record import PlainRecord
from streampca.worker.loop import WorkerConfig
from tests.simulation.history import Course
from tests.simulation.plan import TOPIC


class Calm:
    """The folds of one course of a partition."""

    def __init__(self, config: WorkerConfig, partition: int, course: Course) -> None:
        self._config, self._partition, self._course = config, partition, course
        self._jump = course.jump
        self.fold = Fold.empty(config.fold.learning)
        self.rejected: set[PlainRecord] = set()  # that cannot be learned, up to the fold's position

    def checkpoints(self, offsets: Collection[int]) -> dict[int, bytes]:
        """The checkpoints of this course at those of the offsets that it has; the fold is then at the greatest."""
        first = self._jump.to if self._jump else 0
        return {offset: self._checkpoint(offset) for offset in sorted(offsets) if first <= offset <= self._course.end}

    def learn(self, offset: int) -> None:
        """Advance the fold to this offset, beyond the jump if there is one."""
        if self._jump:
            jump, self._jump = self._jump, None
            self.learn(jump.at)
            stats = replace(self.fold.stats, gap=jump.to - jump.lost_from)
            self.fold = replace(self.fold, position=jump.to, last=None, stats=stats)
        records = [record for record in self._course.records if self.fold.position <= record.offset < offset]
        if records:
            batch = self._config.codec.batch_of(records)
            self.fold, _ = self.fold.take(batch, self._config.fold)
            self.rejected |= {records[reject.index] for reject in batch.decoded.rejects}
        self.fold = self.fold.at(offset)

    def _checkpoint(self, offset: int) -> bytes:
        self.learn(offset)
        settings = self._config.fold.as_dict()
        return encode(Checkpoint(TOPIC, self._course.topic_id, self._partition, self.fold, settings))
