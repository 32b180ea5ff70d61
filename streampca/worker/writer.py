"""Writes checkpoints and then a model in a thread, so that learning does not wait for the disk.

Folds are immutable, so a save writes the folds as they were when it started, while learning continues.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple

from streampca.consumer_group.events import CheckpointPostponed, CheckpointSaved, ModelPublished, PublishFailed
from streampca.errors import DamagedFileError, StoreError, StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.stores.checkpoints import Checkpoints
from streampca.worker.publisher import Publisher


class SaveResult(NamedTuple):
    """The events of a save in their order, and the error that ended it, if a retry cannot help."""

    events: list[CheckpointSaved | CheckpointPostponed | ModelPublished | PublishFailed]
    error: StreampcaError | None = None


class CheckpointWriter:
    """Writes the checkpoints of one worker, and models if the worker publishes."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        publisher: Publisher,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.checkpoints = checkpoints
        self._publisher = publisher
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="writer")

    def start(
        self, checkpoints: Sequence[Checkpoint], *, publish: bool, saved_before: Sequence[Checkpoint] = ()
    ) -> Future[SaveResult]:
        """Start to write checkpoints, and then a model if `publish`.

        The model needs the checkpoints of all partitions; those `saved_before` are in memory and need not be read.
        """
        return self._executor.submit(self._write, checkpoints, publish, saved_before)

    def _write(
        self, checkpoints: Sequence[Checkpoint], publish: bool, saved_before: Sequence[Checkpoint]
    ) -> SaveResult:
        result = SaveResult([])
        try:
            stored = self.checkpoints.snapshot()  # one listing for all partitions
            saved = self._save(stored, checkpoints, result)
            if publish:
                self._publish([*saved_before, *saved], stored, result)
        except StoreError as error:
            if checkpoints:
                result.events.append(CheckpointPostponed(str(error)))
            if publish:
                result.events.append(PublishFailed(str(error)))
        except StreampcaError as error:
            return result._replace(error=error)
        return result

    def _save(self, stored: Checkpoints, checkpoints: Sequence[Checkpoint], result: SaveResult) -> Sequence[Checkpoint]:
        """Write checkpoints until one fails, and return those that were written."""
        for i, checkpoint in enumerate(checkpoints):
            started = self._clock()
            try:
                stored.save(checkpoint)
            except StoreError as error:
                result.events.append(CheckpointPostponed(str(error)))
                return checkpoints[:i]
            seconds = self._clock() - started
            result.events.append(CheckpointSaved(checkpoint.partition, checkpoint.fold, seconds))
        return checkpoints

    def _publish(self, in_memory: Sequence[Checkpoint], stored: Checkpoints, result: SaveResult) -> None:
        started = self._clock()
        try:
            published = self._publisher.publish(stored, in_memory)
            if published is not None:
                seconds = self._clock() - started
                result.events.append(ModelPublished(published.model, seconds, published.p_values))
        except (StoreError, DamagedFileError) as error:
            result.events.append(PublishFailed(str(error)))
