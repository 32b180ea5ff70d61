"""Connections have limits: the time to send a body and to read an answer, and their number."""

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streampca.process.logs import OncePerMinute
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.broker_process import wait_until
from tests.sidecar import process
from tests.sidecar.known import TOPIC, D, known
from tests.sidecar.process import SidecarProcess, connect

pytestmark = pytest.mark.slow  # whole processes

POST = b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
COMPONENTS = b"GET /v1/model/components HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[SidecarProcess]:
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1))
    with SidecarProcess(tmp_path) as running:
        yield running


def changed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Run these lines in the sidecar's process first."""
    monkeypatch.setattr(process, "PROGRAM", "\n".join([*lines, process.PROGRAM]))


def received(client: socket.socket) -> bytes:
    """Everything until the connection is closed."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def reached(url: str, limit: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60).text
    name = f'streampca_limits_reached_total{{limit="{limit}",topic="{TOPIC}"}} '
    line = next(line for line in text.splitlines() if line.startswith(name))
    return float(line.split()[1])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(
        monkeypatch,
        "from streampca.sidecar import middleware, request",
        "middleware.READ_WITHIN_S = request.BODY_WITHIN_S = 0.5",
    )


def test_a_body_that_does_not_arrive_is_refused(short: None, sidecar: SidecarProcess) -> None:
    url = sidecar.url()
    with connect(url) as client:
        client.sendall(POST % (100, b"{"))
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.5 s" in answer
    assert reached(url, "body_time") == 1


def test_the_answer_of_a_client_that_does_not_read_is_dropped(
    short: None, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    Models(DirectoryStore(tmp_path), TOPIC).save(known(2, d=500_000))
    url = sidecar.url()
    wait_until(lambda: httpx.get(f"{url}/v1/model", timeout=60).headers["X-Model-Version"] == "2", 60)
    with connect(url) as client:
        client.sendall(COMPONENTS)
        wait_until(lambda: reached(url, "read_time") == 1, 60)
        assert 0 < len(received(client)) < 4_000_000
    code, log = sidecar.end(within_s=60)
    assert (code, "Traceback" in log) == (0, False), log


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether it is silent or sends its headers slowly; those that have asked something stay open."""
    changed(monkeypatch, "from streampca.sidecar import server", "server.REQUEST_WITHIN_S = 0.5")
    with SidecarProcess(tmp_path) as sidecar, connect(url := sidecar.url()) as used:
        used.sendall(GET)
        assert used.recv(12) == b"HTTP/1.1 200"
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: lo"):
            with connect(url) as client:
                client.sendall(sent)
                assert received(client) == b""
        while not used.recv(65536).endswith(b"}"):
            pass
        used.sendall(GET)
        assert used.recv(12) == b"HTTP/1.1 200"


def test_an_idle_connection_stays_open(short: None, sidecar: SidecarProcess) -> None:
    with connect(sidecar.url()) as client:
        for _ in range(2):
            client.sendall(GET)
            assert client.recv(12) == b"HTTP/1.1 200"
            while not client.recv(65536).endswith(b"}"):
                pass
            time.sleep(1)


def test_too_many_connections_are_refused_until_some_are_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed(monkeypatch, "from streampca.sidecar import server", "server._MAX_FILES = 64")
    with SidecarProcess(tmp_path) as running:
        url = running.url()
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(connect(url))
            wait_until(lambda: httpx.get(f"{url}/healthz", timeout=60).status_code == 503, 60)
        wait_until(lambda: httpx.get(f"{url}/healthz", timeout=60).status_code == 200, 60)
        code, log = running.end(within_s=60)
    assert code == 0
    assert len(log) < 5000, log[:2000]


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
]


def test_malformed_requests_harm_nothing_else(sidecar: SidecarProcess) -> None:
    url = sidecar.url()
    for data in MALFORMED * 20:
        with connect(url) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            assert received(client).startswith(b"HTTP/1.1 400 "), data[:80]
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    code, log = sidecar.end(within_s=60)
    assert code == 0
    assert len(log) < 5000, log[:2000]


@pytest.mark.parametrize("declared", [True, False])
def test_a_client_that_still_sends_gets_its_413(sidecar: SidecarProcess, declared: bool) -> None:
    url = sidecar.url()
    size = b"Content-Length: 100000000" if declared else b"Transfer-Encoding: chunked"
    with connect(url) as client:
        client.sendall(b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % size)
        piece = b" " * 65536
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 100_000_000:
                client.sendall(piece if declared else b"10000\r\n%s\r\n" % piece)
                sent += len(piece)
                client.setblocking(False)
                try:
                    if client.recv(20, socket.MSG_PEEK):
                        break
                except BlockingIOError:
                    pass
                finally:
                    client.settimeout(20)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 40_000_000


def test_several_requests_on_one_connection(sidecar: SidecarProcess) -> None:
    row = json.dumps({"vectors": [[1.0] * D]}).encode()
    with connect(sidecar.url()) as client:
        client.sendall((POST % (len(row), row) + GET) * 20 + GET.replace(b"Host", b"Connection: close\r\nHost"))
        answers = received(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 41


def test_one_line_a_minute_for_a_repeating_fault() -> None:
    now = [0.0]
    once = OncePerMinute("asyncio", clock=lambda: now[0])

    def passes(name: str, text: str, error: Exception | None = None) -> bool:
        exc_info = (type(error), error, None) if error else None
        return once.filter(logging.LogRecord(name, logging.ERROR, "", 0, text, (), exc_info))

    assert [passes("asyncio", "socket.accept() out of system resource") for _ in range(3)] == [True, False, False]
    assert passes("asyncio", "another")
    assert passes("asyncio", "another", ValueError("x"))
    assert not passes("asyncio", "another", ValueError("x"))
    assert all(passes("streampca", "ours") for _ in range(3))
    now[0] = 60.0
    assert passes("asyncio", "socket.accept() out of system resource")
