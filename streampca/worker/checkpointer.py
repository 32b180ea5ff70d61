"""What is on disk of each partition, and how it gets there: the order in which that happens is the guarantee.

The dead letters are acknowledged, the topic is still the same one, the checkpoint is on disk, and only then is the
group told. What cannot be saved now is tried again: a lost checkpoint costs work, never truth.
"""

from collections.abc import Mapping

from streampca.errors import StoreError
from streampca.sources.base import DeadLetters, Source
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Fold, FoldConfig
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.listener import CheckpointPostponed, CheckpointSaved, Listener, ModelPublished, PublishFailed

_FLUSH_S = 2.0  # longest wait for dead letters before a checkpoint is put off


class Checkpointer:
    """Loads and saves the folds of one worker."""

    def __init__(
        self,
        topic: str,
        fold_config: FoldConfig,
        source: Source,
        dead_letters: DeadLetters,
        writer: CheckpointWriter,
        listener: Listener,
    ) -> None:
        self._topic, self._fold_config = topic, fold_config
        self._source, self._dead_letters, self._writer, self._listener = source, dead_letters, writer, listener
        self._topic_id = ""
        self._saved: dict[int, Fold] = {}  # of the partitions that are ours, as they are on disk
        self._troubled = False

    def open(self) -> None:
        """Look at the topic and at one checkpoint: a mistake is told now, not when the group lets us in."""
        self._topic_id = self._source.topic_id()
        for partition in self._writer.checkpoints.partitions()[:1]:
            self._load(partition)

    def take(self, partition: int) -> Fold:
        """The fold to go on from, of a partition that is ours now."""
        self._saved[partition] = fold = self._load(partition)
        return fold

    def drop(self, partition: int) -> None:
        """The partition is no longer ours."""
        self._saved.pop(partition)

    @property
    def busy(self) -> bool:
        """Whether a save is under way that was not settled yet."""
        return self._writer.busy

    def unsaved(self, folds: Mapping[int, Fold]) -> int:
        """The most messages of a partition that are not on disk; none after a failure, which only time brings again."""
        if self._troubled:
            return 0
        return max((fold.stats.learned - self._saved[p].stats.learned for p, fold in folds.items()), default=0)

    def save(self, folds: Mapping[int, Fold]) -> None:
        """Have those that have moved on disk, before anything else happens."""
        self.settle(wait=True)
        self.begin(folds, publish=False)
        self.settle(wait=True)

    def begin(self, folds: Mapping[int, Fold], *, publish: bool) -> None:
        """Begin to write checkpoints of those that have moved, and then a model if `publish`. Not while `busy`."""
        moved = {p: fold for p, fold in folds.items() if fold.position != self._saved[p].position}
        try:
            if moved:
                self._dead_letters.flush(_FLUSH_S)
                self.check_topic()
        except (TimeoutError, StoreError) as error:
            self._postpone(str(error))
            moved = {}
        fold_config = self._fold_config.as_dict()
        checkpoints = [Checkpoint(self._topic, self._topic_id, p, fold, fold_config) for p, fold in moved.items()]
        if checkpoints or publish:
            self._writer.begin(checkpoints, publish=publish)

    def settle(self, *, wait: bool) -> None:
        """Take note of a save that has ended (with `wait`: of the one under way), and only then tell the group."""
        outcome = self._writer.outcome(wait=wait)
        if outcome is None:
            return
        for checkpoint, seconds in outcome.saved:
            self._saved[checkpoint.partition] = checkpoint.fold
            self._listener.notify(CheckpointSaved(checkpoint.partition, checkpoint.fold, seconds))
        if outcome.postponed:
            self._postpone(outcome.postponed)
        elif outcome.saved:
            self._troubled = False
        if outcome.saved:
            self._source.commit({c.partition: c.fold.position for c, _ in outcome.saved if c.fold.position >= 0})
        if outcome.published:
            self._listener.notify(ModelPublished(*outcome.published))
        if outcome.unpublished:
            self._listener.notify(PublishFailed(outcome.unpublished))
        if outcome.fault:
            raise outcome.fault

    def check_topic(self) -> None:
        """Look at the topic's id once more: then what was read since the last look came from this very topic."""
        compatibility.refuse_replaced(self._topic, self._topic_id, self._source.topic_id())

    def _load(self, partition: int) -> Fold:
        checkpoint = self._writer.checkpoints.newest(partition)
        if checkpoint is None:
            return Fold.empty(self._fold_config.learning)
        compatibility.refuse_other_settings(checkpoint, self._fold_config)
        compatibility.refuse_other_topic(checkpoint, self._topic_id)
        return checkpoint.fold

    def _postpone(self, cause: str) -> None:
        self._troubled = True
        self._listener.notify(CheckpointPostponed(cause))
