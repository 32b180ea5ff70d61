"""Workarounds for bugs of kafka-python 3.0.12 in its connections. Importing this module patches all clients.

No released version mends these bugs: the branch for 3.1 has the same code, as of 17 August 2026, though much of
`kafka.net` has moved. Before pyproject.toml allows 3.1, try it without each workaround of this module, of
`patched_group` and of `client_internals`. Each docstring names the fault.

Consumers and producers get our client class by their option `kafka_client`.
"""

import contextlib
import random
import ssl
import time
from collections.abc import Iterable
from typing import Any

from kafka import errors
from kafka.net import manager
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from streampca.sources.broker_errors import one_line
from streampca.sources.client_connection import ClientConnection

_LOGIN_REFUSALS = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.AuthorizationError,
)
_HANDSHAKE_TIMEOUT_S = 5.0
_LOST_AFTER_S = 15.0  # without a connection to any broker


class PatchedSSLTransport(KafkaSSLTransport):  # type: ignore[misc]
    """A connection with TLS."""

    async def handshake(self) -> None:
        """Make the TLS handshake, within some seconds. Fault of kafka-python: the handshake has no deadline."""
        timeout_at = time.monotonic() + _HANDSHAKE_TIMEOUT_S
        try:
            while True:
                try:
                    self._sock.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    await self._net.wait_read(self._sock, timeout_at)
                except ssl.SSLWantWriteError:
                    await self._net.wait_write(self._sock, timeout_at)
        except BaseException:
            self._sock.close()
            raise


manager.KafkaSSLTransport = PatchedSSLTransport  # this is where kafka-python looks the class up


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """The connections of one client."""

    def __init__(self, net: NetworkSelector, owner: ClientConnection, **configs: Any) -> None:
        """`owner` is told why a connection fails.

        Fault of kafka-python: it ignores the option `allow_auto_create_topics`, so a deleted topic is created again.
        """
        super().__init__(net, **configs)
        self._owner = owner
        # When a listed broker, one in the cluster's metadata, was last found connected; at first, the time of creation.
        # If this is long ago, the bootstrap servers are asked, too.
        self._listed_broker_connected_at = time.monotonic()
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        """Open a connection.

        Faults of kafka-python: an `OSError` may end the refresh of metadata for ever, and the last bytes that a broker
        sends before it closes the connection are lost.
        """
        try:
            transport = await super()._build_transport(*args, **kwargs)
        except OSError as error:
            raise errors.KafkaConnectionError(one_line(error)) from error
        receive = transport._sock_recv

        def receive_all_bytes_before_error() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            if data:
                return data, None  # the next call meets the error again
            return data, error

        transport._sock_recv = receive_all_bytes_before_error
        return transport

    async def _connect(self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, **timeout: Any) -> None:
        """Connect to a broker, and note why if this fails.

        Fault of kafka-python: it resets the pause after a failed login, and does not remember every refused login.
        """
        # The pause before the next connection is reset below, if the login succeeds.
        await super()._connect(node, conn, reset_backoff_on_connect=False, **timeout)
        login = conn.init_future  # neither failed nor succeeded if the connection was closed meanwhile
        if login.failed():
            self._note_failed_login(node, login.exception)
        elif login.succeeded() and reset_backoff_on_connect:
            self.reset_backoff(node.node_id)

    def _note_failed_login(self, node: Any, error: BaseException) -> None:
        """Note why a broker cannot be used, and pause before the next connection."""
        self._owner.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
        if isinstance(error, _LOGIN_REFUSALS):
            self._auth_failures[node.node_id] = error
        # After a failed connection, the client pauses already. After a failed login, it does not.
        is_pausing = self.connection_delay(node.node_id) > 0
        if not is_pausing:
            self.update_backoff(node.node_id)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect to a broker.

        Fault of kafka-python: the error counts as final if the broker has just left the metadata.
        """
        try:
            return super().get_connection(node_id, *args, **kwargs)
        except errors.UnknownBrokerIdError:
            raise errors.NodeNotReadyError(node_id) from None

    def least_loaded_node(self) -> Any:
        """Return the id of the broker to ask next; None if no broker may be asked now.

        Fault of kafka-python: it never asks the bootstrap servers again (KIP-899).
        """
        # A connection to the group's coordinator does not count here: it has an id of its own, which is not listed.
        listed_ids = [broker.node_id for broker in self.cluster.brokers()]
        if self._is_any_connected(listed_ids):
            self._listed_broker_connected_at = time.monotonic()
        candidates = [super().least_loaded_node()]  # None: the client finds no broker
        are_listed_brokers_lost = time.monotonic() - self._listed_broker_connected_at > _LOST_AFTER_S
        if are_listed_brokers_lost:
            candidates += [server.node_id for server in self.cluster.bootstrap_brokers()]
        # After a failure, a broker may not be asked before a pause has passed.
        askable = [node_id for node_id in candidates if node_id is not None and self.connection_delay(node_id) == 0]
        return random.choice(askable) if askable else None  # noqa: S311 - not for cryptography

    def _is_any_connected(self, node_ids: Iterable[Any]) -> bool:
        connections = [self._conns.get(node_id) for node_id in node_ids]
        return any(conn is not None and conn.connected for conn in connections)

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """If a broker has refused the last login, raise the refusal until the next login is due.

        Fault of kafka-python: it raises the refusal for ever, and never logs in again.
        """
        error = self._auth_failures.get(node_id)
        if error is not None and self.connection_delay(node_id) > 0:
            raise error.with_traceback(None)  # a traceback would grow with each raise

    @property
    def connected(self) -> bool:
        """Whether any broker is connected now. A bootstrap server does not count: it may be a load balancer."""
        return self._is_any_connected(
            node_id for node_id in list(self._conns) if not self.cluster.is_bootstrap(node_id)
        )


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The network client of a consumer or producer."""

    def connection_delay(self, node_id: Any) -> float:
        """Return the pause before connecting to a broker again, in milliseconds.

        Fault of kafka-python: it returns seconds.
        """
        return 1000 * float(super().connection_delay(node_id))

    def maybe_connect(self, node_id: Any, **options_of_producer: Any) -> None:
        """Connect to a broker, unless the pause after its last failure is not over.

        If the broker has refused the last login, raise the refusal for a consumer, and do not raise for a producer.
        Fault of kafka-python: after this error, a producer's thread would try again without a pause.
        """
        # A producer's thread passes an option, `wakeup`, which the client ignores. A consumer passes none. Only this
        # tells them apart.
        is_producer = bool(options_of_producer)
        suppressed_errors = _LOGIN_REFUSALS if is_producer else ()
        with contextlib.suppress(*suppressed_errors):
            super().maybe_connect(node_id)
