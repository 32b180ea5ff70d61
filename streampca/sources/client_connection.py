"""What both Kafka clients share of a connection to the brokers of one topic: asking for the topic, logging outages."""

import re
import ssl
import time
from abc import ABC, abstractmethod
from typing import Any

import structlog

from streampca.errors import NO_ANSWER, SettingsError, SourceError
from streampca.process.file_versions import read_file_version
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import TopicDescription
from streampca.sources.broker_errors import BrokerErrors, TopicError

_RETRY_S = 0.1
_NEW_TOPIC_S = 1.0  # for this long, a broker may not know a topic that was just created
_LOGGED_AFTER_S = 1.0  # shorter outages are not logged
# During an outage, a new cause is logged at most this often: if several brokers are away, each has its own cause.
_NEXT_CAUSE_AFTER_S = 10.0
_NUMBERS = re.compile(r"[0-9]+")

log = structlog.get_logger()


class ClientConnection(ABC):
    """The connection of one consumer, producer or admin client to the brokers of one topic."""

    reads_certificates_again = False  # whether the client reads the certificates again for each new connection
    last_failure = ""  # why the last connection failed; "" if no connection has failed since the last outage ended

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SettingsError` for certificates that cannot be used."""
        check_certificates(settings)
        self.broker_errors = BrokerErrors(settings, topic)
        self._settings = settings
        self._servers = settings.bootstrap_servers
        self._topic = topic
        self._last_description = TopicDescription(id="", in_sync={})  # until a broker has described the topic
        self._away_since: float | None = None  # by time.monotonic; None while a broker answers
        # The cause of the current outage that was logged last; None if none was logged yet. Its digits are removed, so
        # that a cause with another port or duration is not a new cause.
        self._logged_cause: str | None = None
        self._logged_at = 0.0  # when the cause was logged, by time.monotonic
        # Files that only a new process reads again, if they are replaced.
        files_read_once = [settings.config_file]
        if not self.reads_certificates_again:
            files_read_once += [settings.ssl_cafile, settings.ssl_certfile, settings.ssl_keyfile]
        self._file_versions_at_start = {path: read_file_version(path) for path in files_read_once if path}

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether a broker answers."""

    def partitions(self) -> frozenset[int]:
        """Return the topic's partitions, as last reported by a broker; never waits."""
        return frozenset(self._last_description.partitions)

    @abstractmethod
    def _ask_for_topic(self, timeout_s: float) -> TopicDescription:
        """Ask one broker for the topic.

        Raises `TopicError` if the topic does not exist, another `SourceError` if no retry helps, and `TimeoutError`.
        """

    @abstractmethod
    def source_error(self, error: Any, *, lacks_key: bool = False) -> SourceError:
        """Return our error for an error of the client.

        `lacks_key` says whether the error is the refusal of a record that has no key: a compacted topic needs keys.
        """

    def describe(self, timeout_s: float = 2.0, wait_for_topic_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask for the topic until a broker answers. Raises `TimeoutError` after `timeout_s`.

        If a broker answers with an error for the topic, ask again until `wait_for_topic_s` have passed, since the topic
        may just have been created. Then raise this `TopicError`, also if `timeout_s` have passed before.
        """
        started_at = time.monotonic()
        waited_s = 0.0
        topic_error: TopicError | None = None  # the newest answer, unless a later request was not answered
        while waited_s <= timeout_s:
            try:
                self._last_description = self._ask_for_topic(timeout_s - waited_s)
                return self._last_description
            except TopicError as error:
                if waited_s >= wait_for_topic_s:
                    raise
                topic_error = error
            except TimeoutError:
                topic_error = None  # another broker may answer
            time.sleep(_RETRY_S)
            waited_s = time.monotonic() - started_at
        raise topic_error or TimeoutError(str(self._explain_timeout()))

    def require_topic(self, timeout_s: float = 6.0, wait_for_topic_s: float = _NEW_TOPIC_S) -> TopicDescription:
        """Ask for the topic, as `describe` does, but raise `NoBrokerError` if no broker answers."""
        try:
            return self.describe(timeout_s, wait_for_topic_s)
        except TimeoutError:
            raise self._explain_timeout() from None

    def _explain_timeout(self) -> SourceError:
        """Return the error if no broker has answered."""
        return self.broker_errors.no_broker_error(self.last_failure)

    def log_outages(self) -> None:
        """Log when an outage begins, has a new cause, or ends. The caller's loop calls this in each turn.

        Raises `SourceError` if, during an outage, a file was replaced that only a new process reads: a certificate, or
        the settings.
        """
        now = time.monotonic()
        if self.connected:
            self._end_outage(now)
        elif self._away_since is None:
            self._away_since = now
        elif now - self._away_since > _LOGGED_AFTER_S:
            self._log_outage(now)
            self._raise_if_files_were_replaced()

    def _end_outage(self, now: float) -> None:
        """Forget an outage; if its beginning was logged, log its end."""
        if self._logged_cause is not None and self._away_since is not None:
            log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
            self.last_failure = ""
        self._away_since = None
        self._logged_cause = None

    def _log_outage(self, now: float) -> None:
        """Log the cause of an outage, unless it was logged already."""
        cause = _NUMBERS.sub("", self.last_failure)  # durations in the text differ each time
        is_new_outage = self._logged_cause is None
        is_new_cause = cause != self._logged_cause and now - self._logged_at > _NEXT_CAUSE_AFTER_S
        if is_new_outage or is_new_cause:
            log.warning("broker unreachable, waiting", bootstrap_servers=self._servers, cause=self.last_failure)
            self._logged_cause = cause
            self._logged_at = now

    def _raise_if_files_were_replaced(self) -> None:
        """Raise `SourceError` if a file that is read only at the start was replaced.

        The outage may come from an expired certificate. Then only a new process can connect, since it reads the new
        file.
        """
        for path, version_at_start in self._file_versions_at_start.items():
            version = read_file_version(path)
            is_missing = version is None  # perhaps the file is being replaced
            if not is_missing and version != version_at_start:
                raise SourceError(
                    f"{NO_ANSWER} at {self._servers} ({self.last_failure or 'no cause is known'}), and {path} "
                    "was changed since the start; only a new process reads certificates and settings again: start it"
                )


def check_certificates(settings: KafkaSettings) -> None:
    """Raise `SettingsError` if the certificates cannot be used. The clients would only report a failed connection."""
    if "SSL" not in settings.security_protocol:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ssl_cafile:
        try:
            context.load_verify_locations(settings.ssl_cafile)
        except OSError as error:
            raise SettingsError(
                f"ssl_cafile {settings.ssl_cafile} is not a file of PEM certificates: {error}"
            ) from None
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
    """Return the password of the private key; "" if there is none. For None, OpenSSL would ask the user."""
    return settings.ssl_password.get_secret_value() if settings.ssl_password else ""
