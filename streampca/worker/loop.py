"""The worker's loop: poll, learn, save checkpoints, commit offsets, until stopped.

A partition continues at the position inside its checkpoint (checkpointer.py), never at a committed offset.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streampca.consumer_group.listener import BatchLearned, Listener
from streampca.consumer_group.member import Member, MemberConfig
from streampca.errors import SourceError
from streampca.fold.codec import Codec
from streampca.fold.events import Assigned, Event, Lost, OutOfRange, Revoked, Vectors
from streampca.fold.fold import Fold, FoldConfig
from streampca.pca.arrays import rows_with_gaps
from streampca.process import watchdog
from streampca.sources.base import DeadLetters, Source
from streampca.worker import publisher
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.checkpointer import Checkpointer

_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(MemberConfig):
    """Says what a worker learns, how it treats bad records, and how often it saves."""

    fold: FoldConfig
    codec: Codec
    checkpoint_interval_s: float = 5.0
    start: str | int = "earliest"  # latest, backfill, or a time in milliseconds


class Worker(Member[Fold]):
    """A member of the consumer group, which learns a fold of each partition that is assigned to it.

    When stopped, it saves before it leaves the group; so it does after an error, if it can.
    """

    start_over, decoding_settings = "another store folder and group_id", "dimensions, format, field"

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: Listener,
        check_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """The `source` hands over decoded records, such as `sources.prefetch`."""
        super().__init__(config, source, listener, check_threads)
        self._config, self._dead_letters = config, dead_letters
        self._checkpointer = Checkpointer(
            config.topic, config.fold, source, dead_letters, writer, listener, config.start
        )
        self._folds = self._assignment.progress
        self._next_save, self._published_at = 0.0, -math.inf

    def _begin(self, clock: Callable[[], float]) -> None:
        try:
            self._checkpointer.check()
        except TimeoutError as error:  # later the worker waits for a broker that is away
            raise SourceError(str(error)) from None
        self._next_save = clock() + self._config.checkpoint_interval_s

    def _turn(self, clock: Callable[[], float]) -> None:
        for event in self._source.poll(_POLL_S):
            watchdog.tick()
            self._handle(event)
        now = clock()
        self._assignment.retry_when_due(now)
        if not self._checkpointer.busy and now >= self._next_save:
            self._start_save(now)
            self._next_save = clock() + self._config.checkpoint_interval_s
        self._checkpointer.finish_save(wait=False)

    def _shut_down(self) -> None:
        """Save before leaving the group, so that the next owner finds the checkpoints; publish last: it may be slow."""
        publishes = False
        try:
            if self._stop_cause is not None:
                self._checkpointer.save(self._folds)
                publishes = publisher.publishes(self._folds, self._source.partitions())
        finally:
            self._dead_letters.close()
            self._source.close()
        if publishes:
            self._checkpointer.start_save({}, publish=True)
            self._checkpointer.finish_save(wait=True)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Assigned | Revoked | Lost | OutOfRange):
            self._checkpointer.finish_save(wait=True)  # commits offsets while the partitions are still ours
        super()._handle(event)

    def _restore(self, partitions: Collection[int]) -> Mapping[int, Fold]:
        return self._checkpointer.restore(partitions)

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        if not lost:
            self._checkpointer.save({p: fold for p, fold in self._folds.items() if p in partitions})
        self._checkpointer.forget(self._assignment.release(partitions, lost=lost))

    def _has_accepted(self) -> bool:
        return any(fold.stats.learned for fold in self._folds.values())

    def _take(self, event: Vectors) -> BatchLearned:
        started = time.perf_counter()
        partition, rejects, config = event.partition, event.decoded.rejects, self._config.fold
        if self._bad_records == "dead_letter":
            for reject in rejects:  # first: a fold is never past a record that could not be sent
                self._dead_letters.send(partition, event.records[reject.index], reject.reason, reject.message)
        self._folds[partition], losses = self._folds[partition].take(event, config)
        seconds = time.perf_counter() - started
        messages, lag = event.count - len(rejects), event.end - event.next
        gaps = int(rows_with_gaps(event.decoded.vectors).sum()) if config.learning.impute else 0
        return BatchLearned(partition, self._folds[partition], messages, losses, seconds, lag, gaps)

    def _skip_gap(self, event: OutOfRange) -> None:
        try:
            self._checkpointer.check_topic()
        except TimeoutError:  # the broker is away again; reading makes the source report the gap again
            self._assignment.read([event.partition])
        else:
            self._assignment.skip_gap(event)

    def _start_save(self, now: float) -> None:
        publish = publisher.publishes(self._folds, self._source.partitions()) and publisher.is_due(
            now - self._published_at, self._checkpointer.publish_s
        )
        if publish:
            self._published_at = now
        self._checkpointer.start_save(self._folds, publish=publish)
