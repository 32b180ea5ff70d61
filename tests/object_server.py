"""A scripted HTTP proxy in front of an S3 server: counts its requests, and answers as a store in trouble does."""

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.http_server import HttpServer, send

_RESET = struct.pack("ii", 1, 0)  # closing sends RST


@dataclass(frozen=True)
class Fault:
    """What happens to requests.

    - "status": they are answered with `status` and an error document with `code` and `message`.
    - "cut": half of the answer's body passes, then the connection is reset; a PUT is cut before the server has it.
    - "reset": the connection is reset.
    - "hang": nothing is answered, until the fault ends.
    - "slow": they pass after `delay_s`.
    """

    kind: str
    status: int = 503
    code: str = "SlowDown"
    only: str = ""  # an operation as in `S3Proxy.requests`, or "create": a write that must not replace; default: all
    delay_s: float = 0.0
    message: str = ""


class S3Proxy(HttpServer):
    """Forwards requests from a loopback port to an S3 server, but for the current `fault`."""

    protocol = "HTTP/1.1"

    def __init__(self, target: int) -> None:
        super().__init__(self._forward)
        self.requests: Counter[str] = Counter()  # write, read, list, delete
        self.faults = 0  # requests that met the fault
        self._counting = threading.Lock()
        self._fault: Fault | None = None
        self.over = threading.Event()  # the fault, if there is one
        self.target = target  # the port of the S3 server

    def begin(self, fault: Fault) -> None:
        """Inflict this fault from now on."""
        self.faults, self._fault = 0, fault
        self.over.clear()

    def end(self) -> None:
        """Let requests pass again; those that hang are reset."""
        self._fault = None
        self.over.set()

    def stop(self) -> None:
        self.end()
        super().stop()

    def _fault_of(self, operation: str, *, creates: bool) -> Fault | None:
        """Count a request; return what happens to it."""
        with self._counting:
            self.requests[operation] += 1
        fault = self._fault
        if fault is None or fault.only not in ("", operation, "create" if creates else ""):
            return None
        self.faults += 1
        return fault

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        match fault := self._fault_of(_operation(request), creates="If-None-Match" in request.headers):
            case Fault("status"):
                document = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
                _answer(request, fault.status, document.encode())
            case Fault("hang"):
                self.over.wait()
                _reset(request)
            case Fault("slow"):
                threading.Event().wait(fault.delay_s)
                self._pass(request, body)
            case Fault("cut") if request.command != "PUT":
                self._pass(request, body, cut=True)
            case None:
                self._pass(request, body)
            case _:
                _reset(request)

    def _pass(self, request: BaseHTTPRequestHandler, body: bytes, *, cut: bool = False) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)) as connection:
            connection.request(request.command, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            _answer(request, answer.status, answer.read(), kept, cut=cut)


_HOP_BY_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding"}


def _answer(
    request: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str] = {}, cut: bool = False
) -> None:
    sent = b"" if request.command == "HEAD" else content[: len(content) // 2] if cut else content
    send(request, status, sent, {**headers, "Content-Length": str(len(content))})
    if cut:
        _reset(request)


def _reset(request: BaseHTTPRequestHandler) -> None:
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    request.close_connection = True
    request.connection.close()


def _operation(request: BaseHTTPRequestHandler) -> str:
    listing = "list-type" in parse_qs(urlsplit(request.path).query)
    return {"PUT": "write", "DELETE": "delete", "POST": "write"}.get(request.command, "list" if listing else "read")
