"""The worker's loop: it polls, learns, saves checkpoints and commits offsets until it is stopped.

A partition continues at the position inside its checkpoint (checkpointer.py), never at a committed offset.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.member_loop import MemberLoop
from streampca.consumer_group.policy import FirstRecords, report_rejected_and_skipped
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.epoch import find_odd_timestamps
from streampca.pca.arrays import rows_with_missing
from streampca.pca.state import Losses
from streampca.sources.base import DeadLetters, Source
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Vectors
from streampca.worker.checkpointer import Checkpointer, WorkerConfig
from streampca.worker.publisher import PublishSchedule
from streampca.worker.writer import CheckpointWriter

_POLL_S = 0.2


class Learned(NamedTuple):
    """The fold of a partition after a batch."""

    fold: Fold
    losses: Sequence[Losses]
    seconds: float


class Worker(MemberLoop):
    """A member of the consumer group, which learns a fold of each partition that is assigned to it."""

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        in_flight: InFlight[Learned],
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: events.Listener,
    ) -> None:
        self._schedule = PublishSchedule()
        super().__init__(source, in_flight, events.Listeners(self._schedule, listener))
        self._config = config
        self._dead_letters = dead_letters
        self._checkpointer = Checkpointer(config, source, dead_letters, writer, self._listener)
        first_records = FirstRecords(config.topic, config.codec)
        self._assignment = Assignment[Fold](
            config, source, in_flight, self._checkpointer.restore, self._listener, first_records
        )
        self._folds = self._assignment.progress
        self._next_save = 0.0

    def _begin(self, clock: Callable[[], float]) -> None:
        self._next_save = clock() + self._config.checkpoint_interval_s

    @property
    def _is_saving(self) -> bool:
        return self._checkpointer.is_saving

    def _turn(self, clock: Callable[[], float]) -> None:
        self._handle_events(_POLL_S)
        now = clock()
        self._assignment.retry_when_due(now)
        if not self._checkpointer.is_saving and now >= self._next_save:
            publish = self._schedule.begin_if_due(self._folds, self._source.partitions(), now)
            self._checkpointer.start_save(self._folds, publish=publish)
            self._next_save = clock() + self._config.checkpoint_interval_s
        self._checkpointer.finish_save(wait=False)

    def _leave(self) -> None:
        """Save, leave the group, and publish a model.

        The next owners of the partitions find the checkpoints, and need not wait for the model.
        """
        publish = False
        try:
            if self._stop_cause is not None:  # None: the loop has crashed, and what it learned is not saved
                self._checkpointer.save(self._folds)
                publish = self._schedule.begin_if_due(self._folds, self._source.partitions(), math.inf)
        finally:
            self._dead_letters.close()
            self._source.close()
        if publish:
            self._checkpointer.start_save({}, publish=True)
            self._checkpointer.finish_save(wait=True)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Assigned | Revoked | Lost | OutOfRange):
            self._checkpointer.finish_save(wait=True)  # commits offsets while the partitions are still ours
        match event:
            case Records():
                self._assignment.decode(event, self._learn)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._checkpointer.save({p: fold for p, fold in self._folds.items() if p in partitions})
                self._checkpointer.forget(self._assignment.release(partitions, lost=False))
            case Lost(partitions):
                self._checkpointer.forget(self._assignment.release(partitions, lost=True))
            case OutOfRange():
                self._in_flight.finish(event.partition)  # records that are in flight are not lost
                self._skip_lost_records(event)

    def _learn(self, batch: Vectors) -> None:
        """Learn a batch in a thread."""
        partition = batch.partition
        installed = self._folds[partition]
        config = self._config.fold

        def learn(earlier: Learned | None) -> Learned:
            fold = installed if earlier is None else earlier.fold
            return learn_batch(fold, batch, config)

        self._in_flight.work(partition, batch.nbytes, learn, partial(self._install, batch))

    def _install(self, batch: Vectors, learned: Learned) -> None:
        """Send the dead letters of a batch, make the new fold the partition's, and report it."""
        partition = batch.partition
        # If sending fails, the fold must stay before the record, which is then read again.
        for reject in self._config.find_dead_letters(batch, accepted_any=self._has_learned()):
            self._dead_letters.send(partition, batch.records[reject.index], reject.reason, reject.message)
        self._folds[partition] = learned.fold
        for event in report_rejected_and_skipped(batch, accepted_any=self._has_learned()):
            self._listener.notify(event)
        incomplete = 0
        odd_timestamps: list[int] = []
        if self._config.fold.learning.impute:
            incomplete = int(rows_with_missing(batch.decoded.vectors).sum())
        if self._config.fold.half_life_seconds:
            odd_timestamps = find_odd_timestamps(batch.timestamps[batch.timestamps >= 0]).tolist()
        self._listener.notify(
            events.BatchLearned(
                partition,
                learned.fold,
                messages=len(batch.timestamps),
                losses=learned.losses,
                seconds=learned.seconds,
                lag=batch.end - batch.next,
                incomplete=incomplete,
                odd_timestamps=odd_timestamps,
            )
        )

    def _has_learned(self) -> bool:
        """Return whether a vector was learned in any partition of this worker; if not, its settings may be wrong."""
        return any(fold.stats.learned for fold in self._folds.values())

    def _skip_lost_records(self, event: OutOfRange) -> None:
        try:
            self._checkpointer.check_topic()
        except TimeoutError:  # the broker is away again: the source will report the lost records again
            self._assignment.read([event.partition])
        else:
            self._assignment.skip_lost_records(event)


def learn_batch(fold: Fold, batch: Vectors, config: FoldConfig) -> Learned:
    """Return the fold after a batch; a pure function, which any thread may call."""
    started = time.perf_counter()
    after, losses = fold.take(batch, config)
    return Learned(after, losses, time.perf_counter() - started)
