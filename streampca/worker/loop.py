"""The daemon's life: poll → learn → save → acknowledge, until told to stop.

The position to go on from is the one inside the checkpoint (keeper.py); the group's own offsets are never read.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streampca.errors import BadRecordError, SourceError, StreampcaError
from streampca.sources.base import DeadLetters, Source
from streampca.stream import compatibility
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import Assigned, Event, Lost, OutOfRange, Records, Revoked, Undecoded, Vectors
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.checkpointer import Checkpointer
from streampca.worker.listener import (
    BatchLearned,
    Listener,
    LoopTicked,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsReleased,
    RecordRejected,
    SourcePolled,
    WorkerStopping,
)
from streampca.worker.paused import Held, PausedPartitions

_POLL_S = 0.2


@dataclass(frozen=True)
class WorkerConfig:
    """What the worker is to do, and how often."""

    topic: str
    fold: FoldConfig
    codec: Codec
    bad_records: str = "stop"  # stop, skip, or dead_letter
    offset_gap: str = "fail"  # fail, earliest or latest
    checkpoint_interval_s: float = 5.0
    checkpoint_messages: int = 500_000


class Worker:
    """One member of the group: owns the folds of the partitions that were assigned to it."""

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: Listener,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ready`: whether the code for Algorithm 1 is there; until then partitions are learned as far as without."""
        self._config, self._source, self._dead_letters = config, source, dead_letters
        self._checkpointer = Checkpointer(config.topic, config.fold, source, dead_letters, writer, listener)
        self._listener = listener
        self._paused = PausedPartitions(source, listener)
        self._ready, self._unready = ready, Held(source)
        self._folds: dict[int, Fold] = {}
        self._next_save = 0.0
        self._stop_cause: str | None = None

    def stop(self, cause: str) -> None:
        """Ask the loop to end after the batch at hand. Safe to call from a signal handler."""
        self._stop_cause = self._stop_cause or cause

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Work until stopped; on the way out save what was learned, then leave the group.

        Raises `StreampcaError` for what a person has to mend. What was learned until then is saved where it can be.
        """
        try:
            self._checkpointer.open()
            self._next_save = clock() + self._config.checkpoint_interval_s
            while self._stop_cause is None:
                self._listener.notify(LoopTicked())
                for event in self._source.poll(_POLL_S):
                    self._handle(event)
                self._listener.notify(SourcePolled(self._source.status()))
                if self._paused:
                    self._paused.resume(clock())
                if self._unready and self._ready():
                    self._unready.let_go()
                if not self._checkpointer.busy and (clock() >= self._next_save or self._many_unsaved()):
                    self._checkpointer.begin(self._folds, publish=self._is_publisher() and self._ready())
                    self._next_save = clock() + self._config.checkpoint_interval_s
                self._checkpointer.settle(wait=False)
        except TimeoutError as error:  # only at the start: later on a broker that is away is waited out
            self.stop(str(error))
            raise SourceError(str(error)) from None
        except StreampcaError as error:
            self.stop(str(error))
            raise
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        """Save before leaving, so that the next owner finds the checkpoints; publish last, for it can take its time."""
        self._listener.notify(WorkerStopping(self._stop_cause or "crashed"))
        publisher = False
        try:
            if self._stop_cause is not None:
                self._checkpointer.save(self._folds)
                publisher = self._is_publisher()
        finally:
            self._dead_letters.close()
            self._source.close()
        if publisher:
            self._checkpointer.begin({}, publish=True)
            self._checkpointer.settle(wait=True)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Assigned | Revoked | Lost | OutOfRange):
            self._checkpointer.settle(wait=True)  # whose partition is whose, and from where, is told of what is on disk
        match event:
            case Records():  # not decoded ahead
                self._handle(self._config.codec.vectors_of(event))
            case Vectors():
                self._paused.decoded(event.partition)
                self._learn(part := self._learnable(event))
                if part is not event:
                    self._unready.hold(part.partition, part.next)
            case Undecoded(partition, position):
                self._paused.hold(partition, position, event.end - position, event.cause)
            case Assigned(partitions):
                self._take(partitions)
            case Revoked(partitions):
                self._checkpointer.save({p: fold for p, fold in self._folds.items() if p in partitions})
                self._drop(partitions, lost=False)
            case Lost(partitions):
                self._drop(partitions, lost=True)
            case OutOfRange():
                self._skip(event)

    def _take(self, partitions: Iterable[int]) -> None:
        positions: dict[int, int | None] = {}
        for partition in sorted(partitions):
            self._folds[partition] = fold = self._checkpointer.take(partition)
            positions[partition] = fold.position if fold.position >= 0 else None
        self._source.seek(positions)
        self._listener.notify(PartitionsAssigned({p: self._folds[p].position for p in positions}))

    def _drop(self, partitions: Iterable[int], *, lost: bool) -> None:
        owned = [p for p in partitions if self._folds.pop(p, None) is not None]
        for partition in owned:
            self._checkpointer.drop(partition)
            self._paused.forget(partition)
            self._unready.forget(partition)
        self._listener.notify(PartitionsReleased(owned, lost))

    def _learnable(self, event: Vectors) -> Vectors:
        """As much of it as can be learned now, at once: whoever waits for code meanwhile keeps the group waiting."""
        if self._ready():
            return event
        return event.first(self._folds[event.partition].room(self._config.fold.learning))

    def _learn(self, event: Vectors) -> None:
        started = time.perf_counter()
        fatal = event.decoded.rejects[0] if event.decoded.rejects and self._config.bad_records == "stop" else None
        event = event if fatal is None else event.before(fatal.place)
        decoded, partition = event.decoded, event.partition
        fold, scores = self._folds[partition].learn(
            decoded.vectors, event.timestamps, event.next, self._config.fold, decoded.counts
        )
        self._reject(event)
        self._folds[partition] = fold = fold.reject([reject.reason for reject in decoded.rejects])
        seconds = time.perf_counter() - started
        messages, lag = len(decoded.places), event.end - event.next
        self._listener.notify(BatchLearned(partition, fold, messages, scores, seconds, lag))
        if fatal is not None:
            raise BadRecordError(
                f"partition {partition} of {self._config.topic}, offset {event.next}: {fatal.message} "
                f"({fatal.reason}); set dead_letter_topic to keep such records there, or on_bad_record=skip to pass over them"
            )

    def _reject(self, event: Vectors) -> None:
        for reject, record in zip(event.decoded.rejects, event.rejected, strict=True):
            if self._config.bad_records == "dead_letter":
                self._dead_letters.send(event.partition, record, reject.reason, reject.message)
            self._listener.notify(RecordRejected(event.partition, record.offset, reject.reason, reject.message))

    def _skip(self, event: OutOfRange) -> None:
        try:
            self._checkpointer.check_topic()
        except TimeoutError:  # the broker went away again: ask once more, and be told once more
            self._source.seek({event.partition: event.position})
            return
        if self._folds[event.partition].position < 0:  # nothing is missed of what is read from the earliest record on
            self._source.seek({event.partition: None})
            return
        position = compatibility.resolve_gap(event, self._config.offset_gap, self._config.topic)
        self._folds[event.partition] = self._folds[event.partition].skip(position)
        self._source.seek({event.partition: position})
        self._listener.notify(OffsetsSkipped(event.partition, event.position, position))

    def _many_unsaved(self) -> bool:
        return self._checkpointer.unsaved(self._folds) >= self._config.checkpoint_messages

    def _is_publisher(self) -> bool:
        """The owner of the lowest partition publishes for all."""
        return bool(self._folds) and min(self._source.partitions(), default=0) in self._folds
