"""Restores and saves the folds of one worker; the order of the steps of a save guarantees exactly once.

1. The broker has acknowledged the dead letters. 2. The topic is still the one that was read. 3. The checkpoint is on
disk. 4. The offsets are committed to the group. If a step fails, a later save repeats all of them.

Threads ask the store. Meanwhile the generators of this module yield {}, so that the loop can poll. A thread that hangs
cannot be stopped: the watchdog ends the process then.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Literal, ParamSpec, TypeAlias, TypeVar

import structlog

from streampca.consumer_group.committed import marks_start
from streampca.consumer_group.events import (
    CheckpointPostponed,
    CheckpointSaved,
    ModelPublished,
    Notify,
    PartitionsMissing,
)
from streampca.consumer_group.policy import MemberPolicy
from streampca.errors import StoreBusyError, StoreError, list_names, refuse_other_topic
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill
from streampca.formats.codec import Codec
from streampca.process import watchdog
from streampca.sources.base import Committed, DeadLetters, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.parallel_requests import Answer, wait_for_end
from streampca.worker.group_store import Examined, GroupStore, examine_store, refuse_other_store
from streampca.worker.missing import find_missing
from streampca.worker.publisher import PublishSchedule
from streampca.worker.starts import find_backfills, find_start_offsets, read_backfills
from streampca.worker.writer import CheckpointWriter, SaveResult

log = structlog.get_logger()

_DEAD_LETTERS_TIMEOUT_S = 2.0  # longest wait for dead letters before a save is postponed
_YIELD_AFTER_S = 0.05  # longest wait for the store in one step of restoring; then the loop polls
_MAX_NEW_AT_ONCE = 64  # new partitions in one step: the loop does not poll while brokers tell where they begin

P = ParamSpec("P")
T = TypeVar("T")

FoldGenerator: TypeAlias = Generator[Mapping[int, Fold], None, T]
"""A generator that yields restored folds by partition, {} while it waits for the store, and at last returns T."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(MemberPolicy):
    """What a worker learns, how it treats bad and lost records, and how often it saves."""

    suspect_settings = "dimensions, format, field"
    settings_to_start_over = "another store folder and group_id"
    fold: FoldConfig
    codec: Codec
    checkpoint_interval_s: float = 5.0
    # Where partitions without a checkpoint begin: earliest, latest, backfill, or milliseconds since 1970.
    start: str | int = "earliest"


def check_before_joining(
    checkpoints: Checkpoints,
    config: FoldConfig,
    topic_id: str,
    committed: Mapping[int, Committed],
    *,
    every: bool = False,
) -> dict[int, Fold]:
    """Check the checkpoints before the worker joins its group, and return their folds, by partition.

    Without `every`, one partition and one backfill are enough. Raises a `StreampcaError`, such as `SettingsError`.
    """
    refuse_other_store(checkpoints, committed, checkpoints.find_identity())
    stored = checkpoints.snapshot()
    folds: dict[int, Fold] = {}
    unreadable: list[StoreError] = []
    checked_kinds: set[str] = set()
    for partition, load in _prepare_loads(stored, every=every):
        kind = "backfill" if is_backfill(partition) else "partition of Kafka"
        if kind in checked_kinds and not every:
            continue
        try:
            checkpoint = load()
        except StoreBusyError:
            raise
        except StoreError as error:
            unreadable.append(error)
            continue
        if checkpoint is not None:
            # Raises if other settings or another topic were learned.
            usable = checkpoint.adapt_to(config, topic_id)
            folds[partition] = usable.fold
            checked_kinds.add(kind)
    was_any_checked = bool(folds)
    if unreadable and (every or not was_any_checked):
        raise unreadable[0]
    return folds


def _prepare_loads(stored: Checkpoints, *, every: bool) -> Iterable[Answer[Checkpoint | None]]:
    """Yield each partition with a function that returns its newest checkpoint.

    With `every`, threads load the checkpoints side by side.
    """
    if every:
        sizes = stored.sizes(stored.newest_offsets())  # they limit how many are loaded at once
        yield from stored.for_each(sizes, stored.newest).take_in_order()
        return
    for partition in stored.partitions():
        yield Answer(partition, partial(stored.newest, partition))


