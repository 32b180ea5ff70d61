"""Requests to a real sidecar give spans of their callers' traces, named by their routes."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, D, numbered
from tests.forked import COMMAND_LINE, ForkedProcess
from tests.tracing.receiver import Receiver, attributes
from tests.waiting import wait_until

FAULT = "from streampca.stores.model_cache import ModelCache\nModelCache.versions = lambda _: 1 / 0\n"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def sidecar(folder: Path, environment: dict[str, str]) -> Iterator[httpx.Client]:
    """A client of `streampca serve` in this environment; the process has ended afterwards."""
    Models(DirectoryStore(folder / "store"), TOPIC).save(numbered(7))
    arguments = ["serve", "--topic", TOPIC, "--store", str(folder / "store"), "--port", "0"]
    environment = {**os.environ, "STREAMPCA_LOG_FORMAT": "json", **environment}
    process = ForkedProcess(arguments, environment, folder / "log", program=FAULT + COMMAND_LINE)
    try:
        wait_until(lambda: [line for line in lines(folder) if line["event"] == "serving"])
        with httpx.Client(base_url=next(line["url"] for line in lines(folder) if line["event"] == "serving")) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            yield client
        process.send_signal(15)
        assert process.wait(30) == 0
    finally:
        process.kill()


def lines(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.endswith("}")]


def test_a_request_gives_a_span_of_its_callers_trace(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with sidecar(tmp_path, receiver.environment) as client:
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


@pytest.mark.parametrize("more", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_traces_can_be_switched_off(tmp_path: Path, more: dict[str, str]) -> None:
    with Receiver() as receiver, sidecar(tmp_path, receiver.environment | more) as client:
        assert client.get("/v1/model").status_code == 200
    assert not receiver.spans
