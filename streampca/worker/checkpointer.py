"""Restores and saves the folds of one worker; the order of the steps of a save guarantees exactly once.

1. The broker has acknowledged the dead letters. 2. The topic is still the one that was read. 3. The checkpoint is on
disk. 4. The offsets are committed to the group. If a step fails, a later save repeats all: that costs work, never
correctness.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

import structlog

from streampca.consumer_group.committed import refuse_other_store
from streampca.consumer_group.events import CheckpointPostponed, CheckpointSaved, Listener
from streampca.consumer_group.policy import MemberPolicy
from streampca.errors import SettingsError, listed, refuse_other_topic
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.formats.codec import Codec
from streampca.process import watchdog
from streampca.sources.base import Committed, DeadLetters, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.worker.group_store import GroupStore, find_moved_offsets
from streampca.worker.writer import CheckpointWriter, SaveResult

log = structlog.get_logger()

_FLUSH_S = 2.0  # longest wait for dead letters before a save is postponed


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(MemberPolicy):
    """What a worker learns, how it treats bad and lost records, and how often it saves."""

    suspects = "dimensions, format, field"
    start_over = "another store folder and group_id"
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
    """Check the store before the worker joins its group, and return the folds that were checked, by partition.

    With `every`, all folds are checked; otherwise one of a partition and one of a backfill, since a topic may have a
    thousand partitions, and each is checked when it is assigned. Creates no identity. Raises as `Checkpoint.usable_by`,
    and `ForeignStoreError` if the group has another store.
    """
    refuse_other_store(checkpoints.topic, committed, checkpoints.known_identity())
    partitions = checkpoints.partitions()
    if not every:
        first, last = partitions[:1], partitions[-1:]  # backfills come last
        partitions = sorted({*first, *last})
    folds: dict[int, Fold] = {}
    for partition in partitions:
        checkpoint = checkpoints.newest(partition)
        if checkpoint is not None:
            folds[partition] = checkpoint.usable_by(config, topic_id).fold
    if every:
        find_moved_offsets(checkpoints, committed)  # raises if the group is ahead of the store
    return folds


class Checkpointer:
    """Restores and saves the folds of one worker."""

    def __init__(
        self,
        config: WorkerConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: Listener,
    ) -> None:
        self._topic = config.topic
        self._fold_config = config.fold
        self._start = config.start
        self._source = source
        self._dead_letters = dead_letters
        self._writer = writer
        self._listener = listener
        self._names = config.fold.names
        self._group_store = GroupStore(source, writer.checkpoints)
        self._topic_id = ""  # empty: not known, or the brokers give topics no ids
        self._saved: dict[int, Fold] = {}  # of each assigned partition, the fold that is on disk
        self._running_save: Future[SaveResult] | None = None  # the save that was started and not finished

    def restore(self, partitions: Collection[int]) -> dict[int, Fold]:
        """Return the folds from which partitions that were just assigned continue.

        Raises `StoreError` or `TimeoutError` when a retry can help, and `ForeignStoreError` if the store is not the
        group's.
        """
        if not self._saved:  # nothing was read yet, so a topic that was replaced since the start is right, too
            self._topic_id = self._source.topic_id()
        self._group_store.check_assigned(partitions)
        if not self._saved and self._names is None:  # perhaps only a backfill names the dimensions
            for backfill in self._backfills()[-1:]:
                self._load(backfill)
        folds = {partition: self._load(partition) for partition in sorted(partitions)}
        without_position = {partition: fold for partition, fold in folds.items() if fold.position < 0}
        folds |= self._save_starts(without_position)
        self._saved |= folds
        return folds

    def forget(self, partitions: Collection[int]) -> None:
        """Drop partitions that were revoked or lost."""
        for partition in partitions:
            self._saved.pop(partition)

    @property
    def is_saving(self) -> bool:
        """Whether a save was started that `finish_save` has not finished."""
        return self._running_save is not None

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Save the folds that have changed, and wait until they are on disk."""
        self.finish_save(wait=True)
        self.start_save(folds, publish=False)
        self.finish_save(wait=True)

    def start_save(self, folds: Mapping[int, Fold], *, publish: bool) -> None:
        """Start to write the folds that have changed, and then a model if `publish`. Not while `is_saving`.

        Raises `ForeignStoreError` if another member of the group saves to another store.
        """
        if self.is_saving:
            raise RuntimeError("one save at a time")
        changed = {p: fold for p, fold in folds.items() if fold.position != self._saved[p].position}
        waits_for: Literal["dead letters", "topic"] = "dead letters"
        try:
            if changed:
                self._group_store.check_others()
                self._dead_letters.flush(_FLUSH_S)
                waits_for = "topic"
                self.check_topic()
        except TimeoutError as error:
            self._listener.notify(CheckpointPostponed(str(error), waits_for))
            changed = {}
        unchanged = {p: fold for p, fold in self._saved.items() if p not in changed}
        checkpoints = self._make_checkpoints(changed)
        saved_before = self._make_checkpoints(unchanged)
        if checkpoints or publish:
            self._running_save = self._writer.start(checkpoints, publish=publish, saved_before=saved_before)

    def finish_save(self, *, wait: bool) -> None:
        """If the save has ended, remember which folds are on disk, and commit their offsets.

        With `wait`, waits for its end first.
        """
        save = self._running_save
        if save is None or not (wait or save.done()):
            return
        self._running_save = None
        result = watchdog.result_of(save)
        saved = {event.partition: event.fold for event in result.events if isinstance(event, CheckpointSaved)}
        self._saved |= saved
        if saved:
            self._group_store.commit({p: fold.position for p, fold in saved.items() if fold.position >= 0})
        for event in result.events:
            self._listener.notify(event)
        if result.error:
            raise result.error

    def check_topic(self) -> None:
        """Raise if the topic was replaced. If it was not, all records since the last check are of this topic."""
        topic_id = self._source.topic_id()
        refuse_other_topic(
            self._topic,
            self._topic_id,
            topic_id,
            "while it was being read",
            "what was learned since the last checkpoint is dropped; to learn the new one, use another store folder",
        )
        self._topic_id = self._topic_id or topic_id

    def _make_checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        settings = self._fold_config.as_dict()
        return [
            Checkpoint(self._topic, self._topic_id, partition, fold, settings, names=self._names)
            for partition, fold in folds.items()
        ]

    def _save_starts(self, folds: Mapping[int, Fold]) -> dict[int, Fold]:
        """Save the folds of new partitions that do not begin at the earliest record, and return them.

        They are saved before a record is read: after a crash, `start` could mean another offset.
        """
        offsets = self._find_starts(folds) if folds else {}
        if offsets:
            self.check_topic()  # otherwise the offsets could be those of a topic that has replaced ours
        begun = {partition: folds[partition].at(offset) for partition, offset in offsets.items()}
        for checkpoint in self._make_checkpoints(begun):
            watchdog.tick(watchdog.STORE_S)
            self._writer.checkpoints.save(checkpoint)
            log.info(
                "partition begun", partition=checkpoint.partition, offset=checkpoint.fold.position, start=self._start
            )
        if offsets:  # a worker whose listing is older than the checkpoints would begin at later records
            self._group_store.commit(offsets)
        return begun

    def _find_starts(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the offsets at which new partitions begin, without those that begin at the earliest record."""
        if self._start == "earliest":
            return {}
        if self._start == "backfill":
            return self._find_ends_of_backfills(partitions)
        time_ms = None if self._start == "latest" else int(self._start)
        return self._source.offsets_at(partitions, time_ms)

    def _find_ends_of_backfills(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the offset behind the last record of all backfills, of each partition in which that is known."""
        newest = [self._writer.checkpoints.newest(backfill) for backfill in self._backfills()]
        backfills = [checkpoint for checkpoint in newest if checkpoint]
        if not backfills:
            raise SettingsError(f"start is backfill, and the store holds none of {self._topic}: run it first")
        ends: list[Mapping[int, int]] = []  # of each backfill, by partition
        for backfill in backfills:
            if isinstance(backfill.end, int):  # milliseconds since 1970
                ends.append(self._source.offsets_at(partitions, backfill.end))
            elif backfill.end is not None:  # None: all that was read is older than the topic's first record
                ends.append(backfill.end)
        latest = {partition: max((end.get(partition, 0) for end in ends), default=0) for partition in partitions}
        return {partition: offset for partition, offset in latest.items() if offset}

    def _backfills(self) -> list[int]:
        watchdog.tick(watchdog.STORE_S)
        return [partition for partition in self._writer.checkpoints.partitions() if partition >= FIRST_BACKFILL]

    def _load(self, partition: int) -> Fold:
        watchdog.tick(watchdog.STORE_S)
        checkpoint = self._writer.checkpoints.newest(partition)
        if checkpoint is None:
            return Fold.empty(self._fold_config.learning)
        checkpoint = checkpoint.usable_by(self._fold_config, self._topic_id)
        names = checkpoint.agreed_names(self._names)
        if checkpoint.names != self._names:
            self._names = names
            log.info("dimensions named", partition=partition, names=listed(names or []))
        return checkpoint.fold
