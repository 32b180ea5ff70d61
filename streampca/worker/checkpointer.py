"""Restores and saves the folds of one worker; the order of the steps of a save guarantees exactly once.

1. The broker has acknowledged the dead letters. 2. The topic is still the one that was read. 3. The checkpoint is on
disk. 4. The offsets are committed to the group. If a step fails, a later save repeats all of them.
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from streampca.consumer_group.events import (
    CheckpointPostponed,
    CheckpointSaved,
    ModelPublished,
    Notify,
    PartitionsMissing,
)
from streampca.consumer_group.policy import MemberPolicy
from streampca.errors import StoreBusyError, StoreError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.partitions import is_backfill
from streampca.formats.codec import Codec
from streampca.process import watchdog
from streampca.sources.base import Committed, DeadLetters, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.parallel_requests import Answer
from streampca.worker.group_store import GroupStore, refuse_other_store
from streampca.worker.learned_topic import LearnedTopic
from streampca.worker.publisher import PublishSchedule
from streampca.worker.restorer import AssignedFolds, FoldGenerator, Restorer
from streampca.worker.writer import CheckpointWriter, SaveResult

_DEAD_LETTERS_TIMEOUT_S = 2.0  # longest wait for dead letters before a save is postponed


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
    check_all: bool = False,
) -> dict[int, Fold]:
    """Check the checkpoints before the worker joins its group, and return their folds, by partition.

    Without `check_all`, only one partition and one backfill are checked. Raises a `StreampcaError`, such as
    `SettingsError`.
    """
    refuse_other_store(checkpoints, committed, checkpoints.find_identity())
    stored = checkpoints.snapshot()
    folds: dict[int, Fold] = {}
    unreadable: list[StoreError] = []
    for partition, load in _prepare_loads(stored, load_all=check_all):
        # Without `check_all`, skip the rest of the partitions, or of the backfills, once one of them was checked. A
        # backfill has a partition number of its own.
        is_kind_checked = any(is_backfill(other) == is_backfill(partition) for other in folds)
        if is_kind_checked and not check_all:
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
            folds[partition] = checkpoint.adapt_to(config, topic_id).fold
    is_any_readable = len(folds) > 0
    # Without `check_all`, an unreadable checkpoint is ignored if any other one was readable.
    if unreadable and (check_all or not is_any_readable):
        raise unreadable[0]
    return folds


def _prepare_loads(stored: Checkpoints, *, load_all: bool) -> Iterable[Answer[Checkpoint | None]]:
    """Return, for each partition, an `Answer`: the partition, and a function that returns its newest checkpoint.

    By default, the function loads the checkpoint. With `load_all`, threads load all checkpoints in parallel, and the
    function only returns what was loaded.
    """
    if load_all:
        return stored.load_newest(stored.newest_offsets()).take_in_order()
    return [Answer(partition, partial(stored.newest, partition)) for partition in stored.partitions()]


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
        self._source = source
        self._dead_letters = dead_letters
        self._writer = writer
        self._notify = notify
        self.topic = LearnedTopic(source, config.topic, config.fold)
        self._group_store = GroupStore(source, writer.checkpoints)
        self._assigned = AssignedFolds()
        self._restorer = Restorer(self.topic, config.start, source, writer, self._group_store, self._assigned)
        self._is_restoring = False
        self._running_save: Future[SaveResult] | None = None
        self._publish_schedule = PublishSchedule()
        # By partition: why the last merge lacked it. A merge that lacks a partition is not published.
        self._why_missing_in_merge: Mapping[int, str] = {}
        self._missing_in_last_report: Collection[int] = set()  # partitions of the last event `PartitionsMissing`

    def restore(self, partitions: Collection[int]) -> FoldGenerator[None]:
        """Restore the folds of assigned partitions. Yield them by partition, as soon as they are restored.

        Partitions that cannot be restored are reported. Raises `StoreError`, `TimeoutError` or `ForeignStoreError`.
        """
        self._is_restoring = True
        try:
            yield from self._restorer.restore(partitions)
        finally:
            self._is_restoring = False
        self._report_missing()

    def forget(self, partitions: Collection[int]) -> None:
        """Forget the folds of partitions that were revoked or lost."""
        self._assigned.forget(partitions)
        # When partitions are released, `MemberState` drops the problem "partitions missing". Forget what was reported,
        # so that the partitions that are still missing are reported again.
        self._why_missing_in_merge = {}
        self._missing_in_last_report = set()

    @property
    def is_saving(self) -> bool:
        """Whether a save was started that `finish_save` has not finished."""
        return self._running_save is not None

    def begin_publication_if_due(self, owned: Collection[int], now: float) -> bool:
        """Return whether this worker must publish with its next save, and note that it begins.

        `owned` are the restored partitions.
        """
        # The restorer is reading checkpoints now. A publication would read the same checkpoints again; once their folds
        # are restored, it takes them from memory.
        if self._is_restoring:
            return False
        unrestored = self._assigned.why_unrestored.keys()
        return self._publish_schedule.begin_if_due(
            # Partitions that could not be restored are owned, too: no other worker publishes for them.
            owned={*owned, *unrestored},
            all_partitions=self._source.partitions(),
            now=now,
        )

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Save the folds that have changed or that the store has lost, and wait until they are on disk."""
        self.finish_save(wait=True)
        self.start_save(folds, publish=False, rewrite_lost=True)
        self.finish_save(wait=True)

    def start_save(self, folds: Mapping[int, Fold], *, publish: bool, rewrite_lost: bool = False) -> None:
        """Start to write the folds that have changed; with `publish`, a model after them.

        With `rewrite_lost`, checkpoints that the store has lost are written again. Raises `ForeignStoreError`.
        """
        if self.is_saving:
            raise RuntimeError("one save at a time")
        to_write = {partition: fold for partition, fold in folds.items() if self._needs_save(partition, fold)}
        if to_write and not self._prepare_save():  # brokers do not answer, so a later save writes the folds
            to_write = {}
        # A published model also contains the folds that are not written now.
        saved_before = {p: fold for p, fold in self._assigned.saved.items() if p not in to_write}
        if to_write or publish or rewrite_lost:
            self._running_save = self._writer.start(
                self.topic.make_checkpoints(to_write),
                publish=publish,
                saved_before=self.topic.make_checkpoints(saved_before),
                rewrite_lost=rewrite_lost,
            )

    def _needs_save(self, partition: int, fold: Fold) -> bool:
        """Return whether a fold has changed since it was saved, or its offset was not committed."""
        has_changed = fold.position != self._assigned.saved[partition].position
        return has_changed or partition in self._assigned.uncommitted

    def _prepare_save(self) -> bool:
        """Return whether checkpoints may be written now: False if brokers do not answer in time.

        Raises `ForeignStoreError` or `TopicReplacedError`.
        """
        self._group_store.check_other_members()
        try:
            self._dead_letters.flush(_DEAD_LETTERS_TIMEOUT_S)
        except TimeoutError as error:
            self._notify(CheckpointPostponed(str(error), "dead letters"))
            return False
        try:
            self.topic.check_id()
        except TimeoutError as error:
            self._notify(CheckpointPostponed(str(error), "topic"))
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
        self._commit_saved(result)
        for event in result.events:
            if isinstance(event, ModelPublished):
                self._publish_schedule.end(took_s=event.seconds)
            self._notify(event)
        # By partition: why the merge lacks it, so that no model is published. {}: no partition is missing. None: no
        # publication was tried, or it failed, so what was reported before still holds.
        why_missing = result.why_missing_in_merge
        if why_missing is not None and why_missing != self._why_missing_in_merge:
            self._why_missing_in_merge = why_missing
            self._report_missing()
        if result.error:
            raise result.error

    def _commit_saved(self, result: SaveResult) -> None:
        """Note which folds were saved, and commit their offsets."""
        saved = {event.partition: event.fold for event in result.events if isinstance(event, CheckpointSaved)}
        self._assigned.saved |= saved
        self._assigned.uncommitted -= saved.keys()
        # The position is -1 before anything was read.
        self._group_store.commit({p: fold.position for p, fold in saved.items() if fold.position >= 0})

    def _report_missing(self) -> None:
        """If the set of missing partitions has changed since the last report, report it, also when it is empty now.

        A partition is missing if the last merge lacked it, or if this worker could not restore it.
        """
        why_missing = {**self._why_missing_in_merge, **self._assigned.why_unrestored}
        if why_missing.keys() != self._missing_in_last_report:
            self._missing_in_last_report = why_missing.keys()
            self._notify(PartitionsMissing(why_missing))
