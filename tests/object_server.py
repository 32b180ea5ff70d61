"""A scripted HTTP proxy in front of an S3 server: counts its requests, and answers as a store in trouble does."""

import http.client
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

_RESET = struct.pack("ii", 1, 0)  # closing sends RST


@dataclass(frozen=True)
class Fault:
    """What happens to requests.

    - "status": they are answered with `status` and an error document with `code`.
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


class S3Proxy:
    """Forwards requests from a loopback port to an S3 server, but for the current `fault`."""

    def __init__(self, target: int) -> None:
        self.requests: Counter[str] = Counter()  # write, read, list, delete
        self.faults = 0  # requests that met the fault
        self._counting = threading.Lock()
        self._fault: Fault | None = None
        self.over = threading.Event()  # the fault, if there is one
        self.target = target  # the port of the S3 server
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def begin(self, fault: Fault) -> None:
        """Inflict this fault from now on."""
        self.faults, self._fault = 0, fault
        self.over.clear()

    def end(self) -> None:
        """Let requests pass again; those that hang are reset."""
        self._fault = None
        self.over.set()

    def fault_of(self, operation: str, *, creates: bool) -> Fault | None:
        """Count a request; return what happens to it."""
        with self._counting:
            self.requests[operation] += 1
        fault = self._fault
        if fault is None or fault.only not in ("", operation, "create" if creates else ""):
            return None
        self.faults += 1
        return fault

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have given up."""


class _Handler(BaseHTTPRequestHandler):
    owner: S3Proxy
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        operation = _operation(self.command, self.path)
        fault = self.owner.fault_of(operation, creates="If-None-Match" in self.headers)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match fault:
            case Fault("status"):
                self._answer(fault.status, f"<Error><Code>{fault.code}</Code></Error>".encode())
            case Fault("reset"):
                self._reset()
            case Fault("cut") if self.command == "PUT":
                self._reset()
            case Fault("hang"):
                self.owner.over.wait()
                self._reset()
            case Fault("slow"):
                threading.Event().wait(fault.delay_s)
                self._pass(body, cut=False)
            case _:
                self._pass(body, cut=fault is not None)

    do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = _forward  # noqa: N815 - the library's names

    def _pass(self, body: bytes, *, cut: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.owner.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP]
        self._answer(answer.status, content, kept, cut=cut)

    def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]] = [], cut: bool = False) -> None:  # noqa: B006
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close_connection = True
        self.connection.close()

    def finish(self) -> None:
        """Flush what can be flushed: the connection may be reset."""
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...


_HOP_BY_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding"}


def _operation(method: str, path: str) -> str:
    listing = "list-type" in parse_qs(urlsplit(path).query)
    return {"PUT": "write", "DELETE": "delete", "POST": "write"}.get(method, "list" if listing else "read")
