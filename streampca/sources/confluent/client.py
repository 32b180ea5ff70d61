"""Creates and configures the clients of confluent-kafka (librdkafka), and judges which errors are final."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streampca.errors import SourceError
from streampca.settings.commands import ConsumerSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.broker_errors import RETRIABLE, one_line
from streampca.sources.client_source import FETCH_BYTES, member_intervals_ms
from streampca.sources.oauth_tokens import create_tokens

C = TypeVar("C")

_CODES = {  # of the protocol, for what the client calls by its own
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
}
_AWAY = str(KafkaError(KafkaError._TRANSPORT).str())  # in the text of a login that the end of its connection interrupts
_FENCED = str(KafkaError(KafkaError.FENCED_INSTANCE_ID).str())  # in the text of an error whose code is _FATAL
_FINAL = {  # of the client's own errors; it recovers from all others
    KafkaError._AUTHENTICATION,
    KafkaError._BAD_MSG,  # the client would skip it, and lose the records in it
    KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._FATAL,
}
_OF_GROUPS = {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options of every client; librdkafka always asks the brokers for their version.

    Raises `SourceError` if a login needs a token and gets none.
    """
    tokens = create_tokens(settings)
    login: dict[str, Any] = {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        "ssl.ca.location": settings.ssl_cafile and str(settings.ssl_cafile),
        "ssl.certificate.location": settings.ssl_certfile and str(settings.ssl_certfile),
        "ssl.key.location": settings.ssl_keyfile and str(settings.ssl_keyfile),
        "ssl.key.password": settings.ssl_password and settings.ssl_password.get_secret_value(),
    }
    if tokens is not None:
        login |= dict.fromkeys(("sasl.username", "sasl.password"))
        login |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: tokens.current()}
    return {name: value for name, value in login.items() if value is not None} | {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "ssl.endpoint.identification.algorithm": "https",
        "client.id": "streampca",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 10_000,  # how soon new partitions are seen
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2000,
    }


def consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    """Options of the consumer."""
    longest_poll_ms, session_ms, heartbeat_ms = member_intervals_ms(settings)
    identity = {} if settings.group_instance_id is None else {"group.instance.id": settings.group_instance_id}
    return (
        connection_options(settings)
        | identity
        | {
            "group.id": settings.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # a position out of range is an event, not a silent jump
            "enable.partition.eof": True,  # reports how far offsets without a record reach
            "isolation.level": "read_committed",
            "check.crcs": True,
            "max.poll.interval.ms": longest_poll_ms,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": heartbeat_ms,
            # Every rebalance revokes all and assigns all, as with kafka-python: the two can share a group.
            "partition.assignment.strategy": "range",
            "max.partition.fetch.bytes": FETCH_BYTES,
            "fetch.max.bytes": 4 * FETCH_BYTES,
            # Limit over all partitions; one more fetch may be in flight. Decoded records use the other half.
            "queued.max.messages.kbytes": base.PREFETCH_MIB * 1024 // 2,
            "fetch.queue.backoff.ms": 10,  # a full queue has room again soon; by default it is checked after a second
        }
    )


def create(kind: Callable[..., C], options: dict[str, Any]) -> C:
    """A consumer, producer or admin client. Raises `SourceError` for options that librdkafka refuses."""
    try:
        return kind(options, logger=logging.getLogger("kafka.librdkafka"))
    except KafkaException as error:
        text = one_line(error.args[0].str())
        raise SourceError(f"confluent-kafka does not take these settings: {text}") from None


def committed(answer: Iterable[TopicPartition]) -> dict[int, Committed]:
    """The committed offsets in an answer of the group, by partition."""
    return {tp.partition: Committed(tp.offset, _metadata(tp)) for tp in answer if tp.offset >= 0}


def _metadata(partition: TopicPartition) -> str:
    """The client reads to the next zero: beyond the end of what others have committed without one."""
    try:
        return partition.metadata or ""
    except UnicodeDecodeError:
        return ""


def is_final(error: KafkaError) -> bool:
    """Return whether waiting cannot fix it."""
    code = error.code()
    if code <= 0:
        return code in _FINAL and _AWAY not in error.str()
    return code not in _OF_GROUPS | RETRIABLE


def protocol_code(error: KafkaError) -> int:
    """The error's code in Kafka's protocol; negative if it has none."""
    code = error.code()
    return KafkaError.FENCED_INSTANCE_ID if _FENCED in error.str() else _CODES.get(code, code)
