"""Restores the folds of the partitions that are assigned to a worker, in steps between which its loop polls.

Threads ask the store. Meanwhile the generators of this module yield {}, so that the loop can poll. A thread that hangs
cannot be stopped: the watchdog ends the process then.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import ParamSpec, TypeAlias, TypeVar

import structlog

from streampca.consumer_group.committed import marks_start
from streampca.errors import StoreError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill
from streampca.process import watchdog
from streampca.sources.base import Committed, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.parallel_requests import wait_for_end
from streampca.worker.group_store import Examined, GroupStore, examine_store
from streampca.worker.learned_topic import LearnedTopic
from streampca.worker.missing import find_missing
from streampca.worker.starts import find_backfills, find_start_offsets, read_backfills
from streampca.worker.writer import CheckpointWriter

log = structlog.get_logger()

_YIELD_AFTER_S = 0.05  # longest wait for the store in one step of restoring; then the loop polls
_MAX_NEW_AT_ONCE = 64  # new partitions in one step: the loop does not poll while brokers tell where they begin

P = ParamSpec("P")
T = TypeVar("T")

FoldGenerator: TypeAlias = Generator[Mapping[int, Fold], None, T]
"""A generator that yields restored folds by partition, {} while it waits for the store, and at last returns T."""


class AssignedFolds:
    """The partitions that are assigned to this worker: those whose folds are on disk, and those not restored yet."""

    def __init__(self) -> None:
        self.saved: dict[int, Fold] = {}  # the folds on disk
        self.uncommitted: set[int] = set()  # the next save commits their offsets, even if nothing new was learned
        self.why_unrestored: dict[int, str] = {}  # by partition, why the last attempt could not restore it

    def note_restored(self, folds: Mapping[int, Fold]) -> None:
        """Note that these folds are on disk, and that their partitions are restored."""
        self.saved |= folds
        for partition in folds:
            self.why_unrestored.pop(partition, None)

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions that were revoked or lost."""
        for partition in partitions:
            self.saved.pop(partition, None)
            self.uncommitted.discard(partition)
            self.why_unrestored.pop(partition, None)


