"""Restores and saves the folds of one worker; the order of the steps of a save guarantees exactly once.

1. The broker has acknowledged the dead letters. 2. The topic is still the one that was read. 3. The checkpoint is on
disk. 4. The offsets are committed to the group. If a step fails, a later save repeats all: that costs work, never
correctness.
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

    With `every`, the newest checkpoint of each partition is loaded. Otherwise the checkpoint of one partition and that
    of one backfill are enough: a topic may have a thousand partitions, and each is checked when it is assigned.

    Raises `ForeignStoreError` if the group has another store, `SettingsError` if a fold has learned with other
    settings, `TopicReplacedError` if it has learned an earlier topic of the same name, and `StoreBusyError` if the
    store does not answer. Raises `DamagedFileError` if all checkpoints of a partition are damaged. Raises `StoreError`
    if no checkpoint can be read or, with `every`, if any checkpoint cannot be read.
    """
    refuse_other_store(checkpoints, committed, checkpoints.find_identity())
    stored = checkpoints.snapshot()
    folds: dict[int, Fold] = {}
    unreadable: list[StoreError] = []  # the errors of checkpoints that cannot be read
    checked_kinds: set[str] = set()
    for partition, load in _prepare_loads(stored, every=every):
        kind = "backfill" if is_backfill(partition) else "partition of Kafka"
        if kind in checked_kinds and not every:
            continue  # one good checkpoint of this kind is enough
        try:
            checkpoint = load()
        except StoreBusyError:
            raise
        except StoreError as error:
            unreadable.append(error)
            continue
        if checkpoint is not None:
            # Raises if other settings or an earlier topic were learned. If nothing was learned, takes our settings.
            usable = checkpoint.adapt_to(config, topic_id)
            folds[partition] = usable.fold
            checked_kinds.add(kind)
    was_any_checked = bool(folds)
    if unreadable and (every or not was_any_checked):
        raise unreadable[0]
    return folds


