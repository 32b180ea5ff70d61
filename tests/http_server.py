"""An HTTP server on a loopback port that answers by a function."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.ports import free_ports

Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, object]]


class HttpServer:
    """Serves while entered; it can be stopped, and started again on its port."""

    def __init__(self, answer: Answer) -> None:
        """`answer` takes a request and its body, and returns the status and a value that is sent as JSON."""
        (self._port,) = free_ports(1)
        self._answer, self._server = answer, None

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status, value = answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST  # noqa: N815 - the library's names

            def log_message(self, *_: Any) -> None: ...

        self._server: ThreadingHTTPServer | None = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