class Checkpointer:
    """Restores and saves the folds of one worker."""

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        notify: Notify,
    ) -> None:
        self._topic = config.topic
        self._fold_config = config.fold
        self._start = config.start
        self._source = source
        self._dead_letters = dead_letters
        self._writer = writer
        self._notify = notify
        self._names = config.fold.names  # of the dimensions
        self._publish_schedule = PublishSchedule()
        self._group_store = GroupStore(source, writer.checkpoints)
        self._topic_id = ""  # empty: not known, or the brokers give topics no ids
        self._why_unrestored: dict[int, str] = {}
        # Why models wait for partitions, at the last publication.
        self._models_wait_for: Mapping[int, str] = {}
        self._reported_missing: Collection[int] = set()  # the partitions in the last report
        self._saved: dict[int, Fold] = {}  # the folds on disk, of assigned partitions
        # Partitions whose offset the next save commits, even if nothing new was learned.
        self._uncommitted: set[int] = set()
        self._running_save: Future[SaveResult] | None = None
        self._is_restoring = False

    def restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Yield the folds of assigned partitions, by partition, as soon as they are restored.

        Partitions that cannot be restored are reported. Raises `StoreError`, `TimeoutError` or `ForeignStoreError`.
        """
        self._is_restoring = True
        try:
            yield from self._restore(partitions)
        finally:
            self._is_restoring = False

    def _restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Check the store, load the checkpoints, then begin new partitions."""
        has_restored_any = bool(self._saved)
        if not has_restored_any:
            # If the topic was replaced since the start, this worker reads the new one.
            self._topic_id = self._source.topic_id()

        committed = self._group_store.read_committed()
        examined = yield from self._ask(partial(examine_store, self._writer.checkpoints, committed))
        self._group_store.note_assignment(examined, partitions)
        committed_ahead = examined.compared.committed_ahead
        why_unrestored = {partition: cause for partition, cause in committed_ahead.items() if partition in partitions}
        stored = examined.stored
        if not has_restored_any and self._names is None:
            yield from self._read_names_of_backfill(stored)

        to_restore = [partition for partition in partitions if partition not in why_unrestored]
        # Partitions that failed before come last: they must not keep the others waiting.
        to_restore.sort(key=lambda partition: (partition in self._why_unrestored, partition))
        new = [partition for partition in to_restore if partition not in examined.offsets]
        offsets = {partition: examined.offsets[partition] for partition in to_restore if partition not in new}
        errors = yield from self._load(stored, offsets, committed, why_unrestored)
        is_any_restored = bool(self._saved)
        if errors and not is_any_restored and not new:
            self._why_unrestored = why_unrestored
            raise errors[0]

        if new:
            yield from self._begin_new(new, examined, why_unrestored)
        self._why_unrestored = why_unrestored
        self._report_missing()

    def forget(self, partitions: Collection[int]) -> None:
        """Forget the folds of partitions that were revoked or lost."""
        for partition in partitions:
            self._saved.pop(partition, None)
            self._uncommitted.discard(partition)
            self._why_unrestored.pop(partition, None)
        # The next publication must report missing partitions again: `MemberState` forgets them.
        self._models_wait_for = {}
        self._reported_missing = set()

    @property
    def is_saving(self) -> bool:
        """Whether a save was started that `finish_save` has not finished."""
        return self._running_save is not None

    def begin_publication_if_due(self, owned: Collection[int], now: float) -> bool:
        """Return whether this worker must publish with its next save, and note that it begins.

        `owned` are the restored partitions.
        """
        if self._is_restoring:  # a publication would read all checkpoints once more
            return False
        return self._publish_schedule.begin_if_due(
            # No other worker publishes for the assigned partitions that could not be restored here.
            owned={*owned, *self._why_unrestored},
            all_partitions=self._source.partitions(),
            now=now,
        )

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Save the folds that have changed or are gone from the store, and wait until they are on disk."""
        self.finish_save(wait=True)
        self.start_save(folds, publish=False, rewrite=True)
        self.finish_save(wait=True)

    def start_save(self, folds: Mapping[int, Fold], *, publish: bool, rewrite: bool = False) -> None:
        """Start to write the folds that have changed; with `publish`, a model after them.

        With `rewrite`, saved folds that are gone are written again. Raises `ForeignStoreError`.
        """
        if self.is_saving:
            raise RuntimeError("one save at a time")
        to_write: dict[int, Fold] = {}
        for partition, fold in folds.items():
            has_changed = fold.position != self._saved[partition].position
            if has_changed or partition in self._uncommitted:
                to_write[partition] = fold
        if to_write and not self._prepare_save():
            to_write = {}
        # A model also contains the folds that are not written now.
        saved_before = {p: fold for p, fold in self._saved.items() if p not in to_write}
        if to_write or publish or rewrite:
            self._running_save = self._writer.start(
                self._make_checkpoints(to_write),
                publish=publish,
                saved_before=self._make_checkpoints(saved_before),
                rewrite=rewrite,
            )

    def _prepare_save(self) -> bool:
        """Return whether checkpoints may be written now: False if brokers do not answer in time.

        Raises `ForeignStoreError` or `TopicReplacedError`.
        """
        self._group_store.check_other_members()
        waits_for: Literal["dead letters", "topic"] = "dead letters"
        try:
            self._dead_letters.flush(_DEAD_LETTERS_TIMEOUT_S)
            waits_for = "topic"
            self.check_topic()
        except TimeoutError as error:
            self._notify(CheckpointPostponed(str(error), waits_for))
            return False
        return True

    def finish_save(self, *, wait: bool) -> None:
        """If the running save has ended, commit the offsets of its checkpoints.

        With `wait`, wait for its end first. Raises the error of the save.
        """
        save = self._running_save
        if save is None:
            return
        if not wait and not save.done():
            return
        self._running_save = None
        result = watchdog.wait_for_result(save)
        saved = {event.partition: event.fold for event in result.events if isinstance(event, CheckpointSaved)}
        self._saved |= saved
        self._uncommitted -= saved.keys()
        if saved:
            # The position is -1 before anything was read.
            self._group_store.commit({p: fold.position for p, fold in saved.items() if fold.position >= 0})
        for event in result.events:
            if isinstance(event, ModelPublished):
                self._publish_schedule.end(took_s=event.seconds)
            self._notify(event)
        models_wait_for = result.models_wait_for  # None: no model was merged, so this is unknown
        if models_wait_for is not None and models_wait_for != self._models_wait_for:
            self._models_wait_for = models_wait_for
            self._report_missing()
        if result.error:
            raise result.error

    def check_topic(self) -> None:
        """Raise `TopicReplacedError` if another topic of the same name has replaced the one that is read."""
        topic_id = self._source.topic_id()
        refuse_other_topic(
            self._topic,
            before=self._topic_id,
            now=topic_id,
            where="while it was being read",
            remedy="learn it in another store folder; what was learned since the last checkpoint is dropped",
        )
        self._topic_id = self._topic_id or topic_id

    def _make_checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        """Return a checkpoint of each fold, with the topic, the settings and the names of this worker."""
        settings = self._fold_config.as_dict()
        return [
            Checkpoint(self._topic, self._topic_id, partition, fold, settings, names=self._names)
            for partition, fold in folds.items()
        ]

    def _report_missing(self) -> None:
        """Report which partitions are missing, unless the last report has named the same ones."""
        missing = {**self._models_wait_for, **self._why_unrestored}
        if missing.keys() != self._reported_missing:
            self._reported_missing = missing.keys()
            self._notify(PartitionsMissing(missing))

    def _ask(self, function: Callable[[], T]) -> FoldGenerator[T]:
        """Call a function in a thread. Yield {} until it has ended, then return its result."""
        watched_function = _end_process_if_hanging(function)
        future = self._writer.checkpoints.threads.submit(watched_function)
        while not wait_for_end(future, _YIELD_AFTER_S):
            yield {}
        return future.result()

    def _load(
        self,
        stored: Checkpoints,
        offsets: Mapping[int, int],
        committed: Mapping[int, Committed],
        why_unrestored: dict[int, str],
    ) -> FoldGenerator[list[StoreError]]:
        """Load the newest checkpoints, which are at these offsets by partition, and yield their folds.

        Returns the errors, and adds their texts to `why_unrestored`.
        """
        fold_config = self._fold_config
        topic_id = self._topic_id

        def load(partition: int) -> Checkpoint:
            checkpoint = stored.newest(partition)
            if checkpoint is None:
                raise StoreError(f"the checkpoints of partition {partition} are gone since they were listed")
            return checkpoint.adapt_to(fold_config, topic_id)

        errors: list[StoreError] = []
        sizes = yield from self._ask(partial(stored.sizes, offsets))  # they limit how many are loaded at once
        loads = stored.for_each(sizes, _end_process_if_hanging(load))
        while not loads.have_ended:
            folds: dict[int, Fold] = {}
            for partition, get_checkpoint in loads.take_ended(_YIELD_AFTER_S):
                try:
                    folds[partition] = self._take_over(get_checkpoint())
                except StoreError as error:
                    why_unrestored[partition] = str(error)
                    errors.append(error)
            # Save again what was not committed: a power failure may lose the checkpoint.
            self._uncommitted |= {p for p in folds if not _was_save_committed(committed.get(p))}
            self._note_restored(folds)
            yield folds
        return errors

    def _begin_new(self, new: Sequence[int], examined: Examined, why_unrestored: dict[int, str]) -> FoldGenerator[None]:
        """Begin partitions without a checkpoint as the setting `start` says, and yield their folds.

        Adds the causes of partitions that cannot begin to `why_unrestored`.
        """
        try:
            newest_model = yield from self._ask(self._writer.models.newest)
            why_unrestored |= self._why_not_begin(new, newest_model, examined.offsets)
            may_begin = [partition for partition in new if partition not in why_unrestored]
            backfills: list[Checkpoint] = []
            if self._start == "backfill" and may_begin:
                backfills = yield from self._ask(partial(read_backfills, examined.stored))
        except StoreError as error:
            why_unrestored |= dict.fromkeys(new, str(error))
            return
        # An earlier owner may have committed where a partition begins.
        has_committed_starts = bool(examined.compared.committed_starts)
        do_all_begin_at_earliest = self._start == "earliest" and not has_committed_starts
        if do_all_begin_at_earliest:
            empty_folds = {p: Fold.empty(self._fold_config.learning) for p in may_begin}
            self._note_restored(empty_folds)
            yield empty_folds
        else:
            yield from self._begin_in_steps(may_begin, backfills, examined, why_unrestored)

    def _begin_in_steps(
        self,
        new: Sequence[int],
        backfills: Sequence[Checkpoint],
        examined: Examined,
        why_unrestored: dict[int, str],
    ) -> FoldGenerator[None]:
        """Begin new partitions, at most 64 in each step, and yield their empty folds.

        Ends after the step in which the start of a partition cannot be saved.
        """
        for first in range(0, len(new), _MAX_NEW_AT_ONCE):
            partitions = new[first : first + _MAX_NEW_AT_ONCE]
            committed_starts = examined.compared.committed_starts
            start_offsets = self._choose_start_offsets(partitions, committed_starts, backfills)
            # These need no saved start: without one, the next owner begins at the earliest record, too.
            at_earliest = [partition for partition in partitions if partition not in start_offsets]
            folds = {partition: Fold.empty(self._fold_config.learning) for partition in at_earliest}
            if start_offsets:
                saved_folds = yield from self._save_starts(start_offsets, examined, why_unrestored)
                folds.update(saved_folds)
            self._note_restored(folds)
            yield folds
            is_any_unsaved = len(folds) < len(partitions)
            if is_any_unsaved:
                return

    def _choose_start_offsets(
        self, partitions: Sequence[int], committed_starts: Mapping[int, int], backfills: Sequence[Checkpoint]
    ) -> dict[int, int]:
        """Return the offsets at which new partitions begin, unless they begin at the earliest record.

        If an earlier owner has committed a start, the partition begins there.
        """
        start_offsets = {p: committed_starts[p] for p in partitions if p in committed_starts}
        undecided = [partition for partition in partitions if partition not in committed_starts]
        start_offsets |= find_start_offsets(self._start, undecided, self._source, backfills)
        return start_offsets

    def _why_not_begin(
        self, partitions: Collection[int], newest_model: PublishedModel | None, offsets: Mapping[int, int]
    ) -> dict[int, str]:
        """Return those of the partitions that must not begin without a checkpoint, each with the reason."""
        # A partition in the model had a checkpoint. If it began without one, models would shrink.
        message_by_missing = find_missing(newest_model, offsets, self._topic_id)
        # With start=backfill, no partition can begin without the backfills.
        missing_backfills = [partition for partition in message_by_missing if is_backfill(partition)]
        if self._start == "backfill" and missing_backfills:
            message = message_by_missing[missing_backfills[0]]
            return dict.fromkeys(partitions, message)
        return {partition: message for partition, message in message_by_missing.items() if partition in partitions}

    def _save_starts(
        self, start_offsets: Mapping[int, int], examined: Examined, why_unrestored: dict[int, str]
    ) -> FoldGenerator[dict[int, Fold]]:
        """Save an empty fold at the start of each new partition, and return the saved folds.

        Adds the causes of partitions whose start cannot be saved to `why_unrestored`.
        """
        self.check_topic()  # offsets of another topic would mean other records
        # Commit first, marked as starts: if this process dies, the next owner begins there, too.
        agreed_offsets = self._group_store.agree_on_starts(start_offsets)
        not_agreed = start_offsets.keys() - agreed_offsets.keys()
        why_unrestored |= dict.fromkeys(not_agreed, "the group did not take the offset where it begins")
        empty = Fold.empty(self._fold_config.learning)
        folds = {partition: empty.at(offset) for partition, offset in agreed_offsets.items()}
        saved_folds = yield from self._save_new(folds, examined.stored, why_unrestored)
        for partition, fold in saved_folds.items():
            # Another owner may have committed the start.
            was_committed_meanwhile = fold.position != start_offsets[partition]
            was_committed_before = partition in examined.compared.committed_starts
            start = "committed" if was_committed_before or was_committed_meanwhile else self._start
            log.info("partition begun", partition=partition, offset=fold.position, start=start)
        # Commit again without the mark of a start: the checkpoints are saved now.
        self._group_store.commit({partition: fold.position for partition, fold in saved_folds.items()})
        return saved_folds

    def _save_new(
        self, folds: Mapping[int, Fold], stored: Checkpoints, why_unrestored: dict[int, str]
    ) -> FoldGenerator[dict[int, Fold]]:
        """Save the folds of new partitions, and return those that were saved.

        Adds the causes of failures to `why_unrestored`.
        """
        checkpoints = {checkpoint.partition: checkpoint for checkpoint in self._make_checkpoints(folds)}

        def save(partition: int) -> None:
            stored.save(checkpoints[partition])

        saved_folds: dict[int, Fold] = {}
        sizes = {partition: fold.nbytes for partition, fold in folds.items()}
        writes = stored.for_each(sizes, _end_process_if_hanging(save))
        while not writes.have_ended:
            for partition, raise_if_failed in writes.take_ended(_YIELD_AFTER_S):
                try:
                    raise_if_failed()
                except StoreError as error:
                    why_unrestored[partition] = str(error)
                    continue
                saved_folds[partition] = folds[partition]
            yield {}
        return saved_folds

    def _read_names_of_backfill(self, stored: Checkpoints) -> FoldGenerator[None]:
        """Take over the names of the dimensions from the last backfill, if there is one."""

        def read_last() -> Checkpoint | None:
            backfills = find_backfills(stored)
            return stored.newest(backfills[-1]) if backfills else None

        # A backfill that cannot be read is reported later, when models wait for it.
        with contextlib.suppress(StoreError):
            checkpoint = yield from self._ask(read_last)
            if checkpoint is not None:
                self._agree_on_names(checkpoint.adapt_to(self._fold_config, self._topic_id))

    def _take_over(self, checkpoint: Checkpoint) -> Fold:
        """Agree with a checkpoint on the names of the dimensions, and return its fold."""
        self._agree_on_names(checkpoint)
        return checkpoint.fold

    def _agree_on_names(self, checkpoint: Checkpoint) -> None:
        """If only the checkpoint names the dimensions, take over its names.

        Raises `SettingsError` if worker and checkpoint have different names.
        """
        names = checkpoint.agree_on_names(self._names)
        is_one_unnamed = checkpoint.names != self._names  # different names were refused
        if is_one_unnamed:
            self._names = names
            log.info("dimensions named", partition=checkpoint.partition, names=list_names(names or []))

    def _note_restored(self, folds: Mapping[int, Fold]) -> None:
        """Note that these folds are on disk, and that their partitions are restored."""
        self._saved |= folds
        for partition in folds:
            self._why_unrestored.pop(partition, None)


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
