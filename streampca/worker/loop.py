"""The worker's loop: poll, learn, save checkpoints, commit offsets, until stopped.

A partition continues at the position inside its checkpoint (checkpointer.py), never at a committed offset.
"""

import math
import time
from collections.abc import Callable

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.policy import FirstRecords, without_vectors
from streampca.errors import StreampcaError
from streampca.fold.fold import Fold
from streampca.formats.epoch import odd_times
from streampca.pca.arrays import rows_with_missing
from streampca.process import watchdog
from streampca.sources.base import DeadLetters, Source
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Revoked, Undecoded, Vectors
from streampca.worker.checkpointer import Checkpointer, WorkerConfig
from streampca.worker.publisher import PublishSchedule
from streampca.worker.writer import CheckpointWriter

_POLL_S = 0.2


class Worker:
    """A member of the consumer group, which learns a fold of each partition that is assigned to it."""

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: events.Listener,
        check_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """The `source` hands over decoded records, such as `sources.prefetch`.

        `check_threads` raises the error of a thread that has died, which ends the loop.
        """
        self._config, self._source, self._dead_letters = config, source, dead_letters
        self._schedule, self._check_threads = PublishSchedule(), check_threads
        self._listener = events.Listeners(self._schedule, listener)
        self._checkpointer = Checkpointer(config, source, dead_letters, writer, self._listener)
        self._first_records = FirstRecords(config.topic, config.codec.oddity)
        self._assignment = Assignment[Fold](
            config, source, self._checkpointer.restore, self._listener, self._first_records
        )
        self._folds = self._assignment.progress
        self._next_save = 0.0
        self._stop_cause: str | None = None

    def stop(self, cause: str) -> None:
        """End the loop after the current batch. Safe to call from a signal handler."""
        self._stop_cause = self._stop_cause or cause

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Work until stopped; then save and leave the group.

        Raises `StreampcaError` for errors that restarting cannot fix, after saving what was learned if it can.
        """
        try:
            self._checkpointer.check()
            self._next_save = clock() + self._config.checkpoint_interval_s
            while self._stop_cause is None:
                self._check_threads()
                watchdog.tick()
                self._listener.notify(events.LoopTicked())
                for event in self._source.poll(_POLL_S):
                    watchdog.tick()
                    self._handle(event)
                self._listener.notify(events.SourcePolled(self._source.status()))
                now = clock()
                for event in self._first_records.due(now):
                    self._learn(event)
                self._assignment.retry_when_due(now)
                if not self._checkpointer.busy and now >= self._next_save:
                    publish = self._schedule.begin_if_due(self._folds, self._source.partitions(), now)
                    self._checkpointer.start_save(self._folds, publish=publish)
                    self._next_save = clock() + self._config.checkpoint_interval_s
                self._checkpointer.finish_save(wait=False)
            for event in self._first_records.due(math.inf):
                self._learn(event)
        except StreampcaError as error:
            self.stop(str(error))
            raise
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        """Save before leaving the group, so that the next owner finds the checkpoints; publish last: it may be slow."""
        self._listener.notify(events.MemberStopping(self._stop_cause or "crashed"))
        publish = False
        try:
            if self._stop_cause is not None:
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
            case Vectors():
                for decoded in self._assignment.decoded(event):
                    self._learn(decoded)
            case Undecoded():
                self._assignment.pause(event)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._checkpointer.save({p: fold for p, fold in self._folds.items() if p in partitions})
                self._checkpointer.forget(self._assignment.release(partitions, lost=False))
            case Lost(partitions):
                self._checkpointer.forget(self._assignment.release(partitions, lost=True))
            case OutOfRange():
                self._skip_gap(event)

    def _learn(self, event: Vectors) -> None:
        started = time.perf_counter()
        partition, config = event.partition, self._config.fold
        if reject := self._config.stops_at(event):
            self._learn(event.before(reject.index))
            raise self._config.error(event, reject)
        # First: a fold is never past a record that could not be sent.
        for reject in self._config.dead_letters(event, accepted_any=self._has_learned()):
            self._dead_letters.send(partition, event.records[reject.index], reject.reason, reject.message)
        self._folds[partition], losses = self._folds[partition].take(event, config)
        for without_vector in without_vectors(event, accepted_any=self._has_learned()):
            self._listener.notify(without_vector)
        seconds = time.perf_counter() - started
        messages, lag = len(event.timestamps), event.end - event.next
        incomplete = int(rows_with_missing(event.decoded.vectors).sum()) if config.learning.impute else 0
        odd = odd_times(event.timestamps[event.timestamps >= 0]).tolist() if config.half_life_seconds else ()
        self._listener.notify(
            events.BatchLearned(partition, self._folds[partition], messages, losses, seconds, lag, incomplete, odd)
        )

    def _has_learned(self) -> bool:
        """True if anything was learned in a partition of this worker; if not, its settings may be wrong."""
        return any(fold.stats.learned for fold in self._folds.values())

    def _skip_gap(self, event: OutOfRange) -> None:
        try:
            self._checkpointer.check_topic()
        except TimeoutError:  # the broker is away again; reading makes the source report the gap again
            self._assignment.read([event.partition])
        else:
            self._assignment.skip_gap(event)
