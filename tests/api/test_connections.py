"""Connections have limits: their number, the time to send and to read, and what is refused as malformed."""

import contextlib
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streampca.api import protocol
from streampca.logs import OncePerMinute
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.api import process
from tests.api.known import TOPIC, D, known
from tests.api.process import SidecarProcess, connect
from tests.broker_process import wait_until

pytestmark = pytest.mark.slow  # whole processes

SHORT_S = 0.5
OK = b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
EXPECTANT = b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
COMPONENTS = b"GET /v1/model/components HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A short deadline in the process: that of the headers, unless the test names another one."""
    name = getattr(request, "param", "HEADERS_WITHIN_S")
    program = f"from streampca.api import protocol\nprotocol.{name} = {SHORT_S}\n{process.PROGRAM}"
    monkeypatch.setattr(process, "PROGRAM", program)


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[SidecarProcess]:
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1))
    with SidecarProcess(tmp_path) as running:
        yield running


def received(client: socket.socket) -> bytes:
    """Everything until the connection is closed."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def healthz_answer(client: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"}"):
        part = client.recv(65536)
        assert part, "closed"
        answer += part
    return answer


def closes_within(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        received(client)
    except TimeoutError:
        return False
    return True


def reached(url: str, limit: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60).text
    name = f'streampca_limits_reached_total{{limit="{limit}",topic="{TOPIC}"}} '
    line = next(line for line in text.splitlines() if line.startswith(name))
    return float(line.split()[1])


@pytest.mark.parametrize(
    ("short", "sent", "limit"),
    [
        ("HEADERS_WITHIN_S", b"", "headers_time"),
        ("HEADERS_WITHIN_S", b"GET /healthz HTTP/1.1\r\nHo", "headers_time"),
        ("BODY_WITHIN_S", OK % (100, b"{"), "body_time"),
    ],
    indirect=["short"],
)
def test_a_silent_client_is_disconnected(short: None, sidecar: SidecarProcess, sent: bytes, limit: str) -> None:
    url = sidecar.url()
    with connect(url) as client:
        client.sendall(sent)
        assert closes_within(client, 30)
    assert reached(url, limit) == 1


def test_a_client_that_sends_byte_by_byte_is_disconnected(short: None, sidecar: SidecarProcess) -> None:
    sent = []

    def send_slowly(client: socket.socket) -> None:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: " + b"a" * 100:
            client.send(bytes([byte]))
            sent.append(byte)
            time.sleep(SHORT_S / 10)

    with connect(sidecar.url()) as client:
        client.sendall(GET)
        assert b"ok" in healthz_answer(client)
        with pytest.raises(ConnectionError):
            send_slowly(client)
        assert len(sent) < 80  # in bytes, not in seconds: a busy machine sends fewer


@pytest.mark.parametrize("short", ["READ_WITHIN_S"], indirect=True)
def test_a_client_that_does_not_read_is_disconnected(short: None, tmp_path: Path) -> None:
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1, d=500_000))
    with SidecarProcess(tmp_path) as running:
        url = running.url()
        with connect(url) as client:
            client.sendall(
                GET.replace(b"/healthz", b"/v1/model/components").replace(b"Host", b"Accept: application/x-npy\r\nHost")
            )
            wait_until(lambda: reached(url, "read_time"), 60)


def test_an_idle_connection_stays_open(short: None, sidecar: SidecarProcess) -> None:
    with connect(sidecar.url()) as client:
        for _ in range(2):
            client.sendall(GET)
            assert b"ok" in healthz_answer(client)
            time.sleep(2 * SHORT_S)


def test_silent_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    """More connections than the process may open files; the log stays short."""
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1))
    with SidecarProcess(tmp_path) as running, contextlib.ExitStack() as stack:
        url = running.url()
        hard = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)[1]
        assert hard >= 1024
        for _ in range(1200):
            stack.enter_context(connect(url))
        for _ in range(20):
            assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        assert reached(url, "connections") > 600
        code, log = running.end(within_s=60)
        assert code == 0
        assert len(log) < 5000, log[:2000]


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 1024 open files in each process."""
    first = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"
    monkeypatch.setattr(process, "PROGRAM", first + process.PROGRAM)


def test_when_all_connections_are_busy_another_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = "from streampca.api import protocol\nprotocol.MAX_CONNECTIONS = 3\n"
    monkeypatch.setattr(process, "PROGRAM", first + process.PROGRAM)
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1))
    with SidecarProcess(tmp_path) as running, contextlib.ExitStack() as stack:
        url = running.url()
        clients = [stack.enter_context(connect(url)) for _ in range(3)]
        for client in clients:
            client.sendall(EXPECTANT)
            assert client.recv(12) == b"HTTP/1.1 100"  # the body is awaited
        answer = httpx.get(f"{url}/healthz", timeout=60)
        assert (answer.status_code, answer.json()) == (503, {"error": "too many connections: try again"})
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
]  # fmt: skip


def test_malformed_requests_get_an_error_like_all_others_and_leave_no_traceback(sidecar: SidecarProcess) -> None:
    url = sidecar.url()
    for data in MALFORMED:
        with connect(url) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            head, _, body = received(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), (data[:80], head)
        assert list(json.loads(body)) == ["error"], (data[:80], body)
    for delay in (0.0, 0.05):  # a mistake in a body whose request was already answered, or is being answered
        with connect(url) as client:
            client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
            time.sleep(delay)
            with contextlib.suppress(ConnectionError):
                client.sendall(b"cdefgh\r\nzzz\r\n\r\n")
            received(client)
    assert reached(url, "malformed") >= len(MALFORMED)
    code, log = sidecar.end(within_s=60)
    assert code == 0
    assert "Traceback" not in log, log[:3000]


@pytest.mark.parametrize("declared", [True, False])
def test_after_413_the_connection_is_closed_when_the_client_has_the_answer(
    sidecar: SidecarProcess, declared: bool
) -> None:
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
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert sent < 40_000_000


def test_several_requests_on_one_connection(sidecar: SidecarProcess) -> None:
    row = json.dumps({"vectors": [[1.0] * D]}).encode()
    with connect(sidecar.url()) as client:
        client.sendall((OK % (len(row), row) + GET) * 20 + GET.replace(b"Host", b"Connection: close\r\nHost"))
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


def test_connections_leave_files_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert protocol.max_connections() == 128


def test_h11_parses_requests_also_where_httptools_is_installed(tmp_path: Path) -> None:
    """httptools does not limit the length of headers, and uvicorn takes it if it is there."""
    (tmp_path / "httptools.py").write_text("")
    program = "import httptools, streampca.api.protocol as p; print(p.LimitedProtocol.__base__.__module__)"
    folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "uvicorn.protocols.http.h11_impl\n"
