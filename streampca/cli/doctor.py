"""`streampca doctor`: checks everything that a worker needs and, with an output topic, what transform needs."""

import contextlib
import threading
from collections.abc import Collection
from typing import Any

from streampca.cli.builders import create_codec, create_current_model, create_worker_config
from streampca.cli.console import console
from streampca.cli.doctor_topic import Check, SkippedError, TopicChecks, needed, require_writable
from streampca.cli.options import Options, settings_of
from streampca.consumer_group.committed import refuse_other_store, shape_in, store_in
from streampca.errors import DamagedFileError, SourceError, StoreError, StreampcaError
from streampca.formats import schema_of
from streampca.process.machine import kernels
from streampca.settings.base import Settings
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources import schema_registry
from streampca.sources.base import Committed
from streampca.sources.client_connection import TopicError
from streampca.sources.clients import create_client, create_transactions
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import too_few_partitions
from streampca.transform.position import refuse_offset_of_other_topic

_TIMEOUT_S = 12.0  # of a check: a file server may hang
_MEMBER = "streampca-doctor"  # a member that never joins, for a transactional id of its own


def run(options: Options) -> int:
    """Print a line for each check of the roles that are set up; return the exit code. Raises `SettingsError`."""
    with contextlib.ExitStack() as opened:
        worker: Any = None
        transform: Any = None
        if _is_set(TransformSettings, ("output_topic",), options):
            transform = opened.enter_context(settings_of("TransformSettings", options))
        if transform is None or _is_set(WorkerSettings, ("dimensions", "components"), options):
            worker = opened.enter_context(settings_of("WorkerSettings", options))
        topic = TopicChecks(worker or transform, opened)
        failed = [_passes(name, check) for name, check in checks_of(worker, transform, topic)].count(False)
    failures = "1 check failed" if failed == 1 else f"{failed} checks failed"
    console().print(failures if failed else "all checks passed", style="bold")
    return 1 if failed else 0


def _is_set(kind: type[Settings], names: Collection[str], options: Options) -> bool:
    return any(setting.origin != "missing" for setting in kind.explain(**options)[0] if setting.name in names)


def checks_of(
    worker: WorkerSettings | None, transform: TransformSettings | None, topic: TopicChecks
) -> list[tuple[str, Check]]:
    """Names and checks of the roles, in order: later ones need the earlier ones."""
    of_worker = WorkerChecks(worker, topic) if worker else None
    of_transform = TransformChecks(transform, topic) if transform else None
    roles = [role for role in (of_worker, of_transform) if role]
    return [
        ("matrix kernels", kernels),
        *([("store", of_worker.store)] if of_worker else []),
        ("broker", topic.broker),
        ("topic", topic.topic),
        ("open transactions", topic.open_transactions),
        ("dead-letter topic", topic.dead_letter_topic),
        *(check for role in roles for check in role.checks()),
        ("schema registry", topic.registry),
        ("newest record", roles[0].newest_record),
    ]


