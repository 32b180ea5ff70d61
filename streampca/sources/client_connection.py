"""A client's connection to the brokers of one topic, as far as it is the same for both clients.

It asks for the topic, logs outages, and explains the errors that waiting cannot fix.
"""

import re
import ssl
import time
from abc import ABC, abstractmethod
from pathlib import Path

import structlog

from streampca.errors import NO_ANSWER, CertificateError, NoBrokerError, SettingsError, SourceError
from streampca.process.renewed import file_versions
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import TopicDescription

_RETRY_S = 0.1
_NEW_TOPIC_S = 1.0  # how long to ask again for a missing topic: a new one may reach a broker late
_LOGGED_AFTER_S = 1.0  # shorter outages are not logged
# During an outage, a new cause is logged at most this often: if several brokers are away, each has its own cause.
_NEXT_CAUSE_AFTER_S = 10.0
_NUMBERS = re.compile(r"[0-9]+")
RETRIABLE = frozenset(
    {3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106}
)
"""Codes of errors that the protocol calls retriable (https://kafka.apache.org/protocol#protocol_error_codes)."""

TOPIC_EXISTS = 36  # code of the error of creating a topic that exists

log = structlog.get_logger()


class TopicError(SourceError):
    """A broker accepts the client, but the topic does not exist, or the user may not use it."""


class BrokerErrors:
    """Explains brokers' errors for one topic on one cluster: what is wrong, and how to mend it.

    Codes are those of Kafka's protocol.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._servers = settings.bootstrap_servers
        self._at = f"at {self._servers}"
        self._protocol = settings.security_protocol

    def explain(self, code: int | None, text: str) -> SourceError:
        """Return the error for this code; `text` describes it. An error without a code (None) is only described."""
        match code:
            case 3 | 17:
                remedy = "create it (streampca create-topics), or correct the name"
                return TopicError(f"there is no topic {self._topic} {self._at}; {remedy}")
            case 10 | 18:
                remedy = f"raise max.message.bytes of {self._topic}"
                return SourceError(f"a record is too large for topic {self._topic} {self._at}; {remedy}")
            case 29 | 30 | 31 | 53:
                return self.not_authorized(text)
            case 33 | 34 | 58:
                return SourceError(f"the broker {self._at} refuses the login: {text}; check the sasl_ settings")
            case 35:
                return SourceError(f"the brokers {self._at} are too old: {text}; transform needs Kafka 2.5")
            case 50:
                remedy = "session_timeout_s is above transaction.max.timeout.ms of the brokers (15 minutes by default)"
                return SourceError(
                    f"the broker {self._at} refuses the transaction: {remedy}; lower it, or raise theirs"
                )
            case 82:
                return SourceError(
                    f"the group of topic {self._topic} {self._at} has given this worker's place to another member "
                    "with its group_instance_id; give each worker a group_instance_id of its own, or, if each has one, "
                    "start this worker again: a request of its own to join was cut, and arrived late"
                )
        return SourceError(f"topic {self._topic} {self._at}: {text}")

    def not_created(self, code: int, text: str) -> SourceError:
        """Return the error of a topic that cannot be created."""
        if code == 29:
            return self.not_authorized(f"create topic {self._topic}")
        return SourceError(f"topic {self._topic} cannot be created: {text}")

    def not_authorized(self, text: str) -> SourceError:
        """Return the error of a user without the right to do what `text` describes."""
        return TopicError(f"the broker {self._at} does not allow this user: {text}; grant it the right")

    def no_broker(self, cause: str) -> SourceError:
        """Return the error if no broker answers; `cause` is the last error of a connection, "" if there was none."""
        names_our_servers = any(server.strip() in cause for server in self._servers.split(","))
        names_an_address = re.search(r":\d+\b", cause)  # by its port
        if names_an_address and not names_our_servers:
            check = "advertised.listeners of this broker: the address must be one that this machine can reach"
        elif "SSL" in self._protocol:
            check = f"bootstrap_servers, security_protocol ({self._protocol} now), ssl_cafile and ssl_certfile"
        else:
            check = (
                f"bootstrap_servers and security_protocol ({self._protocol} now; SSL or SASL_SSL if the port speaks "
                "TLS, SASL_PLAINTEXT if it wants a login)"
            )
        error_type = CertificateError if "certificate" in cause.lower() else NoBrokerError
        because = f" ({cause})" if cause else ""
        return error_type(f"{NO_ANSWER} {self._at}{because}; check {check}")


def one_line(error: object) -> str:
    """Return an error's text without line breaks; if it has no text, the name of its type."""
    return " ".join(str(error).split()) or type(error).__name__


