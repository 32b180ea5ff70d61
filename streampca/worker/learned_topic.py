"""The topic that a worker learns, and the checkpoints of its folds."""

from collections.abc import Mapping

import structlog

from streampca.errors import list_names, refuse_other_topic
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.sources.base import Source

log = structlog.get_logger()


class LearnedTopic:
    """The topic that a worker learns: its settings, its Kafka id, and the names of its dimensions."""

    def __init__(self, source: Source, name: str, config: FoldConfig) -> None:
        self._source = source
        self._name = name
        self.config = config
        self.names = config.names  # of the dimensions; a checkpoint may also give them
        self.id = ""  # empty: not known, or the brokers give topics no ids

    def read_id(self) -> None:
        """Ask the brokers for the id of the topic that is read from now on. Raises `TimeoutError`."""
        self.id = self._source.topic_id()

    def check_id(self) -> None:
        """Raise `TopicReplacedError` if another topic of the same name has replaced the one that is read."""
        id_now = self._source.topic_id()
        refuse_other_topic(
            self._name,
            before=self.id,
            now=id_now,
            where="while it was being read",
            remedy="learn it in another store folder; what was learned since the last checkpoint is dropped",
        )
        if not self.id:  # the brokers gave no id before
            self.id = id_now

    def make_checkpoints(self, folds: Mapping[int, Fold]) -> list[Checkpoint]:
        """Return a checkpoint of each fold; `folds` holds them by partition."""
        settings = self.config.as_dict()
        return [
            Checkpoint(self._name, self.id, partition, fold, settings, names=self.names)
            for partition, fold in folds.items()
        ]

    def adopt_checkpoint(self, checkpoint: Checkpoint) -> Fold:
        """Return the fold of a checkpoint. If only the checkpoint names the dimensions, the topic takes its names.

        If only one of the two has names, the log tells them, since they hold for both from now on.

        Raises `SettingsError` if the checkpoint was made with other settings or names, and `TopicReplacedError` if it
        was made of another topic.
        """
        adapted = checkpoint.adapt_to(self.config, self.id)
        # Raises if the checkpoint and this topic have different names. If only one of them has names, returns these.
        agreed_names = adapted.agree_on_names(self.names)
        only_one_has_names = (adapted.names is None) != (self.names is None)
        if only_one_has_names:
            self.names = agreed_names
            log.info("dimensions named", partition=checkpoint.partition, names=list_names(agreed_names or []))
        return adapted.fold
