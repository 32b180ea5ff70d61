"""The daemon's life: poll → learn → save → acknowledge, until told to stop.

The order in which a checkpoint is made is the guarantee: the dead letters are acknowledged, the topic is still the
same one, the checkpoint is on disk, and only then is the group told. The position to go on from is the one inside the
checkpoint; the group's own offsets are never read.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from streampca.errors import BadRecordError, SourceError, StoreError, StreampcaError
from streampca.listening import Learned, Listener
from streampca.patience import Held, Patience
from streampca.saver import Saver
from streampca.sources.base import DeadLetters, Source
from streampca.stream import guard
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold, Shape
from streampca.stream.record import (
    Assigned,
    Event,
    Lost,
    OutOfRange,
    Records,
    Revoked,
    Undecoded,
    Vectors,
)

_POLL_S = 0.2
_FLUSH_S = 2.0  # longest wait for dead letters before a checkpoint is put off


@dataclass(frozen=True)
class Plan:
    """What the worker is to do, and how often."""

    topic: str
    shape: Shape
    codec: Codec
    bad_records: str = "stop"  # stop, skip, or dead_letter
    offset_gap: str = "fail"  # fail, earliest or latest
    checkpoint_interval_s: float = 5.0
    checkpoint_messages: int = 500_000


class Worker:
    """One member of the group: owns the folds of the partitions that were assigned to it."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        dead_letters: DeadLetters,
        saver: Saver,
        listener: Listener,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ready`: whether the code for Algorithm 1 is there; until then partitions are learned as far as without."""
        self._plan, self._source, self._dead_letters = plan, source, dead_letters
        self._saver, self._listener = saver, listener
        self._patience = Patience(source, listener)
        self._ready, self._unready = ready, Held(source)
        self._folds: dict[int, Fold] = {}
        self._saved: dict[int, Fold] = {}  # as they are on disk
        self._next_save = 0.0
        self._troubled = False  # the last save failed: only time brings the next one, not the number of messages
        self._topic_id = ""
        self._stop_cause: str | None = None

    def stop(self, cause: str) -> None:
        """Ask the loop to end after the batch at hand. Safe to call from a signal handler."""
        self._stop_cause = self._stop_cause or cause

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Work until stopped; on the way out save what was learned, then leave the group.

        Raises `StreampcaError` for what a person has to mend. What was learned until then is saved where it can be.
        """
        try:
            self._topic_id = self._source.topic_id()
            # A mistake is told now, not when the group lets us in.
            for partition in self._saver.checkpoints.partitions()[:1]:
                self._load(partition)
            self._next_save = clock() + self._plan.checkpoint_interval_s
            while self._stop_cause is None:
                self._listener.ticked()
                for event in self._source.poll(_POLL_S):
                    self._handle(event)
                self._listener.polled(self._source.standing())
                if self._patience:
                    self._patience.resume(clock())
                if self._unready and self._ready():
                    self._unready.let_go()
                if not self._saver.busy and (clock() >= self._next_save or self._many_unsaved()):
                    self._begin_save(self._folds, publish=self._is_publisher() and self._ready())
                    self._next_save = clock() + self._plan.checkpoint_interval_s
                self._settle(wait=False)
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
        self._listener.stopping(self._stop_cause or "crashed")
        publisher = False
        try:
            if self._stop_cause is not None:
                self._save(self._folds)
                publisher = self._is_publisher()
        finally:
            self._dead_letters.close()
            self._source.close()
        if publisher:
            self._saver.begin([], publish=True)
            self._settle(wait=True)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Assigned | Revoked | Lost | OutOfRange):
            self._settle(wait=True)  # whose partition is whose, and from where, is told of what is on disk
        match event:
            case Records():  # not decoded ahead
                self._handle(self._plan.codec.vectors_of(event))
            case Vectors():
                self._learn(part := self._learnable(event))
                if part is not event:
                    self._unready.hold(part.partition, part.next)
            case Undecoded():
                self._patience.hold(event.partition, event.position, event.cause)
            case Assigned(partitions):
                self._take(partitions)
            case Revoked(partitions):
                self._save(partitions)
                self._drop(partitions, lost=False)
            case Lost(partitions):
                self._drop(partitions, lost=True)
            case OutOfRange():
                self._skip(event)

    def _take(self, partitions: Iterable[int]) -> None:
        positions: dict[int, int | None] = {}
        for partition in sorted(partitions):
            fold = self._load(partition)
            self._folds[partition] = self._saved[partition] = fold
            positions[partition] = fold.position if fold.position >= 0 else None
        self._source.seek(positions)
        self._listener.assigned({p: self._folds[p].position for p in positions})

    def _load(self, partition: int) -> Fold:
        checkpoint = self._saver.checkpoints.newest(partition)
        if checkpoint is None:
            return Fold.empty(self._plan.shape.recipe)
        guard.refuse_other_settings(checkpoint, self._plan.shape)
        guard.refuse_other_topic(checkpoint, self._topic_id)
        return checkpoint.fold

    def _drop(self, partitions: Iterable[int], *, lost: bool) -> None:
        owned = [p for p in partitions if self._folds.pop(p, None) is not None]
        for partition in owned:
            self._saved.pop(partition)
            self._patience.forget(partition)
            self._unready.forget(partition)
        self._listener.released(owned, lost=lost)

    def _learnable(self, event: Vectors) -> Vectors:
        """As much of it as can be learned now, at once: whoever waits for code meanwhile keeps the group waiting."""
        if self._ready():
            return event
        return event.first(self._folds[event.partition].room(self._plan.shape.recipe))

    def _learn(self, event: Vectors) -> None:
        started = time.perf_counter()
        partition, decoded = event.partition, event.decoded
        fatal = decoded.rejects[0] if decoded.rejects and self._plan.bad_records == "stop" else None
        position = event.next if fatal is None else event.rejected[0].offset
        good = len(decoded.places) if fatal is None else int(np.searchsorted(decoded.places, fatal.place))
        counts, vectors = decoded.counts[:good], decoded.vectors
        if fatal is not None:
            vectors = vectors[: counts.sum()]
        fold, scores = self._folds[partition].learn(
            vectors, event.timestamps[:good], position, self._plan.shape, counts
        )
        if fatal is None:
            self._reject(event)
            fold = fold.reject([reject.reason for reject in decoded.rejects])
        self._folds[partition] = fold
        seconds = time.perf_counter() - started
        self._listener.learned(Learned(partition, fold, good, scores, seconds, event.end - position))
        if fatal is not None:
            raise BadRecordError(
                f"partition {partition} of {self._plan.topic}, offset {position}: {fatal.message} ({fatal.reason}); "
                "set dead_letter_topic to put such records aside, or on_bad_record=skip to pass over them"
            )

    def _reject(self, event: Vectors) -> None:
        for reject, record in zip(event.decoded.rejects, event.rejected, strict=True):
            if self._plan.bad_records == "dead_letter":
                self._dead_letters.send(event.partition, record, reject.reason, reject.message)
            self._listener.rejected(event.partition, record.offset, reject.reason, reject.message)

    def _skip(self, event: OutOfRange) -> None:
        try:
            self._check_topic()
        except TimeoutError:  # the broker went away again: ask once more, and be told once more
            self._source.seek({event.partition: event.position})
            return
        if self._folds[event.partition].position < 0:  # nothing is missed of what is read from the earliest record on
            self._source.seek({event.partition: None})
            return
        position = guard.resolve_gap(event, self._plan.offset_gap, self._plan.topic)
        self._folds[event.partition] = self._folds[event.partition].skip(position)
        self._source.seek({event.partition: position})
        self._listener.skipped(event.partition, event.position, position)

    def _many_unsaved(self) -> bool:
        return not self._troubled and any(
            fold.tally.learned - self._saved[p].tally.learned >= self._plan.checkpoint_messages
            for p, fold in self._folds.items()
        )

    def _save(self, partitions: Iterable[int]) -> None:
        """Have those partitions on disk that have moved, before anything else happens."""
        self._settle(wait=True)
        self._begin_save(partitions, publish=False)
        self._settle(wait=True)

    def _begin_save(self, partitions: Iterable[int], *, publish: bool) -> None:
        """Begin to write checkpoints of those partitions that have moved, in the order that the guarantee needs.

        What cannot be saved now is kept and tried again: a lost checkpoint costs work, never truth.
        """
        moved = [p for p in partitions if p in self._folds and self._folds[p].position != self._saved[p].position]
        try:
            if moved:
                self._dead_letters.flush(_FLUSH_S)
                self._check_topic()
        except (TimeoutError, StoreError) as error:
            self._postpone(str(error))
            moved = []
        shape = self._plan.shape.as_dict()
        checkpoints = [Checkpoint(self._plan.topic, self._topic_id, p, self._folds[p], shape) for p in moved]
        if checkpoints or publish:
            self._saver.begin(checkpoints, publish=publish)

    def _settle(self, *, wait: bool) -> None:
        """Take note of a save that has ended (with `wait`: of the one under way), and only then tell the group."""
        outcome = self._saver.outcome(wait=wait)
        if outcome is None:
            return
        for checkpoint, seconds in outcome.saved:
            self._saved[checkpoint.partition] = checkpoint.fold
            self._listener.saved(checkpoint.partition, checkpoint.fold, seconds)
        if outcome.postponed:
            self._postpone(outcome.postponed)
        elif outcome.saved:
            self._troubled = False
        if outcome.saved:
            self._source.commit({c.partition: c.fold.position for c, _ in outcome.saved if c.fold.position >= 0})
        if outcome.published:
            self._listener.published(*outcome.published)
        if outcome.unpublished:
            self._listener.unpublished(outcome.unpublished)
        if outcome.fault:
            raise outcome.fault

    def _postpone(self, cause: str) -> None:
        self._troubled = True
        self._listener.postponed(cause)

    def _check_topic(self) -> None:
        """Look at the topic's id once more: then what was read since the last look came from this very topic."""
        guard.refuse_replaced(self._plan.topic, self._topic_id, self._source.topic_id())

    def _is_publisher(self) -> bool:
        """The owner of the lowest partition publishes for all."""
        return bool(self._folds) and min(self._source.partitions(), default=0) in self._folds