class ClientConnection(ABC):
    """The connection of one consumer, producer or admin client to the brokers of one topic."""

    reads_files_again = False  # whether the client reads the certificates again for each new connection
    last_failure = ""  # why the last connection failed or was cut; "" if none did since brokers were last back

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SettingsError` for certificates that cannot be used."""
        check_certificates(settings)
        self.messages = BrokerErrors(settings, topic)
        self._settings = settings
        self._servers = settings.bootstrap_servers
        self._topic = topic
        self._last_description = TopicDescription(id="", in_sync={})
        self._away_since: float | None = None  # by time.monotonic; None while a broker answers
        self._logged_cause: str | None = None  # of the outage, without numbers; None if no outage is logged
        self._logged_at = 0.0
        self._files_read_once = [Path(settings.config_file)] if settings.config_file else []
        if not self.reads_files_again:
            certificates = (settings.ssl_cafile, settings.ssl_certfile, settings.ssl_keyfile)
            self._files_read_once += filter(None, certificates)
        self._versions_read = file_versions(self._files_read_once)

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether a broker answers."""

    def partitions(self) -> frozenset[int]:
        """Return the topic's partitions, as they were at most some ten seconds ago; never waits."""
        return frozenset(self._last_description.in_sync)

    @abstractmethod
    def _ask(self, timeout_s: float) -> TopicDescription:
        """Ask a broker once. Raises as `describe` does."""

    def describe(self, timeout_s: float = 2.0, missing_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask the brokers for the topic; while it is missing, ask again for `missing_s`.

        Raises `SourceError` if it does not exist, `TimeoutError` if no broker answers in time.
        """
        started = time.monotonic()
        while (waited_s := time.monotonic() - started) <= timeout_s:
            try:
                self._last_description = self._ask(timeout_s - waited_s)
                return self._last_description
            except TopicError:
                if waited_s >= missing_s:
                    raise
            except TimeoutError:
                pass  # another broker may answer
            time.sleep(_RETRY_S)
        raise TimeoutError(f"{NO_ANSWER} at {self._servers}")

    def topic_id(self) -> str:
        """See `Source.topic_id`."""
        return self.describe().id

    def require_topic(self, timeout_s: float = 6.0, missing_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask for the topic, as `describe` does.

        Raises `SourceError`, and `NoBrokerError` with the cause and a remedy if no broker answers.
        """
        try:
            return self.describe(timeout_s, missing_s)
        except TimeoutError:
            raise self.messages.no_broker(self.last_failure) from None

    def watch(self) -> None:
        """Log the begin and the end of an outage, and each new cause; the caller's loop calls it in each turn.

        Raises `SourceError` if, during an outage, a file was renewed that only another process will read.
        """
        now = time.monotonic()
        if self.connected:
            if self._logged_cause is not None and self._away_since is not None:
                log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
                self.last_failure = ""
            self._away_since = None
            self._logged_cause = None
        elif self._away_since is None:
            self._away_since = now
        elif now - self._away_since > _LOGGED_AFTER_S:
            self._log_outage(now)
            self._refuse_renewed_files()

    def _log_outage(self, now: float) -> None:
        """Log the cause of an outage, unless it was logged already."""
        cause = _NUMBERS.sub("", self.last_failure)  # numbers, such as durations, differ each time
        is_new = cause != self._logged_cause
        if self._logged_cause is None or (is_new and now - self._logged_at > _NEXT_CAUSE_AFTER_S):
            log.warning("broker unreachable, waiting", bootstrap_servers=self._servers, cause=self.last_failure)
            self._logged_cause = cause
            self._logged_at = now

    def _refuse_renewed_files(self) -> None:
        """Raise `SourceError` if a file that this process reads only once has changed since the start."""
        versions_now = file_versions(self._files_read_once)
        for path, before, after in zip(self._files_read_once, self._versions_read, versions_now, strict=True):
            is_changed = after is not None and after != before  # None: the file is missing, perhaps while it is renewed
            if is_changed:
                raise SourceError(
                    f"{NO_ANSWER} at {self._servers} ({self.last_failure or 'no cause is known'}), and {path} "
                    "was changed since the start; only a new process reads certificates and settings again: start it"
                )


def check_certificates(settings: KafkaSettings) -> None:
    """Raise `SettingsError` for certificates that cannot be used: the clients would report an absent broker."""
    if "SSL" not in settings.security_protocol:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ssl_cafile:
        try:
            context.load_verify_locations(settings.ssl_cafile)
        except OSError as error:
            raise SettingsError(f"ssl_cafile {settings.ssl_cafile} is no file of certificates, PEM: {error}") from None
    if settings.ssl_certfile:
        try:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, key_password(settings))
        except OSError as error:
            key_file = settings.ssl_keyfile or settings.ssl_certfile
            raise SettingsError(
                f"ssl_certfile {settings.ssl_certfile} cannot be used with the key in {key_file}: {error}; "
                "both must be PEM, belong together, and ssl_password must open the key"
            ) from None


def key_password(settings: KafkaSettings) -> str:
    """Return the password of the private key, "" without one: for None, OpenSSL would prompt on the terminal."""
    return settings.ssl_password.get_secret_value() if settings.ssl_password else ""