def _prepare_loads(stored: Checkpoints, *, every: bool) -> Iterable[Answer[Checkpoint | None]]:
    """Yield each partition with a function that loads its newest checkpoint.

    With `every`, threads load all checkpoints side by side, and the function returns what they have loaded. Otherwise
    nothing is loaded before the function is called. The function raises an error of loading.
    """
    if every:
        sizes = stored.sizes(stored.newest_offsets())  # large checkpoints limit how many are loaded at once
        # Each answer of `for_each` is a partition with a function that returns what `stored.newest` has returned.
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
        self._start = config.start  # where a partition without a checkpoint begins
        self._source = source
        self._dead_letters = dead_letters
        self._writer = writer
        self._notify = notify
        self._names = config.fold.names  # of the dimensions; if None, those of the first restored checkpoint with names
        self._publish_schedule = PublishSchedule()
        self._group_store = GroupStore(source, writer.checkpoints)
        self._topic_id = ""  # empty: not known, or the brokers give topics no ids
        self._unrestored: dict[int, str] = {}  # why assigned partitions could not be restored, by partition
        self._models_wait_for: Mapping[int, str] = {}  # why models wait for partitions, at the last publication
        self._reported_missing: Collection[int] = set()  # partitions that the last report of missing ones has named
        self._saved: dict[int, Fold] = {}  # of each assigned partition, the fold that is on disk
        # Restored partitions whose checkpoint's offset is not committed: the next save commits it, even if nothing new
        # was learned.
        self._uncommitted: set[int] = set()
        self._running_save: Future[SaveResult] | None = None  # the save that was started and not finished
        self._is_restoring = False

    def restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Yield the folds from which just assigned partitions continue, by partition, as soon as they are restored.

        Threads ask the store. While it has not answered, this generator yields {}, so that the loop can poll. The loop
        may close it at any yield, when partitions are revoked. A partition whose checkpoint is gone or cannot be read
        is left out and reported: a retry may help. Raises `StoreError` if the store cannot be listed or none of the
        checkpoints can be read, `TimeoutError` if brokers do not answer, and `ForeignStoreError` if the store is
        another group's.
        """
        self._is_restoring = True
        try:
            yield from self._restore(partitions)
        finally:
            self._is_restoring = False

    def _restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Restore partitions: check the store, load the checkpoints, then begin new partitions.

        Yields folds by partition as they are restored, and {} while the store has not answered. Raises `StoreError` if
        the store cannot be listed or nothing can be restored, and `ForeignStoreError` if it is another group's.
        """
        has_restored_any = bool(self._saved)  # `_saved` has a fold of each restored partition
        if not has_restored_any:
            # Nothing was read yet. If the topic was replaced since the start, this worker reads the new topic.
            self._topic_id = self._source.topic_id()

        # Check that the store is the group's, and compare its checkpoints with the committed offsets.
        committed = self._group_store.read_committed()
        examined = yield from self._ask(partial(examine_store, self._writer.checkpoints, committed))
        self._group_store.note_assignment(examined, partitions)  # from now on, commits name the examined store
        # Why partitions are not restored, by partition. The steps below add further causes.
        committed_ahead = examined.compared.committed_ahead
        why_unrestored = {partition: cause for partition, cause in committed_ahead.items() if partition in partitions}
        stored = examined.stored
        if not has_restored_any and self._names is None:
            yield from self._read_names_of_backfill(stored)

        # Load the checkpoints of the partitions that have one.
        to_restore = [partition for partition in partitions if partition not in why_unrestored]
        # Partitions that failed before come last: if the store stays busy with one of them, the rest is restored.
        to_restore.sort(key=lambda partition: (partition in self._unrestored, partition))
        new = [partition for partition in to_restore if partition not in examined.offsets]
        offsets = {partition: examined.offsets[partition] for partition in to_restore if partition not in new}
        sizes = yield from self._ask(partial(stored.sizes, offsets))
        errors = yield from self._load(stored, sizes, committed, why_unrestored)
        is_any_restored = bool(self._saved)
        if errors and not is_any_restored and not new:  # the caller retries all
            self._unrestored = why_unrestored
            raise errors[0]

        if new:
            yield from self._begin_new(new, examined, why_unrestored)
        self._unrestored = why_unrestored
        self._report_missing()  # notifies which partitions are not restored, if this has changed

    def forget(self, partitions: Collection[int]) -> None:
        """Forget the folds of partitions that were revoked or lost, and for which partitions models wait."""
        for partition in partitions:
            self._saved.pop(partition, None)
            self._uncommitted.discard(partition)
            self._unrestored.pop(partition, None)
        # The next publication finds out anew for which partitions models wait, and reports them again: the displayed
        # state of this member, `MemberState`, forgets them, too, when partitions are released.
        self._models_wait_for = {}
        self._reported_missing = set()

    @property
    def is_saving(self) -> bool:
        """Whether a save was started that `finish_save` has not finished."""
        return self._running_save is not None

    def begin_publication_if_due(self, owned: Collection[int], now: float) -> bool:
        """Return whether this worker must publish a model with its next save; if so, note that a publication begins.

        `owned` are the partitions that this worker has restored. If `now` is infinite, a publication is always due.
        """
        if self._is_restoring:  # the checkpoints are being read: a publication now would read them once more
            return False
        # True for the owner of the lowest of all partitions, if enough time has passed since the last publication.
        return self._publish_schedule.begin_if_due(
            # Partitions that could not be restored are assigned to this worker, too: nobody else publishes for them.
            owned={*owned, *self._unrestored},
            all_partitions=self._source.partitions(),
            now=now,
        )

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Save the folds that have changed or are gone from the store, and wait until they are on disk."""
        self.finish_save(wait=True)
        self.start_save(folds, publish=False, rewrite=True)
        self.finish_save(wait=True)

    def start_save(self, folds: Mapping[int, Fold], *, publish: bool, rewrite: bool = False) -> None:
        """Start to write the folds that have changed. With `publish`, a model is written after them.

        With `rewrite`, folds that were saved and are gone from the store are written again. Must not be called while
        `is_saving`. Raises `ForeignStoreError` if another member of the group saves to another store.
        """
        if self.is_saving:
            raise RuntimeError("one save at a time")
        to_write: dict[int, Fold] = {}
        for partition, fold in folds.items():
            has_changed = fold.position != self._saved[partition].position
            if has_changed or partition in self._uncommitted:
                to_write[partition] = fold
        # `_prepare_save` waits until brokers have acknowledged the dead letters, and checks that all members have the
        # same store. It returns False if brokers do not answer in time: then a later save writes these folds.
        if to_write and not self._prepare_save():
            to_write = {}
        # The folds of all partitions that are not written now, as they were saved last. A model contains these folds,
        # too. With `rewrite`, those that are gone from the store are written again.
        saved_before = {p: fold for p, fold in self._saved.items() if p not in to_write}
        if to_write or publish or rewrite:
            self._running_save = self._writer.start(
                self._make_checkpoints(to_write),
                publish=publish,
                saved_before=self._make_checkpoints(saved_before),
                rewrite=rewrite,
            )

    def _prepare_save(self) -> bool:
        """Return whether checkpoints may be written now. If brokers do not answer in time, report it and return False.

        Waits until the brokers have acknowledged the dead letters. Raises `ForeignStoreError` if another member of the
        group saves to another store, and `TopicReplacedError` if the topic was replaced.
        """
        self._group_store.check_other_members()
        waits_for: Literal["dead letters", "topic"] = "dead letters"  # what the report names if there is no answer
        try:
            self._dead_letters.flush(_DEAD_LETTERS_TIMEOUT_S)
            waits_for = "topic"
            self.check_topic()
        except TimeoutError as error:
            self._notify(CheckpointPostponed(str(error), waits_for))
            return False
        return True

    def finish_save(self, *, wait: bool) -> None:
        """If the running save has ended, note which folds are on disk, and commit their offsets.

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
            # The position -1, before anything was read, cannot be committed.
            self._group_store.commit({p: fold.position for p, fold in saved.items() if fold.position >= 0})
        for event in result.events:
            if isinstance(event, ModelPublished):
                # The longer a publication takes, the later the next one is due. One that has failed does not count.
                self._publish_schedule.end(took_s=event.seconds)
            self._notify(event)
        # Partitions of the newest model whose checkpoint is gone: until it is back, no model is published. None: not
        # known, since this save has not merged a model.
        missing = result.missing
        if missing is not None and missing != self._models_wait_for:
            self._models_wait_for = missing
            self._report_missing()
        if result.error:
            raise result.error

    def check_topic(self) -> None:
        """Raise `TopicReplacedError` if another topic of the same name has replaced the one that is read.

        If this raises nothing, all records that were read since the last check belong to the topic.
        """
        topic_id = self._source.topic_id()
        refuse_other_topic(
            self._topic,
            before=self._topic_id,
            now=topic_id,
            where="while it was being read",
            remedy="learn it in another store folder; what was learned since the last checkpoint is dropped",
        )
        self._topic_id = self._topic_id or topic_id  # if it was not known before

    def _make_checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        """Return a checkpoint of each fold, with the topic, the settings and the names of this worker."""
        settings = self._fold_config.as_dict()
        return [
            Checkpoint(self._topic, self._topic_id, partition, fold, settings, names=self._names)
            for partition, fold in folds.items()
        ]

    def _report_missing(self) -> None:
        """Report which partitions are missing, unless the last report has named the same ones."""
        missing = {**self._models_wait_for, **self._unrestored}
        if missing.keys() != self._reported_missing:
            self._reported_missing = missing.keys()
            self._notify(PartitionsMissing(missing))

    def _ask(self, function: Callable[[], T]) -> FoldGenerator[T]:
        """Call a function in a thread. Yield {} until it has ended, then return its result."""
        # The watchdog ends this process if the call hangs in the store for minutes: a thread cannot be stopped.
        watched_function = _end_process_if_hanging(function)
        future = self._writer.checkpoints.threads.submit(watched_function)
        while not wait_for_end(future, _YIELD_AFTER_S):
            yield {}
        return future.result()

    def _load(
        self,
        stored: Checkpoints,
        sizes: Mapping[int, int],
        committed: Mapping[int, Committed],
        why_unrestored: dict[int, str],
    ) -> FoldGenerator[list[StoreError]]:
        """Load the newest checkpoints of the partitions in `sizes`, and yield their folds.

        `sizes` are the bytes of the checkpoints, by partition: large ones limit how many are loaded at once. Returns
        the errors of checkpoints that cannot be read, and adds their texts to `why_unrestored`, by partition.
        """
        fold_config = self._fold_config
        topic_id = self._topic_id

        def load(partition: int) -> Checkpoint:
            checkpoint = stored.newest(partition)
            if checkpoint is None:
                raise StoreError(f"the checkpoints of partition {partition} are gone since they were listed")
            return checkpoint.adapt_to(fold_config, topic_id)

        errors: list[StoreError] = []
        # If a load hangs in the store, the watchdog ends this process: a thread cannot be stopped.
        loads = stored.for_each(sizes, _end_process_if_hanging(load))
        while not loads.have_ended:
            folds: dict[int, Fold] = {}
            # Each wait is short, because the loop polls only between two steps of this generator.
            for partition, get_checkpoint in loads.take_ended(_YIELD_AFTER_S):
                try:
                    folds[partition] = self._take_over(get_checkpoint())
                except StoreError as error:
                    why_unrestored[partition] = str(error)
                    errors.append(error)
            # If a partition has a checkpoint but no committed offset, or only the offset at which it began, its worker
            # was killed after it saved and before it committed. A power failure may still lose the checkpoint. So
            # the next save writes the checkpoint again, and commits its offset.
            self._uncommitted |= {p for p in folds if p not in committed or marks_start(committed[p].metadata)}
            self._note_restored(folds)
            yield folds
        return errors

    def _begin_new(self, new: Sequence[int], examined: Examined, why_unrestored: dict[int, str]) -> FoldGenerator[None]:
        """Begin partitions without a checkpoint at the offsets that the setting `start` says, and yield their folds.

        `examined` holds the store's checkpoints, compared with the group's committed offsets. Adds to `why_unrestored`
        the causes why partitions cannot begin. The next attempt tries these partitions again.
        """
        try:
            # `_ask` calls a function in a thread, yields {} until it has ended, and then returns its result.
            newest_model = yield from self._ask(self._writer.models.newest)
            why_unrestored |= self._find_gone(new, newest_model, examined.offsets)
            may_begin = [partition for partition in new if partition not in why_unrestored]
            backfills: list[Checkpoint] = []
            if self._start == "backfill" and may_begin:
                backfills = yield from self._ask(partial(read_backfills, examined.stored))
        except StoreError as error:  # the newest model or a backfill cannot be read, so none of the partitions begins
            why_unrestored |= dict.fromkeys(new, str(error))
            return
        has_committed_starts = bool(examined.compared.committed_starts)  # an earlier owner has committed where to begin
        if self._start == "earliest" and not has_committed_starts:
            # All begin at their earliest record, so neither brokers nor the store are asked.
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
        """Begin new partitions in steps of at most 64 partitions, and yield the empty folds of each step.

        `examined` holds the store's checkpoints, and offsets that earlier owners have committed as starts. If the start
        of a partition cannot be written to the store or committed to the group, the cause is added to `why_unrestored`,
        and no later step is taken now: perhaps the store is busy, and would refuse further starts, too.
        """
        for first in range(0, len(new), _MAX_NEW_AT_ONCE):
            partitions = new[first : first + _MAX_NEW_AT_ONCE]
            committed_starts = examined.compared.committed_starts  # by partition
            start_offsets = self._choose_start_offsets(partitions, committed_starts, backfills)
            # A partition without a start offset begins at its earliest record. This is not saved: the next owner
            # would decide the same.
            at_earliest = [partition for partition in partitions if partition not in start_offsets]
            folds = {partition: Fold.empty(self._fold_config.learning) for partition in at_earliest}
            if start_offsets:
                saved_folds = yield from self._save_starts(start_offsets, examined, why_unrestored)
                folds.update(saved_folds)
            self._note_restored(folds)
            yield folds
            was_any_refused = len(folds) < len(partitions)
            if was_any_refused:
                return

    def _choose_start_offsets(
        self, partitions: Sequence[int], committed_starts: Mapping[int, int], backfills: Sequence[Checkpoint]
    ) -> dict[int, int]:
        """Return the offsets at which new partitions begin, by partition.

        If an earlier owner has committed where a partition begins, this offset holds. Otherwise the setting `start`
        decides. With start=backfill, partitions begin at the end of what the `backfills` have learned from files.
        Partitions that begin at their earliest record are left out.
        """
        start_offsets = {p: committed_starts[p] for p in partitions if p in committed_starts}
        undecided = [partition for partition in partitions if partition not in committed_starts]
        # Leaves out the partitions that begin at their earliest record.
        start_offsets |= find_start_offsets(self._start, undecided, self._source, backfills)
        return start_offsets

    def _find_gone(
        self, partitions: Collection[int], newest_model: PublishedModel | None, offsets: Mapping[int, int]
    ) -> dict[int, str]:
        """Return which of these partitions must not begin as new, each with a message that says why.

        A partition that the newest model contains had a checkpoint, which is gone: if the partition began as new,
        models would shrink. With start=backfill, the backfills say where partitions begin. So if the checkpoint of a
        backfill is gone or too old, no partition can begin. `offsets` are those of the newest checkpoints in the store,
        by partition.
        """
        # The partitions of which the model has learned more than the checkpoints.
        message_by_missing = find_missing(newest_model, offsets, self._topic_id)
        # A backfill has a checkpoint, too, under a number that no partition of Kafka has.
        missing_backfills = [partition for partition in message_by_missing if is_backfill(partition)]
        if self._start == "backfill" and missing_backfills:
            message = message_by_missing[missing_backfills[0]]
            return dict.fromkeys(partitions, message)
        return {partition: message for partition, message in message_by_missing.items() if partition in partitions}

    def _save_starts(
        self, start_offsets: Mapping[int, int], examined: Examined, why_unrestored: dict[int, str]
    ) -> FoldGenerator[dict[int, Fold]]:
        """Save an empty fold of each new partition at its start offset, and return the folds that were saved.

        First the offsets are committed, marked as starts: if this process dies before a fold is saved, the next owner
        begins there. Otherwise it would choose again, and with start=latest choose a later offset. If the store or the
        group refuses a start, the cause is added to `why_unrestored`. While threads write, this generator yields {}, so
        that the loop can poll. `examined` holds the store's checkpoints, and the starts of earlier owners.
        """
        self.check_topic()  # otherwise the offsets could mean records of a topic that has replaced ours
        # Commits the starts, and returns those that the group has then.
        agreed_offsets = self._group_store.agree_on_starts(start_offsets)
        refused = start_offsets.keys() - agreed_offsets.keys()
        why_unrestored |= dict.fromkeys(refused, "the group did not take the offset where it begins")
        empty = Fold.empty(self._fold_config.learning)
        folds = {partition: empty.at(offset) for partition, offset in agreed_offsets.items()}
        checkpoints = {checkpoint.partition: checkpoint for checkpoint in self._make_checkpoints(folds)}

        def save(partition: int) -> None:
            examined.stored.save(checkpoints[partition])

        saved_folds: dict[int, Fold] = {}
        sizes = {partition: fold.nbytes for partition, fold in folds.items()}
        writes = examined.stored.for_each(sizes, _end_process_if_hanging(save))
        while not writes.have_ended:
            for partition, raise_if_failed in writes.take_ended(_YIELD_AFTER_S):
                try:
                    raise_if_failed()
                except StoreError as error:
                    why_unrestored[partition] = str(error)
                    continue
                saved_folds[partition] = folds[partition]
                offset = agreed_offsets[partition]
                # The setting `start` has not decided if an earlier owner had committed a start, or if a new owner has
                # committed one since: the group may then have another offset than this worker has chosen.
                was_committed = partition in examined.compared.committed_starts or offset != start_offsets[partition]
                start = "committed" if was_committed else self._start
                log.info("partition begun", partition=partition, offset=offset, start=start)
            yield {}
        # Commit the offsets again, without the mark. An unmarked offset says that its checkpoint is saved. So a worker
        # that gets a listing without the checkpoint waits until the store lists it.
        self._group_store.commit({partition: fold.position for partition, fold in saved_folds.items()})
        return saved_folds

    def _read_names_of_backfill(self, stored: Checkpoints) -> FoldGenerator[None]:
        """Take over the names of the dimensions from the last backfill, since partitions may have none yet.

        A backfill has learned files. If there is no backfill, or it cannot be read, do nothing.
        """

        def read_last() -> Checkpoint | None:
            backfills = find_backfills(stored)  # each has a number, and a checkpoint, like a partition
            return stored.newest(backfills[-1]) if backfills else None

        # An error is reported later: the next model waits for the backfill.
        with contextlib.suppress(StoreError):
            checkpoint = yield from self._ask(read_last)
            if checkpoint is not None:
                # Keeps the names. The returned fold is not needed.
                self._take_over(checkpoint.adapt_to(self._fold_config, self._topic_id))

    def _take_over(self, checkpoint: Checkpoint) -> Fold:
        """Return the fold of a checkpoint, and agree on the names of the dimensions.

        If only the worker or only the checkpoint has names, these count for both from now on, which is logged. Raises
        `SettingsError` if both have names that differ.
        """
        names = checkpoint.agree_on_names(self._names)  # raises if both have names that differ
        is_one_unnamed = checkpoint.names != self._names  # so if they differ here, one of them is None
        if is_one_unnamed:
            self._names = names
            log.info("dimensions named", partition=checkpoint.partition, names=list_names(names or []))
        return checkpoint.fold

    def _note_restored(self, folds: Mapping[int, Fold]) -> None:
        """Note that these folds are on disk, and that their partitions are restored."""
        self._saved |= folds
        for partition in folds:
            self._unrestored.pop(partition, None)


def _end_process_if_hanging(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does the same as `function`. If the store hangs in it, the watchdog ends the process.

    The watchdog watches the thread that calls the function until the call has ended.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`; the watchdog ends the process if the call takes longer than `STORE_S`."""
        watchdog.tick(watchdog.STORE_S)
        try:
            return function(*args, **kwargs)
        finally:
            watchdog.forget()

    return call
