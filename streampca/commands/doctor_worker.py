"""The checks of `streampca doctor` for a worker: its store, group and checkpoints, beside those of the topic."""

from streampca.commands.doctor_topic import Check, TopicChecks
from streampca.commands.worker import worker_config_of
from streampca.errors import DamagedFileError
from streampca.settings import WorkerSettings
from streampca.sources.base import Committed
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import store_of
from streampca.stream import compatibility


class WorkerChecks:
    """The checks of one worker's settings."""

    def __init__(self, settings: WorkerSettings, topic: TopicChecks) -> None:
        self._settings, self._config, self._topic = settings, worker_config_of(settings), topic
        self._store = store_of(settings.store)
        self._checkpoints = Checkpoints(self._store, settings.topic, settings.keep_checkpoints)
        self._committed: dict[int, Committed] = {}  # the group's, by partition

    def checks(self) -> list[tuple[str, Check]]:
        """Names and checks, in order: later ones need the earlier ones."""
        topic = self._topic
        return [
            ("clock", topic.clock),
            ("store", self._store_works),
            ("broker", topic.broker),
            ("topic", topic.topic),
            ("dead-letter topic", topic.dead_letter_topic),
            ("consumer group", self._group),
            ("checkpoints", self._checkpoints_fit),
            ("schema registry", topic.registry),
            ("newest record", lambda: topic.newest_record(self._config.codec, self._settings.dimensions)),
        ]

    def _store_works(self) -> str:
        self._store.check()
        known = identity.find(self._store)
        return f"{self._store.place} can be written and read; it has {f'the id {known.id}' if known else 'no id yet'}"

    def _group(self) -> str | None:
        if self._topic.bounds is None or self._topic.inspector is None:
            return None
        self._committed = self._topic.inspector.committed()
        return self._topic.progress(self._settings.group_id, self._committed)

    def _checkpoints_fit(self) -> str | None:
        partitions = self._checkpoints.partitions()
        self._refuse_foreign_store()
        if not partitions:
            return "none yet; the worker will start at the earliest record"
        learned = 0
        for partition in partitions:
            checkpoint = self._checkpoints.newest(partition)
            if checkpoint is None:
                raise DamagedFileError(
                    f"every checkpoint of partition {partition} is damaged; restore one, or use another store folder"
                )
            checkpoint = compatibility.with_settings(checkpoint, self._config.fold)
            compatibility.refuse_other_topic(checkpoint, self._topic.topic_id or "")
            self._topic.refuse_gap(partition, checkpoint.fold.position, "the checkpoint", "store folder")
            learned += checkpoint.fold.stats.learned
        return f"{len(partitions)} partitions, {learned:,} messages learned; they match the settings"

    def _refuse_foreign_store(self) -> None:
        topic, group = self._settings.topic, self._committed
        ours = identity.find(self._store) or identity.absent(self._store)
        compatibility.refuse_other_store(topic, {p: found.metadata for p, found in group.items()}, ours)
        for partition, committed in group.items():
            newest = self._checkpoints.offsets(partition)[-1:]
            compatibility.refuse_foreign_store(topic, partition, committed.offset, newest[0] if newest else None)
