"""Bugs of connections; the client class is passed to consumers and producers by their option `kafka_client`.

- A refused login is retried for ever, and a connection that fails to initialise without a pause
  (`KafkaConnectionManager._connect`): the next request raises the refusal, and every failure is backed off from.
- What a broker sends just before it closes the connection is dropped, above all the reason of a refused login
  (`_build_transport`, `_sock_recv`): it is read.
- The handshake waits without end for a broker that says nothing (`KafkaSSLTransport.handshake`): it has a deadline.
- No public method says whether a broker is connected (`KafkaConnectionManager._conns`).
- `allow_auto_create_topics` is not passed on (`KafkaConnectionManager.cluster.config`): a deleted topic would be
  created again.
- The producer spins, since it takes seconds for milliseconds (`KafkaNetClient.connection_delay`).
"""

import ssl
import time
from typing import Any

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net import manager
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from streampca.sources.broker_errors import one_line

_REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError, AuthorizationError)


_HANDSHAKE_S = 5.0


class PatchedSSLTransport(KafkaSSLTransport):  # type: ignore[misc]
    """A connection whose handshake ends in time."""

    async def handshake(self) -> None:
        """Shake hands."""
        timeout_at = time.monotonic() + _HANDSHAKE_S
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
            self._sock.close()  # nobody else knows of it
            raise


manager.KafkaSSLTransport = PatchedSSLTransport  # the manager looks it up there


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections that keep refusals and the last failure."""

    last_failure = ""

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = await super()._build_transport(*args, **kwargs)
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            return data, None if data else error  # the next call finds the end of the connection again

        transport._sock_recv = receive_all
        return transport

    async def _connect(self, node: Any, conn: Any, *args: Any, **kwargs: Any) -> None:
        await super()._connect(node, conn, *args, **kwargs)
        if conn.init_future.is_done and conn.init_future.failed():
            error = conn.init_future.exception
            self.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _REFUSALS):
                self._auth_failures[node.node_id] = error
            if not self.connection_delay(node.node_id):
                self.update_backoff(node.node_id)

    @property
    def connected(self) -> bool:
        """Return whether any broker is connected now."""
        return any(conn.connected for conn in list(self._conns.values()))


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The client with delays in milliseconds."""

    def connection_delay(self, node_id: Any) -> float:
        """Return the pause before connecting to a node again, in milliseconds."""
        delay_s: float = super().connection_delay(node_id)
        return delay_s * 1000
