"""A receiver of spans, as OpenTelemetry's collector is one: OTLP over HTTP on a free port of the loopback."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_server import HttpServer
from tests.waiting import wait_until


class Receiver(HttpServer):
    """Keeps what it receives."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.spans: list[Any] = []

    def wait_for(self, name: str, count: int = 1) -> list[Any]:
        """All spans of this name, when there are so many."""

        def found() -> list[Any] | None:
            spans = [span for span in list(self.spans) if span.name == name]
            return spans if len(spans) >= count else None

        return list(wait_until(found, 60, f"{count} spans {name!r} among {[span.name for span in self.spans]}"))

    def _respond(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str]]:
        assert request.path == "/v1/traces"
        exported = ExportTraceServiceRequest.FromString(body)
        self.spans += (s for of in exported.resource_spans for scope in of.scope_spans for s in scope.spans)
        return 200, {}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Processes that the test starts send their spans to it, soon."""
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.root)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span, by name."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