def _passes(name: str, check: Check) -> bool:
    """Print the finding, the remedy, or why it was not checked; False if the check failed."""
    outcomes: list[tuple[str, str]] = []

    def attempt() -> None:
        try:
            outcomes.append(("✓", check()))
        except SkippedError:
            outcomes.append(("–", "skipped, because an earlier check failed"))
        except (StreampcaError, TimeoutError) as error:
            outcomes.append(("✗", " ".join(str(error).split())))
        except Exception as error:
            outcomes.append(("✗", f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    mark, text = outcomes[0] if outcomes else ("✗", f"no answer within {_TIMEOUT_S:.0f} s")
    console().print(f"{mark} {name}: {text}", style={"✗": "red", "–": "dim"}.get(mark, ""))
    return mark != "✗"


class WorkerChecks:
    """The checks of one worker's settings."""

    def __init__(self, settings: WorkerSettings, topic: TopicChecks) -> None:
        self._settings, self._config, self._topic = settings, create_worker_config(settings), topic
        self._store = open_store(settings.store)
        self._checkpoints = Checkpoints(self._store, settings.topic)
        self._committed: dict[int, Committed] = {}  # the group's, by partition

    def checks(self) -> list[tuple[str, Check]]:
        return [("consumer group", self._group), ("checkpoints", self._checkpoints_fit)]

    def newest_record(self) -> str:
        return self._topic.newest_record(self._config.codec, self._settings.dimensions)

    def store(self) -> str:
        self._store.check()
        identified = f"the id {ours.id}" if (ours := identity.find(self._store)) else "no id yet"
        return f"{self._store.location} can be written and read; it has {identified}"

    def _group(self) -> str:
        self._committed = needed(self._topic.source).committed(needed(self._topic.bounds))
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
            checkpoint = checkpoint.with_settings(self._config.fold)
            checkpoint.refuse_other_topic(self._topic.topic_id or "")
            self._topic.refuse_gap(partition, checkpoint.fold.position, "the checkpoint", "store folder")
            learned += checkpoint.fold.stats.learned
        return f"{len(partitions)} partitions, {learned:,} messages learned; they match the settings"

    def _refuse_foreign_store(self) -> None:
        ours = identity.find(self._store) or identity.absent(self._store)
        metadata = {partition: committed.metadata for partition, committed in self._committed.items()}
        refuse_other_store(self._settings.topic, metadata, ours)
        for partition, committed in self._committed.items():
            if store_in(committed.metadata):
                self._checkpoints.refuse_group_ahead(partition, committed.offset)


class TransformChecks:
    """The checks of one member's settings."""

    def __init__(self, settings: TransformSettings, topic: TopicChecks) -> None:
        self._settings, self._topic = settings, topic
        self._models = Models(open_store(settings.store), settings.topic)
        self._cache = ModelCache(self._models)
        self._model = create_current_model(settings, self._cache, Pins(self._models.store, settings.topic))
        self._has_model = self._has_output_topic = False

    def checks(self) -> list[tuple[str, Check]]:
        return [
            ("model", self._model_fits),
            ("output topic", self._output_topic),
            ("transactions", self._transactions),
            ("transform group", self._group),
            ("output schema", self._output_schema),
        ]

    def _model_fits(self) -> str:
        if location := self._models.store.missing():
            raise StoreError(
                f"there is no store at {location}: start a worker first, mount its volume, or correct store"
            )
        self._models.versions()  # raises if the store cannot be read
        self._cache.poll()
        if cause := self._model.refresh():
            return f"none yet, so transform will wait: {cause}"
        self._has_model = True
        used = self._model.published
        scores = "without" if used.past_scores is None else "with"
        k, d = used.model.n_components, used.model.dimensions
        return f"version {used.version} has {k} components of {d} dimensions, {scores} past scores"

    def _output_topic(self) -> str:
        name, bounds = self._settings.output_topic, needed(self._topic.bounds)
        count = require_writable(self._settings, name)
        if count < len(bounds):
            raise too_few_partitions(name, count, self._settings.topic)
        self._has_output_topic = True
        return f"{name} has {count} partitions and may be written to"

    def _transactions(self) -> str:
        """A producer takes a transactional id of the group, which no member has, and begins no transaction."""
        if not self._has_output_topic:
            raise SkippedError
        settings = self._settings.model_copy(update={"group_instance_id": _MEMBER})
        transactions = create_transactions(settings, None, [settings.output_topic])
        try:
            transactions.recover()
        except TopicError as error:
            rights = f"the rights Write and Describe for transactional ids that begin with {settings.group}-"
            raise SourceError(f"{error}; transform needs {rights}") from None
        finally:
            transactions.close()
        return f"this user may use transactional ids that begin with {settings.group}-"

    def _group(self) -> str:
        bounds = needed(self._topic.bounds)
        with contextlib.closing(create_client(self._settings)) as source:
            committed = source.committed(bounds)
        for partition, offset in committed.items():
            if self._has_model:
                self._model.require_shape(offset.metadata)
            refuse_offset_of_other_topic(self._settings.topic, partition, offset, self._topic.topic_id or "")
            self._topic.refuse_gap(partition, offset.offset, "the group's offset", "transform_group_id")
        shapes = {shape.size for offset in committed.values() if (shape := shape_in(offset.metadata))}
        return self._topic.progress(self._settings.group, committed) + "".join(
            f"; its outputs are of {shape}" for shape in sorted(shapes)
        )

    def _output_schema(self) -> str:
        named = self._has_model and self._model.published.names is not None
        schema = schema_of(self._settings.output_format, OutputFields(self._settings.emitted, named=named).layout)
        if schema is None:
            return f"not needed for output_format {self._settings.output_format}"
        subject = f"{self._settings.output_topic}-value"
        with contextlib.closing(schema_registry.SchemaRegistry(self._settings)) as registry:
            accepted = registry.accepts(subject, schema)
        if not accepted:
            raise SourceError(
                f"the schema of these outputs is not compatible with those of {subject} at "
                f"{self._settings.schema_registry_url}: write to another output_topic, or relax its compatibility"
            )
        return f"{self._settings.schema_registry_url} accepts it as {subject}"

    def newest_record(self) -> str:
        if not self._has_model:
            raise SkippedError
        model = self._model.published
        return self._topic.newest_record(create_codec(self._settings, model), model.model.dimensions)