class Restorer:
    """Restores folds from their checkpoints, and begins partitions that have no checkpoint."""

    def __init__(
        self,
        topic: LearnedTopic,
        start: str | int,
        source: Source,
        writer: CheckpointWriter,
        group_store: GroupStore,
        assigned: AssignedFolds,
    ) -> None:
        """`start` says where new partitions begin, see `WorkerConfig`. Restored folds are added to `assigned`."""
        self._topic = topic
        self._start = start
        self._source = source
        self._checkpoints = writer.checkpoints
        self._models = writer.models
        self._group_store = group_store
        self._assigned = assigned
        # Of the running attempt: why partitions cannot be restored, and the errors of the store.
        self._failures: dict[int, str] = {}
        self._store_errors: list[StoreError] = []

    def restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Check the store, load the checkpoints, then begin new partitions.

        Yields the folds by partition, as soon as they are restored. Raises `StoreError`, `TimeoutError` or
        `ForeignStoreError`.
        """
        examined = yield from self._examine_store(partitions)
        committed_ahead = examined.compared.committed_ahead
        self._failures = {p: cause for p, cause in committed_ahead.items() if p in partitions}
        self._store_errors = []
        to_restore = [partition for partition in partitions if partition not in self._failures]
        # Partitions that failed before come last: they must not keep the others waiting.
        to_restore.sort(key=lambda partition: (partition in self._assigned.why_unrestored, partition))
        new = [partition for partition in to_restore if partition not in examined.offsets]
        yield from self._load([partition for partition in to_restore if partition in examined.offsets], examined)
        is_none_restored = not self._assigned.saved
        if self._store_errors and is_none_restored and not new:
            self._assigned.why_unrestored = self._failures
            raise self._store_errors[0]
        if new:
            yield from self._begin_new(new, examined)
        self._assigned.why_unrestored = self._failures

    def _examine_store(self, partitions: Collection[int]) -> FoldGenerator[Examined]:
        """Compare the store with the offsets of the group. If nothing is restored yet, find out which topic it is."""
        has_restored_none = not self._assigned.saved
        if has_restored_none:
            # If the topic was replaced since the start, this worker reads the new one.
            self._topic.read_id()
        committed = self._group_store.read_committed()
        examined = yield from self._ask(partial(examine_store, self._checkpoints, committed))
        self._group_store.note_assignment(examined, partitions)
        if has_restored_none and self._topic.names is None:
            yield from self._read_names_of_backfill(examined.stored)
        return examined

    def _ask(self, function: Callable[[], T]) -> FoldGenerator[T]:
        """Call a function in a thread. Yield {} until it has ended, then return its result."""
        future = self._checkpoints.threads.submit(_end_process_if_hanging(function))
        while not wait_for_end(future, _YIELD_AFTER_S):
            yield {}
        return future.result()

    def _ask_for_each(self, sizes: Mapping[int, int], function: Callable[[int], T]) -> Iterator[dict[int, T]]:
        """Call a function for each partition, in threads. Yield the new results, by partition; {} if there are none.

        `sizes` are the bytes that each call reads or writes. Calls that raise `StoreError` are noted as failures.
        """
        calls = self._checkpoints.for_each(sizes, _end_process_if_hanging(function))
        while not calls.have_ended:
            results: dict[int, T] = {}
            for partition, get_result in calls.take_ended(_YIELD_AFTER_S):
                try:
                    results[partition] = get_result()
                except StoreError as error:
                    self._failures[partition] = str(error)
                    self._store_errors.append(error)
            yield results

    def _load(self, partitions: Sequence[int], examined: Examined) -> FoldGenerator[None]:
        """Load the newest checkpoints of partitions, and yield their folds."""
        stored = examined.stored
        offsets = {partition: examined.offsets[partition] for partition in partitions}

        def load(partition: int) -> Checkpoint:
            checkpoint = stored.newest(partition)
            if checkpoint is None:
                raise StoreError(f"the checkpoints of partition {partition} are gone since they were listed")
            return checkpoint

        sizes = yield from self._ask(partial(stored.sizes, offsets))
        for checkpoints in self._ask_for_each(sizes, load):
            folds = {partition: self._topic.take_over(checkpoint) for partition, checkpoint in checkpoints.items()}
            # Save again what was not committed: a power failure may lose the checkpoint.
            committed = examined.committed
            self._assigned.uncommitted |= {p for p in folds if not _was_save_committed(committed.get(p))}
            self._assigned.note_restored(folds)
            yield folds

    def _read_names_of_backfill(self, stored: Checkpoints) -> FoldGenerator[None]:
        """Take over the names of the dimensions from the last backfill, if there is one."""

        def read_last() -> Checkpoint | None:
            backfills = find_backfills(stored)
            return stored.newest(backfills[-1]) if backfills else None

        # A backfill that cannot be read is reported later, when models wait for it.
        with contextlib.suppress(StoreError):
            checkpoint = yield from self._ask(read_last)
            if checkpoint is not None:
                self._topic.take_over(checkpoint)

    def _begin_new(self, new: Sequence[int], examined: Examined) -> FoldGenerator[None]:
        """Begin partitions without a checkpoint as the setting `start` says, and yield their empty folds.

        Begins 64 at a time, and stops if the start of one cannot be saved.
        """
        try:
            newest_model = yield from self._ask(self._models.newest)
            self._failures |= self._why_not_begin(new, newest_model, examined.offsets)
            may_begin = [partition for partition in new if partition not in self._failures]
            backfills: list[Checkpoint] = []
            if self._start == "backfill" and may_begin:
                backfills = yield from self._ask(partial(read_backfills, examined.stored))
        except StoreError as error:
            self._failures |= dict.fromkeys(new, str(error))
            return
        for first in range(0, len(may_begin), _MAX_NEW_AT_ONCE):
            partitions = may_begin[first : first + _MAX_NEW_AT_ONCE]
            folds = yield from self._begin(partitions, backfills, examined)
            self._assigned.note_restored(folds)
            yield folds
            is_any_unsaved = len(folds) < len(partitions)
            if is_any_unsaved:
                return

    def _why_not_begin(
        self, partitions: Collection[int], newest_model: PublishedModel | None, offsets: Mapping[int, int]
    ) -> dict[int, str]:
        """Return those of the partitions that must not begin without a checkpoint, each with the reason."""
        # A partition in the model had a checkpoint. If it began without one, models would shrink.
        message_by_missing = find_missing(newest_model, offsets, self._topic.id)
        # With start=backfill, no partition can begin without the backfills.
        missing_backfills = [partition for partition in message_by_missing if is_backfill(partition)]
        if self._start == "backfill" and missing_backfills:
            message = message_by_missing[missing_backfills[0]]
            return dict.fromkeys(partitions, message)
        return {partition: message for partition, message in message_by_missing.items() if partition in partitions}

    def _begin(
        self, partitions: Sequence[int], backfills: Sequence[Checkpoint], examined: Examined
    ) -> FoldGenerator[dict[int, Fold]]:
        """Return the empty folds of new partitions, without those whose start cannot be saved."""
        # An earlier owner may have committed where a partition begins.
        committed_starts = examined.compared.committed_starts
        starts = {partition: committed_starts[partition] for partition in partitions if partition in committed_starts}
        undecided = [partition for partition in partitions if partition not in starts]
        starts |= find_start_offsets(self._start, undecided, self._source, backfills)
        # The others need no saved start: without one, the next owner begins at the earliest record, too.
        empty = Fold.empty(self._topic.config.learning)
        folds = {partition: empty for partition in partitions if partition not in starts}
        if starts:
            folds |= yield from self._save_starts(starts, examined)
        return folds

    def _save_starts(self, starts: Mapping[int, int], examined: Examined) -> FoldGenerator[dict[int, Fold]]:
        """Save an empty fold at the start of each new partition, and return the saved folds."""
        self._topic.check_id()  # offsets of another topic would mean other records
        # This commits them, marked as starts: if this process dies before it saves, the next owner begins there.
        agreed_starts = self._group_store.agree_on_starts(starts)
        not_agreed = starts.keys() - agreed_starts.keys()
        self._failures |= dict.fromkeys(not_agreed, "the group did not take the offset where it begins")
        empty = Fold.empty(self._topic.config.learning)
        folds = {partition: empty.at(offset) for partition, offset in agreed_starts.items()}
        saved_folds = yield from self._save(folds, examined.stored)
        for partition, fold in saved_folds.items():
            was_committed_before = partition in examined.compared.committed_starts
            other_owner_was_first = fold.position != starts[partition]
            origin = "committed" if was_committed_before or other_owner_was_first else self._start
            log.info("partition begun", partition=partition, offset=fold.position, start=origin)
        # Commit again without the mark of a start: the checkpoints are saved now.
        self._group_store.commit({partition: fold.position for partition, fold in saved_folds.items()})
        return saved_folds

    def _save(self, folds: Mapping[int, Fold], stored: Checkpoints) -> FoldGenerator[dict[int, Fold]]:
        """Save checkpoints of the folds, and return the saved folds."""
        checkpoints = {checkpoint.partition: checkpoint for checkpoint in self._topic.make_checkpoints(folds)}

        def save(partition: int) -> None:
            stored.save(checkpoints[partition])

        saved_folds: dict[int, Fold] = {}
        sizes = {partition: fold.nbytes for partition, fold in folds.items()}
        for saved in self._ask_for_each(sizes, save):
            saved_folds |= {partition: folds[partition] for partition in saved}
            yield {}
        return saved_folds


def _was_save_committed(committed: Committed | None) -> bool:
    """Return whether the group has committed the offset of a checkpoint, not only the start of a new partition."""
    return committed is not None and not marks_start(committed.metadata)


def _end_process_if_hanging(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does the same, but lets the watchdog end the process if the store hangs."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        watchdog.tick(watchdog.STORE_S)
        try:
            return function(*args, **kwargs)
        finally:
            watchdog.forget()

    return call
