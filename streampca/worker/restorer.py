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
from streampca.worker.group_store import GroupStore, StoreComparison, compare_store
from streampca.worker.learned_topic import LearnedTopic
from streampca.worker.missing import find_partitions_behind_model
from streampca.worker.starts import find_backfills, find_start_offsets, read_backfills
from streampca.worker.writer import CheckpointWriter

log = structlog.get_logger()

_YIELD_AFTER_S = 0.05  # longest wait for the store in one step of restoring; then the loop polls
_MAX_NEW_AT_ONCE = 64  # new partitions in one step: the loop does not poll while brokers tell where they begin

P = ParamSpec("P")
T = TypeVar("T")

FoldGenerator: TypeAlias = Generator[Mapping[int, Fold], None, T]
"""A generator that yields restored folds by partition, or {} while it waits for the store, and at last returns T.

After each yield, the worker's loop polls, and then continues the generator. `yield from` passes all yields on.
"""


class AssignedFolds:
    """The partitions that are assigned to this worker: those whose folds are on disk, and those not restored yet."""

    def __init__(self) -> None:
        self.saved: dict[int, Fold] = {}  # the folds on disk
        self.uncommitted: set[int] = set()  # the next save commits their offsets, even if nothing new was learned
        self.why_unrestored: dict[int, str] = {}  # by partition, why the last attempt could not restore it

    @property
    def has_restored_any(self) -> bool:
        """Whether any assigned partition is restored; its fold is on disk."""
        return len(self.saved) > 0

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
        """Check the store, load the checkpoints, then begin new partitions. Yield folds as soon as they are restored.

        At last, note in `AssignedFolds` why partitions could not be restored. Raises `StoreError` if the store cannot
        be listed, or if it fails later and no partition of this worker is restored or new. Also raises `TimeoutError`
        or `ForeignStoreError`.
        """
        comparison = yield from self._compare_store(partitions)
        # Partitions whose committed offset is ahead of the newest checkpoint must not continue.
        why_ahead_of_store = comparison.offset_differences.why_ahead_of_store
        self._failures = {p: cause for p, cause in why_ahead_of_store.items() if p in partitions}
        self._store_errors = []
        to_restore = [partition for partition in partitions if partition not in self._failures]
        # Partitions that the last attempt could not restore come last, so that the others need not wait for them.
        to_restore.sort(key=lambda partition: (partition in self._assigned.why_unrestored, partition))
        with_checkpoint = [partition for partition in to_restore if partition in comparison.newest_offsets]
        new = [partition for partition in to_restore if partition not in comparison.newest_offsets]
        # Partitions that fail in these two steps are added to `_failures`, and errors of the store to `_store_errors`.
        yield from self._load_folds(with_checkpoint, comparison)
        if new:
            yield from self._begin_new_partitions(new, comparison)
        self._assigned.why_unrestored = self._failures
        has_restored_or_new = self._assigned.has_restored_any or len(new) > 0
        if self._store_errors and not has_restored_or_new:  # otherwise, the caller reports failed partitions as missing
            raise self._store_errors[0]

    def _compare_store(self, partitions: Collection[int]) -> FoldGenerator[StoreComparison]:
        """Compare the store with the offsets of the group, and return the comparison.

        While no partition is restored, also read the id of the topic and, if the settings do not name the dimensions,
        take their names from a backfill.
        """
        has_restored_none = not self._assigned.has_restored_any
        if has_restored_none:
            # If the topic was replaced since the start, this worker reads the new one.
            self._topic.read_id()
        committed = self._group_store.read_committed()
        comparison = yield from self._run_in_thread(partial(compare_store, self._checkpoints, committed))
        self._group_store.note_assignment(comparison, partitions)  # also warns of offsets of other tools
        if has_restored_none and self._topic.names is None:
            yield from self._read_names_of_backfill(comparison.stored)
        return comparison

    def _run_in_thread(self, function: Callable[[], T]) -> FoldGenerator[T]:
        """Call a function in a thread, and return its result. While the call runs, yield {}, so that the loop polls.

        If the call hangs, the watchdog ends the process.
        """
        future = self._checkpoints.threads.submit(_with_watchdog(function))
        while not wait_for_end(future, _YIELD_AFTER_S):
            yield {}
        return future.result()

    def _run_for_each_partition(self, sizes: Mapping[int, int], function: Callable[[int], T]) -> Iterator[dict[int, T]]:
        """Call a function for each partition, in threads. Yield often, so that the caller can let the loop poll.

        Each yield is {partition: result} of the calls that have ended since the last yield; {} if none has ended. A
        `StoreError` of a call is noted in `self._failures` and `self._store_errors` instead. `sizes` are the bytes that
        each call reads or writes; they limit how many calls run at once.
        """
        calls = self._checkpoints.for_each(sizes, _with_watchdog(function))  # a call that hangs ends the process
        while not calls.have_ended:
            results: dict[int, T] = {}
            for partition, get_result in calls.take_ended(_YIELD_AFTER_S):  # waits for a short time
                try:
                    results[partition] = get_result()  # raises the error of the call
                except StoreError as error:
                    self._failures[partition] = str(error)
                    self._store_errors.append(error)
            yield results

    def _load_folds(self, partitions: Sequence[int], comparison: StoreComparison) -> FoldGenerator[None]:
        """Load the newest checkpoints of partitions in threads, and yield their folds as soon as they are loaded.

        While no further checkpoint is loaded, yield {}, so that the loop polls.
        """
        stored = comparison.stored
        offsets = {partition: comparison.newest_offsets[partition] for partition in partitions}

        def load(partition: int) -> Checkpoint:
            checkpoint = stored.newest(partition)
            if checkpoint is None:
                raise StoreError(f"the checkpoints of partition {partition} are gone since they were listed")
            return checkpoint

        # Bytes of each checkpoint, by partition: they limit how many are loaded at once.
        sizes = yield from self._run_in_thread(partial(stored.sizes, offsets))
        for loaded in self._run_for_each_partition(sizes, load):
            # `adopt_checkpoint` returns the fold, and raises if a checkpoint is of other settings or another topic.
            folds = {partition: self._topic.adopt_checkpoint(checkpoint) for partition, checkpoint in loaded.items()}
            # A checkpoint without a committed offset may not have reached the disk: a worker commits only after that.
            # So that a power failure cannot lose it, the next save writes it again.
            for partition in folds:
                if not _was_any_save_committed(comparison.committed.get(partition)):
                    self._assigned.uncommitted.add(partition)
            self._assigned.note_restored(folds)
            yield folds

    def _read_names_of_backfill(self, stored: Checkpoints) -> FoldGenerator[None]:
        """Take the names of the dimensions from the last backfill, if there is one.

        While a thread reads the backfill, yield {}, so that the loop polls.
        """

        def read_last_backfill() -> Checkpoint | None:
            backfills = find_backfills(stored)
            return stored.newest(backfills[-1]) if backfills else None

        # If the backfill cannot be read, the publisher reports this later, and publishes no model.
        with contextlib.suppress(StoreError):
            checkpoint = yield from self._run_in_thread(read_last_backfill)
            if checkpoint is not None:
                self._topic.adopt_checkpoint(checkpoint)  # takes the names; the returned fold is not needed

    def _begin_new_partitions(self, new: Sequence[int], comparison: StoreComparison) -> FoldGenerator[None]:
        """Begin new partitions, which have no checkpoint, and yield their empty folds.

        The setting `start` says at which offsets they begin. At most 64 partitions begin at a time, since the loop does
        not poll while brokers are asked for their offsets. Partitions that fail are noted in `self._failures`. If the
        start of one cannot be saved, the later ones wait for the next attempt.
        """
        try:
            newest_model = yield from self._run_in_thread(self._models.newest)
            self._failures |= self._find_reasons_not_to_begin(new, newest_model, comparison.newest_offsets)
            may_begin = [partition for partition in new if partition not in self._failures]
            backfills: list[Checkpoint] = []  # empty unless partitions begin where the backfills end
            if self._start == "backfill" and may_begin:
                backfills = yield from self._run_in_thread(partial(read_backfills, comparison.stored))
        except StoreError as error:
            self._failures |= dict.fromkeys(new, str(error))
            return
        for first in range(0, len(may_begin), _MAX_NEW_AT_ONCE):
            partitions = may_begin[first : first + _MAX_NEW_AT_ONCE]
            folds = yield from self._make_empty_folds(partitions, backfills, comparison)  # also saves their starts
            self._assigned.note_restored(folds)
            yield folds
            # A partition whose start could not be saved has no fold. The later ones would probably fail, too.
            is_any_unsaved = len(folds) < len(partitions)
            if is_any_unsaved:
                return

    def _find_reasons_not_to_begin(
        self, partitions: Collection[int], newest_model: PublishedModel | None, offsets: Mapping[int, int]
    ) -> dict[int, str]:
        """Return {partition: reason} for the partitions that must not begin.

        `partitions` have no checkpoint: they are new, or their checkpoint was lost. `offsets` are the offsets of the
        newest checkpoints of all partitions. They include backfills, which have partition numbers of their own.
        """
        # If the newest model contains a partition without a checkpoint, the checkpoint was lost. Such a partition must
        # not begin: the next model would lack what the newest model has learned of the partition.
        # By partition or backfill: why it is behind the model. Its checkpoints are lost, or older than the model.
        why_behind = find_partitions_behind_model(newest_model, offsets, self._topic.id)
        backfills_behind = [number for number in why_behind if is_backfill(number)]
        if self._start == "backfill" and backfills_behind:
            # Each partition begins where the backfills end, which is not known if a backfill's checkpoint was lost.
            why_first_behind = why_behind[backfills_behind[0]]
            return dict.fromkeys(partitions, why_first_behind)
        return {partition: why for partition, why in why_behind.items() if partition in partitions}

    def _make_empty_folds(
        self, partitions: Sequence[int], backfills: Sequence[Checkpoint], comparison: StoreComparison
    ) -> FoldGenerator[dict[int, Fold]]:
        """Return the empty folds of new partitions. While their starts are saved, yield {}, so that the loop polls.

        A partition is left out if its start cannot be saved; a later attempt begins it. `backfills` are empty unless
        partitions begin where the backfills end.
        """
        # Starts that an earlier owner of a partition has committed, before it saved a checkpoint.
        committed_starts = comparison.offset_differences.committed_starts
        starts = self._find_starts(partitions, backfills, committed_starts)
        # A partition that begins at the earliest record is not in `starts`, and its start need not be saved: an owner
        # that finds no saved start begins at the earliest record.
        empty = Fold.empty(self._topic.config.learning)
        folds = {partition: empty for partition in partitions if partition not in starts}
        if starts:
            saved_folds = yield from self._save_starts(starts, comparison)
            folds |= saved_folds
        return folds

    def _find_starts(
        self, partitions: Sequence[int], backfills: Sequence[Checkpoint], committed_starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Return start offsets of new partitions. A partition without a start begins at its earliest record.

        An earlier owner may have committed where a partition begins. Otherwise, the setting `start` decides: with
        "backfill", a partition begins where the backfills end.
        """
        starts = {partition: committed_starts[partition] for partition in partitions if partition in committed_starts}
        undecided = [partition for partition in partitions if partition not in starts]
        starts |= find_start_offsets(self._start, undecided, self._source, backfills)
        return starts

    def _save_starts(self, starts: Mapping[int, int], comparison: StoreComparison) -> FoldGenerator[dict[int, Fold]]:
        """Save an empty fold at the start of each new partition, and return the folds that were saved.

        `starts` are the offsets, by partition, at which this worker wants to begin. Until all saves have ended, yield
        {}, so that the loop polls.
        """
        self._topic.check_id()  # offsets of another topic would mean other records
        # 1. Commit the starts, so that the next owner begins at the same offsets if this process dies before step 2. If
        # another owner has committed a start in the meantime, the group keeps the other owner's start.
        starts_of_group = self._group_store.agree_on_starts(starts)
        not_committed = starts.keys() - starts_of_group.keys()  # the group has no start of these partitions
        self._failures |= dict.fromkeys(not_committed, "the group did not take the offset where it begins")
        # 2. Save an empty fold at each start.
        empty = Fold.empty(self._topic.config.learning)
        folds = {partition: empty.at(offset) for partition, offset in starts_of_group.items()}
        saved_folds = yield from self._save_folds(folds, comparison.stored)
        # The log says which starts this worker has chosen, and which were committed before it had the partition.
        committed_by_earlier_owners = comparison.offset_differences.committed_starts
        self._log_begun(saved_folds, wanted_starts=starts, committed_starts=committed_by_earlier_owners)
        # 3. Commit the same offsets again. The metadata now say that each is the offset of a saved checkpoint, and not
        # only a start.
        self._group_store.commit({partition: fold.position for partition, fold in saved_folds.items()})
        return saved_folds

    def _log_begun(
        self, folds: Mapping[int, Fold], wanted_starts: Mapping[int, int], committed_starts: Mapping[int, int]
    ) -> None:
        """Log where each partition begins, and whether an owner's commit or the setting `start` has decided this.

        `committed_starts` are the starts that earlier owners had committed. `wanted_starts` are the starts that this
        worker has tried to commit: the committed start of a partition if there is one, otherwise its own choice.
        """
        for partition, fold in folds.items():
            was_committed_before = partition in committed_starts
            # If another owner has committed a start in the meantime, the group has kept the other owner's start.
            other_owner_was_first = fold.position != wanted_starts[partition]
            origin = "committed" if was_committed_before or other_owner_was_first else self._start
            log.info("partition begun", partition=partition, offset=fold.position, start=origin)

    def _save_folds(self, folds: Mapping[int, Fold], stored: Checkpoints) -> FoldGenerator[dict[int, Fold]]:
        """Save checkpoints of the folds in threads, and return the folds that were saved.

        Until all saves have ended, yield {}, so that the loop polls. Saves that fail are noted in `self._failures`.
        """
        checkpoints = {checkpoint.partition: checkpoint for checkpoint in self._topic.make_checkpoints(folds)}

        def save(partition: int) -> None:
            stored.save(checkpoints[partition])

        saved_folds: dict[int, Fold] = {}
        sizes = {partition: fold.nbytes for partition, fold in folds.items()}  # they limit how many saves run at once
        for just_saved in self._run_for_each_partition(sizes, save):  # {partition: None}
            saved_folds |= {partition: folds[partition] for partition in just_saved}
            yield {}
        return saved_folds


def _was_any_save_committed(committed: Committed | None) -> bool:
    """Return whether the group has committed the offset of a checkpoint, not only the start of a new partition.

    `committed` is what the group has committed for the partition; None: nothing.
    """
    return committed is not None and not marks_start(committed.metadata)


def _with_watchdog(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does the same; if a call hangs, the watchdog ends the process."""

    def call_watched(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function. If it takes longer than five minutes, the watchdog ends the process."""
        watchdog.tick(within_s=watchdog.STORE_S)
        try:
            return function(*args, **kwargs)
        finally:
            watchdog.forget()  # this thread need not tick any more

    return call_watched
