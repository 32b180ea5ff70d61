"""Writes checkpoints and then a model in a thread, so that learning does not wait for the disk.

Folds are immutable, so a save writes the folds as they were when it started, while learning continues.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from streampca.consumer_group.events import CheckpointPostponed, CheckpointSaved, ModelPublished, PublishFailed
from streampca.errors import DamagedFileError, PartitionsMissingError, StoreError, StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.stores.checkpoints import Checkpoints
from streampca.worker.publisher import Publisher

log = structlog.get_logger()


@dataclass
class SaveResult:
    """What a save has done; the writer's thread fills it."""

    events: list[CheckpointSaved | CheckpointPostponed | ModelPublished | PublishFailed] = field(default_factory=list)
    error: StreampcaError | None = None  # that ended the save, if a retry cannot help
    # Why models wait for partitions, by partition; {}: for none; None: unknown, no publication was tried or it failed.
    why_missing_in_merge: Mapping[int, str] | None = None


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
        self.models = publisher.models
        self._publisher = publisher
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="writer")

    def start(
        self,
        checkpoints: Sequence[Checkpoint],
        *,
        publish: bool,
        saved_before: Sequence[Checkpoint] = (),
        rewrite_lost: bool = False,
    ) -> Future[SaveResult]:
        """Start to write checkpoints, and with `publish`, a model after them.

        `saved_before` were saved earlier, so a model is made of them without reading them again. With `rewrite_lost` or
        `publish`, those of `saved_before` that the store has lost are written again.
        """
        return self._executor.submit(self._write, checkpoints, publish, saved_before, rewrite_lost)

    def _write(
        self, checkpoints: Sequence[Checkpoint], publish: bool, saved_before: Sequence[Checkpoint], rewrite_lost: bool
    ) -> SaveResult:
        """Do a save in the writer's thread. A `StreampcaError` is not raised, but is noted in the result.

        `saved_before` are this worker's checkpoints as they are on disk, without those in `checkpoints`.
        """
        result = SaveResult()
        try:
            stored = self.checkpoints.snapshot()
            if rewrite_lost or publish:
                # Write those checkpoints again that the store has lost. The store must hold all that a model contains.
                checkpoints = [*checkpoints, *_find_lost(stored, saved_before)]
            saved = self._save(stored, checkpoints, result)
            if publish:
                # A lost checkpoint that was written again is in both lists; the publisher needs it once.
                self._publish(stored, [*saved_before, *saved], result)
        except StoreError as error:
            # The store could not be listed or compared, so nothing was written. `_save` and `_publish` raise no
            # `StoreError`: they note failed writes in the result themselves.
            if checkpoints:
                result.events.append(CheckpointPostponed(str(error)))
            if publish:
                result.events.append(PublishFailed(str(error)))
        except StreampcaError as error:
            result.error = error
        return result

    def _save(self, stored: Checkpoints, checkpoints: Sequence[Checkpoint], result: SaveResult) -> list[Checkpoint]:
        """Write checkpoints in parallel, add the events to `result`, and return the written checkpoints.

        A later save writes again what has failed with `StoreError`. After all writes, raises the first other error.
        """
        by_partition = {checkpoint.partition: checkpoint for checkpoint in checkpoints}

        def write(partition: int) -> float:
            started = self._clock()
            stored.save(by_partition[partition])
            return self._clock() - started

        saved: list[Checkpoint] = []
        failures: list[StreampcaError] = []
        # The sizes limit how many are written at once.
        sizes = {partition: checkpoint.fold.nbytes for partition, checkpoint in by_partition.items()}
        writes = stored.for_each(sizes, write)
        # If the store is busy, some writes do not begin, and have no result. Their checkpoints wait for the next save.
        for partition, get_result in writes.take_in_order():
            checkpoint = by_partition[partition]
            try:
                seconds = get_result()  # raises the error of the write
            except StreampcaError as error:
                failures.append(error)
                continue
            saved.append(checkpoint)
            result.events.append(CheckpointSaved(partition, checkpoint.fold, seconds))
        for failure in failures:
            if not isinstance(failure, StoreError):
                raise failure
            result.events.append(CheckpointPostponed(str(failure)))
        return saved

    def _publish(self, stored: Checkpoints, own_checkpoints: Sequence[Checkpoint], result: SaveResult) -> None:
        """Publish a model, and add what has happened to `result`."""
        started = self._clock()
        try:
            published = self._publisher.publish(stored, own_checkpoints)
        except PartitionsMissingError as error:
            result.why_missing_in_merge = error.causes
            return
        except (StoreError, DamagedFileError) as error:
            result.events.append(PublishFailed(str(error)))
            return
        result.why_missing_in_merge = {}
        if published is not None:  # None: nothing new to publish
            seconds = self._clock() - started
            result.events.append(ModelPublished(published.model, seconds, published.p_values, published.event_time_ms))


def _find_lost(stored: Checkpoints, saved_before: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that the store has lost; none if it is not the same store any more."""
    lost = []
    for checkpoint in saved_before:
        newest_offset = max(stored.offsets(checkpoint.partition), default=-1)  # -1: none
        # A later checkpoint of another worker replaces this one.
        if checkpoint.fold.position > newest_offset:
            lost.append(checkpoint)
    if not lost or not stored.is_same_store():
        return []
    log.warning("checkpoints gone, writing them again", partitions=[checkpoint.partition for checkpoint in lost])
    return lost
