"""confluent-kafka (librdkafka) for the source: how it is configured, its records, and which of its errors are final.

Its errors become those of kafka-python, for which `Connection.refused` has the sentences, so that both say the same.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException
from kafka import errors

from streampca.errors import SourceError
from streampca.settings import WorkerSettings
from streampca.sources.kafka_python.patches import one_line
from streampca.stream.record import Batch, Record

Message: TypeAlias = Any  # confluent_kafka.Message, in whose types everything can be None

_START_S = 5.0
_FETCH_BYTES = 4 * 1024 * 1024  # of one partition at once: as much as kafka-python is told
_GROUP_MOVES_ON = {  # the client joins again by itself
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
}
_FINAL = {  # of the client's own errors; it waits for the end of all others
    KafkaError._AUTHENTICATION: errors.SaslAuthenticationFailedError,
    KafkaError._BAD_MSG: errors.CorruptRecordError,  # passing over it would lose what it held
    KafkaError._BAD_COMPRESSION: errors.UnsupportedCompressionTypeError,
    KafkaError._UNSUPPORTED_FEATURE: errors.UnsupportedVersionError,
    KafkaError._FATAL: errors.KafkaError,
}


def consumer_options(settings: WorkerSettings) -> dict[str, Any]:
    """What librdkafka's consumer must be told; it always asks the brokers for their version."""
    password = settings.sasl_password and settings.sasl_password.get_secret_value()
    given = {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": password,
        "ssl.ca.location": settings.ssl_cafile and str(settings.ssl_cafile),
        "ssl.certificate.location": settings.ssl_certfile and str(settings.ssl_certfile),
        "ssl.key.location": settings.ssl_keyfile and str(settings.ssl_keyfile),
        "ssl.key.password": settings.ssl_password and settings.ssl_password.get_secret_value(),
    }
    return {name: value for name, value in given.items() if value is not None} | {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "ssl.endpoint.identification.algorithm": "https" if settings.ssl_check_hostname else "none",
        "client.id": "streampca",
        "group.id": settings.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # a position out of range is an event, not a silent jump
        "enable.partition.eof": True,  # tells how far offsets without a record reach
        "isolation.level": settings.isolation_level,
        "check.crcs": True,
        "allow.auto.create.topics": False,
        "session.timeout.ms": int(settings.session_timeout_s * 1000),
        "heartbeat.interval.ms": int(min(3.0, settings.session_timeout_s / 10) * 1000),
        # Every rebalance revokes all and assigns all, as with kafka-python: the two can share a group.
        "partition.assignment.strategy": "range",
        "topic.metadata.refresh.interval.ms": 10_000,  # how soon new partitions are seen
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2000,
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "fetch.max.bytes": 4 * _FETCH_BYTES,
        # Of all partitions together; one fetch more can be on its way. The other half waits decoded.
        "queued.max.messages.kbytes": max(int(settings.read_ahead_mib * 1024 / 2), 1),
        "fetch.queue.backoff.ms": 10,  # a full queue is empty again soon; by default it would be looked at in a second
    }


def connected(
    settings: WorkerSettings,
    failures: list[KafkaError],
    on_commit: Callable[[KafkaError | None, Any], None] | None = None,
) -> Consumer:
    """A consumer that has reached a broker and is in no group yet. Raises `SourceError`.

    From within its own methods it appends its errors to `failures`, for as long as it lives, and calls `on_commit`.
    """
    given = consumer_options(settings) | {"error_cb": failures.append}
    if on_commit is not None:
        given["on_commit"] = on_commit
    try:
        consumer = Consumer(given, logger=logging.getLogger("kafka.librdkafka"))
    except KafkaException as error:
        raise SourceError(f"confluent-kafka does not take these settings: {_text(error)}") from None
    try:
        consumer.list_topics(settings.topic, timeout=_START_S)
    except KafkaException as error:
        consumer.poll(0)  # here the client says what happened
        consumer.close()
        cause = failures[-1].str() if failures else _text(error)
        raise SourceError(
            f"confluent-kafka reaches no broker ({cause}); check ssl_cafile and bootstrap_servers"
        ) from None
    return consumer


def final(error: KafkaError) -> errors.KafkaError | None:
    """The error of kafka-python for what waiting cannot cure; None for what it can."""
    code = error.code()
    if code in _FINAL:
        return _FINAL[code](error.str())
    if code <= 0 or code in _GROUP_MOVES_ON:
        return None
    kind = errors.for_code(code)
    return None if issubclass(kind, errors.RetriableError) else kind(error.str())


class ConfluentRecord:
    """A message as `Record`."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def offset(self) -> int:
        return int(self._message.offset())

    @property
    def timestamp(self) -> int:
        return _timestamp(self._message)

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self._message.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self._message.value()
        return value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return self._message.headers() or ()


class ConfluentBatch(Batch):
    """Messages of one partition; a record is only made of the one that is asked for."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> "ConfluentBatch": ...
    def __getitem__(self, place: int | slice) -> "Record | ConfluentBatch":
        if isinstance(place, slice):
            return ConfluentBatch(self._messages[place])
        return ConfluentRecord(self._messages[place])

    def values(self) -> list[bytes | None]:
        return [message.value() for message in self._messages]

    def timestamps(self) -> list[int]:
        return [_timestamp(message) for message in self._messages]

    def offsets(self) -> list[int]:
        return [message.offset() for message in self._messages]


def _timestamp(message: Message) -> int:
    kind, stamp = message.timestamp()
    return -1 if kind == TIMESTAMP_NOT_AVAILABLE else int(stamp)


def _text(error: KafkaException) -> str:
    return one_line(Exception(error.args[0].str()))
