"""The connection of either client: the topic's id, its partitions, and outages."""

import ssl
import time
from abc import ABC, abstractmethod

import structlog

from streampca.errors import SettingsError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.broker_errors import BrokerErrors, TopicError

_RETRY_S = 0.1
_NEW_TOPIC_S = 1.0  # how long to ask again for a missing topic: a new one may reach a broker late
_GRACE_S = 1.0  # shorter interruptions are not logged

log = structlog.get_logger()


class TopicConnection(ABC):
    """The connection to the brokers of one topic."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises `SettingsError` for certificates that cannot be used."""
        check_certificates(settings)
        self.messages = BrokerErrors(settings, topic)
        self._settings, self._servers, self._topic = settings, settings.bootstrap_servers, topic
        self._described: frozenset[int] = frozenset()  # partitions in the last answer
        self._away_since: float | None = None
        self._logged = False  # the outage

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Return whether a broker answers."""

    @abstractmethod
    def partitions(self) -> frozenset[int]:
        """The topic's partitions, at most some ten seconds old; never waits."""

    @abstractmethod
    def _ask(self, timeout_s: float) -> str:
        """Ask a broker once for the topic's id, and note its partitions. Raises as `topic_id` does."""

    def topic_id(self, timeout_s: float = 2.0) -> str:
        """The topic's id, as Kafka's own tools print it; "" from brokers before 2.8, which have none.

        Raises `SourceError` when there is no such topic, `TimeoutError` when no broker answers in time.
        """
        started = time.monotonic()
        while (waited_s := time.monotonic() - started) <= timeout_s:
            try:
                return self._ask(timeout_s - waited_s)
            except TopicError:
                if waited_s > _NEW_TOPIC_S:
                    raise
            except TimeoutError:
                pass  # another broker may answer
            time.sleep(_RETRY_S)
        raise TimeoutError(f"no broker answers at {self._servers}")

    def watch(self) -> None:
        """Log the begin and the end of an outage; to be called again and again."""
        now = time.monotonic()
        if self.connected:
            if self._logged and self._away_since is not None:
                log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
            self._away_since, self._logged = None, False
        elif self._away_since is None:
            self._away_since = now
        elif not self._logged and now - self._away_since > _GRACE_S:
            log.warning("broker unreachable, waiting", bootstrap_servers=self._servers)
            self._logged = True


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
