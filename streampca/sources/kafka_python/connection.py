"""The connection of a kafka-python client: the topic's id, its partitions, and whether a broker answers."""

import base64
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaProducer, TopicPartition, errors
from kafka.admin import ACLOperation, ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from streampca.errors import NoBrokerError, SourceError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import TopicDescription
from streampca.sources.client_connection import EXISTS, ClientConnection, key_password, one_line
from streampca.sources.kafka_python.patches import PatchedConnectionManager, PatchedNetClient, drop
from streampca.sources.oauth_tokens import OAuthTokens, create_tokens

_START_TIMEOUT_S = 6.0  # with the next one: a user waits, and mistakes are reported within ten seconds
_START_ANSWER_S = 3.0
_REQUEST_TIMEOUT_S = 20.0  # then a broker that hangs counts as away
_CLOSE_S = 0.5
_CHECK_S = 0.005
api_version: tuple[int, int] | None = None
"""Protocol version of the brokers; None: negotiated, which only the demo's broker cannot do."""
_TOPIC_ERRORS = (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError, errors.AuthorizationError)


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives each connection a token; its errors count as a connection that fails."""

    def __init__(self, tokens: OAuthTokens) -> None:
        self._tokens = tokens

    def token(self) -> str:
        try:
            return self._tokens.current()[0]
        except NoBrokerError as error:
            raise errors.KafkaConnectionError(str(error)) from None
        except SourceError as error:
            raise errors.SaslAuthenticationFailedError(str(error)) from None


def options(settings: KafkaSettings) -> dict[str, Any]:
    """Options of every client. Raises `SourceError` if a login needs a token and gets none.

    kafka-python reads the certificates at every connection, so they may be replaced while it runs.
    """
    tokens = create_tokens(settings)
    return {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",")],
        "security_protocol": settings.security_protocol,
        "sasl_mechanism": "OAUTHBEARER" if tokens else settings.sasl_mechanism,
        "sasl_oauth_token_provider": tokens and _TokenProvider(tokens),
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        "ssl_cafile": settings.ssl_cafile and str(settings.ssl_cafile),
        "ssl_certfile": settings.ssl_certfile and str(settings.ssl_certfile),
        "ssl_keyfile": settings.ssl_keyfile and str(settings.ssl_keyfile),
        "ssl_password": key_password(settings),
        "ssl_check_hostname": True,
        "api_version": api_version,
        "client_id": "streampca",
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 10_000,  # how soon new partitions are seen
        "request_timeout_ms": int(_REQUEST_TIMEOUT_S * 1000),
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 2000,
        "metrics_enabled": False,
    }


class Connection(ClientConnection):
    """The connection of one consumer, producer or admin client."""

    reads_files_again = True
    _manager: PatchedConnectionManager  # set by `_open`

    def start(self, kind: Any, **more: Any) -> Any:
        """A client (`kind`) of kafka-python with `more` options. Raises `SourceError`, also if the topic is missing."""
        made = self.connect(kind, **more)
        try:
            self.require_topic(_START_ANSWER_S)
        except SourceError:
            if isinstance(made, KafkaProducer):  # its own method waits for answers to its requests, without limit
                drop(made, _CLOSE_S)
            else:
                made.close()
            raise
        return made

    def connect(self, kind: Any, **more: Any) -> Any:
        """As `start`, but the topic need not exist."""
        try:
            taken = {name: option for name, option in options(self._settings).items() if name in kind.DEFAULT_CONFIG}
            return kind(**taken, **more, kafka_client=self._open)
        except (errors.KafkaError, OSError, ValueError) as error:
            raise self.source_error(error) from None

    def _open(self, **configs: Any) -> KafkaNetClient:
        net = NetworkSelector(**configs)
        self._manager = PatchedConnectionManager(net, self, **configs)
        client = PatchedNetClient(net=net, manager=self._manager, **configs)
        try:
            # Here, since the consumer does it late and without a deadline if an api_version is given.
            self._manager.bootstrap(_START_TIMEOUT_S * 1000)
        except BaseException:
            client.close()
            raise
        return client

    def _ask(self, timeout_s: float) -> TopicDescription:
        answered = threading.Event()
        # Not manager.run(), which would run the loop of a producer in two threads.
        answer = self._manager.call_soon(self._describe, timeout_s)
        answer.add_both(lambda _: answered.set())
        if not answered.wait(timeout_s + 1) or isinstance(answer.exception, errors.RetriableError):
            raise TimeoutError
        if answer.exception is not None:
            raise self.source_error(answer.exception) from None
        description = answer.value
        problem = errors.for_code(description.error_code)
        if issubclass(problem, _TOPIC_ERRORS):
            raise self.source_error(problem(self._topic))
        in_sync = {p.partition_index: len(p.isr_nodes) if p.leader_id >= 0 else 0 for p in description.partitions}
        identity: uuid.UUID | None = description.topic_id
        printed = base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=") if identity and identity.int else ""
        allowed = description.authorized_operations
        return TopicDescription(printed, in_sync, not allowed or ACLOperation.WRITE in allowed)

    async def _describe(self, timeout_s: float) -> Any:
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        request = MetadataRequest(
            topics=[topic], allow_auto_topic_creation=False, include_topic_authorized_operations=True
        )
        sent = self._manager.send(request)
        return (await self._manager.wait_for(sent, timeout_s * 1000)).topics[0]

    def partitions(self) -> frozenset[int]:
        return frozenset(self._manager.cluster.partitions_for_topic(self._topic) or ()) or super().partitions()

    def await_partitions(self) -> None:
        """Wait until the client knows them, some seconds at most: a group's leader that does not assigns none."""
        deadline = time.monotonic() + _START_ANSWER_S
        while not self._manager.cluster.partitions_for_topic(self._topic) and time.monotonic() < deadline:
            time.sleep(_CHECK_S)

    @property
    def connected(self) -> bool:
        return self._manager.connected

    @contextmanager
    def answers(self, unknown: str = "") -> Iterator[None]:
        """Raise `SourceError`; for what a retry may end `TimeoutError`, if it is said what is `unknown` then."""
        try:
            yield
        except errors.KafkaError as error:
            if unknown and isinstance(error, errors.RetriableError):
                raise TimeoutError(f"{unknown} are not known: {one_line(error)}") from None
            raise self.source_error(error) from None

    def source_error(self, error: BaseException) -> SourceError:
        """The message for an error that waiting cannot fix."""
        text = one_line(error)
        match error:
            case errors.KafkaTimeoutError() | TimeoutError():
                return self.messages.no_broker(self.last_failure)
            case errors.UnsupportedCodecError():
                return SourceError(
                    f"records of topic {self._topic} are compressed, and what reads them is not installed ({text}): "
                    "pip install 'kafka-python[lz4,snappy,zstd]'"
                )
        return self.messages.of(getattr(error, "errno", None), text)


