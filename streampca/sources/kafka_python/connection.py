"""The connection of a kafka-python client to the brokers of one topic, and its options."""

import base64
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from streampca.sources.client_connection import TOPIC_EXISTS, ClientConnection, key_password, one_line
from streampca.sources.kafka_python.patches import PatchedConnectionManager, PatchedNetClient, drop
from streampca.sources.oauth_tokens import OAuthTokens, create_tokens

# Both together are less than ten seconds: a user waits for the start, and mistakes are reported within this time.
_FIRST_CONNECTION_S = 6.0
_FIRST_ANSWER_S = 3.0
_REQUEST_TIMEOUT_S = 20.0  # if a broker does not answer for this long, it counts as away
_CLOSE_TIMEOUT_S = 0.5
_CHECK_S = 0.005
api_version: tuple[int, int] | None = None
"""Protocol version of the brokers; if None, the client negotiates it, which the demo's broker cannot do."""
_TOPIC_ERRORS = (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError, errors.AuthorizationError)


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives each new connection a token. If there is none, the connection fails."""

    def __init__(self, tokens: OAuthTokens) -> None:
        self._tokens = tokens

    def token(self) -> str:
        try:
            token, _ = self._tokens.current()
        except NoBrokerError as error:
            raise errors.KafkaConnectionError(str(error)) from None
        except SourceError as error:
            raise errors.SaslAuthenticationFailedError(str(error)) from None
        return token


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options of every client. Raises `SourceError` if the login needs a token and gets none.

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


class KafkaPythonConnection(ClientConnection):
    """See `streampca.sources.client_connection.ClientConnection`. It shares the connections of its client."""

    reads_files_again = True
    _manager: PatchedConnectionManager  # set by `_open`

    def start(self, client_class: Any, **more_options: Any) -> Any:
        """Create a client of kafka-python, and check that the topic exists. Raises `SourceError`."""
        client = self.connect(client_class, **more_options)
        try:
            self.require_topic(_FIRST_ANSWER_S)
        except SourceError:
            if isinstance(client, KafkaProducer):  # its own `close` waits without limit for answers to its requests
                drop(client, _CLOSE_TIMEOUT_S)
            else:
                client.close()
            raise
        return client

    def connect(self, client_class: Any, **more_options: Any) -> Any:
        """Create a client of kafka-python, for a topic that need not exist. Raises `SourceError`."""
        try:
            options = connection_options(self._settings)
            taken = {name: option for name, option in options.items() if name in client_class.DEFAULT_CONFIG}
            return client_class(**taken, **more_options, kafka_client=self._open)
        except (errors.KafkaError, OSError, ValueError) as error:
            raise self.source_error(error) from None

    def _open(self, **configs: Any) -> KafkaNetClient:
        """Create the network client of a consumer, producer or admin client, and connect it."""
        net = NetworkSelector(**configs)
        self._manager = PatchedConnectionManager(net, self, **configs)
        client = PatchedNetClient(net=net, manager=self._manager, **configs)
        try:
            # If an api_version is given, the consumer itself would connect late, and without a deadline.
            self._manager.bootstrap(_FIRST_CONNECTION_S * 1000)
        except BaseException:
            client.close()
            raise
        return client

    def _ask(self, timeout_s: float) -> TopicDescription:
        answered = threading.Event()
        # With manager.run(), the loop of a producer would run in two threads.
        answer = self._manager.call_soon(self._request_topic, timeout_s)
        answer.add_both(lambda _: answered.set())
        if not answered.wait(timeout_s + 1) or isinstance(answer.exception, errors.RetriableError):
            raise TimeoutError  # another broker may answer
        if answer.exception is not None:
            raise self.source_error(answer.exception) from None
        topic = answer.value
        topic_error = errors.for_code(topic.error_code)
        if issubclass(topic_error, _TOPIC_ERRORS):
            raise self.source_error(topic_error(self._topic))
        operations = topic.authorized_operations  # none: the broker does not tell them
        return TopicDescription(
            id=_printed_id(topic.topic_id),
            in_sync={p.partition_index: len(p.isr_nodes) if p.leader_id >= 0 else 0 for p in topic.partitions},
            is_writable=not operations or ACLOperation.WRITE in operations,
        )

    async def _request_topic(self, timeout_s: float) -> Any:
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        request = MetadataRequest(
            topics=[topic], allow_auto_topic_creation=False, include_topic_authorized_operations=True
        )
        sent = self._manager.send(request)
        answer = await self._manager.wait_for(sent, timeout_s * 1000)
        return answer.topics[0]

    def partitions(self) -> frozenset[int]:
        known_to_client = self._manager.cluster.partitions_for_topic(self._topic)
        return frozenset(known_to_client or ()) or super().partitions()

    def wait_for_partitions(self) -> None:
        """Wait until the client knows the topic's partitions, some seconds at most.

        If the leader of a group does not know them, it assigns none.
        """
        deadline = time.monotonic() + _FIRST_ANSWER_S
        while not self._manager.cluster.partitions_for_topic(self._topic) and time.monotonic() < deadline:
            time.sleep(_CHECK_S)

    @property
    def connected(self) -> bool:
        return self._manager.connected

    @contextmanager
    def explained_errors(self, asked_for: str = "") -> Iterator[None]:
        """Raise the client's errors as `SourceError`.

        If it is given what the requests ask for, an error that a retry may fix is raised as `TimeoutError`, which names
        it.
        """
        try:
            yield
        except errors.KafkaError as error:
            if asked_for and isinstance(error, errors.RetriableError):
                raise TimeoutError(f"{asked_for} are not known: {one_line(error)}") from None
            raise self.source_error(error) from None

    def source_error(self, error: BaseException) -> SourceError:
        """Explain an error that waiting cannot fix."""
        text = one_line(error)
        match error:
            case errors.KafkaTimeoutError() | TimeoutError():
                return self.messages.no_broker(self.last_failure)
            case errors.UnsupportedCodecError():
                return SourceError(
                    f"records of topic {self._topic} are compressed, and what reads them is not installed ({text}): "
                    "pip install 'kafka-python[lz4,snappy,zstd]'"
                )
        return self.messages.explain(getattr(error, "errno", None), text)


def _printed_id(topic_id: uuid.UUID | None) -> str:
    """Return a topic's id as Kafka's own tools print it; "" if the broker gives topics no ids."""
    if topic_id is None or topic_id.int == 0:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


class KafkaPythonAdmin(KafkaPythonConnection):
    """See `streampca.sources.base.Admin`."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(settings, topic)
        self.client = self.connect(KafkaAdminClient)

    def brokers(self) -> list[tuple[str, str, int]]:
        with self.explained_errors():
            brokers = self.client.describe_cluster()["brokers"]
        return [(str(broker["broker_id"]), broker["host"], broker["port"]) for broker in brokers]

    def topic_configs(self) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic)
        try:
            configs = self.client.describe_configs([resource], config_filter="all")["topic"][self._topic]
        except errors.KafkaError:
            return {}
        return {name: config["value"] for name, config in configs.items() if config["value"] is not None}

    def log_ends(self) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().in_sync]
        with self.explained_errors():
            earliest = self.client.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.EARLIEST))
            latest = self.client.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
        return {tp.partition: (earliest[tp].offset, latest[tp].offset) for tp in tps}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
        with self.explained_errors():
            (answer,) = self.client.create_topics({self._topic: options}, raise_errors=False)["topics"]
        code = answer["error_code"]
        if code not in (0, TOPIC_EXISTS):
            raise self.messages.not_created(code, answer["error_message"])

    def close(self) -> None:
        self.client.close()
