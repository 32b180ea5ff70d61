"""Workarounds for bugs of kafka-python 3.0.12 in its connections. Importing this module patches all clients.

No released version mends these bugs: the branch for 3.1 has the same code, as of 17 August 2026, though much of
`kafka.net` has moved. Before pyproject.toml allows 3.1, try it without each workaround of this module, of
`patched_group` and of `client_internals`. Each docstring names the fault, how it shows, and what we do instead.

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
        """Make the TLS handshake, within some seconds.

        Fault of kafka-python: the handshake has no deadline. If a broker accepts the connection and says nothing, it
        never ends.
        """
        timeout_at = time.monotonic() + _HANDSHAKE_TIMEOUT_S
        try:
            while True:
                try:  # the socket does not block: an error says for what the handshake has to wait
                    self._sock.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    await self._net.wait_read(self._sock, timeout_at)
                except ssl.SSLWantWriteError:
                    await self._net.wait_write(self._sock, timeout_at)
        except BaseException:
            self._sock.close()  # no connection was made, so nobody else will close the socket
            raise


manager.KafkaSSLTransport = PatchedSSLTransport  # this is where kafka-python looks the class up


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """The connections of one client."""

    def __init__(self, net: NetworkSelector, owner: ClientConnection, **configs: Any) -> None:
        """When a connection fails, the methods of this class note the cause in `owner.last_failure`.

        Fault of kafka-python: the option `allow_auto_create_topics` is not passed on, so a deleted topic is created
        again.
        """
        super().__init__(net, **configs)
        self._owner = owner
        # When a broker of the cluster's metadata was last seen connected. A bootstrap server does not count. If no such
        # broker is connected for some seconds from now on, `least_loaded_node` asks the bootstrap servers again.
        self._known_connected_at = time.monotonic()
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        """Open a connection.

        Fault of kafka-python: if the connection is reset before its handshake, or its certificates cannot be read, it
        fails with an `OSError`. This ends a poll, or ends the refresh of metadata for ever. We raise
        `KafkaConnectionError`.

        Fault of kafka-python: if a broker closes the connection, the bytes that it has sent just before are dropped.
        They may hold the reason of a refused login. We read them.
        """
        try:
            transport = await super()._build_transport(*args, **kwargs)
        except OSError as error:
            raise errors.KafkaConnectionError(one_line(error)) from error
        receive = transport._sock_recv

        def receive_all_bytes_before_error() -> tuple[bytes, BaseException | None]:
            data, error = receive()  # both, if the connection has ended after these bytes
            if data:
                return data, None  # the next call finds the end of the connection again
            return data, error

        transport._sock_recv = receive_all_bytes_before_error
        return transport

    async def _connect(self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, **timeout: Any) -> None:
        """Connect to a broker. If this fails, note the cause for the status, and pause longer before the next attempt.

        Fault of kafka-python: the pause is reset after a failed login, too, so the client logs in again and again
        without a pause. Also, the client remembers only some kinds of refused logins. We remember all: before the next
        request to this broker, the client calls `maybe_raise_auth_failure`, which raises the refusal.
        """
        await super()._connect(node, conn, reset_backoff_on_connect=False, **timeout)
        login = conn.init_future  # the result of connecting, including the login
        if not login.is_done:  # the client has closed the connection meanwhile
            return
        if login.failed():
            error = login.exception
            # `_owner` is our connection, whose status and log tell this cause.
            self._owner.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _LOGIN_REFUSALS):
                self._auth_failures[node.node_id] = error
            # If no connection was made, the client has set a longer pause already. After a failed login it has not.
            pause_s = self.connection_delay(node.node_id)
            if pause_s == 0:
                self.update_backoff(node.node_id)
        elif reset_backoff_on_connect:
            self.reset_backoff(node.node_id)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect to a broker.

        Fault of kafka-python: if the broker has just left the metadata, the error counts as final, and a poll ends. We
        raise `NodeNotReadyError`, after which the client tries again.
        """
        try:
            return super().get_connection(node_id, *args, **kwargs)
        except errors.UnknownBrokerIdError:
            raise errors.NodeNotReadyError(node_id) from None

    def least_loaded_node(self) -> Any:
        """Return the id of the broker to ask next; None if no broker may be asked now.

        Fault of kafka-python: a client that knows brokers never asks the bootstrap servers again (KIP-899). If all
        brokers have come back at other addresses, it waits for ever. If no known broker was connected for long, we ask
        the bootstrap servers, too.
        """
        # The connection to the group's coordinator does not count: its id is not one of these, even if the coordinator
        # is one of these brokers. The client never asks the coordinator for the addresses of brokers.
        known_ids = [broker.node_id for broker in self.cluster.brokers()]
        if self._is_any_connected(known_ids):
            self._known_connected_at = time.monotonic()
        candidates = [super().least_loaded_node()]  # perhaps None
        if time.monotonic() - self._known_connected_at > _LOST_AFTER_S:
            candidates += [server.node_id for server in self.cluster.bootstrap_brokers()]
        due = [node_id for node_id in candidates if node_id is not None and not self.connection_delay(node_id)]
        return random.choice(due) if due else None  # noqa: S311 - spreads requests, and hides nothing

    def _is_any_connected(self, node_ids: Iterable[Any]) -> bool:
        connections = [self._conns.get(node_id) for node_id in node_ids]
        return any(conn is not None and conn.connected for conn in connections)

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """If a broker has refused the last login, raise the refusal, but only until the login is due again.

        Fault of kafka-python: the refusal is raised for ever, and the client never logs in again.
        """
        error = self._auth_failures.get(node_id)
        if error is not None and self.connection_delay(node_id):  # the next login is not due yet
            raise error.with_traceback(None)  # else each raise would add frames to its traceback

    @property
    def connected(self) -> bool:
        """Whether any broker is connected now. No public method tells this.

        A bootstrap server does not count: it may be a load balancer, behind which no broker can be reached.
        """
        return self._is_any_connected(
            node_id for node_id in list(self._conns) if not self.cluster.is_bootstrap(node_id)
        )


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The network client of a consumer or producer."""

    def connection_delay(self, node_id: Any) -> float:
        """Return the pause before connecting to a broker again, in milliseconds.

        Fault of kafka-python: it is in seconds, but the producer's thread takes it for milliseconds, and so spins.
        """
        return 1000 * float(super().connection_delay(node_id))

    def maybe_connect(self, node_id: Any, **options_of_producer: Any) -> None:
        """Connect to a broker, unless it is too early. In a consumer, raise the refusal of the last login.

        Fault of kafka-python: a producer's thread that meets this error tries again at once, without a pause. So we
        suppress the error there. Only the thread of a producer passes options, by which we recognise it.
        kafka-python's own method ignores them.
        """
        is_producer = bool(options_of_producer)
        suppressed_errors = _LOGIN_REFUSALS if is_producer else ()
        with contextlib.suppress(*suppressed_errors):
            super().maybe_connect(node_id)  # calls `maybe_raise_auth_failure`, which raises the refusal
