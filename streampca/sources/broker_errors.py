"""Errors of brokers for one topic: what is wrong, and how to mend it."""

import re
from collections.abc import Collection
from typing import NamedTuple

from streampca.errors import NO_ANSWER, CertificateError, NoBrokerError, SourceError, on_one_line
from streampca.settings.kafka import KafkaSettings

# Codes of errors in Kafka's protocol: https://kafka.apache.org/protocol#protocol_error_codes
UNKNOWN_TOPIC_CODES = {3, 17}
TOO_LARGE_CODES = {10, 18}  # a record, or a batch of records
TOPIC_NOT_ALLOWED = 29
NOT_ALLOWED_CODES = {TOPIC_NOT_ALLOWED, 30, 31, 53}  # topic, group, cluster, transactional id
NO_KEY = 87  # a record in a compacted topic has no key; brokers also use this code for a wrong timestamp
INVALID_RECORD_CODES = {32, NO_KEY}  # most often for a wrong timestamp; 32: INVALID_TIMESTAMP
INVALID_SESSION_TIMEOUT = 26
LOGIN_FAILED = 58
LOGIN_REFUSED_CODES = {33, 34, LOGIN_FAILED}  # also for its mechanism, or its order of requests
UNSUPPORTED_VERSION = 35
TOPIC_EXISTS = 36
INVALID_TRANSACTION_TIMEOUT = 50
FENCED_MEMBER = 82
# The errors that the protocol's documentation calls retriable:
RETRIABLE_CODES = frozenset(
    {3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106}
)


class TopicError(SourceError):
    """A broker accepts the client, but the topic does not exist, or the user may not use it."""


class _Explanation(NamedTuple):
    """What is wrong if a broker answers with one of these codes, and how to mend it."""

    codes: Collection[int]
    message: str  # with {topic}, {where} and {text}, which is what the client says
    error_type: type[SourceError] = SourceError


_MISSING_RIGHT = "the broker {where} does not allow this user: {text}; grant it the right"
_MISSING_KEY = (
    "a record without a key is refused by topic {topic} {where} ({text}); if the topic is compacted, set its "
    "cleanup.policy=delete or give records keys; if not, compare the clocks"
)
_EXPLANATIONS = [
    _Explanation(
        UNKNOWN_TOPIC_CODES,
        "there is no topic {topic} {where}; create it (streampca create-topics), or correct the name",
        TopicError,
    ),
    _Explanation(
        TOO_LARGE_CODES, "a record is too large for topic {topic} {where}; raise max.message.bytes of {topic}"
    ),
    _Explanation(
        INVALID_RECORD_CODES,
        "the timestamp of a record is refused by topic {topic} {where} ({text}); compare the clock of this machine "
        "with the brokers', and message.timestamp.* of the topic",
    ),
    _Explanation(
        {INVALID_SESSION_TIMEOUT},
        "the broker {where} refuses session_timeout_s ({text}): it must lie within group.min.session.timeout.ms to "
        "group.max.session.timeout.ms of the brokers (6 s to 30 minutes by default)",
    ),
    _Explanation(NOT_ALLOWED_CODES, _MISSING_RIGHT, TopicError),
    _Explanation(LOGIN_REFUSED_CODES, "the broker {where} refuses the login: {text}; check the sasl_ settings"),
    _Explanation({UNSUPPORTED_VERSION}, "the brokers {where} are too old: {text}; transform needs Kafka 2.5"),
    _Explanation(
        {INVALID_TRANSACTION_TIMEOUT},
        "the broker {where} refuses the transaction: session_timeout_s is above transaction.max.timeout.ms of the "
        "brokers (15 minutes by default); lower it, or raise theirs",
    ),
    _Explanation(
        {FENCED_MEMBER},
        "the group of topic {topic} {where} has given this worker's place to another member with its "
        "group_instance_id; give each worker a group_instance_id of its own, or, if each has one, start this worker "
        "again: a request of its own to join was cut, and arrived late",
    ),
]


class BrokerErrors:
    """Makes the errors that name one topic and its brokers, what is wrong, and how to mend it."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._servers = settings.bootstrap_servers
        self._where = f"at {self._servers}"
        self._protocol = settings.security_protocol

    def explain(self, code: int | None, text: str, *, lacks_key: bool = False) -> SourceError:
        """Return the error for a code of Kafka's protocol, with a remedy.

        `text` is what the client says. `lacks_key` says whether any of the refused records has no key.
        """
        # Brokers use NO_KEY for a missing key and for a wrong timestamp. Without a missing key, the timestamp is wrong.
        if code == NO_KEY and lacks_key:
            return SourceError(self._fill_in(_MISSING_KEY, text))
        for explanation in _EXPLANATIONS:
            if code in explanation.codes:
                return explanation.error_type(self._fill_in(explanation.message, text))
        return SourceError(f"topic {self._topic} {self._where}: {text}")

    def _fill_in(self, message: str, text: str) -> str:
        return message.format(topic=self._topic, where=self._where, text=text)

    def creation_error(self, code: int, text: str) -> SourceError:
        """Return the error of a topic that cannot be created."""
        if code == TOPIC_NOT_ALLOWED:
            return self.authorization_error(f"create topic {self._topic}")
        return SourceError(f"topic {self._topic} cannot be created: {text}")

    def authorization_error(self, text: str) -> SourceError:
        """Return the error of a user without the right that `text` describes."""
        return TopicError(self._fill_in(_MISSING_RIGHT, text))

    def not_acknowledged_error(self, waited_s: float) -> SourceError:
        """Return the error if brokers answer, but do not acknowledge records."""
        return SourceError(
            f"topic {self._topic} {self._where}: brokers answer, but have not acknowledged earlier records within "
            f"{waited_s:.0f} s; check that each partition has a leader, that enough of its replicas are in sync "
            "(min.insync.replicas), and that this user's quota is not used up"
        )

    def unreachable_error(self, cause: str) -> SourceError:
        """Return the error for a broker that cannot be reached, although another broker may answer."""
        to_check = self._suggest_check(cause)
        return NoBrokerError(
            f"topic {self._topic} {self._where}: a broker cannot be reached ({cause}); check {to_check}"
        )

    def no_broker_error(self, cause: str) -> SourceError:
        """Return the error if no broker answers. `cause` is the last error of a connection, or empty."""
        error_type = CertificateError if "certificate" in cause.lower() else NoBrokerError
        because = f" ({cause})" if cause else ""
        return error_type(f"{NO_ANSWER} {self._where}{because}; check {self._suggest_check(cause)}")

    def _suggest_check(self, cause: str) -> str:
        """Return what to check if a connection fails with this cause."""
        names_our_servers = any(server.strip() in cause for server in self._servers.split(","))
        names_an_address = re.search(r":\d+\b", cause) is not None
        if names_an_address and not names_our_servers:  # a broker has advertised the address
            return "advertised.listeners of this broker: the address must be one that this machine can reach"
        if "SSL" in self._protocol:
            return f"bootstrap_servers, security_protocol ({self._protocol} now), ssl_cafile and ssl_certfile"
        return (
            f"bootstrap_servers and security_protocol ({self._protocol} now; SSL or SASL_SSL if the port speaks "
            "TLS, SASL_PLAINTEXT if it wants a login)"
        )


def one_line(error: object) -> str:
    """Return an error's text without line breaks; if it has no text, the name of its type."""
    return on_one_line(error) or type(error).__name__
