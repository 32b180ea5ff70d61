"""A receiver of spans, as OpenTelemetry's collector is one: OTLP over HTTP on a free port of the loopback."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.broker_process import wait_until


class Receiver:
    """Serves while entered."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.spans))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that sends its spans here, soon."""
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def wait_for(self, name: str, count: int = 1) -> list[Any]:
        """All spans of this name, when there are so many."""

        def found() -> list[Any] | None:
            spans = [span for span in list(self.spans) if span.name == name]
            return spans if len(spans) >= count else None

        return list(wait_until(found, 60, f"{count} spans {name!r} among {[span.name for span in self.spans]}"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span, by name."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def _handler(spans: list[Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            spans.extend(s for of in request.resource_spans for scope in of.scope_spans for s in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
