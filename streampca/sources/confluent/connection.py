"""Asks the cluster about a topic, for the source and the transactions: its id, its partitions, whether it answers.

An admin client asks, beside the consumer or producer, which can only ask while it blocks. It asks once a second in the
background, so a broker that hangs is noticed too.
"""

import contextlib
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from streampca.errors import SourceError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.broker_errors import one_line
from streampca.sources.confluent import client
from streampca.sources.oauth_tokens import create_tokens
from streampca.sources.topic_connection import TopicConnection

_START_S = 6.0  # a user waits: mistakes in the settings are reported within ten seconds
_PROBE_INTERVAL_S = 1.0
_PROBE_TIMEOUT_S = 10.0
_CHECK_S = 0.1
_TOO_SOON = str(KafkaError(KafkaError.ILLEGAL_SASL_STATE).str())  # in the text of two logins within a second
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "A" * 22  # sixteen zeros in base64


class Connection(TopicConnection):
    """The connection to the brokers of one topic, which exists."""

    connected = True

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SourceError`, and `SettingsError` for certificates that cannot be used."""
        super().__init__(settings, topic)
        self._tokens = create_tokens(settings)
        self._errors: deque[KafkaError] = deque(maxlen=100)  # of the admin client, not handled yet
        self._last_error = ""
        options = client.connection_options(settings) | {"error_cb": self._errors.append}
        self._admin = client.create(AdminClient, options)
        self._probe: Future[Any] | None = None
        self._next_probe = 0.0
        try:
            self.topic_id(_START_S)
        except TimeoutError:
            raise self.messages.no_broker(self._last_error) from None

    def partitions(self) -> frozenset[int]:
        return self._described

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

    def is_final(self, error: KafkaError) -> bool:
        """Return whether waiting cannot fix it; brokers refuse an expired token, but only until there is a new one."""
        passing = self._tokens is not None and (self._tokens.late or _TOO_SOON in error.str())
        return client.is_final(error) and not (passing and error.code() == KafkaError._AUTHENTICATION)

    def source_error(self, error: KafkaError) -> SourceError:
        """The message for an error that waiting cannot fix."""
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            try:
                self._tokens.current()
            except SourceError as refusal:  # librdkafka only knows that the callback has failed
                return refusal
        return self.messages.of(client.protocol_code(error), one_line(error.str()))

    def _request(self, timeout_s: float) -> "Future[Any]":
        answers = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=max(timeout_s, 0.1))
        answer: Future[Any] = answers[self._topic]
        return answer

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
                self._last_error = one_line(error.str())
            if self.is_final(error):
                final = error
        return final


def printed_id(topic_id: Uuid) -> str:
    """A topic's id as Kafka's own tools print it; librdkafka uses the other alphabet of base64."""
    text = str(topic_id).translate(_URL_SAFE)
    return "" if text == _NO_ID else text
