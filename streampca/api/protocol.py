"""uvicorn's HTTP protocol with limits: on the number of connections, and on the time to send and to read.

A connection that waits for nothing but its client has a deadline: for the headers of a request, for its body, and for
reading the answer. When there are too many connections, the one that has been idle longest gives way to the new one.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import Any, Literal

import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol  # not httptools, which does not limit the length of headers

HEADERS_WITHIN_S = 10.0
BODY_WITHIN_S = 60.0
READ_WITHIN_S = 30.0  # 64 KiB of an answer
LINGER_S = 2.0  # after a refused body: a client that still sends would otherwise lose the answer
MAX_CONNECTIONS = 512
_PACKET_BYTES = 16 * 1024

log = logging.getLogger(__name__)

Phase = Literal["headers", "body"]


def max_connections() -> int:
    """At most half of the files that the process may open: also while connections are accepted, some must remain."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class ConnectionLimits:
    """What all connections of a sidecar share. `count` is called with the name of each limit that is reached."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self.count = count
        self.max_connections = max_connections()
        self.connections: set[LimitedProtocol] = set()

    def admit(self, new: "LimitedProtocol") -> bool:
        """Add a connection, in place of the one that has been idle longest if there are too many."""
        if len(self.connections) >= self.max_connections:
            self.count("connections")
            idle = [connection for connection in self.connections if connection.is_idle()]
            if not idle:
                return False
            min(idle, key=lambda connection: connection.idle_since).drop()
        self.connections.add(new)
        return True


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._phase: Phase | None = None
        self._request_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._lingering = self._refused = False
        self.idle_since = time.monotonic()

    def is_idle(self) -> bool:
        """Whether no request is being answered or received."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close the connection at once."""
        self._limits.connections.discard(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, or refuse the connection."""
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        if self._limits.admit(self):
            self._watch()
        else:
            self._refuse(503, "too many connections: try again")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all deadlines."""
        self._limits.connections.discard(self)
        self._set_phase(None)
        self._stop_read_deadline()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse; what cannot be parsed ends this connection, and nothing else."""
        if self._lingering:
            return
        try:
            super().data_received(data)
        except Exception as error:  # h11 in a state that uvicorn does not expect, or a target that is not ASCII
            log.debug("malformed request: %r", error)
            self._limits.count("malformed")
            self._refuse(400, "the request is not valid HTTP")
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Uvicorn's answer to malformed requests, in our form."""
        self._limits.count("malformed")
        self._refuse(400, "the request is not valid HTTP")

    def on_response_complete(self) -> None:
        """Close the connection if its request has not been read to the end; otherwise wait for the next request."""
        self.idle_since = time.monotonic()
        if self.cycle.more_body and not self.transport.is_closing():
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read: it gets some time."""
        super().pause_writing()
        self._stop_read_deadline()
        self._read_deadline = self.loop.call_later(READ_WITHIN_S, self._expire, "read_time")

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_read_deadline()
        super().resume_writing()

    def shutdown(self) -> None:
        """Stop after the current answer."""
        if self._lingering:
            self.transport.abort()
        else:
            super().shutdown()

    def close_politely(self, transport: asyncio.Transport) -> None:
        """Close; but read and discard for a moment what the client still sends, or it would lose the answer."""
        if self._lingering or transport.is_closing():
            return
        self._set_phase(None)
        if not self._refused and (self.cycle is None or not self.cycle.more_body):
            transport.close()
            return
        self._lingering = True
        if transport.can_write_eof():
            transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, transport.close)

    @property
    def lingering(self) -> bool:
        """Whether the connection is closed for its client's next request."""
        return self._lingering

    def _watch(self) -> None:
        """Set the deadline for what the client has to send next."""
        if self.transport.is_closing():
            self._set_phase(None)
        elif self.is_idle():
            self._set_phase("headers")
        else:
            self._set_phase("body" if self.cycle.more_body else None)

    def _set_phase(self, phase: Phase | None) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None
        if phase is not None:
            seconds = HEADERS_WITHIN_S if phase == "headers" else BODY_WITHIN_S
            self._request_deadline = self.loop.call_later(seconds, self._expire, f"{phase}_time")

    def _stop_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def _expire(self, limit: str) -> None:
        self._limits.count(limit)
        self.drop()

    def _refuse(self, status: Literal[400, 503], text: str) -> None:
        """Answer without the parser, which may be in any state; if an answer has begun, only close."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.drop()
                return
        self._refused = True
        self.transport.write(_response(status, text))
        self.transport.close()


class _Transport:
    """A transport that sends an answer's head and body in one packet, and whose `close` is `close_politely`."""

    def __init__(self, transport: asyncio.Transport, protocol: LimitedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._waiting = b""

    def write(self, data: bytes) -> None:
        """Send with what follows within this turn of the event loop: each packet costs as much as the whole parsing."""
        if not self._waiting:
            self._protocol.loop.call_soon(self._flush)
        self._waiting += data
        if len(self._waiting) > _PACKET_BYTES:  # the transport must know of it, or would not ask the answer to pause
            self._flush()

    def close(self) -> None:
        self._flush()
        self._protocol.close_politely(self._transport)

    def is_closing(self) -> bool:
        return self._protocol.lingering or self._transport.is_closing()

    def _flush(self) -> None:
        if self._waiting:
            self._transport.write(self._waiting)
            self._waiting = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _response(status: Literal[400, 503], text: str) -> bytes:
    body = orjson.dumps({"error": text})
    reason, more = {400: (b"Bad Request", b""), 503: (b"Service Unavailable", b"retry-after: 1\r\n")}[status]
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n"
    return head % (status, reason, len(body), more) + body
