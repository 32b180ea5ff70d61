"""The connection of a kafka-python client to the brokers of one topic, and its options."""

import base64
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
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
from streampca.sources.broker_errors import TOPIC_EXISTS, UNKNOWN_TOPIC_CODES, one_line
from streampca.sources.client_connection import ClientConnection, key_password
from streampca.sources.kafka_python.client_internals import close_producer
from streampca.sources.kafka_python.patched_connections import PatchedConnectionManager, PatchedNetClient
from streampca.sources.oauth_tokens import OAuthTokens, create_tokens

# Both together are less than ten seconds: a user waits for the start, and mistakes are reported within this time.
_FIRST_CONNECTION_S = 6.0
_FIRST_ANSWER_S = 3.0
_REQUEST_TIMEOUT_S = 20.0  # if a broker does not answer for this long, it counts as away
_RETRY_S = 0.1
_CHECK_S = 0.005  # between two looks at the client's metadata
api_version: tuple[int, int] | None = None
"""Protocol version of the brokers; if None, the client negotiates it, which the demo's broker cannot do."""
_NOT_CONNECTED = (errors.KafkaConnectionError, errors.NodeNotReadyError)
_TOPIC_ERRORS = (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError, errors.AuthorizationError)


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives each new connection a token. If there is none, the connection fails."""

    def __init__(self, tokens: OAuthTokens) -> None:
        self._tokens = tokens

    def token(self) -> str:
        """Return a token for a new connection. Raises errors of kafka-python."""
        try:
            token, _ = self._tokens.current()
        except NoBrokerError as error:
            raise errors.KafkaConnectionError(str(error)) from None
        except SourceError as error:
            raise errors.SaslAuthenticationFailedError(str(error)) from None
        return token


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options of every client. Raises `SourceError` if the login gets no token."""
    tokens = create_tokens(settings)
    return {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",")],
        "security_protocol": settings.security_protocol,
        "sasl_mechanism": "OAUTHBEARER" if tokens else settings.sasl_mechanism,
        "sasl_oauth_token_provider": tokens and _TokenProvider(tokens),
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        "ssl_cafile": settings.ssl_cafile,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile": settings.ssl_keyfile,
        "ssl_password": key_password(settings),
        "ssl_check_hostname": True,
        "api_version": api_version,  # None, except in the demo, which sets this variable of the module
        "client_id": settings.client_id,
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 10_000,  # how soon new partitions are seen
        "request_timeout_ms": int(_REQUEST_TIMEOUT_S * 1000),
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 2000,
        "metrics_enabled": False,  # nobody reads the metrics of the client
    }


