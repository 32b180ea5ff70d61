"""Writes checkpoints and models in a thread, so that learning does not wait for the disk.

Folds are immutable, so a save writes the folds as they were when it started, while learning continues. At most one
save is in flight; the worker's loop takes its result and commits offsets.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from streampca.errors import DamagedFileError, StoreError, StreampcaError
from streampca.stores.checkpoints import Checkpoints
from streampca.stream.checkpoint import Checkpoint
from streampca.worker.publisher import Publication, Publisher


@dataclass
class SaveResult:
    """What a save has written; times are in seconds."""

    saved: list[tuple[Checkpoint, float]] = field(default_factory=list)  # on disk, and the time that each took
    postponed: str | None = None  # why the other checkpoints are not on disk
    published: tuple[Publication, float] | None = None
    unpublished: str | None = None  # why no model was published
    error: StreampcaError | None = None  # one that a retry cannot fix


class CheckpointWriter:
    """Writes the checkpoints of one worker, and models if the worker publishes."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        publisher: Publisher,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.checkpoints, self._publisher, self._clock = checkpoints, publisher, clock
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._in_flight: Future[SaveResult] | None = None
        self._is_reassigned = False

    @property
    def busy(self) -> bool:
        """Whether a save was started whose result was not taken yet."""
        return self._in_flight is not None

    def reassigned(self) -> None:
        """Take note that partitions were assigned: until then, other workers may have published."""
        self._is_reassigned = True

    def start(
        self, checkpoints: Sequence[Checkpoint], *, publish: bool, saved_before: Sequence[Checkpoint] = ()
    ) -> None:
        """Start to write these, and then a model if `publish`.

        Those `saved_before` are in the store already: they are merged without being read. Raises if a save is in
        flight.
        """
        if self.busy:
            raise RuntimeError("one save at a time")
        if self._is_reassigned:
            self._publisher.forget()
            self._is_reassigned = False
        self._in_flight = self._executor.submit(self._write, checkpoints, publish, saved_before)

    def take_result(self, *, wait: bool) -> SaveResult | None:
        """The result of the save that was started, once; None if there is none, or (without `wait`) none yet."""
        if self._in_flight is None or not (wait or self._in_flight.done()):
            return None
        in_flight, self._in_flight = self._in_flight, None
        return in_flight.result()

    def _write(
        self, checkpoints: Sequence[Checkpoint], publish: bool, saved_before: Sequence[Checkpoint]
    ) -> SaveResult:
        result = SaveResult()
        try:
            stored = self.checkpoints.snapshot()  # one listing for all partitions
            self._save(stored, checkpoints, result)
            if publish:
                self._publish([*saved_before, *(checkpoint for checkpoint, _ in result.saved)], stored, result)
        except StoreError as error:
            result.postponed = str(error) if checkpoints else None
            result.unpublished = str(error) if publish else None
        except StreampcaError as error:
            result.error = error
        return result

    def _save(self, stored: Checkpoints, checkpoints: Sequence[Checkpoint], result: SaveResult) -> None:
        for checkpoint in checkpoints:
            started = self._clock()
            try:
                stored.save(checkpoint)
            except StoreError as error:
                result.postponed = str(error)
                return
            result.saved.append((checkpoint, self._clock() - started))
            _ = checkpoint.fold.state.pinv_error  # cached for the metrics; computed here, it does not delay learning

    def _publish(self, in_memory: Sequence[Checkpoint], stored: Checkpoints, result: SaveResult) -> None:
        started = self._clock()
        try:
            published = self._publisher.publish(in_memory, stored)
        except (StoreError, DamagedFileError) as error:
            result.unpublished = str(error)
            return
        if published:
            result.published = published, self._clock() - started
