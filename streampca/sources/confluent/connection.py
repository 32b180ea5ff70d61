"""Asks the cluster about a topic, and tells which errors of confluent-kafka (librdkafka) waiting cannot fix.

A consumer or producer can only ask for a topic while it blocks, so an admin client beside it asks. It asks once a
second without waiting for the answer, so that a broker that hangs is noticed, too.
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

_SILENT_S = 15.0  # longer than a request may take; a client without an answer for this long is replaced
_START_S = 6.0  # a user waits: mistakes in the settings are reported within ten seconds
_BACKGROUND_INTERVAL_S = 1.0  # between requests for the topic in the background
_BACKGROUND_TIMEOUT_S = 10.0
_CHECK_S = 0.1
_GROUP_ANSWER_S = 3.0
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "A" * 22  # sixteen zeros in base64


def _error_text(code: int) -> str:
    """Return the text of errors with this code. It is also a part of the text of some errors with another code."""
    return str(KafkaError(code).str())


_SECOND_LOGIN_TOO_SOON = _error_text(KafkaError.ILLEGAL_SASL_STATE)  # two logins within a second
_FENCED = _error_text(KafkaError.FENCED_INSTANCE_ID)  # in the text of an error whose code is _FATAL
# A login that was not refused: its connection ended meanwhile, or the broker did not answer.
_LOGIN_INTERRUPTED = [_error_text(code) for code in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)]
_PROTOCOL_CODES = {  # librdkafka's own code → the protocol's code of the same error
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNSUPPORTED_FEATURE: KafkaError.UNSUPPORTED_VERSION,
}
_FINAL = {  # of librdkafka's own codes; it recovers from all other errors with a code of its own
    KafkaError._AUTHENTICATION,
    KafkaError._BAD_MSG,  # the client would skip it, and lose the records in it
    KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._FATAL,
}
_REBALANCE_CODES = {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS}

log = structlog.get_logger()


def parse_committed(answer: Iterable[TopicPartition]) -> dict[int, Committed]:
    """Return the committed offsets in an answer of the group, by partition."""
    return {tp.partition: Committed(tp.offset, _metadata(tp)) for tp in answer if tp.offset >= 0}


def _metadata(partition: TopicPartition) -> str:
    """Return the metadata of a committed offset; "" if they are not text.

    The client reads metadata to the next zero byte. If another client has committed them without one, it reads bytes
    behind their end, which may be anything.
    """
    try:
        return partition.metadata or ""
    except UnicodeDecodeError:
        return ""


def is_final(error: KafkaError) -> bool:
    """Return whether waiting cannot fix an error."""
    code = error.code()
    is_from_a_broker = code > 0  # librdkafka's own codes are negative
    if is_from_a_broker:
        return code not in _REBALANCE_CODES | RETRIABLE
    return code in _FINAL and not any(text in error.str() for text in _LOGIN_INTERRUPTED)


def protocol_code(error: KafkaError) -> int:
    """Return the error's code in Kafka's protocol; if it has none, librdkafka's own code, which is negative."""
    if _FENCED in error.str():
        return KafkaError.FENCED_INSTANCE_ID
    code = error.code()
    return _PROTOCOL_CODES.get(code, code)


