"""The checks of `streampca doctor` for a worker and for transform, beside those of the topic."""

import contextlib

from streampca.cli.doctor_topic import Check, SkippedError, TopicChecks, needed
from streampca.cli.transform import codec_of, model_of
from streampca.cli.worker import worker_config_of
from streampca.errors import DamagedFileError, SourceError, StoreError
from streampca.fold import compatibility
from streampca.settings.transform import TransformSettings
from streampca.settings.worker import WorkerSettings
from streampca.sources import schema_registry
from streampca.sources.base import Committed
from streampca.sources.broker_errors import NoBrokerError
from streampca.sources.clients import inspector_of, transactions_of
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import store_of
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.transform.encoding import schema_of
from streampca.transform.models import shape_in
from streampca.transform.outputs import too_few_partitions
from streampca.transform.position import refuse_other_topic

_MEMBER = "streampca-doctor"  # a member that never joins, for a transactional id of its own


class WorkerChecks:
    """The checks of one worker's settings."""

    def __init__(self, settings: WorkerSettings, topic: TopicChecks) -> None:
        self._settings, self._config, self._topic = settings, worker_config_of(settings), topic
        self._store = store_of(settings.store)
        self._checkpoints = Checkpoints(self._store, settings.topic)
        self._committed: dict[int, Committed] = {}  # the group's, by partition

    def checks(self) -> list[tuple[str, Check]]:
        """Names and checks, in order: later ones need the earlier ones and those of the topic."""
        return [("consumer group", self._group), ("checkpoints", self._checkpoints_fit)]

    def newest_record(self) -> str:
        """The newest record can be learned."""
        return self._topic.newest_record(self._config.codec, self._settings.dimensions)

    def store(self) -> str:
        """The store can be written and read."""
        self._store.check()
        known = identity.find(self._store)
        return f"{self._store.place} can be written and read; it has {f'the id {known.id}' if known else 'no id yet'}"

    def _group(self) -> str:
        self._committed = needed(self._topic.inspector).committed()
        return self._topic.progress(self._settings.group_id, self._committed)

    def _checkpoints_fit(self) -> str:
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


class TransformChecks:
    """The checks of one member's settings."""

    def __init__(self, settings: TransformSettings, topic: TopicChecks) -> None:
        self._settings, self._topic = settings, topic
        self._models = Models(store_of(settings.store), settings.topic)
        self._cache = ModelCache(self._models)
        self._model = model_of(settings, self._cache)
        self._has_model = self._has_output_topic = False

    def checks(self) -> list[tuple[str, Check]]:
        """Names and checks, in order: later ones need the earlier ones and those of the topic."""
        return [
            ("model", self._model_fits),
            ("output topic", self._output_topic),
            ("transactions", self._transactions),
            ("transform group", self._group),
            ("output schema", self._output_schema),
        ]

    def _model_fits(self) -> str:
        if place := self._models.missing_store():
            raise StoreError(f"there is no store at {place}: start a worker first, mount its volume, or correct store")
        self._models.versions()  # raises if the store cannot be read
        self._cache.poll()
        if cause := self._model.refresh():
            return f"none yet, so transform will wait: {cause}"
        self._has_model = True
        used = self._model.published
        scores = "without" if used.calibration is None else "with"
        k, d = used.model.n_components, used.model.dimensions
        return f"version {used.version} has {k} components of {d} dimensions, {scores} past scores"

    def _output_topic(self) -> str:
        name, bounds = self._settings.output_topic, needed(self._topic.bounds)
        count = needed(self._topic.inspector).check_topic(name)
        if count < len(bounds):
            raise too_few_partitions(name, count, self._settings.topic)
        self._has_output_topic = True
        return f"{name} has {count} partitions and may be written to"

    def _transactions(self) -> str:
        """A producer takes a transactional id of the group, which no member has, and begins no transaction."""
        if not self._has_output_topic:
            raise SkippedError
        settings = self._settings.model_copy(update={"group_instance_id": _MEMBER})
        transactions = transactions_of(settings, None, [settings.output_topic])
        try:
            transactions.recover()
        except NoBrokerError:
            raise
        except (SourceError, TimeoutError) as error:
            raise SourceError(
                f"{error}; transform needs Kafka 2.5, and the rights Write and Describe for transactional ids that "
                f"begin with {settings.group}-"
            ) from None
        finally:
            transactions.close()
        return f"this user may use transactional ids that begin with {settings.group}-"

    def _group(self) -> str:
        needed(self._topic.bounds)
        with contextlib.closing(inspector_of(self._settings)) as inspector:
            committed = inspector.committed()
        for partition, found in committed.items():
            if self._has_model:
                self._model.require_shape(found.metadata)
            refuse_other_topic(self._settings.topic, partition, found, self._topic.topic_id or "")
            self._topic.refuse_gap(partition, found.offset, "the group's offset", "transform_group_id")
        shapes = {shape for found in committed.values() if (shape := shape_in(found.metadata))}
        return self._topic.progress(self._settings.group, committed) + "".join(
            f"; its outputs are of {shape}" for shape in sorted(shapes)
        )

    def _output_schema(self) -> str:
        schema = schema_of(self._settings.output_format, self._settings.emitted)
        if schema is None:
            return f"not needed for output_format {self._settings.output_format}"
        subject = f"{self._settings.output_topic}-value"
        settings = self._settings.model_copy(update={"format": self._settings.output_format})  # for errors
        try:
            with contextlib.closing(schema_registry.SchemaRegistry(settings)) as registry:
                accepted = registry.accepts(subject, schema)
        except TimeoutError as error:
            raise SourceError(str(error)) from None
        if not accepted:
            raise SourceError(
                f"the schema of these outputs is not compatible with those of {subject} at "
                f"{self._settings.schema_registry_url}: write to another output_topic, or relax its compatibility"
            )
        return f"{self._settings.schema_registry_url} accepts it as {subject}"

    def newest_record(self) -> str:
        """The newest record can be projected."""
        if not self._has_model:
            raise SkippedError
        model = self._model.published
        return self._topic.newest_record(codec_of(self._settings, model), model.model.dimensions)
