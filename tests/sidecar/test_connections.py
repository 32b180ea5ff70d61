"""Connections have limits: the time to send a body and to read an answer, and their number."""

import contextlib
import json
import select
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.example_models import D, numbered
from tests.sidecar.process import connect, count_reached, serve_models
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # whole processes

POST = b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
COMPONENTS = b"GET /v1/model/components HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"
SHORT = """
from streampca.process import http_server
from streampca.sidecar import middleware, request
middleware.READ_TIMEOUT_S = request.BODY_TIMEOUT_S = 0.5
http_server.REQUEST_TIMEOUT_S = 7.0  # of the tests, too, which may be stopped for a moment before they send one
"""
FEW = """
from streampca.process import http_server
from streampca.sidecar import server
server._MAX_FILES, http_server.REQUEST_TIMEOUT_S = 64, 120.0
"""


@pytest.fixture(scope="module", params=[""])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sidecar that ends without errors and has logged little; it runs the parameter's lines first."""
    published = numbered(1, d=500_000) if request.param == SHORT else numbered(1)
    with serve_models(tmp_path_factory.mktemp("store"), published, first=request.param) as sidecar:
        yield sidecar.wait_for_url()
        code, log = sidecar.stop(within_s=60)
    assert (code, "Traceback" in log) == (0, False), log
    assert len(log) < 5000, log[:2000]


with_short_timeouts = pytest.mark.parametrize("url", [SHORT], ids=["hasty"], indirect=True)


def read_until_closed(client: socket.socket) -> bytes:
    """Return everything that the server sends until the connection is closed."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def gets_answer(client: socket.socket) -> bool:
    """Send a request, read its answer, and return whether it succeeded."""
    client.sendall(GET)
    begins = client.recv(12) == b"HTTP/1.1 200"
    while not (part := client.recv(65536)).endswith(b"}"):
        assert part, "the connection is closed"
    return begins


@with_short_timeouts
def test_a_body_that_does_not_arrive_is_refused(url: str) -> None:
    with connect(url) as client:
        client.sendall(POST % (100, b"{"))
        answer = read_until_closed(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.5 s" in answer
    assert count_reached(url, "body_time") == 1


@with_short_timeouts
def test_the_answer_of_a_client_that_does_not_read_is_dropped(url: str) -> None:
    with connect(url) as client:
        client.sendall(COMPONENTS)
        wait_until(lambda: count_reached(url, "read_time") == 1, 60)
        assert 0 < len(read_until_closed(client)) < 4_000_000


@with_short_timeouts
def test_a_connection_without_a_request_is_closed_and_an_idle_one_stays_open(url: str) -> None:
    """Also one that sends its headers slowly."""
    with connect(url) as used:
        assert gets_answer(used)
        with connect(url) as silent, connect(url) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: lo")
            assert read_until_closed(silent) == read_until_closed(slow) == b""
        assert gets_answer(used)


@pytest.mark.parametrize("url", [FEW], ids=["few"], indirect=True)
def test_too_many_connections_are_refused_until_some_are_closed(url: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(url))
        wait_until(lambda: httpx.get(f"{url}/healthz", timeout=60).status_code == 503, 60)
    wait_until(lambda: httpx.get(f"{url}/healthz", timeout=60).status_code == 200, 60)


@pytest.mark.parametrize("url", [FEW], ids=["few"], indirect=True)
def test_at_the_limit_the_connection_that_is_idle_for_longest_ends(url: str) -> None:
    with contextlib.ExitStack() as stack:
        clients: list[socket.socket] = []
        for _ in range(50):
            clients.append(stack.enter_context(connect(url)))
            assert gets_answer(clients[-1])
        ended = [client for client in clients if select.select([client], [], [], 0)[0]]
        assert ended == clients[: len(ended)]
        assert 0 < len(ended) < 30
        assert all(map(gets_answer, clients[len(ended) :]))


def test_the_host_of_an_absolute_target_precedes_the_host_header(url: str) -> None:
    for target, host, status in (
        ("localhost", "other", 200),
        ("LOCALHOST:80", "other", 200),
        ("other", "localhost", 400),
    ):
        with connect(url) as client:
            client.sendall(f"HEAD http://{target}/v1/model?a=/b HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 %d" % status


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
]


def test_malformed_requests_harm_nothing_else(url: str) -> None:
    for data in MALFORMED * 20:
        with connect(url) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            assert read_until_closed(client).startswith(b"HTTP/1.1 400 "), data[:80]
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_client_that_still_sends_gets_its_413(url: str, declared: bool) -> None:
    size = b"Content-Length: 100000000" if declared else b"Transfer-Encoding: chunked"
    with connect(url) as client:
        client.sendall(b"POST /v1/project HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % size)
        piece, sent = b" " * 65536, 0
        with contextlib.suppress(ConnectionError):
            while sent < 100_000_000 and not select.select([client], [], [], 0)[0]:
                client.sendall(piece if declared else b"10000\r\n%s\r\n" % piece)
                sent += len(piece)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 40_000_000


def test_several_requests_on_one_connection(url: str) -> None:
    row = json.dumps({"vectors": [[1.0] * D]}).encode()
    with connect(url) as client:
        client.sendall((POST % (len(row), row) + GET) * 20 + GET.replace(b"Host", b"Connection: close\r\nHost"))
        answers = read_until_closed(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 41


def test_answers_on_a_persistent_connection_are_not_delayed(url: str) -> None:
    """Nagle's algorithm would delay each by the 40 ms until the client's kernel acknowledges."""
    with httpx.Client(base_url=url, timeout=60) as client:
        answers = [client.post("/v1/project", json={"vectors": [[1.0] * D]}) for _ in range(40)]
    assert min(answer.elapsed.total_seconds() for answer in answers[5:]) < 0.03
