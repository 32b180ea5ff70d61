"""Creates and configures the clients of confluent-kafka (librdkafka), and asks the cluster about a topic.

An admin client asks for the topic's id and partitions, beside the consumer or producer, which can only ask while it
blocks. It asks once a second in the background, so a broker that hangs is noticed too.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them in another way
    AdminClient,
    ConfigResource,
    ResourceType,
)

from streampca.errors import SourceError
from streampca.settings.commands import ConsumerSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.client_connection import RETRIABLE, ClientConnection, one_line
from streampca.sources.client_source import FETCH_BYTES, member_intervals_ms
from streampca.sources.oauth_tokens import create_tokens

_START_S = 6.0  # a user waits: mistakes in the settings are reported within ten seconds
_PROBE_INTERVAL_S = 1.0
_PROBE_TIMEOUT_S = 10.0
_CHECK_S = 0.1
_TOO_SOON = str(KafkaError(KafkaError.ILLEGAL_SASL_STATE).str())  # in the text of two logins within a second
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "A" * 22  # sixteen zeros in base64
_CODES = {  # of the protocol, for what the client calls by its own
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNSUPPORTED_FEATURE: KafkaError.UNSUPPORTED_VERSION,
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
    """Options of every client. Raises `SourceError` if a login needs a token and gets none."""
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
    return {
        **connection_options(settings),
        **identity,
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


def create(kind: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A consumer, producer or admin client. Raises `SourceError` for options that librdkafka refuses."""
    try:
        return kind(options, logger=logging.getLogger("kafka.librdkafka"))
    except KafkaException as error:
        raise SourceError(f"confluent-kafka does not take these settings: {one_line(error.args[0].str())}") from None


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


class Connection(ClientConnection):
    """The connection to the brokers of one topic, which exists."""

    connected = True

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SourceError`, and `SettingsError` for certificates that cannot be used."""
        super().__init__(settings, topic)
        self._tokens = create_tokens(settings)
        self._errors: deque[KafkaError] = deque(maxlen=100)  # of the admin client, not handled yet
        self._admin = create(AdminClient, connection_options(settings) | {"error_cb": self._errors.append})
        self._probe: Future[Any] | None = None
        self._next_probe = 0.0
        try:
            self.topic_id(_START_S)
        except TimeoutError:
            raise self.messages.no_broker(self.last_failure) from None

    def watch(self) -> None:
        """Ask the cluster once a second, without waiting, and log outages."""
        self._handle_errors()
        if self._probe is not None and self._probe.done():
            with contextlib.suppress(KafkaException):
                self._handle(self._probe)
            self._probe = None
        if self._probe is None and time.monotonic() >= self._next_probe:
            self._next_probe = time.monotonic() + _PROBE_INTERVAL_S
            self._probe = self._request(_PROBE_TIMEOUT_S)
        super().watch()

    def topic_configs(self) -> dict[str, str]:
        """The topic's options, also those with default values. Raises `KafkaException`."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        configs = self._admin.describe_configs([resource], request_timeout=_START_S)[resource].result()
        return {name: entry.value for name, entry in configs.items() if entry.value is not None}

    def is_final(self, error: KafkaError) -> bool:
        """Return whether waiting cannot fix it; brokers refuse an expired token, but only until there is a new one."""
        passing = self._tokens is not None and (self._tokens.late or _TOO_SOON in error.str())
        return is_final(error) and not (passing and error.code() == KafkaError._AUTHENTICATION)

    def source_error(self, error: KafkaError) -> SourceError:
        """The message for an error that waiting cannot fix."""
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            try:
                self._tokens.current()
            except SourceError as refusal:  # librdkafka only knows that the callback has failed
                return refusal
        return self.messages.of(protocol_code(error), one_line(error.str()))

    def lookup_error(self, offsets: str, error: KafkaError) -> Exception:
        """Name the offsets that are not known: a `SourceError` if waiting cannot fix it, else a `TimeoutError`."""
        if self.is_final(error):
            return self.source_error(error)
        return TimeoutError(f"{offsets} are not known: {error.str()}")

    def _request(self, timeout_s: float) -> Any:
        topics = TopicCollection([self._topic])
        return self._admin.describe_topics(topics, request_timeout=max(timeout_s, 0.1))[self._topic]

    def _ask(self, timeout_s: float) -> str:
        request = self._request(timeout_s)
        while True:
            answered = wait([request], _CHECK_S).done
            if refusal := self._handle_errors():  # without waiting for more: the login may be refused
                raise self.source_error(refusal)
            if answered:
                break
        try:
            return printed_id(self._handle(request).topic_id)
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART or self.is_final(error):
                raise self.source_error(error) from None
            raise TimeoutError from None

    def _handle(self, request: "Future[Any]") -> Any:
        """Note what an answer says about the cluster. Raises `KafkaException`."""
        try:
            description = request.result()
        except KafkaException as exception:
            self.connected = exception.args[0].code() > 0  # else it is the client's: no broker answered
            raise
        self.connected = True
        self._described = frozenset(partition.id for partition in description.partitions)
        return description

    def _handle_errors(self) -> KafkaError | None:
        """Note what the client reports: whether all brokers are away; returns a final error if there is one."""
        self._admin.poll(0)
        final = None
        while self._errors:
            error = self._errors.popleft()
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                self.connected = False
            else:
                self.last_failure = one_line(error.str())
            if self.is_final(error):
                final = error
        return final


def printed_id(topic_id: Uuid) -> str:
    """A topic's id as Kafka's own tools print it; librdkafka uses the other alphabet of base64."""
    text = str(topic_id).translate(_URL_SAFE)
    return "" if text == _NO_ID else text