class KafkaPythonAdmin(Connection):
    """See `streampca.sources.base.Admin`."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(settings, topic)
        self.client = self.connect(KafkaAdminClient)

    def brokers(self) -> list[tuple[str, str, int]]:
        with self.answers():
            brokers = self.client.describe_cluster()["brokers"]
        return [(str(b.get("broker_id", b.get("node_id"))), b["host"], b["port"]) for b in brokers]

    def topic_configs(self) -> dict[str, str]:
        resource, configs = ConfigResource(ConfigResourceType.TOPIC, self._topic), dict[str, Any]()
        with suppress(errors.KafkaError):
            configs = self.client.describe_configs([resource], config_filter="all")["topic"][self._topic]
        return {name: config["value"] for name, config in configs.items() if config["value"] is not None}

    def log_ends(self) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().in_sync]
        with self.answers():
            first, end = (
                self.client.list_partition_offsets(dict.fromkeys(tps, at))
                for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
        return {tp.partition: (first[tp].offset, end[tp].offset) for tp in tps}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
        with self.answers():
            (answer,) = self.client.create_topics({self._topic: options}, raise_errors=False)["topics"]
        if (code := answer["error_code"]) not in (0, EXISTS):
            raise self.messages.not_created(code, answer["error_message"])

    def close(self) -> None:
        self.client.close()
