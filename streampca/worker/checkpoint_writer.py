"""Checkpoints and models, written in a thread of their own: learning never waits for the disk.

Folds are values, so what is written is what stood when the save began, however far learning has gone meanwhile.
One save is under way at a time, and its end is looked at in the worker's loop, which alone tells the group.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from streampca.errors import DamagedFileError, StoreError, StreampcaError
from streampca.stores.checkpoints import Checkpoints
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.model_file import PublishedModel
from streampca.worker.publisher import Publisher


@dataclass
class Outcome:
    """How a save went; times are in seconds."""

    saved: list[tuple[Checkpoint, float]] = field(default_factory=list)  # on disk, with the time that each took
    postponed: str | None = None  # why the others are not
    published: tuple[PublishedModel, float] | None = None
    unpublished: str | None = None  # why there is no model this time
    fault: StreampcaError | None = None  # what a person has to mend


class CheckpointWriter:
    """Writes the checkpoints of one worker, and models where it publishes."""

    def __init__(self, checkpoints: Checkpoints, publisher: Publisher, executor: Executor | None = None) -> None:
        self.checkpoints, self._publisher = checkpoints, publisher
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._under_way: Future[Outcome] | None = None

    @property
    def busy(self) -> bool:
        """Whether a save was begun whose outcome was not taken yet."""
        return self._under_way is not None

    def begin(self, checkpoints: Sequence[Checkpoint], *, publish: bool) -> None:
        """Write these, and then a model if `publish`. Not while `busy`."""
        if self.busy:
            raise RuntimeError("one save at a time")
        self._under_way = self._executor.submit(self._write, checkpoints, publish)

    def outcome(self, *, wait: bool) -> Outcome | None:
        """The outcome of the save that was begun, once; None when there is none, or (without `wait`) not yet."""
        if self._under_way is None or not (wait or self._under_way.done()):
            return None
        under_way, self._under_way = self._under_way, None
        return under_way.result()

    def _write(self, checkpoints: Sequence[Checkpoint], publish: bool) -> Outcome:
        outcome = Outcome()
        try:
            self._save(checkpoints, outcome)
            if publish:
                self._publish(outcome)
        except StreampcaError as error:
            outcome.fault = error
        return outcome

    def _save(self, checkpoints: Sequence[Checkpoint], outcome: Outcome) -> None:
        for checkpoint in checkpoints:
            started = time.perf_counter()
            try:
                self.checkpoints.save(checkpoint)
            except StoreError as error:
                outcome.postponed = str(error)
                return
            outcome.saved.append((checkpoint, time.perf_counter() - started))
            _ = checkpoint.fold.state.pinv_error  # the metrics want it: here, its cost keeps nobody waiting

    def _publish(self, outcome: Outcome) -> None:
        started = time.perf_counter()
        try:
            model = self._publisher.publish([checkpoint for checkpoint, _ in outcome.saved])
        except (StoreError, DamagedFileError) as error:
            outcome.unpublished = str(error)
            return
        if model:
            outcome.published = model, time.perf_counter() - started
