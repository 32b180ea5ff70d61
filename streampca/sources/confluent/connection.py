"""Asks the cluster about a topic, and says which errors of confluent-kafka (librdkafka) are final.

An admin client asks for the topic's id and partitions, beside the consumer or producer, which can only ask while it
blocks. It asks once a second in the background, so a broker that hangs is noticed too.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Any, Self

import structlog
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them in another way
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
)

from streampca.errors import NoBrokerError, SourceError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import Committed, TopicDescription
from streampca.sources.client_connection import RETRIABLE, ClientConnection, one_line
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.oauth_tokens import create_tokens

_SILENT_S = 15.0  # longer than a request; then a client is replaced
_START_S = 6.0  # a user waits: mistakes in the settings are reported within ten seconds
_PROBE_INTERVAL_S = 1.0
_PROBE_TIMEOUT_S = 10.0
_CHECK_S = 0.1
_GROUP_ANSWER_S = 3.0
_TOO_SOON = str(KafkaError(KafkaError.ILLEGAL_SASL_STATE).str())  # in the text of two logins within a second
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "A" * 22  # sixteen zeros in base64
_CODES = {  # of the protocol, for what the client calls by its own
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNSUPPORTED_FEATURE: KafkaError.UNSUPPORTED_VERSION,
}
# In the text of a login that the end of its connection interrupts, or a broker that does not answer.
_AWAY = [str(KafkaError(code).str()) for code in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)]
_FENCED = str(KafkaError(KafkaError.FENCED_INSTANCE_ID).str())  # in the text of an error whose code is _FATAL
_FINAL = {  # of the client's own errors; it recovers from all others
    KafkaError._AUTHENTICATION,
    KafkaError._BAD_MSG,  # the client would skip it, and lose the records in it
    KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._FATAL,
}
_OF_GROUPS = {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}

log = structlog.get_logger()


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
        return code in _FINAL and not any(text in error.str() for text in _AWAY)
    return code not in _OF_GROUPS | RETRIABLE


def protocol_code(error: KafkaError) -> int:
    """The error's code in Kafka's protocol; negative if it has none."""
    code = error.code()
    return KafkaError.FENCED_INSTANCE_ID if _FENCED in error.str() else _CODES.get(code, code)


class Connection(ClientConnection):
    """The connection to the brokers of one topic."""

    connected = True

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SourceError`, and `SettingsError` for certificates that cannot be used."""
        super().__init__(settings, topic)
        self._tokens = create_tokens(settings)
        self._errors: deque[KafkaError] = deque(maxlen=100)  # of the admin client, not handled yet
        self._options = connection_options(settings) | {"error_cb": self._errors.append}
        self._open()
        self._next_probe = 0.0

    def start(self) -> Self:
        """Wait for the first answer. Raises `SourceError`, also if the topic is missing."""
        self.require_topic(_START_S)
        return self

    def _open(self) -> None:
        self._admin, self._answered_at = create(AdminClient, self._options), time.monotonic()
        self._probe: Future[Any] | None = None

    def is_silent(self, answered_at: float) -> bool:
        """Return whether to replace a client that was last answered then: it may have lost all brokers (docs/kafka.md).

        Not while there is no token, for which a new client waits. Raises `SourceError` if that is refused.
        """
        if time.monotonic() - answered_at <= _SILENT_S:
            return False
        with contextlib.suppress(NoBrokerError):
            create_tokens(self._settings)
            return True
        return False

    def _replace_if_silent(self) -> None:
        if self.connected:
            self._answered_at = time.monotonic()
        elif self.is_silent(self._answered_at):
            log.debug("admin client replaced", topic=self._topic)
            self._open()

    def watch(self) -> None:
        """Ask the cluster once a second, without waiting, and log outages."""
        self._replace_if_silent()
        self._handle_errors()
        if self._probe is not None and self._probe.done():
            with contextlib.suppress(KafkaException):
                self._described = self._description(self._probe)
            self._probe = None
        if self._probe is None and time.monotonic() >= self._next_probe:
            self._next_probe = time.monotonic() + _PROBE_INTERVAL_S
            self._probe = self._request(_PROBE_TIMEOUT_S)
        super().watch()

    def topic_configs(self) -> dict[str, str]:
        """The topic's options, also those with default values; empty if a broker does not say them."""
        self._replace_if_silent()
        resource, configs = ConfigResource(ResourceType.TOPIC, self._topic), dict[str, Any]()
        with contextlib.suppress(KafkaException):
            configs = self._answer(self._admin.describe_configs([resource], request_timeout=_START_S)[resource])
        return {name: entry.value for name, entry in configs.items() if entry.value is not None}

    def is_unassigned(self, group: str) -> bool:
        """Return whether the group is stable and nobody in it reads the topic; False without an answer."""
        with contextlib.suppress(KafkaException):
            request = self._admin.describe_consumer_groups([group], request_timeout=_GROUP_ANSWER_S)[group]
            described = self._answer(request)
            assigned = [tp for member in described.members for tp in member.assignment.topic_partitions]
            is_stable = described.state is ConsumerGroupState.STABLE
            return is_stable and all(tp.topic != self._topic for tp in assigned)
        return False

    def is_final(self, error: KafkaError) -> bool:
        """Return whether waiting cannot fix it; brokers refuse an expired token, but only until there is a new one."""
        passing = self._tokens is not None and (self._tokens.may_be_expired or _TOO_SOON in error.str())
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
        options = {"include_authorized_operations": True, "request_timeout": max(timeout_s, 0.1)}
        return self._admin.describe_topics(TopicCollection([self._topic]), **options)[self._topic]

    def _ask(self, timeout_s: float) -> TopicDescription:
        self._replace_if_silent()
        request = self._request(timeout_s)
        while True:
            answered = wait([request], _CHECK_S).done
            if refusal := self._handle_errors():  # without waiting for more: the login may be refused
                raise self.source_error(refusal)
            if answered:
                break
        try:
            return self._description(request)
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART or self.is_final(error):
                raise self.source_error(error) from None
            raise TimeoutError from None

    def _answer(self, request: "Future[Any]") -> Any:
        """Note whether a broker has answered. Raises `KafkaException`."""
        try:
            answer = request.result()
        except KafkaException as exception:
            self.connected = exception.args[0].code() > 0  # else it is the client's: no broker answered
            raise
        self.connected = True
        return answer

    def _result(self, request: "Future[Any]") -> Any:
        """Return as `_answer` does, but raise `SourceError`."""
        try:
            return self._answer(request)
        except KafkaException as exception:
            raise self.source_error(exception.args[0]) from None

    def _description(self, request: "Future[Any]") -> TopicDescription:
        """The topic in an answer. Raises `KafkaException`."""
        answer = self._answer(request)
        in_sync = {partition.id: len(partition.isr) if partition.leader else 0 for partition in answer.partitions}
        allowed = answer.authorized_operations
        return TopicDescription(printed_id(answer.topic_id), in_sync, not allowed or AclOperation.WRITE in allowed)

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
