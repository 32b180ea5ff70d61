"""What a worker will need, as checks: each returns what it found, raises what is to be mended, or returns None when
it cannot be made because of one before.
"""

import datetime
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streampca.commands.worker import worker_config_of
from streampca.errors import BadRecordError, DamagedFileError, OffsetGapError, SourceError, StreampcaError
from streampca.settings import WorkerSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stream import compatibility

_ANSWER_MS = 5000
_AHEAD_S = 300.0
_EARLIEST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

Check = Callable[[], str | None]


class DoctorChecks:
    """The checks of one worker's settings; close it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self._config = settings, worker_config_of(settings)
        self._store = DirectoryStore(settings.store)
        self._checkpoints = Checkpoints(self._store, settings.topic, settings.keep_checkpoints)
        self._link = Connection(settings, settings.topic)
        self._consumer: Any = None
        self._topic_problem: SourceError | None = None
        self._topic_id: str | None = None
        self._bounds: dict[int, tuple[int, int]] | None = None  # partition → first offset, end

    def checks(self) -> list[tuple[str, Check]]:
        """Names and checks, in the order in which they build on each other."""
        return [
            ("clock", self._clock),
            ("store", self._store_works),
            ("broker", self._broker),
            ("Kafka client", self._client),
            ("topic", self._topic),
            ("dead-letter topic", self._dead_letter_topic),
            ("consumer group", self._group),
            ("checkpoints", self._checkpoints_fit),
            ("schema registry", self._registry),
            ("newest record", self._newest_record),
        ]

    def close(self) -> None:
        """Let the broker go."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def _clock(self) -> str:
        now = datetime.datetime.now(datetime.UTC)
        if now < _EARLIEST:
            raise StreampcaError(f"this machine believes that it is {now:%Y-%m-%d}; set its clock (NTP)")
        return f"{now:%Y-%m-%d %H:%M:%S} UTC"

    def _store_works(self) -> str:
        self._store.check()
        return f"{self._settings.store} can be written and read"

    def _broker(self) -> str:
        def keep(**given: Any) -> KafkaConsumer:
            self._consumer = KafkaConsumer(**given)
            return self._consumer

        group = {"group_id": self._settings.group_id, "enable_auto_commit": False, "auto_offset_reset": "none"}
        try:
            self._link.start(keep, **group, isolation_level=self._settings.isolation_level)
        except SourceError as error:
            if self._consumer is None:
                raise
            self._topic_problem = error  # the broker let us in: it is the next check that fails
        login = f", logged in as {self._settings.sasl_username}" if self._settings.sasl_username else ""
        return f"{self._settings.bootstrap_servers} answers ({self._settings.security_protocol}{login})"

    def _client(self) -> str | None:
        """Whether what the worker will read with gets through too: the other checks all use kafka-python."""
        if self._consumer is None:
            return None
        if self._settings.kafka_client == "confluent":
            from streampca.sources.confluent.client import connected  # an optional extra

            connected(self._settings, []).close()
        return f"{self._settings.kafka_client} reaches it"

    def _topic(self) -> str | None:
        if self._topic_problem is not None:
            raise self._topic_problem
        if self._consumer is None:
            return None
        self._topic_id = self._link.topic_id()
        partitions = sorted(self._consumer.partitions_for_topic(self._settings.topic) or ())
        named = [TopicPartition(self._settings.topic, p) for p in partitions]
        first = self._asked("beginning_offsets", named)
        end = self._asked("end_offsets", named)
        self._bounds = {tp.partition: (first[tp], end[tp]) for tp in named}
        return (
            f"{self._settings.topic} has {len(named)} partitions and {sum(end[tp] - first[tp] for tp in named):,} "
            f"records; its id is {self._topic_id or 'not told by this broker'}"
        )

    def _dead_letter_topic(self) -> str | None:
        name = self._settings.dead_letter_topic
        if name is None:
            return f"none; a record that cannot be learned will make the worker {self._settings.on_bad_record}"
        if self._consumer is None:
            return None
        letters = Connection(self._settings, name)
        letters.start(KafkaConsumer).close()
        return f"{name} exists"

    def _group(self) -> str | None:
        if self._bounds is None:
            return None
        behind, told = 0, 0
        for partition, (first, end) in self._bounds.items():
            offset = self._asked("committed", TopicPartition(self._settings.topic, partition))
            behind += end - (first if offset is None else offset)
            told += offset is not None
        return f"{self._settings.group_id} has offsets of {told} of {len(self._bounds)} partitions, {behind:,} behind"

    def _checkpoints_fit(self) -> str | None:
        partitions = self._checkpoints.partitions()
        if not partitions:
            return "none yet; the worker will start with the earliest record"
        learned = 0
        for partition in partitions:
            checkpoint = self._checkpoints.newest(partition)
            if checkpoint is None:
                raise DamagedFileError(
                    f"every checkpoint of partition {partition} is damaged; restore one, or start afresh"
                )
            compatibility.refuse_other_settings(checkpoint, self._config.fold)
            compatibility.refuse_other_topic(checkpoint, self._topic_id or "")
            self._refuse_gap(partition, checkpoint.fold.position)
            learned += checkpoint.fold.stats.learned
        return f"of {len(partitions)} partitions, {learned:,} messages learned; they fit the settings"

    def _refuse_gap(self, partition: int, position: int) -> None:
        first, end = (self._bounds or {}).get(partition, (0, position))
        if position > end or (position < first and self._settings.on_offset_gap == "fail"):
            raise OffsetGapError(
                f"the checkpoint of partition {partition} goes on at offset {position}, but the log holds {first} to "
                f"{end}; set on_offset_gap, or use another store folder"
            )

    def _registry(self) -> str:
        schemas = self._config.codec.schemas
        if schemas is None:
            return f"none; format {self._settings.format} needs none"
        try:
            schemas.get(0)  # ids begin with 1: that there is none is an answer
        except KeyError:
            pass
        except TimeoutError as error:
            raise SourceError(str(error)) from None
        return f"{self._settings.schema_registry_url} answers"

    def _newest_record(self) -> str | None:
        if self._bounds is None:
            return None
        ends = {TopicPartition(self._settings.topic, p): e for p, (f, e) in self._bounds.items() if e > f}
        if not ends:
            return "the topic is empty"
        record = self._read_last(ends)
        if record is None:
            return "no record came in time; an unfinished transaction may hold them back"
        try:
            decoded = self._config.codec.decode([record.value])
        except TimeoutError as error:  # of the schema registry
            raise SourceError(str(error)) from None
        where = f"partition {record.partition}, offset {record.offset}"
        if decoded.rejects:
            raise BadRecordError(f"{where} cannot be learned: {decoded.rejects[0].message}; see format and dimensions")
        ahead_s = record.timestamp / 1000 - time.time()
        if ahead_s > _AHEAD_S:
            raise BadRecordError(
                f"{where} lies {ahead_s:,.0f} s in the future; compare the clocks of producer and here"
            )
        return f"{where} is a vector of {self._settings.dimensions} numbers, {max(-ahead_s, 0.0):,.0f} s old"

    def _read_last(self, ends: dict[TopicPartition, int]) -> Any:
        self._consumer.assign(list(ends))
        for tp, end in ends.items():
            self._consumer.seek(tp, end - 1)
        deadline = time.monotonic() + _ANSWER_MS / 1000
        while time.monotonic() < deadline:
            found = [record for records in self._consumer.poll(200).values() for record in records]
            if found:
                return max(found, key=lambda record: int(record.timestamp))
        return None

    def _asked(self, question: str, about: Any) -> Any:
        """An answer of the broker. Raises `SourceError` when it refuses or does not answer in time."""
        try:
            return getattr(self._consumer, question)(about, timeout_ms=_ANSWER_MS)
        except KafkaError as error:
            raise self._link.refused(error) from None
