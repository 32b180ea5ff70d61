"""Runs uvicorn, hardened against clients that are silent, slow or numerous."""

import asyncio
import math
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from streampca.process.listening import BACKLOG

REQUEST_TIMEOUT_S = 10.0  # from the beginning of a connection to its first request; also for its TLS handshake
SHORT_CONNECTION_S = 10.0  # from the beginning of a `ShortConnection` to its end


class KeepAliveConnection(H11Protocol):
    """A connection that is closed if its first request does not come within `REQUEST_TIMEOUT_S`.

    At the limit of connections, a new connection closes the connection that has been idle for longest. Without these
    two rules, silent clients would shut out all other clients, such as probes.

    The parser is h11. httptools takes a fifth less time, but it does not limit headers, and it drops the body of a
    request that offers HTTP/2, as Java's client sends it.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept this connection. At the limit of connections, end an idle one first."""
        count_with_this = len(self.connections) + 1
        # From this limit on, uvicorn answers requests with 503.
        if count_with_this >= (self.limit_concurrency or math.inf):
            self._end_longest_idle()
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_S, self._close_without_request)

    def _end_longest_idle(self) -> None:
        """End the connection that has been idle for longest, if any is idle."""
        connections: list[Any] = list(self.connections)
        # When a connection becomes idle, uvicorn schedules its end: `timeout_keep_alive_task`.
        idle = [connection for connection in connections if getattr(connection, "timeout_keep_alive_task", None)]
        if idle:
            longest_idle = min(idle, key=lambda connection: connection.timeout_keep_alive_task.when())
            longest_idle._unset_keepalive_if_required()  # it must not be chosen twice
            longest_idle.transport.abort()  # `close` would wait for a TLS client

    def _close_without_request(self) -> None:
        """Close the connection unless its first request has come."""
        has_had_request = self.scope is not None
        if not has_had_request:
            self.timeout_keep_alive_handler()  # closes the connection


class ShortConnection(H11Protocol):
    """A connection that ends after `SHORT_CONNECTION_S` at the latest. At the limit of connections it ends at once.

    If connections could stay open, clients could use up the file descriptors that the process needs for the store and
    for Kafka.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """End the connection after `SHORT_CONNECTION_S`; at the limit of connections, at once."""
        super().connection_made(transport)  # adds this connection to `connections`
        if len(self.connections) >= (self.limit_concurrency or math.inf):
            transport.abort()
        else:
            self.loop.call_later(SHORT_CONNECTION_S, transport.abort)


def create_server(
    app: Any, context: ssl.SSLContext | None, max_connections: int, *, http: type[H11Protocol], **options: Any
) -> uvicorn.Server:
    """Create a server of an ASGI application, which `serve` runs.

    `context` is None without TLS. `options` are further options of `uvicorn.Config`.
    """
    config = uvicorn.Config(
        app,
        http=http,
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=max_connections,
        **options,
    )
    config.load()  # sets `ssl` to None, so it is called before the next line
    config.ssl = context
    return uvicorn.Server(config)


class _EventLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers end a TLS handshake after `REQUEST_TIMEOUT_S`. By default, it may take a minute."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = REQUEST_TIMEOUT_S
        return await super().create_server(*args, **options)


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until the server's `should_exit` is set."""
    with asyncio.Runner(loop_factory=_EventLoop) as runner:
        runner.run(server.serve(sockets=[listening]))
