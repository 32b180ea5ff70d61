"""Requests to a real sidecar give spans of their callers' traces, named by their routes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.example_models import D, numbered
from tests.sidecar.process import serve_models
from tests.tracing.conftest import Receiver, attributes
from tests.waiting import wait_until

FAULT = "from streampca.stores.model_cache import ModelCache\nModelCache.versions = lambda _: 1 / 0\n"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def sidecar(folder: Path) -> Iterator[httpx.Client]:
    """A client of a sidecar; the process has ended afterwards."""
    with serve_models(folder, numbered(7), first=FAULT) as process:
        with httpx.Client(base_url=process.wait_for_url(), timeout=60) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            yield client
        assert process.stop(within_s=60)[0] == 0


def test_a_request_gives_a_span_of_its_callers_trace(tmp_path: Path, receiver: Receiver) -> None:
    with sidecar(tmp_path) as client:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        assert client.post("/v1/project", json={"vectors": [[1.0] * D]}, headers=headers).status_code == 200
        assert client.get("/v1/models", headers=headers).status_code == 500
    (span,) = receiver.wait_for("POST /v1/project")
    (failed,) = receiver.wait_for("GET /v1/models")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (TRACE, SPAN, span.SPAN_KIND_SERVER)
    found = attributes(span)
    assert (found["http.route"], found["http.response.status_code"]) == ("/v1/project", 200)
    assert (failed.trace_id.hex(), failed.status.code) == (TRACE, failed.status.STATUS_CODE_ERROR)
    assert {span.name for span in receiver.spans} == {"POST /v1/project", "GET /v1/models"}  # without probes


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_traces_can_be_switched_off(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with sidecar(tmp_path) as client:
        assert client.get("/v1/model").status_code == 200
    assert not receiver.spans
