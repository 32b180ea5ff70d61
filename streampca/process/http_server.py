"""HTTP servers of the processes: uvicorn, hardened against clients that are silent, slow or many."""

import asyncio
import math
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from streampca.process.listening import BACKLOG

REQUEST_WITHIN_S = 10.0  # of a new connection, and of its handshake
SHORT_S = 10.0  # for a client to send its request and take the answer


class Connection(H11Protocol):
    """A connection that is closed if its first request does not come in time: silent ones would keep others out.

    At the limit of connections a new one takes the place of the one that has been idle for longest, so that clients
    which keep connections open keep no probe out. By h11: httptools takes a fifth less time, but limits no headers, and
    drops the body of a request that offers HTTP/2, as Java's client does.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) + 1 >= (self.limit_concurrency or math.inf):
            self._end_longest_idle()
        super().connection_made(transport)
        self.loop.call_later(REQUEST_WITHIN_S, self._close_without_request)

    def _end_longest_idle(self) -> None:
        idle: list[Any] = [c for c in self.connections if getattr(c, "timeout_keep_alive_task", None)]
        if idle:
            longest = min(idle, key=lambda connection: connection.timeout_keep_alive_task.when())
            longest._unset_keepalive_if_required()
            longest.transport.abort()  # not `close`, which waits for a client of TLS to close, too

    def _close_without_request(self) -> None:
        if self.scope is None:
            self.timeout_keep_alive_handler()


class ShortConnection(H11Protocol):
    """A connection that ends in time whatever its client does; beyond the most connections, at once.

    So clients leave descriptors to a process that needs them for other things.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) >= (self.limit_concurrency or math.inf):
            transport.abort()
        else:
            self.loop.call_later(SHORT_S, transport.abort)


def create_server(
    app: Any, context: ssl.SSLContext | None, most_connections: int, *, http: type[H11Protocol], **options: Any
) -> uvicorn.Server:
    """A server of an ASGI application, which `serve` runs; `options` are further ones of `uvicorn.Config`."""
    config = uvicorn.Config(
        app,
        http=http,
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # no answer depends on the client's address or scheme
        ws="none",
        limit_concurrency=most_connections,
        **options,
    )
    config.load()
    config.ssl = context
    return uvicorn.Server(config)


class _EventLoop(asyncio.SelectorEventLoop):
    """Ends a handshake of TLS that takes longer than a first request may."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = REQUEST_WITHIN_S
        return await super().create_server(*args, **options)


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until `should_exit` of the server is set."""
    with asyncio.Runner(loop_factory=_EventLoop) as runner:
        runner.run(server.serve(sockets=[listening]))
