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

from streampca.consumer_group.committed import read_begins
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
from streampca.worker.starts import find_backfills, find_starts, read_backfills
from streampca.worker.writer import CheckpointWriter, SaveResult

log = structlog.get_logger()

_FLUSH_S = 2.0  # longest wait for dead letters before a save is postponed
_ANSWER_S = 0.05  # longest wait for the store in one step of restoring; then the loop polls
_BEGUN_AT_ONCE = 64  # new partitions in one step: brokers are asked for the offsets at which they begin

P = ParamSpec("P")
T = TypeVar("T")

Restoring: TypeAlias = Generator[Mapping[int, Fold], None, T]
"""Yields restored folds by partition, {} while it waits for the store, and returns T."""


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

    With `every`, the newest one of each partition is loaded. Otherwise one of a partition and one of a backfill are
    enough, since a topic may have a thousand partitions, and each one is checked when it is assigned.

    Raises `ForeignStoreError` if the group has another store, `SettingsError` if a fold has learned with other
    settings, `TopicReplacedError` if it has learned an earlier topic of the same name, and `StoreBusyError` if the
    store does not answer. Raises `DamagedFileError` if all checkpoints of a partition are damaged. If one cannot be
    read, its `StoreError` is raised only with `every`, or if no other could be read.
    """
    refuse_other_store(checkpoints, committed, checkpoints.find_identity())
    stored = checkpoints.snapshot()
    answers: Iterable[Answer[Checkpoint | None]]
    if every:
        sizes = stored.sizes(stored.newest_offsets())
        answers = stored.for_each(sizes, stored.newest).take_in_order()
    else:  # a checkpoint is loaded only if its `result` is called
        answers = (Answer(partition, partial(stored.newest, partition)) for partition in stored.partitions())
    folds: dict[int, Fold] = {}
    unreadable: list[StoreError] = []
    kinds_checked: set[str] = set()
    for partition, result in answers:
        kind = "backfill" if is_backfill(partition) else "partition of Kafka"
        if kind in kinds_checked and not every:
            continue  # one good checkpoint of this kind is enough
        try:
            checkpoint = result()
        except StoreBusyError:
            raise
        except StoreError as error:
            unreadable.append(error)
            continue
        if checkpoint is not None:
            folds[partition] = checkpoint.adapt_to(config, topic_id).fold
            kinds_checked.add(kind)
    if unreadable and (every or not folds):
        raise unreadable[0]
    return folds


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
        self._names = config.fold.names
        self._publish_schedule = PublishSchedule()
        self._group_store = GroupStore(source, writer.checkpoints)
        self._topic_id = ""  # empty: not known, or the brokers give topics no ids
        self._unrestored: dict[int, str] = {}  # why assigned partitions could not be restored, by partition
        self._models_wait_for: Mapping[int, str] = {}  # why models wait for partitions, at the last publication
        self._reported: Collection[int] = set()  # the missing partitions, as last reported
        self._saved: dict[int, Fold] = {}  # of each assigned partition, the fold that is on disk
        self._uncommitted: set[int] = set()  # restored partitions that have no committed offset: see `_load`
        self._running_save: Future[SaveResult] | None = None  # the save that was started and not finished
        self._is_restoring = False

    def restore(self, partitions: Collection[int]) -> Restoring[None]:
        """Yield the folds from which just assigned partitions continue, by partition, as soon as they are restored.

        Threads ask the store. While it has not answered, this yields {}, so that the loop can poll. The loop may close
        this generator at any yield, when partitions are revoked. A partition whose checkpoint is gone or cannot be read
        is left out and reported: a retry may help. Raises `StoreError` or `TimeoutError` if that holds for all
        partitions, and `ForeignStoreError` if the store is not the group's.
        """
        self._is_restoring = True
        try:
            yield from self._restore(partitions)
        finally:
            self._is_restoring = False

    def _restore(self, partitions: Collection[int]) -> Restoring[None]:
        """Do what `restore` says: check the store, then load the checkpoints, then begin new partitions."""
        if not self._saved:  # nothing was read yet, so it does not matter if the topic was replaced since the start
            self._topic_id = self._source.topic_id()
        committed = self._group_store.read_committed()
        examined = yield from self._ask(partial(examine_store, self._writer.checkpoints, committed))
        causes = self._group_store.accept(examined, partitions)  # why partitions are not restored; the steps add more
        stored = examined.stored
        if not self._saved and self._names is None:
            yield from self._read_names_of_backfill(stored)
        to_restore = [partition for partition in partitions if partition not in causes]
        # Partitions that failed before come last: if the store stays busy with one of them, all others are restored.
        to_restore.sort(key=lambda partition: (partition in self._unrestored, partition))
        new = [partition for partition in to_restore if partition not in examined.offsets]
        offsets = {partition: examined.offsets[partition] for partition in to_restore if partition not in new}
        sizes = yield from self._ask(partial(stored.sizes, offsets))
        failures = yield from self._load(stored, sizes, committed, causes)
        if failures and not self._saved and not new:  # nothing could be restored, so the caller retries all
            self._unrestored = causes
            raise failures[0]
        if new:
            yield from self._begin_new(new, examined, causes)
        self._unrestored = causes
        self._report_missing()

    def forget(self, partitions: Collection[int]) -> None:
        """Drop partitions that were revoked or lost, and find out anew which partitions are missing in models."""
        for partition in partitions:
            self._saved.pop(partition, None)
            self._uncommitted.discard(partition)
            self._unrestored.pop(partition, None)
        # The next publication finds out which partitions models wait for. The member's state has dropped its missing
        # partitions, too, so those that are still missing must be reported again.
        self._models_wait_for = {}
        self._reported = set()

    @property
    def is_saving(self) -> bool:
        """Whether a save was started that `finish_save` has not finished."""
        return self._running_save is not None

    def begin_publication_if_due(self, owned: Collection[int], now: float) -> bool:
        """Return whether this worker, which owns these partitions, must publish a model with its next save."""
        if self._is_restoring:  # a publication would read the checkpoints a second time
            return False
        # Partitions that could not be restored are assigned to this worker, too, so no other worker would publish.
        return self._publish_schedule.begin_if_due({*owned, *self._unrestored}, self._source.partitions(), now)

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
        changed = {
            p: fold for p, fold in folds.items() if p in self._uncommitted or fold.position != self._saved[p].position
        }
        if changed and not self._prepare_save():  # a later save writes them
            changed = {}
        unchanged = {p: fold for p, fold in self._saved.items() if p not in changed}
        if changed or publish or rewrite:
            self._running_save = self._writer.start(
                self._make_checkpoints(changed),
                publish=publish,
                saved_before=self._make_checkpoints(unchanged),
                rewrite=rewrite,
            )

    def _prepare_save(self) -> bool:
        """Do what must be done before checkpoints are written, and return True.

        If brokers do not answer, report it, and return False.
        """
        self._group_store.check_other_members()
        waits_for: Literal["dead letters", "topic"] = "dead letters"
        try:
            self._dead_letters.flush(_FLUSH_S)
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
                self._publish_schedule.end(event.seconds)
            self._notify(event)
        # None: this save has not looked for the partitions that models wait for.
        if result.missing is not None and result.missing != self._models_wait_for:
            self._models_wait_for = result.missing
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
            self._topic_id,
            topic_id,
            "while it was being read",
            "learn it in another store folder; what was learned since the last checkpoint is dropped",
        )
        self._topic_id = self._topic_id or topic_id  # if it was not known before

    def _make_checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        settings = self._fold_config.as_dict()
        return [
            Checkpoint(self._topic, self._topic_id, partition, fold, settings, names=self._names)
            for partition, fold in folds.items()
        ]

    def _report_missing(self) -> None:
        """Report which partitions are missing, unless the last report has named the same ones."""
        missing = {**self._models_wait_for, **self._unrestored}
        if missing.keys() != self._reported:
            self._reported = missing.keys()
            self._notify(PartitionsMissing(missing))

    def _ask(self, function: Callable[[], T]) -> Restoring[T]:
        """Call a function in a thread. Yield {} until it has ended, then return its result."""
        future = self._writer.checkpoints.threads.submit(_watch(function))
        while not wait_for_end(future, _ANSWER_S):
            yield {}
        return future.result()

    def _load(
        self,
        stored: Checkpoints,
        sizes: Mapping[int, int],
        committed: Mapping[int, Committed],
        causes: dict[int, str],
    ) -> Restoring[list[StoreError]]:
        """Load the newest checkpoints of the partitions in `sizes`, and yield their folds.

        `sizes` are the bytes of the checkpoints, by partition. Returns the errors of checkpoints that cannot be read,
        and adds their texts to `causes`, by partition.
        """
        fold_config = self._fold_config
        topic_id = self._topic_id

        def load(partition: int) -> Checkpoint:
            checkpoint = stored.newest(partition)
            if checkpoint is None:
                raise StoreError(f"the checkpoints of partition {partition} are gone since they were listed")
            return checkpoint.adapt_to(fold_config, topic_id)

        failures: list[StoreError] = []
        loads = stored.for_each(sizes, _watch(load))  # if the store hangs, the watchdog ends the process
        while not loads.have_ended:
            folds: dict[int, Fold] = {}
            # Each wait is short, because the loop polls only between two steps of this generator.
            for partition, result in loads.take_ended(_ANSWER_S):
                try:
                    folds[partition] = self._take_over(result())
                except StoreError as error:
                    causes[partition] = str(error)
                    failures.append(error)
            # If the group has no offset of a partition, a worker was killed between saving and committing, perhaps even
            # before its checkpoint was safe from a power failure. The next save writes it again, and commits.
            self._uncommitted |= {p for p in folds if p not in committed or read_begins(committed[p].metadata)}
            self._note_restored(folds)
            yield folds
        return failures

    def _begin_new(self, new: Sequence[int], examined: Examined, causes: dict[int, str]) -> Restoring[None]:
        """Yield the folds with which partitions without a checkpoint begin, where the setting `start` says.

        Adds to `causes` why a partition cannot begin. Folds that begin at an offset are saved first, at most 64 at a
        time. If the store refuses one of these, the partitions after these 64 wait for the next attempt.
        """
        try:
            newest_model = yield from self._ask(self._writer.models.newest)
            causes |= self._find_gone(new, newest_model, examined.offsets)
            may_begin = [partition for partition in new if partition not in causes]
            backfills: list[Checkpoint] = []
            if self._start == "backfill" and may_begin:
                backfills = yield from self._ask(partial(read_backfills, examined.stored))
        except StoreError as error:  # perhaps only a model or a backfill cannot be read
            causes |= dict.fromkeys(new, str(error))
            return
        begins = examined.compared.begins  # decided by an owner that has saved no checkpoint
        if self._start == "earliest" and not begins:  # neither brokers nor the store are asked
            empty_folds = {p: Fold.empty(self._fold_config.learning) for p in may_begin}
            self._note_restored(empty_folds)
            yield empty_folds
            return
        for first in range(0, len(may_begin), _BEGUN_AT_ONCE):
            partitions = may_begin[first : first + _BEGUN_AT_ONCE]
            undecided = [partition for partition in partitions if partition not in begins]
            offsets = {partition: begins[partition] for partition in partitions if partition in begins}
            offsets |= find_starts(self._start, undecided, self._source, backfills)
            at_earliest = [partition for partition in partitions if partition not in offsets]
            folds = {partition: Fold.empty(self._fold_config.learning) for partition in at_earliest}
            if offsets:
                folds |= yield from self._begin(offsets, examined.stored, causes)
            self._note_restored(folds)
            yield folds
            has_refused_some = len(folds) < len(partitions)
            if has_refused_some:  # perhaps the store is busy: each further save would wait as long
                return

    def _find_gone(
        self, partitions: Collection[int], newest_model: PublishedModel | None, offsets: Mapping[int, int]
    ) -> dict[int, str]:
        """Return the partitions whose checkpoint is gone, with the cause: the newest model contains them.

        They must not begin like new ones, since models must not shrink. With start=backfill, the backfills say where
        partitions begin. So if the checkpoint of a backfill is gone or too old, no partition can begin.
        """
        missing = find_missing(newest_model, offsets, self._topic_id)
        backfills = [partition for partition in missing if is_backfill(partition)]
        if self._start == "backfill" and backfills:
            return dict.fromkeys(partitions, missing[backfills[0]])
        return {partition: cause for partition, cause in missing.items() if partition in partitions}

    def _begin(
        self, offsets: Mapping[int, int], stored: Checkpoints, causes: dict[int, str]
    ) -> Restoring[dict[int, Fold]]:
        """Save the folds of new partitions that begin at these offsets, and return those that are saved.

        The group agrees on the offsets, and then they are saved, before a record is read: after a crash, `start` could
        mean another offset. If the store or the group refuses one of them, the cause is added to `causes`. Yields {}
        until all are saved.
        """
        self.check_topic()  # otherwise the offsets could mean records of a topic that has replaced ours
        wanted = offsets
        offsets = self._group_store.agree_on_beginnings(wanted)
        causes |= dict.fromkeys(wanted.keys() - offsets.keys(), "the group did not take the offset where it begins")
        empty = Fold.empty(self._fold_config.learning)
        folds = {partition: empty.at(offset) for partition, offset in offsets.items()}
        checkpoints = {checkpoint.partition: checkpoint for checkpoint in self._make_checkpoints(folds)}

        def save(partition: int) -> None:
            stored.save(checkpoints[partition])

        begun: dict[int, Fold] = {}
        writes = stored.for_each({partition: fold.nbytes for partition, fold in folds.items()}, _watch(save))
        while not writes.have_ended:
            for partition, result in writes.take_ended(_ANSWER_S):
                try:
                    result()
                except StoreError as error:
                    causes[partition] = str(error)
                    continue
                begun[partition] = folds[partition]
                log.info("partition begun", partition=partition, offset=offsets[partition], start=self._start)
            yield {}
        # Another worker may get a listing of the store without these checkpoints. The group's offsets now tell it that
        # there are checkpoints, so it waits until the store lists them.
        self._group_store.commit({partition: fold.position for partition, fold in begun.items()})
        return begun

    def _read_names_of_backfill(self, stored: Checkpoints) -> Restoring[None]:
        """Take over the names of the dimensions from the last backfill, since partitions may have none yet.

        If there is no backfill, or it cannot be read, do nothing.
        """

        def read() -> list[Checkpoint | None]:
            return [stored.newest(backfill) for backfill in find_backfills(stored)[-1:]]

        with contextlib.suppress(StoreError):  # models wait for the backfill, and that is reported
            for checkpoint in (yield from self._ask(read)):
                if checkpoint is not None:
                    self._take_over(checkpoint.adapt_to(self._fold_config, self._topic_id))

    def _take_over(self, checkpoint: Checkpoint) -> Fold:
        """Return the fold of a checkpoint. If the worker knows no names of dimensions, take over the checkpoint's."""
        names = checkpoint.agree_on_names(self._names)
        if checkpoint.names != self._names:
            self._names = names
            log.info("dimensions named", partition=checkpoint.partition, names=list_names(names or []))
        return checkpoint.fold

    def _note_restored(self, folds: Mapping[int, Fold]) -> None:
        """Note that these folds are on disk, and that their partitions are restored."""
        self._saved |= folds
        for partition in folds:
            self._unrestored.pop(partition, None)


def _watch(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that does the same, watched: if the store hangs in it, the watchdog ends the process.

    The function is to be called in a thread, which the watchdog watches until the call has ended.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        watchdog.tick(watchdog.STORE_S)
        try:
            return function(*args, **kwargs)
        finally:
            watchdog.forget()

    return call
