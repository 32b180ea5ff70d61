"""The connection of either client to the brokers of one topic: its id and partitions, outages, and final errors."""

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
_GRACE_S = 1.0  # shorter interruptions are not logged
_SAY_AGAIN_S = 10.0  # after which another cause is logged: each of several brokers may have its own
_NUMBERS = re.compile(r"[0-9]+")
RETRIABLE = frozenset(
    {3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106}
)
"""Codes of errors that the protocol calls retriable (https://kafka.apache.org/protocol#protocol_error_codes)."""

EXISTS = 36  # the code of a topic's creation

log = structlog.get_logger()


class TopicError(SourceError):
    """A broker accepts the client, but not its use of the topic."""


class BrokerErrors:
    """The messages for one topic on one cluster; codes are Kafka's protocol's."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic, self._servers = topic, settings.bootstrap_servers
        self._at = f"at {self._servers}"
        self._protocol = settings.security_protocol

    def of(self, code: int | None, text: str) -> SourceError:
        """The message for an error with this code; `text` describes it."""
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
        """The topic cannot be created."""
        if code == 29:
            return self.not_authorized(f"create topic {self._topic}")
        return SourceError(f"topic {self._topic} cannot be created: {text}")

    def not_authorized(self, text: str) -> SourceError:
        """The user lacks a right."""
        return TopicError(f"the broker {self._at} does not allow this user: {text}; grant it the right")

    def no_broker(self, cause: str) -> SourceError:
        """No broker answers; `cause` is the last error seen, if any."""
        check = (
            f"bootstrap_servers and security_protocol ({self._protocol} now; SSL or SASL_SSL if the port speaks TLS, "
            "SASL_PLAINTEXT if it wants a login)"
        )
        if "SSL" in self._protocol:
            check = f"bootstrap_servers, security_protocol ({self._protocol} now), ssl_cafile and ssl_certfile"
        if not any(server.strip() in cause for server in self._servers.split(",")) and re.search(r":\d+\b", cause):
            check = "advertised.listeners of this broker: the address must be one that this machine can reach"
        kind = CertificateError if "certificate" in cause.lower() else NoBrokerError
        return kind(f"{NO_ANSWER} {self._at}{f' ({cause})' if cause else ''}; check {check}")


def one_line(error: object) -> str:
    """An error's text without line breaks, or its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


class ClientConnection(ABC):
    """The connection of one client."""

    reads_files_again = False  # whether each connection reads the certificates
    last_failure = ""  # why the last connection was not made, or was cut

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SettingsError` for certificates that cannot be used."""
        check_certificates(settings)
        self.messages = BrokerErrors(settings, topic)
        self._settings, self._servers, self._topic = settings, settings.bootstrap_servers, topic
        self._described = TopicDescription("", {})  # the last answer
        self._away_since: float | None = None
        self._logged: str | None = None  # the cause of the outage, as it was logged
        self._logged_at = 0.0
        self._files = [Path(settings.config_file)] if settings.config_file else []
        if not self.reads_files_again:
            self._files += filter(None, (settings.ssl_cafile, settings.ssl_certfile, settings.ssl_keyfile))
        self._versions = file_versions(self._files)

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Return whether a broker answers."""

    def partitions(self) -> frozenset[int]:
        """The topic's partitions, at most some ten seconds old; never waits."""
        return frozenset(self._described.in_sync)

    @abstractmethod
    def _ask(self, timeout_s: float) -> TopicDescription:
        """Ask a broker once. Raises as `describe` does."""

    def describe(self, timeout_s: float = 2.0, missing_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask the brokers for the topic, again for `missing_s` if it is missing. Raises as `Source.topic_id` does."""
        started = time.monotonic()
        while (waited_s := time.monotonic() - started) <= timeout_s:
            try:
                self._described = self._ask(timeout_s - waited_s)
                return self._described
            except TopicError:
                if waited_s >= missing_s:
                    raise
            except TimeoutError:
                pass  # another broker may answer
            time.sleep(_RETRY_S)
        raise TimeoutError(f"{NO_ANSWER} at {self._servers}")

    def topic_id(self) -> str:
        """See `Source.topic_id`; the id is as Kafka's own tools print it."""
        return self.describe().id

    def require_topic(self, timeout_s: float = 6.0, missing_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask as `describe` does, but raise `NoBrokerError` if no broker answers."""
        try:
            return self.describe(timeout_s, missing_s)
        except TimeoutError:
            raise self.messages.no_broker(self.last_failure) from None

    def watch(self) -> None:
        """Log the begin and the end of an outage, and each new cause; to be called again and again.

        Raises `SourceError` if files were renewed that only another process will read.
        """
        now = time.monotonic()
        if self.connected:
            if self._logged is not None and self._away_since is not None:
                log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
                self.last_failure = ""
            self._away_since = self._logged = None
        elif self._away_since is None:
            self._away_since = now
        elif now - self._away_since > _GRACE_S:
            cause = _NUMBERS.sub("", self.last_failure)
            if self._logged is None or (cause != self._logged and now - self._logged_at > _SAY_AGAIN_S):
                log.warning("broker unreachable, waiting", bootstrap_servers=self._servers, cause=self.last_failure)
                self._logged, self._logged_at = cause, now
            self._refuse_renewed_files()

    def _refuse_renewed_files(self) -> None:
        """Raise `SourceError` if a file has changed since the start that this process does not read again."""
        for path, before, after in zip(self._files, self._versions, file_versions(self._files), strict=True):
            if after not in (None, before):
                raise SourceError(
                    f"{NO_ANSWER} at {self._servers} ({self.last_failure or 'no cause is known'}), and {path} "
                    "was changed since the start; only a new process reads certificates and settings again: start it"
                )


def check_certificates(settings: KafkaSettings) -> None:
    """Raise `SettingsError` for files that cannot be used, which the clients report as an absent broker."""
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
            key = settings.ssl_keyfile or settings.ssl_certfile
            raise SettingsError(
                f"ssl_certfile {settings.ssl_certfile} cannot be used with the key in {key}: {error}; "
                "both must be PEM, belong together, and ssl_password must open the key"
            ) from None


def key_password(settings: KafkaSettings) -> str:
    """The password of the private key; never None, for which OpenSSL would prompt on the terminal."""
    return settings.ssl_password.get_secret_value() if settings.ssl_password else ""
