"""kafka-python as we need it: what it is told, and where it is mended.

kafka-python 3.0.12 waits out every failure alike and reports it in its own log only. Added here, through the client
class that its consumer and producer accept as an option:
- a refusal (wrong credentials) is remembered and raised by whatever is tried next. kafka-python means to do the same
  but forgets it (`_connect` clears what `initialize` left), and would go on trying for ever;
- what a broker says before it hangs up is heard: kafka-python drops it when both arrive together, the reason of a
  refused login most of all;
- a connection that opens but is not initialised is backed off from, as one that does not open;
- whether any broker is connected can be asked, so that an absent one is told of once, in our words.
"""

import time
from typing import Any

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from streampca.settings import KafkaSettings
from streampca.sources.kafka_python import tls

_REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError, AuthorizationError)


def options(settings: KafkaSettings) -> dict[str, Any]:
    """What kafka-python's consumer and producer must both be told."""
    version = settings.kafka_api_version
    return {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",")],
        "security_protocol": settings.security_protocol,
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        **tls.options(settings),
        "api_version": version and tuple(int(part) for part in version.split(".")),
        "client_id": "streampca",
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 10_000,  # how soon new partitions are seen
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 2000,
        "metrics_enabled": False,
    }


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    refusal: KafkaError | None = None
    last_failure: str = ""
    heard_at: float = 0.0  # when the last byte came from any broker, monotonic

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        super().__init__(net, **configs)
        # kafka-python takes this option and does not pass it on; without it a deleted topic would be made again.
        self.cluster.config["allow_auto_create_topics"] = False

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return super().get_connection(*args, **kwargs)

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = await super()._build_transport(*args, **kwargs)
        receive = transport._sock_recv

        def receive_last_words() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            if data:
                self.heard_at = time.monotonic()
            return data, None if data else error  # the end of the line is found again at the next call

        transport._sock_recv = receive_last_words
        return transport

    async def _connect(self, node: Any, conn: Any, *args: Any, **kwargs: Any) -> None:
        await super()._connect(node, conn, *args, **kwargs)
        if conn.init_future.is_done and conn.init_future.failed():
            error = conn.init_future.exception
            self.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _REFUSALS):
                self.refusal = error
            if not self.connection_delay(node.node_id):
                self.update_backoff(node.node_id)

    @property
    def connected(self) -> bool:
        return any(conn.connected for conn in list(self._conns.values()))


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    def connection_delay(self, node_id: Any) -> float:
        """In milliseconds, as the producer takes it; kafka-python gives seconds, and its producer spins."""
        delay_s: float = super().connection_delay(node_id)
        return delay_s * 1000


def one_line(error: BaseException) -> str:
    """The error's text."""
    return " ".join(str(error).split()) or type(error).__name__
