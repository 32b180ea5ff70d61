"""An HTTP server on a loopback port that answers by a function."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.ports import free_ports
from tests.service import Service

Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, object] | None]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have given up."""


class HttpServer(Service):
    """Serves while entered; it can be stopped, and started again on its port."""

    protocol = "HTTP/1.0"  # with 1.1, connections stay open

    def __init__(self, answer: Answer) -> None:
        """`answer` takes a request and its body, and returns the status and a value that is sent as JSON.

        It returns None if it has dealt with the request.
        """
        (self._port,) = free_ports(1)
        self._answer, self._server = answer, None

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = self.protocol

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if answered := answer(self, body):
                    status, value = answered
                    text = json.dumps(value).encode()
                    send(self, status, text, {"Content-Type": "application/json", "Content-Length": str(len(text))})

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST  # noqa: N815 - the library's names

            def finish(self) -> None:
                with suppress(OSError, ValueError):  # the connection may be reset
                    super().finish()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server: ThreadingHTTPServer | None = _Server(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str]) -> None:
    """Answer a request."""
    request.send_response_only(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content)
