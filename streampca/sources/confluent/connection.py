"""The connection of a client of confluent-kafka (librdkafka) to the brokers of one topic.

A consumer or producer blocks while it asks for a topic, so an admin client beside it asks. It asks once a second and
does not wait for the answer, so that a broker that hangs is noticed, too.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any, Self

import structlog
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them in another way
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
)

from streampca.errors import NoBrokerError, SourceError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import TopicDescription
from streampca.sources.broker_errors import UNKNOWN_TOPIC_CODES, one_line
from streampca.sources.client_connection import ClientConnection
from streampca.sources.confluent.client_errors import SECOND_LOGIN_TOO_SOON, is_from_broker, is_permanent, protocol_code
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.oauth_tokens import create_tokens

REPLACE_CLIENT_AFTER_S = 15.0  # without an answer for this long, a client is replaced; no request may take as long
_START_S = 6.0  # a user waits: mistakes in the settings are reported within ten seconds
_REQUESTS_IN_TIMEOUT = 3  # for a topic, one after the other: so many fit into the timeout that the caller gives
_SHORTEST_REQUEST_S = 2.0  # a busy broker may take so long to answer
_ANY_ANSWER_S = 1.0
_BACKGROUND_INTERVAL_S = 1.0  # between requests for the topic in the background
_BACKGROUND_TIMEOUT_S = 10.0
_CHECK_S = 0.1
_GROUP_ANSWER_S = 3.0
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "A" * 22  # sixteen zeros in base64


log = structlog.get_logger()


class ConfluentConnection(ClientConnection):
    """See `streampca.sources.client_connection.ClientConnection`. It has an admin client of its own.

    A client without answers is replaced: see "Hangs in librdkafka" in docs/kafka.md.
    """

    connected = True
    # Whether any broker has answered after the broker that was asked for the topic had not.
    _has_any_broker_answered = False

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SourceError`, and `SettingsError` for certificates that cannot be used."""
        super().__init__(settings, topic)
        self._tokens = create_tokens(settings)
        self._errors: deque[KafkaError] = deque(maxlen=100)  # not handled yet
        self._options = connection_options(settings) | {"error_cb": self._errors.append}
        self._open()
        self._next_background_request_at = 0.0  # `log_outages` asks for the topic again then; by time.monotonic

    def start(self) -> Self:
        """Wait for the first answer. Raises `SourceError`, also if the topic is missing."""
        self.require_topic(_START_S)
        return self

    def _open(self) -> None:
        """Create the admin client; an earlier one is given up."""
        self._admin = create(AdminClient, self._options)
        self._answered_at = time.monotonic()
        self._background_request: Future[Any] | None = None

    def should_replace(self, waiting_since: float, replace_after_s: float) -> bool:
        """Return whether to replace a client that has waited for an answer for more than `replace_after_s`.

        Raises `SourceError` if the token endpoint refuses the login.
        """
        if time.monotonic() - waiting_since <= replace_after_s:
            return False
        try:
            create_tokens(self._settings)  # asks for a token, without which a new client could not log in
        except NoBrokerError:  # the token endpoint does not answer now: keep the client
            return False
        return True

    def _replace_admin_client_if_unanswered(self) -> None:
        """Replace the admin client if brokers have not answered it for long."""
        if self.connected:
            self._answered_at = time.monotonic()
        elif self.should_replace(self._answered_at, REPLACE_CLIENT_AFTER_S):
            log.debug("admin client replaced", topic=self._topic)
            self._open()

    def log_outages(self) -> None:
        """Log outages. To notice them, ask the cluster for the topic once a second, without waiting for the answer."""
        self._replace_admin_client_if_unanswered()
        self._poll_client_errors()
        self._take_background_answer()
        if self._background_request is None and time.monotonic() >= self._next_background_request_at:
            self._next_background_request_at = time.monotonic() + _BACKGROUND_INTERVAL_S
            self._background_request = self._request_topic(_BACKGROUND_TIMEOUT_S)
        super().log_outages()

    def _take_background_answer(self) -> None:
        """If the request in the background has ended, note the topic as the broker has described it."""
        request = self._background_request
        if request is None or not request.done():
            return
        self._background_request = None
        with contextlib.suppress(KafkaException):
            self._last_description = self._read_description(request)

    def topic_configs(self) -> dict[str, str]:
        """Ask for the topic's options, also those with default values; {} if a broker does not tell them."""
        self._replace_admin_client_if_unanswered()
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            request = self._admin.describe_configs([resource], request_timeout=_START_S)[resource]
            configs = self._wait_for_answer(request)
        except KafkaException:
            return {}
        return {name: entry.value for name, entry in configs.items() if entry.value is not None}

    def is_unassigned(self, group: str) -> bool:
        """Return whether the group is stable and nobody in it reads the topic; False without an answer."""
        try:
            request = self._admin.describe_consumer_groups([group], request_timeout=_GROUP_ANSWER_S)[group]
            described = self._wait_for_answer(request)
        except KafkaException:
            return False
        assigned_tps = [tp for member in described.members for tp in member.assignment.topic_partitions]
        is_stable = described.state is ConsumerGroupState.STABLE
        return is_stable and all(tp.topic != self._topic for tp in assigned_tps)

    def must_raise(self, error: KafkaError) -> bool:
        """Return whether to raise an error of the client, since waiting cannot fix it."""
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            next_login_may_succeed = self._tokens.may_be_expired or SECOND_LOGIN_TOO_SOON in error.str()
            if next_login_may_succeed:
                return False
        return is_permanent(error)

    def source_error(self, error: KafkaError, *, lacks_key: bool = False) -> SourceError:
        if error.code() == KafkaError._AUTHENTICATION and self._tokens is not None:
            # librdkafka says only that the login has failed. If we cannot get a token, the token's error is the cause.
            try:
                self._tokens.current()
            except SourceError as token_error:
                return token_error
        return self.broker_errors.explain(protocol_code(error), one_line(error.str()), lacks_key=lacks_key)

    @contextlib.contextmanager
    def translate_errors(self, asked_for: str) -> Iterator[None]:
        """Raise `SourceError` for an error of the client in the block; `TimeoutError` if waiting may help.

        `asked_for` names what the block asks for, such as "the offsets".
        """
        try:
            yield
        except KafkaException as exception:
            error = exception.args[0]
            if self.must_raise(error):
                raise self.source_error(error) from None
            raise TimeoutError(f"{asked_for} are not known: {error.str()}") from None

    def _request_topic(self, timeout_s: float) -> Any:
        """Send a request for the topic, and do not wait for the answer."""
        requests = self._admin.describe_topics(
            TopicCollection([self._topic]),
            include_authorized_operations=True,  # they tell whether this user may write to the topic
            request_timeout=max(timeout_s, 0.1),
        )
        return requests[self._topic]

    def _ask_for_topic(self, timeout_s: float) -> TopicDescription:
        """Ask a broker for the topic.

        Raises `TimeoutError` after a third of `timeout_s`, or after 2 seconds if that is longer, so that the caller can
        ask again. Raises `SourceError` if the topic does not exist, or if waiting cannot fix an error of the client.
        """
        self._replace_admin_client_if_unanswered()  # if brokers have not answered it for long
        request = self._request_topic(max(timeout_s / _REQUESTS_IN_TIMEOUT, _SHORTEST_REQUEST_S))
        has_ended = False
        while not has_ended:
            has_ended = bool(wait([request], _CHECK_S).done)
            permanent_error = self._poll_client_errors()
            if permanent_error is not None:
                raise self.source_error(permanent_error)
        try:
            return self._read_description(request)
        except KafkaException as exception:
            self._raise_if_permanent(exception.args[0])
            # For the message of `_explain_timeout`: are all brokers away, or only the broker that was asked?
            self._has_any_broker_answered = self._does_any_broker_answer()
            raise TimeoutError from None

    def _raise_if_permanent(self, error: KafkaError) -> None:
        """Raise `SourceError` for a failed request if the topic does not exist, or if waiting cannot fix the error."""
        is_topic_missing = protocol_code(error) in UNKNOWN_TOPIC_CODES
        if is_topic_missing or self.must_raise(error):
            raise self.source_error(error) from None

    def _does_any_broker_answer(self) -> bool:
        """Ask any broker to list the topic, and return whether a broker answers.

        librdkafka sends its requests for the topic (`describe_topics`) to the controller of the cluster, but
        `list_topics` to any broker. The answer to `list_topics` may name another controller. So if the controller has
        failed, the next `describe_topics` may succeed.
        """
        try:
            self._admin.list_topics(self._topic, timeout=_ANY_ANSWER_S)
        except KafkaException:
            return False
        return True

    def _explain_timeout(self) -> SourceError:
        if self._has_any_broker_answered:
            return self.broker_errors.unreachable_error(self.last_failure or "the one that was asked for the topic")
        return super()._explain_timeout()

    def _wait_for_answer(self, request: "Future[Any]") -> Any:
        """Wait for the answer to a request, and note whether a broker has sent it. Raises `KafkaException`."""
        try:
            answer = request.result()
        except KafkaException as exception:
            self.connected = is_from_broker(exception.args[0])
            raise
        self.connected = True
        return answer

    def _require_answer(self, request: "Future[Any]") -> Any:
        """Wait for the answer to a request. Raises `NoBrokerError` if a later request may succeed, or `SourceError`."""
        try:
            return self._wait_for_answer(request)
        except KafkaException as exception:
            error = exception.args[0]
            self._raise_if_permanent(error)
            raise self.broker_errors.unreachable_error(one_line(error.str())) from None

    def _read_description(self, request: "Future[Any]") -> TopicDescription:
        """Wait for the answer to a request for the topic, and return the topic. Raises `KafkaException`."""
        answer = self._wait_for_answer(request)
        in_sync = {partition.id: len(partition.isr) if partition.leader else 0 for partition in answer.partitions}
        operations = answer.authorized_operations  # empty if unknown
        return TopicDescription(
            id=format_topic_id(answer.topic_id),
            in_sync=in_sync,
            is_writable=not operations or AclOperation.WRITE in operations,
        )

    def _poll_client_errors(self) -> KafkaError | None:
        """Note the errors that the admin client has reported. Return the last one that waiting cannot fix."""
        self._admin.poll(0)  # adds new errors to `_errors`
        permanent_error = None
        while self._errors:
            error = self._errors.popleft()
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                self.connected = False
            else:
                self.last_failure = one_line(error.str())
            if self.must_raise(error):
                permanent_error = error
        return permanent_error


def format_topic_id(topic_id: Uuid) -> str:
    """Return a topic's id as Kafka's own tools print it, in URL-safe base64; "" without an id."""
    text = str(topic_id).translate(_URL_SAFE)
    return "" if text == _NO_ID else text