class KafkaPythonConnection(ClientConnection):
    """See `streampca.sources.client_connection.ClientConnection`. It shares the connections of its client."""

    reads_certificates_again = True
    _manager: PatchedConnectionManager  # set by `_open_network_client`

    def start(self, client_class: Any, **more_options: Any) -> Any:
        """Create a client of kafka-python, and check that the topic exists. Raises `SourceError`."""
        client = self.connect(client_class, **more_options)
        try:
            self.require_topic(_FIRST_ANSWER_S)
        except SourceError:
            if isinstance(client, KafkaProducer):  # its own `close` waits without limit
                close_producer(client)
            else:
                client.close()
            raise
        return client

    def connect(self, client_class: Any, **more_options: Any) -> Any:
        """Create a client of kafka-python. The topic is not checked, and need not exist. Raises `SourceError`."""
        try:
            options = connection_options(self._settings)
            known_options = {name: value for name, value in options.items() if name in client_class.DEFAULT_CONFIG}
            return client_class(**known_options, **more_options, kafka_client=self._open_network_client)
        except (errors.KafkaError, OSError, ValueError) as error:
            raise self.source_error(error) from None

    def _open_network_client(self, **configs: Any) -> KafkaNetClient:
        """Create the network client of a consumer, producer or admin client, and connect it."""
        net = NetworkSelector(**configs)
        self._manager = PatchedConnectionManager(net, self, **configs)
        client = PatchedNetClient(net=net, manager=self._manager, **configs)
        try:
            # Connect now, with a deadline: a consumer with the option `api_version` would connect later, without one.
            self._manager.bootstrap(_FIRST_CONNECTION_S * 1000)
        except BaseException:
            client.close()
            raise
        return client

    def _ask_for_topic(self, timeout_s: float) -> TopicDescription:
        """Ask a broker for the topic, from any thread. Raises `TimeoutError` if the caller should ask again."""
        has_ended = threading.Event()
        # A thread of the client runs its event loop, and sends the request. We do not call `_manager.run`: if the
        # client is a producer, it would run the same event loop in our thread at the same time.
        request = self._manager.call_soon(self._request_topic, timeout_s)
        request.add_both(lambda _: has_ended.set())
        is_in_time = has_ended.wait(timeout_s + 1)  # the request itself ends after `timeout_s`
        if not is_in_time or isinstance(request.exception, errors.RetriableError):
            raise TimeoutError
        if request.exception is not None:
            raise self.source_error(request.exception) from None
        return self._read_description(request.value)

    def _read_description(self, topic: Any) -> TopicDescription:
        """Return the topic in a broker's answer. Raises `SourceError`."""
        topic_error = errors.for_code(topic.error_code)
        if issubclass(topic_error, _TOPIC_ERRORS):
            raise self.source_error(topic_error(self._topic))
        operations = topic.authorized_operations  # empty if unknown
        in_sync = {}
        for partition in topic.partitions:
            has_leader = partition.leader_id >= 0
            in_sync[partition.partition_index] = len(partition.isr_nodes) if has_leader else 0
        return TopicDescription(
            id=format_topic_id(topic.topic_id),
            in_sync=in_sync,
            is_writable=not operations or ACLOperation.WRITE in operations,
        )

    async def _request_topic(self, timeout_s: float) -> Any:
        """Ask a broker for the topic, and return its part of the answer. Runs in the client's event loop."""
        topic = MetadataRequest.MetadataRequestTopic(name=self._topic)
        request = MetadataRequest(
            topics=[topic],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,  # they tell whether this user may write to the topic
        )
        sent = self._manager.send(request)
        answer = await self._manager.wait_for(sent, timeout_s * 1000)
        return answer.topics[0]

    def partitions(self) -> frozenset[int]:
        known_to_client = self._manager.cluster.partitions_for_topic(self._topic)
        return frozenset(known_to_client or ()) or super().partitions()

    def wait_for_partitions(self) -> None:
        """Wait until the client knows the topic's partitions, some seconds at most.

        If this consumer leads its group, it assigns only partitions that it knows.
        """
        deadline = time.monotonic() + _FIRST_ANSWER_S
        while not self._manager.cluster.partitions_for_topic(self._topic) and time.monotonic() < deadline:
            time.sleep(_CHECK_S)

    @property
    def connected(self) -> bool:
        return self._manager.connected

    @contextmanager
    def translate_errors(self, asked_for: str = "") -> Iterator[None]:
        """Raise `SourceError` for an error of the client in the block.

        With `asked_for`, such as "the offsets", an error that a retry may fix becomes a `TimeoutError`.
        """
        try:
            yield
        except errors.KafkaError as error:
            if asked_for and isinstance(error, errors.RetriableError):
                raise TimeoutError(f"{asked_for} are not known: {self._find_cause(error)}") from None
            raise self.source_error(error) from None

    def _find_cause(self, error: BaseException) -> str:
        """Return why a request has failed; if no broker has answered it, why the last connection failed."""
        is_late = isinstance(error, errors.KafkaTimeoutError)
        is_unsent = isinstance(error, _NOT_CONNECTED)
        if self.last_failure and (is_late or is_unsent):
            return self.last_failure
        return "no answer in time" if is_late else one_line(error)

    def source_error(self, error: BaseException, *, lacks_key: bool = False) -> SourceError:
        """Return our error for an error of the client; a `NoBrokerError` if a later request may succeed."""
        text = one_line(error)
        code = getattr(error, "errno", None)  # Kafka's code
        match error:
            case errors.KafkaTimeoutError() | TimeoutError():
                return self.broker_errors.no_broker_error(self.last_failure)
            case errors.KafkaConnectionError() | errors.NodeNotReadyError():
                return self.broker_errors.unreachable_error(self._find_cause(error))
            case errors.UnsupportedCodecError():
                return SourceError(
                    f"records of topic {self._topic} are compressed, and what reads them is not installed ({text}): "
                    "pip install 'kafka-python[lz4,snappy,zstd]'"
                )
            case errors.RetriableError() if code not in UNKNOWN_TOPIC_CODES:  # a missing topic is a user's mistake
                return self.broker_errors.unreachable_error(text)
        return self.broker_errors.explain(code, text, lacks_key=lacks_key)


def format_topic_id(topic_id: uuid.UUID | None) -> str:
    """Return a topic's id as Kafka's own tools print it; "" if the broker gives topics no ids."""
    if topic_id is None or topic_id.int == 0:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


class KafkaPythonAdmin(KafkaPythonConnection):
    """See `streampca.sources.base.Admin`."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(settings, topic)
        self.topic = topic
        self.client = self.connect(KafkaAdminClient)

    def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the client. While it cannot connect, try again for some seconds. Raises `KafkaError`."""
        deadline = time.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                return method(*arguments, **options)
            except _NOT_CONNECTED:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)

    def brokers(self) -> list[tuple[str, str, int]]:
        with self.translate_errors():
            brokers = self._ask(self.client.describe_cluster)["brokers"]
        return [(str(broker["broker_id"]), broker["host"], broker["port"]) for broker in brokers]

    def topic_configs(self) -> dict[str, str]:
        """Return the topic's options, also those with default values; {} without the right to read them."""
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic)
        try:
            configs = self._ask(self.client.describe_configs, [resource], config_filter="all")["topic"][self._topic]
        except errors.KafkaError:
            return {}
        return {name: config["value"] for name, config in configs.items() if config["value"] is not None}

    def log_bounds(self) -> dict[int, tuple[int, int]]:
        """Return the earliest offset and the high watermark of each partition."""
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().partitions]
        with self.translate_errors():
            earliest = self._ask(self.client.list_partition_offsets, dict.fromkeys(tps, OffsetSpec.EARLIEST))
            latest = self._ask(self.client.list_partition_offsets, dict.fromkeys(tps, OffsetSpec.LATEST))
        return {tp.partition: (earliest[tp].offset, latest[tp].offset) for tp in tps}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        """Create the topic, unless somebody else has created it meanwhile."""
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
        with self.translate_errors():
            (answer,) = self.client.create_topics({self._topic: options}, raise_errors=False)["topics"]
        code = answer["error_code"]
        if code not in (0, TOPIC_EXISTS):
            raise self.broker_errors.creation_error(code, answer["error_message"])

    def close(self) -> None:
        self.client.close()
