"""The worker's loop: it polls, learns, saves checkpoints and commits offsets until it is stopped.

A partition continues at the position inside its checkpoint (restorer.py), never at a committed offset.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.first_records import FirstRecords
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.member_loop import MemberLoop
from streampca.consumer_group.policy import report_rejected_and_skipped
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.epoch import find_odd_timestamps
from streampca.pca.arrays import find_incomplete_rows
from streampca.pca.state import Losses
from streampca.sources.base import DeadLetters, Source
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Vectors
from streampca.worker.checkpointer import Checkpointer, WorkerConfig
from streampca.worker.writer import CheckpointWriter

_POLL_S = 0.2
_RESTORING_POLL_S = 0.01  # while partitions are restored, so that the next ones are read soon
_REWRITE_EVERY_S = 60.0  # how often checkpoints that the store has lost are looked for, and written again


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
        notify: events.Notify,
    ) -> None:
        """The worker joins its group in `run`, not yet here."""
        super().__init__(source, in_flight, notify, seen_names=config.codec.create_seen_names())
        self._config = config
        self._dead_letters = dead_letters
        self._checkpointer = Checkpointer(config, source, dead_letters, writer, notify)
        self._assignment = Assignment[Fold](
            policy=config,  # decides what to do with bad records, and after a gap of offsets
            source=source,
            in_flight=in_flight,
            restore=self._checkpointer.restore,
            notify=notify,
            first_records=FirstRecords(config.topic, config.codec),
        )
        # The folds of the restored partitions, by partition. The assignment adds and removes them in this dictionary.
        self._folds = self._assignment.progress
        self._next_save_at = 0.0  # when the next save is due
        # A save after this time also looks for checkpoints that the store has lost, and writes them again.
        self._next_rewrite_at = 0.0

    def _begin(self, clock: Callable[[], float]) -> None:
        self._next_save_at = clock() + self._config.checkpoint_interval_s
        self._next_rewrite_at = self._next_save_at + _REWRITE_EVERY_S

    @property
    def _is_saving(self) -> bool:
        return self._checkpointer.is_saving

    def _turn(self, clock: Callable[[], float]) -> None:
        """Poll and handle events, retry to restore partitions, and start and finish saves, each when it is due."""
        self._handle_events(_RESTORING_POLL_S if self._assignment.is_restoring else _POLL_S)
        now = clock()
        self._assignment.retry_when_due(now)
        if now >= self._next_save_at and not self._checkpointer.is_saving:
            self._start_save(now)
            self._next_save_at = clock() + self._config.checkpoint_interval_s
        self._checkpointer.finish_save(wait=False)  # does nothing while the save runs

    def _start_save(self, now: float) -> None:
        """Start to save the folds. When a publication is due, also publish a model.

        Once a minute, also write the checkpoints again that the store has lost.
        """
        publish = self._checkpointer.begin_publication_if_due(self._folds, now)
        rewrite_lost = now >= self._next_rewrite_at
        if rewrite_lost:
            self._next_rewrite_at = now + _REWRITE_EVERY_S
        self._checkpointer.start_save(self._folds, publish=publish, rewrite_lost=rewrite_lost)

    def _leave(self) -> None:
        """Save, leave the group, and publish a model.

        The model comes last, so that the next owners need not wait for it.
        """
        publish = False
        has_crashed = self._stop_cause is None  # `stop` sets a cause, also for each expected error
        try:
            if not has_crashed:  # after a crash, the next worker learns the records again
                self._checkpointer.save(self._folds)
                # The source knows the partitions only until it is closed, so ask now whether this worker must publish.
                # It publishes below, after it has left the group. With an infinite time, a publication is due even just
                # after the last one.
                publish = self._checkpointer.begin_publication_if_due(self._folds, now=math.inf)
        finally:
            self._dead_letters.close()
            self._source.close()  # leaves the group
        if publish:
            no_folds: dict[int, Fold] = {}  # all folds are saved, so only the model is written
            self._checkpointer.start_save(no_folds, publish=True)
            self._checkpointer.finish_save(wait=True)

    def _handle(self, event: Event) -> None:
        """Learn records, take over or release partitions, or skip records that the log has lost."""
        if isinstance(event, Assigned | Revoked | Lost | OutOfRange):
            # The running save must commit its offsets before partitions are released, restored, or moved past lost
            # records.
            self._checkpointer.finish_save(wait=True)
        match event:
            case Records():
                self._assignment.decode(event, self._learn)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._checkpointer.save({p: fold for p, fold in self._folds.items() if p in partitions})  # waits
                self._release(partitions, lost=False)  # drops records in flight: the next owner reads them again
            case Lost(partitions):
                self._release(partitions, lost=True)
            case OutOfRange():
                self._in_flight.finish(event.partition)  # records in flight are not lost
                self._skip_lost_records(event)

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        self._assignment.release(partitions, lost=lost)
        self._checkpointer.forget(partitions)

    def _learn(self, batch: Vectors) -> None:
        """Learn a batch in a thread, after the earlier batches of its partition."""
        self._name_check.add(batch)  # for a warning if a name in the setting `field` never has a number
        current_fold = self._folds[batch.partition]
        config = self._config.fold

        def learn(last_learned: Learned | None) -> Learned:
            # None: the batch before was learned into `current_fold` already.
            fold = current_fold if last_learned is None else last_learned.fold
            return learn_batch(fold, batch, config)

        install = partial(self._install, batch)
        self._in_flight.submit_work(batch, function=learn, handle=install)

    def _install(self, batch: Vectors, learned: Learned) -> None:
        """Send the dead letters of a batch, install the fold that has learned it, and report it.

        Raises `RejectLimitError` if the settings seem to be wrong.
        """
        partition = batch.partition
        # If many records are rejected before any vector was learned, `find_dead_letters` raises `RejectLimitError`.
        had_learned_before = self._has_learned()
        rejects_to_send = self._config.find_dead_letters(batch, accepted_before=had_learned_before)
        # If sending fails, the records are read again, so the old fold must remain.
        for reject in rejects_to_send:
            self._dead_letters.send(partition, batch.records[reject.index], reject.reason, reject.message)
        self._folds[partition] = learned.fold
        has_learned_now = self._has_learned()  # vectors of this batch count, too
        for event in report_rejected_and_skipped(batch, accepted_any=has_learned_now):
            self._notify(event)
        self._notify(self._describe_learned(batch, learned))

    def _describe_learned(self, batch: Vectors, learned: Learned) -> events.BatchLearned:
        """Return the event that reports a learned batch."""
        incomplete = 0
        odd_timestamps: list[int] = []  # outside 1990 to 2100
        if self._config.fold.learning.impute:  # without this setting, no vector has gaps
            incomplete = int(find_incomplete_rows(batch.decoded.vectors).sum())
        if self._config.fold.half_life_seconds:  # without this setting, timestamps do not matter
            is_known = batch.timestamps >= 0  # -1: no timestamp
            odd_timestamps = find_odd_timestamps(batch.timestamps[is_known]).tolist()
        return events.BatchLearned(
            batch.partition,
            learned.fold,
            messages=len(batch.timestamps),
            losses=learned.losses,
            seconds=learned.seconds,
            lag=batch.end - batch.next,  # `end` is the end of the partition, `next` the offset after this batch
            incomplete=incomplete,
            odd_timestamps=odd_timestamps,
        )

    def _has_learned(self) -> bool:
        """Return whether a vector was learned in any partition of this worker."""
        return any(fold.stats.learned for fold in self._folds.values())

    def _skip_lost_records(self, event: OutOfRange) -> None:
        """Continue after records that the log has lost. Raises `TopicReplacedError` if the topic was replaced."""
        try:
            self._checkpointer.topic.check_id()
        except TimeoutError:  # the source will report the lost records again
            self._assignment.resume([event.partition])
        else:
            self._assignment.skip_lost_records(event)


def learn_batch(fold: Fold, batch: Vectors, config: FoldConfig) -> Learned:
    """Return the fold after a batch; a pure function, which any thread may call."""
    started = time.perf_counter()
    after, losses = fold.take(batch, config)
    return Learned(after, losses, time.perf_counter() - started)
