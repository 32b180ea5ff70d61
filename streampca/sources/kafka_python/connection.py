"""The connection to the brokers, for the source and the dead letters: who is asked, who refused, who is away."""

import base64
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import structlog
from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    UnsupportedSaslMechanismError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from streampca.errors import SourceError
from streampca.settings import KafkaSettings
from streampca.sources.kafka_python import tls
from streampca.sources.kafka_python.patches import PatchedConnectionManager, PatchedNetClient, one_line, options

_START_TIMEOUT_S = 6.0  # with the next: a person waits, and a mistake must be told within ten seconds
_START_ANSWER_S = 3.0
_DOUBT_S = 1.0  # how long a missing topic is asked for again: a broker may learn of a new one late
_SILENCE_S = 1.0  # how long no broker may be connected before it is said
_DEAF_S = 20.0  # without a byte from any broker: metadata are asked for every ten seconds, heartbeats come more often
_NOT_OURS = (UnknownTopicOrPartitionError, InvalidTopicError, AuthorizationError)

log = structlog.get_logger()


class Connection:
    """One client's line to the brokers."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings, self._servers, self._topic = settings, settings.bootstrap_servers, topic
        self._manager: PatchedConnectionManager  # once opened
        self._described: frozenset[int] = frozenset()
        self._away_since: float | None = None
        self._told = False

    def start(self, kind: Callable[..., Any], **more: Any) -> Any:
        """A consumer or producer of kafka-python, as `kind` says, when the topic is there; with `more` options.

        Raises `SourceError`, and `SettingsError` for certificates that cannot be used.
        """
        tls.check(self._settings)
        try:
            made = kind(**options(self._settings), **more, kafka_client=self._open)
        except (KafkaError, OSError, ValueError) as error:
            raise self.refused(error) from None
        try:
            self.topic_id(_START_ANSWER_S)
        except TimeoutError as error:
            made.close()
            raise self.refused(error) from None
        except SourceError:
            made.close()
            raise
        return made

    def _open(self, **configs: Any) -> KafkaNetClient:
        net = NetworkSelector(**configs)
        self._manager = PatchedConnectionManager(net, **configs)
        client = PatchedNetClient(net=net, manager=self._manager, **configs)
        try:
            # Now rather than by the consumer, which with a given api_version does so late and without a deadline.
            self._manager.bootstrap(_START_TIMEOUT_S * 1000)
        except BaseException:
            client.close()
            raise
        return client

    def topic_id(self, timeout_s: float = 2.0) -> str:
        """The identity of the topic, as Kafka's own tools print it; "" from brokers before 2.8, which have none.

        Raises `SourceError` when there is no such topic, `TimeoutError` when no broker answers in time.
        """
        answered = threading.Event()
        # Not manager.run(), which would drive the loop of a producer from two threads.
        answer = self._manager.call_soon(self._ask_topic_id, self._manager, timeout_s)
        answer.add_both(lambda _: answered.set())
        if not answered.wait(timeout_s + 1) or isinstance(answer.exception, KafkaTimeoutError):
            raise TimeoutError(f"no broker answers at {self._servers}")
        if answer.exception is not None:
            raise self.refused(answer.exception) from None
        found = answer.value
        return base64.urlsafe_b64encode(found.bytes).decode().rstrip("=") if found and found.int else ""

    async def _ask_topic_id(self, manager: PatchedConnectionManager, timeout_s: float) -> uuid.UUID | None:
        """Ask until there is an answer; for a while also when a broker does not know the topic (yet)."""
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            try:
                return await self._ask_once(manager, timeout_s - waited_s)
            except UnknownTopicOrPartitionError:
                if waited_s > _DOUBT_S:
                    raise
            except RetriableError:
                if waited_s > timeout_s:
                    raise KafkaTimeoutError from None
            await manager._net.sleep(0.1)

    async def _ask_once(self, manager: PatchedConnectionManager, timeout_s: float) -> uuid.UUID | None:
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        sent = manager.send(MetadataRequest(topics=[topic], allow_auto_topic_creation=False))
        response = await manager.wait_for(sent, max(timeout_s, 0) * 1000)
        found = response.topics[0]
        problem = for_code(found.error_code)
        if issubclass(problem, _NOT_OURS):
            raise problem(self._topic)
        self._described = frozenset(p.partition_index for p in found.partitions)
        identity: uuid.UUID | None = found.topic_id
        return identity

    def partitions(self) -> frozenset[int]:
        """The topic's partitions as last heard: by the client, some ten seconds ago at most, or with the topic's id."""
        return frozenset(self._manager.cluster.partitions_for_topic(self._topic) or self._described)

    @property
    def connected(self) -> bool:
        """Whether there is a line to any broker now."""
        return self._manager.connected

    @property
    def answering(self) -> bool:
        """Whether there is a line to a broker, and something came over it lately: lines can also go dead silently."""
        return self.connected and time.monotonic() - self._manager.heard_at < _DEAF_S

    def watch(self) -> None:
        """Say once that the brokers went away, and once that they are back."""
        now = time.monotonic()
        if self.connected:
            if self._told and self._away_since is not None:
                log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
            self._away_since, self._told = None, False
        elif self._away_since is None:
            self._away_since = now
        elif not self._told and now - self._away_since > _SILENCE_S:
            log.warning("broker unreachable, waiting", bootstrap_servers=self._servers)
            self._told = True

    def refused(self, error: BaseException) -> SourceError:
        """A sentence for what waiting cannot cure."""
        at, text = f"at {self._servers}", one_line(error)
        match error:
            case UnknownTopicOrPartitionError() | InvalidTopicError():
                return SourceError(f"there is no topic {self._topic} {at}; create it, or correct the name")
            case AuthorizationError():
                return SourceError(f"the broker {at} does not allow this user: {text}; grant it the right")
            case SaslAuthenticationFailedError() | UnsupportedSaslMechanismError() | IllegalSaslStateError():
                return SourceError(f"the broker {at} refuses the login: {text}; check the sasl_ settings")
            case KafkaTimeoutError() | TimeoutError():
                cause = f" ({self._manager.last_failure})" if self._manager.last_failure else ""
                check = "bootstrap_servers and security_protocol"
                if "SSL" in self._settings.security_protocol:
                    check = "bootstrap_servers, security_protocol, ssl_cafile and ssl_certfile"
                return SourceError(f"no broker answers {at}{cause}; check {check}")
            case UnsupportedCodecError():
                return SourceError(
                    f"records of topic {self._topic} are compressed, and what reads them is not installed ({text}): "
                    "pip install 'kafka-python[lz4,snappy,zstd]'"
                )
        return SourceError(f"topic {self._topic} {at}: {text}")
