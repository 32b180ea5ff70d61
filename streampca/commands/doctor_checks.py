"""The checks of `streampca doctor`: all that a worker needs.

Each returns what it found, raises what has to be fixed, or returns None if an earlier check failed that it depends on.
"""

import datetime
import time
from collections.abc import Callable

from streampca.commands.worker import worker_config_of
from streampca.errors import BadRecordError, DamagedFileError, OffsetGapError, SourceError, StreampcaError
from streampca.settings import WorkerSettings
from streampca.sources.base import Committed, TopicInspector
from streampca.sources.broker_errors import TopicError
from streampca.sources.choice import inspector_of
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import store_of
from streampca.stream import compatibility

_AHEAD_S = 300.0
_EARLIEST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

Check = Callable[[], str | None]


class DoctorChecks:
    """The checks of one worker's settings; close it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self._config = settings, worker_config_of(settings)
        self._store = store_of(settings.store)
        self._checkpoints = Checkpoints(self._store, settings.topic, settings.keep_checkpoints)
        self._inspector: TopicInspector | None = None
        self._topic_error: TopicError | None = None
        self._topic_id: str | None = None
        self._bounds: dict[int, tuple[int, int]] | None = None  # partition → first offset, end
        self._committed: dict[int, Committed] = {}  # the group's, by partition

    def checks(self) -> list[tuple[str, Check]]:
        """Names and checks, in order: later ones need the earlier ones."""
        return [
            ("clock", self._clock),
            ("store", self._store_works),
            ("broker", self._broker),
            ("topic", self._topic),
            ("dead-letter topic", self._dead_letter_topic),
            ("consumer group", self._group),
            ("checkpoints", self._checkpoints_fit),
            ("schema registry", self._registry),
            ("newest record", self._newest_record),
        ]

    def close(self) -> None:
        """Close the connections."""
        if self._inspector is not None:
            self._inspector.close()

    def _clock(self) -> str:
        now = datetime.datetime.now(datetime.UTC)
        if now < _EARLIEST:
            raise StreampcaError(f"the clock of this machine says {now:%Y-%m-%d}; set it (NTP)")
        return f"{now:%Y-%m-%d %H:%M:%S} UTC"

    def _store_works(self) -> str:
        self._store.check()
        known = identity.find(self._store)
        return f"{self._store.place} can be written and read; it has {f'the id {known.id}' if known else 'no id yet'}"

    def _broker(self) -> str:
        try:
            self._inspector = inspector_of(self._settings)
        except TopicError as error:
            self._topic_error = error  # a broker answers: it is the check of the topic that fails
        login = f", logged in as {self._settings.sasl_username}" if self._settings.sasl_username else ""
        return (
            f"{self._settings.bootstrap_servers} answers {self._settings.kafka_client} "
            f"({self._settings.security_protocol}{login})"
        )

    def _topic(self) -> str | None:
        if self._topic_error is not None:
            raise self._topic_error
        if self._inspector is None:
            return None
        self._topic_id = self._inspector.topic_id()
        self._bounds = self._inspector.offsets()
        count = sum(end - first for first, end in self._bounds.values())
        return (
            f"{self._settings.topic} has {len(self._bounds)} partitions and {count:,} "
            f"records; its id is {self._topic_id or 'unknown, since this broker gives topics none'}"
        )

    def _dead_letter_topic(self) -> str | None:
        name = self._settings.dead_letter_topic
        if name is None:
            return f"none; at a bad record the worker will {self._settings.on_bad_record}"
        if self._inspector is None:
            return None
        self._inspector.check_topic(name)
        return f"{name} exists"

    def _group(self) -> str | None:
        if self._bounds is None or self._inspector is None:
            return None
        self._committed = committed = self._inspector.committed()
        known = {partition: found.offset for partition, found in committed.items()}
        behind = sum(end - known.get(partition, first) for partition, (first, end) in self._bounds.items())
        return (
            f"{self._settings.group_id} has offsets of {len(committed)} of {len(self._bounds)} partitions, "
            f"{behind:,} behind"
        )

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
            compatibility.refuse_other_topic(checkpoint, self._topic_id or "")
            self._refuse_gap(partition, checkpoint.fold.position)
            learned += checkpoint.fold.stats.learned
        return f"{len(partitions)} partitions, {learned:,} messages learned; they match the settings"

    def _refuse_foreign_store(self) -> None:
        topic, group = self._settings.topic, self._committed
        ours = identity.find(self._store) or identity.absent(self._store)
        compatibility.refuse_other_store(topic, {p: found.metadata for p, found in group.items()}, ours)
        for partition, committed in group.items():
            newest = self._checkpoints.offsets(partition)[-1:]
            compatibility.refuse_foreign_store(topic, partition, committed.offset, newest[0] if newest else None)

    def _refuse_gap(self, partition: int, position: int) -> None:
        first, end = (self._bounds or {}).get(partition, (0, position))
        if position > end or (position < first and self._settings.on_offset_gap == "fail"):
            raise OffsetGapError(
                f"the checkpoint of partition {partition} resumes at offset {position}, but the log holds {first} to "
                f"{end}; set on_offset_gap, or use another store folder"
            )

    def _registry(self) -> str:
        schemas = self._config.codec.schemas
        if schemas is None:
            return f"not needed for format {self._settings.format}"
        try:
            schemas.get(0)  # ids begin with 1, so KeyError is the expected answer
        except KeyError:
            pass
        except TimeoutError as error:
            raise SourceError(str(error)) from None
        return f"{self._settings.schema_registry_url} answers"

    def _newest_record(self) -> str | None:
        if self._bounds is None or self._inspector is None:
            return None
        ends = {partition: end for partition, (first, end) in self._bounds.items() if end > first}
        if not ends:
            return "the topic is empty"
        found = self._inspector.newest_record(ends)
        if found is None:
            return "no record received in time; an open transaction may block them"
        partition, record = found
        try:
            decoded = self._config.codec.decode([record.value])
        except TimeoutError as error:  # of the schema registry
            raise SourceError(str(error)) from None
        where = f"partition {partition}, offset {record.offset}"
        if decoded.rejects:
            raise BadRecordError(f"{where} cannot be learned: {decoded.rejects[0].message}; see format and dimensions")
        ahead_s = record.timestamp / 1000 - time.time()
        if ahead_s > _AHEAD_S:
            raise BadRecordError(
                f"{where} is {ahead_s:,.0f} s in the future; compare the clocks of the producer and this machine"
            )
        return f"{where} is a vector of {self._settings.dimensions} numbers, {max(-ahead_s, 0.0):,.0f} s old"
