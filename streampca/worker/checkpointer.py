"""Restores and saves the folds of one worker; the order of the steps of a save is the exactly-once guarantee.

1. The broker has acknowledged the dead letters. 2. The topic is still the one that was read. 3. The checkpoint is on
disk. 4. The offsets are committed to the group. A save that fails is retried later: it costs work, never correctness.
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
from streampca.worker.group_store import GroupStore, offsets_of_other_tools
from streampca.worker.writer import CheckpointWriter, SaveResult

log = structlog.get_logger()

_FLUSH_S = 2.0  # longest wait for dead letters before a save is postponed


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(MemberPolicy):
    """Holds what a worker learns, how it treats bad records and gaps, and how often it saves."""

    suspects = "dimensions, format, field"
    start_over = "another store folder and group_id"
    fold: FoldConfig
    codec: Codec
    checkpoint_interval_s: float = 5.0
    start: str | int = "earliest"  # of partitions without a checkpoint: latest, backfill, or a time in milliseconds


def check_before_joining(
    checkpoints: Checkpoints,
    config: FoldConfig,
    topic_id: str,
    committed: Mapping[int, Committed],
    *,
    every: bool = False,
) -> dict[int, Fold]:
    """The folds of a partition and of a backfill, or `every` fold, if a worker may continue from them.

    They are few, since a topic may have a thousand partitions: the others are checked when they are assigned. Creates
    no identity. Raises as `Checkpoint.usable_by`, and `ForeignStoreError` if the group has another store.
    """
    refuse_other_store(checkpoints.topic, committed, checkpoints.known_identity())
    found = checkpoints.partitions()  # backfills come last
    folds: dict[int, Fold] = {}
    for partition in found if every else sorted({*found[:1], *found[-1:]}):
        checkpoint = checkpoints.newest(partition)
        if checkpoint is not None:
            folds[partition] = checkpoint.usable_by(config, topic_id).fold
    if every:
        offsets_of_other_tools(checkpoints, committed)
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
        self._topic, self._fold_config, self._start = config.topic, config.fold, config.start
        self._source, self._dead_letters, self._writer, self._listener = source, dead_letters, writer, listener
        self._names = config.fold.names
        self._group_store = GroupStore(source, writer.checkpoints)
        self._topic_id = ""
        self._saved: dict[int, Fold] = {}  # of each assigned partition, the fold that is on disk
        self._in_flight: Future[SaveResult] | None = None

    def restore(self, partitions: Collection[int]) -> dict[int, Fold]:
        """The folds from which partitions that were just assigned continue.

        Raises `StoreError` or `TimeoutError` when a retry can help, and `ForeignStoreError` if the store is not the
        group's.
        """
        if not self._saved:  # it has read nothing, so any id is right, also one that is newer than at the start
            self._topic_id = self._source.topic_id()
        self._group_store.check_assigned(partitions)
        if not self._saved and self._names is None:  # a backfill alone may name the dimensions
            for backfill in self._backfills()[-1:]:
                self._load(backfill)
        folds = {partition: self._load(partition) for partition in sorted(partitions)}
        folds |= self._begun({p: fold for p, fold in folds.items() if fold.position < 0})
        self._saved |= folds
        return folds

    def forget(self, partitions: Collection[int]) -> None:
        """Drop partitions that were revoked or lost."""
        for partition in partitions:
            self._saved.pop(partition)

    @property
    def busy(self) -> bool:
        """True if a save was started that `finish_save` has not finished."""
        return self._in_flight is not None

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Save the folds that have changed, and wait until they are on disk."""
        self.finish_save(wait=True)
        self.start_save(folds, publish=False)
        self.finish_save(wait=True)

    def start_save(self, folds: Mapping[int, Fold], *, publish: bool) -> None:
        """Start to write the folds that have changed, and then a model if `publish`. Not while `busy`.

        Raises `ForeignStoreError` if another member of the group saves to another store.
        """
        if self.busy:
            raise RuntimeError("one save at a time")
        changed = {p: fold for p, fold in folds.items() if fold.position != self._saved[p].position}
        needs: Literal["dead letters", "topic"] = "dead letters"
        try:
            if changed:
                self._group_store.check_others()
                self._dead_letters.flush(_FLUSH_S)
                needs = "topic"
                self.check_topic()
        except TimeoutError as error:
            self._listener.notify(CheckpointPostponed(str(error), needs))
            changed = {}
        unchanged = {p: fold for p, fold in self._saved.items() if p not in changed}
        checkpoints, before = self._checkpoints(changed), self._checkpoints(unchanged)
        if checkpoints or publish:
            self._in_flight = self._writer.start(checkpoints, publish=publish, saved_before=before)

    def finish_save(self, *, wait: bool) -> None:
        """If the save has ended (with `wait`: when it has), note what is on disk, then commit offsets."""
        if self._in_flight is None or not (wait or self._in_flight.done()):
            return
        in_flight, self._in_flight = self._in_flight, None
        result = watchdog.result_of(in_flight)
        saved = {event.partition: event.fold for event in result.events if isinstance(event, CheckpointSaved)}
        self._saved |= saved
        if saved:
            self._group_store.commit({p: fold.position for p, fold in saved.items() if fold.position >= 0})
        for event in result.events:
            self._listener.notify(event)
        if result.error:
            raise result.error

    def check_topic(self) -> None:
        """Raise if the topic was replaced. If not, all records since the last check are from this topic."""
        now = self._source.topic_id()
        refuse_other_topic(
            self._topic,
            self._topic_id,
            now,
            "while it was being read",
            "what was learned since the last checkpoint is dropped; to learn the new one, use another store folder",
        )
        self._topic_id = self._topic_id or now

    def _checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        settings = self._fold_config.as_dict()
        origin, names = (self._topic, self._topic_id), self._names
        return [Checkpoint(*origin, p, fold, settings, names=names) for p, fold in folds.items()]

    def _begun(self, folds: Mapping[int, Fold]) -> dict[int, Fold]:
        """New partitions at their start, if that is not the earliest record; saved, so that no crash moves it."""
        offsets = self._starts(folds) if folds else {}
        if offsets:
            self.check_topic()  # which they are of
        begun = {partition: folds[partition].at(offset) for partition, offset in offsets.items()}
        for checkpoint in self._checkpoints(begun):
            watchdog.tick(watchdog.STORE_S)
            self._writer.checkpoints.save(checkpoint)
            log.info(
                "partition begun", partition=checkpoint.partition, offset=checkpoint.fold.position, start=self._start
            )
        if offsets:  # a worker whose listing is older than the checkpoints would begin at later records
            self._group_store.commit(offsets)
        return begun

    def _starts(self, partitions: Collection[int]) -> Mapping[int, int]:
        start = self._start
        if start == "backfill":
            checkpoints = self._writer.checkpoints
            backfills = [newest for p in self._backfills() if (newest := checkpoints.newest(p))]
            if not backfills:
                raise SettingsError(f"start is backfill, and the store holds none of {self._topic}: run it first")
            known = [backfill.end for backfill in backfills if backfill.end is not None]
            ends = [self._source.offsets_at(partitions, end) if isinstance(end, int) else end for end in known]
            latest = {partition: max(end.get(partition, 0) for end in ends) for partition in partitions if ends}
            return {partition: offset for partition, offset in latest.items() if offset}
        if start == "earliest":
            return {}
        return self._source.offsets_at(partitions, None if start == "latest" else int(start))

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
        if checkpoint.names != self._names:  # vectors without names are taken by position
            self._names = names
            log.info("dimensions named", partition=partition, names=listed(names or []))
        return checkpoint.fold
