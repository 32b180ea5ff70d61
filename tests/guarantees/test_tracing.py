"""Spans of requests and of batches reach a collector, and belong to the traces of those who sent them."""

import gzip
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.api.known import TOPIC, D, known
from tests.api.process import SidecarProcess
from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.kafka_broker import Broker, wait_until


class Collector(ThreadingHTTPServer):
    """An OTLP receiver that keeps all spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []

    def attributes(self, name: str) -> list[dict[str, str]]:
        """The attributes of each span of this name."""
        return [
            {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}
            for span in self.spans
            if span.name == name
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
        yield server
        server.shutdown()


def new_traceparent() -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def test_a_request_continues_its_clients_trace(collector: Collector, tmp_path: Path) -> None:
    Models(DirectoryStore(tmp_path), TOPIC).save(known(20))
    parent = new_traceparent()
    with SidecarProcess(tmp_path) as sidecar:
        sent = {"traceparent": parent, "x-request-id": "abc-1"}
        answer = httpx.post(f"{sidecar.url()}/v1/project", json={"vectors": [[0.0] * D]}, headers=sent)
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "abc-1")
        wait_until(lambda: collector.attributes("POST /v1/project"), 30, "a span")
    (span,) = [span for span in collector.spans if span.name == "POST /v1/project"]
    assert f"{span.trace_id.hex()}-{span.parent_span_id.hex()}" == parent[3:-3]
    assert collector.attributes(span.name)[0]["http.route"] == "/v1/project"


@pytest.mark.broker
@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_batch_is_linked_to_the_spans_that_wrote_it(
    collector: Collector, broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    parents = [new_traceparent() for _ in range(3)]
    producer = broker.producer()
    for parent, value in zip([*parents, "wrong"] * 100, as_json(vectors(400, seed=0)), strict=True):
        producer.send(topic, value, headers=[("traceparent", parent.encode())])
    producer.close()
    with group(broker, topic, tmp_path, [client]) as members:
        members.start()
        members.wait_until_learned()
        wait_until(lambda: learned(collector, topic) == 400, 30, "spans of all messages")
    links = {f"00-{link.trace_id.hex()}-{link.span_id.hex()}-01" for span in collector.spans for link in span.links}
    assert links == set(parents)
    first = collector.attributes(f"process {topic}")[0]
    assert (first["messaging.system"], first["messaging.consumer.group.name"]) == ("kafka", topic)


def learned(collector: Collector, topic: str) -> int:
    return sum(int(each["messaging.batch.message_count"]) for each in collector.attributes(f"process {topic}"))