class ConfluentConnection(ClientConnection):
    """See `streampca.sources.client_connection.ClientConnection`. It has an admin client of its own."""

    connected = True

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SourceError`, and `SettingsError` for certificates that cannot be used."""
        super().__init__(settings, topic)
        self._tokens = create_tokens(settings)
        self._errors: deque[KafkaError] = deque(maxlen=100)  # of the admin client, not handled yet
        self._options = connection_options(settings) | {"error_cb": self._errors.append}
        self._open()
        self._next_request_at = 0.0  # monotonic time of the next request in the background

    def start(self) -> Self:
        """Wait for the first answer. Raises `SourceError`, also if the topic is missing."""
        self.require_topic(_START_S)
        return self

    def _open(self) -> None:
        """Create the admin client; an earlier one is given up."""
        self._admin = create(AdminClient, self._options)
        self._answered_at = time.monotonic()
        self._background_request: Future[Any] | None = None

    def is_silent(self, answered_at: float) -> bool:
        """Return whether to replace a client whose last answer came at `answered_at` (by `time.monotonic`).

        A client may lose all brokers and not find them again (docs/kafka.md). But while no token can be obtained, it is
        not replaced, since a new client would need one, too. Raises `SourceError` if a token is refused.
        """
        if time.monotonic() - answered_at <= _SILENT_S:
            return False
        try:
            create_tokens(self._settings)
        except NoBrokerError:  # no token now
            return False
        return True

    def _replace_if_silent(self) -> None:
        if self.connected:
            self._answered_at = time.monotonic()
        elif self.is_silent(self._answered_at):
            log.debug("admin client replaced", topic=self._topic)
            self._open()

    def watch(self) -> None:
        """Ask the cluster for the topic once a second, without waiting, and log outages."""
        self._replace_if_silent()
        self._handle_errors()
        if self._background_request is not None and self._background_request.done():
            with contextlib.suppress(KafkaException):
                self._last_description = self._read_description(self._background_request)
            self._background_request = None
        if self._background_request is None and time.monotonic() >= self._next_request_at:
            self._next_request_at = time.monotonic() + _BACKGROUND_INTERVAL_S
            self._background_request = self._request_topic(_BACKGROUND_TIMEOUT_S)
        super().watch()

    def topic_configs(self) -> dict[str, str]:
        """Ask for the topic's options, also those with default values; {} if a broker does not tell them."""
        self._replace_if_silent()
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            request = self._admin.describe_configs([resource], request_timeout=_START_S)[resource]
            configs = self._answer(request)
        except KafkaException:
            return {}
        return {name: entry.value for name, entry in configs.items() if entry.value is not None}

    def is_unassigned(self, group: str) -> bool:
        """Return whether the group is stable and nobody in it reads the topic; False without an answer."""
        try:
            request = self._admin.describe_consumer_groups([group], request_timeout=_GROUP_ANSWER_S)[group]
            described = self._answer(request)
        except KafkaException:
            return False
        assigned = [tp for member in described.members for tp in member.assignment.topic_partitions]
        is_stable = described.state is ConsumerGroupState.STABLE
        return is_stable and all(tp.topic != self._topic for tp in assigned)

    def is_final(self, error: KafkaError) -> bool:
        """Return whether waiting cannot fix an error.

        If a broker refuses an expired token, or a second login within a second, waiting does: a new login follows.
        """
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            may_pass = self._tokens.may_be_expired or _SECOND_LOGIN_TOO_SOON in error.str()
            return is_final(error) and not may_pass
        return is_final(error)

    def source_error(self, error: KafkaError) -> SourceError:
        """Explain an error that waiting cannot fix."""
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            try:
                self._tokens.current()
            except SourceError as refusal:  # librdkafka only knows that the callback has failed
                return refusal
        return self.messages.explain(protocol_code(error), one_line(error.str()))

    def lookup_error(self, offsets: str, error: KafkaError) -> Exception:
        """Return the error to raise if a request for some offsets (`offsets` says which) has failed.

        If waiting cannot fix the error, it is a `SourceError`; else it is a `TimeoutError`.
        """
        if self.is_final(error):
            return self.source_error(error)
        return TimeoutError(f"{offsets} are not known: {error.str()}")

    def _request_topic(self, timeout_s: float) -> Any:
        request = self._admin.describe_topics(
            TopicCollection([self._topic]),
            include_authorized_operations=True,
            request_timeout=max(timeout_s, 0.1),
        )
        return request[self._topic]

    def _ask(self, timeout_s: float) -> TopicDescription:
        self._replace_if_silent()
        request = self._request_topic(timeout_s)
        answered = False
        while not answered:
            answered = bool(wait([request], _CHECK_S).done)
            final_error = self._handle_errors()
            if final_error:
                raise self.source_error(final_error)  # at once: if the login is refused, no answer will come
        try:
            return self._read_description(request)
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART or self.is_final(error):
                raise self.source_error(error) from None
            raise TimeoutError from None

    def _answer(self, request: "Future[Any]") -> Any:
        """Wait for the answer, and note whether it came from a broker. Raises `KafkaException`."""
        try:
            answer = request.result()
        except KafkaException as exception:
            is_from_a_broker = exception.args[0].code() > 0  # librdkafka's own codes are negative
            self.connected = is_from_a_broker
            raise
        self.connected = True
        return answer

    def _answer_or_source_error(self, request: "Future[Any]") -> Any:
        """Wait for the answer. If the request fails, raise `SourceError`."""
        try:
            return self._answer(request)
        except KafkaException as exception:
            raise self.source_error(exception.args[0]) from None

    def _read_description(self, request: "Future[Any]") -> TopicDescription:
        """Return the topic in the answer to a request. Raises `KafkaException`."""
        answer = self._answer(request)
        in_sync = {partition.id: len(partition.isr) if partition.leader else 0 for partition in answer.partitions}
        operations = answer.authorized_operations  # none: the broker does not tell them
        return TopicDescription(
            id=printed_id(answer.topic_id),
            in_sync=in_sync,
            is_writable=not operations or AclOperation.WRITE in operations,
        )

    def _handle_errors(self) -> KafkaError | None:
        """Note the errors that the admin client reports, and return one that waiting cannot fix, if there is one."""
        self._admin.poll(0)
        final_error = None
        while self._errors:
            error = self._errors.popleft()
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                self.connected = False
            else:
                self.last_failure = one_line(error.str())
            if self.is_final(error):
                final_error = error
        return final_error


def printed_id(topic_id: Uuid) -> str:
    """Return a topic's id as Kafka's own tools print it: in the URL-safe alphabet of base64, unlike librdkafka.

    Without an id, return "".
    """
    text = str(topic_id).translate(_URL_SAFE)
    return "" if text == _NO_ID else text
