"""The HTTP port of a member, requested as Prometheus and Kubernetes do."""

import gc
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter

from streampca.consumer_group import events
from streampca.consumer_group.member import Member
from streampca.consumer_group.port import MOST_CONNECTIONS, member_port
from streampca.errors import SettingsError
from streampca.process import http_server
from streampca.process.metrics import LabelledRegistry
from tests.members import make_member
from tests.ports import free_ports
from tests.waiting import wait_until


class Server(NamedTuple):
    host: str
    port: int


@contextmanager
def serving(registry: CollectorRegistry, member: Member, host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    with member_port(host, port, registry, member) as url:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        yield Server(address.hostname, address.port)


@pytest.fixture
def member() -> Member:
    return make_member(clock=time.monotonic)


@pytest.fixture
def server(member: Member) -> Iterator[Server]:
    registry = LabelledRegistry("worker", topic="readings")
    Counter("streampca_trials", "Trials.", ["outcome"], registry=registry).labels("ok").inc(3)
    with serving(registry, member) as server:
        yield server


def get(server: Server, path: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection(*server, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_metrics_expose_the_registry(server: Server) -> None:
    status, kind, text = get(server, "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert 'streampca_trials_total{outcome="ok",topic="readings"} 3.0' in text.splitlines()


def test_probes_answer_as_the_health_is(server: Server, member: Member) -> None:
    assert get(server, "/healthz")[::2] == (200, "ok\n")
    status, kind, text = get(server, "/readyz")
    assert (status, kind) == (503, "text/plain; charset=utf-8")
    assert "group" in text
    member.notify(events.PartitionsAssigned({0: 5}))
    assert get(server, "/readyz")[::2] == (200, "ok\n")
    member.notify(events.MemberStopping("SIGTERM"))
    assert get(server, "/readyz")[::2] == (503, "stopping: SIGTERM\n")


def test_a_healthy_member_says_which_partitions_are_missing(server: Server, member: Member) -> None:
    """A restart would not help, so the probe does not fail."""
    member.notify(events.PartitionsMissing({2**31: "model 7 contains backfill-0", 3: "cannot read 3"}))
    text = "ok; partitions missing: cannot read 3; model 7 contains backfill-0\n"
    assert get(server, "/healthz")[::2] == (200, text)
    member.notify(events.PartitionsMissing({}))
    assert get(server, "/healthz")[::2] == (200, "ok\n")


def test_other_paths_are_not_found_and_queries_are_ignored(server: Server) -> None:
    statuses = {"/": 404, "/metrics/": 404, "/healthz?verbose=1": 200}
    assert {path: get(server, path)[0] for path in statuses} == statuses


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/nothing"])
def test_head_and_a_target_with_scheme_and_host_are_answered_as_get(server: Server, path: str) -> None:
    port, heads = server.port, []
    for method, target in (("GET", path), ("HEAD", path), ("HEAD", f"http://pod:{port}{path}")):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert (body == b"") == (method == "HEAD")
        heads.append({line for line in head.splitlines() if not line.startswith((b"Date", b"Content-Length"))})
    assert heads[0] == heads[1] == heads[2]


def test_a_scrape_may_name_its_metrics(server: Server) -> None:
    _, _, text = get(server, "/metrics?name[]=streampca_trials_total")
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        'streampca_trials_total{outcome="ok",topic="readings"} 3.0'
    ]


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: a"])
def test_a_silent_client_is_disconnected(server: Server, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "SHORT_CONNECTION_S", 0.1)
    with suppress(ConnectionError), socket.create_connection(server, timeout=60) as client:
        client.sendall(sent)
        assert client.recv(100) == b""  # or reset, if it was late
    monkeypatch.undo()  # this client may be late, too
    assert get(server, "/healthz")[0] == 200


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SHORT_CONNECTION_S", 0.5)
    with socket.create_connection(server, timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nA: ")
        for _ in range(200):
            if select.select([client], [], [], 0.1)[0]:
                return  # closed, or reset
            client.sendall(b"b")
    pytest.fail("still connected after 20 s")


def test_a_client_that_does_not_read_its_answer_is_disconnected(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer, which names the metric three times, is longer than what the buffers of both ends take."""
    registry = CollectorRegistry()
    long = Counter("streampca_long", "x" * 2**24, registry=registry)
    long.inc()
    with serving(registry, member) as server:
        assert get(server, "/healthz")[0] == 200  # its thread has opened all that it needs
        monkeypatch.setattr(http_server, "SHORT_CONNECTION_S", 0.5)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            gc.collect()  # sockets that other tests have left are not closed while descriptors are counted
            descriptors = _descriptors()
            client.connect(server)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(4) == b"HTTP"
            wait_until(lambda: _descriptors() <= descriptors)  # the server's end is closed
            received = sum(map(len, iter(lambda: client.recv(2**16), b"")))
            assert received < 2**25


def test_invalid_requests_and_closed_connections_do_no_harm(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    endless = b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n"
    for garbage in (b"\x00\xff\r\n\r\n", b"GET /metrics", endless, b""):
        with socket.create_connection(server) as client:
            client.sendall(garbage)
    assert get(server, "/healthz")[0] == 200
    assert caplog.records == []


def test_the_port_listens_on_ipv6_too(member: Member) -> None:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serving(CollectorRegistry(), member, "::1"))
        except SettingsError as error:
            pytest.skip(str(error))
        assert get(server, "/healthz")[0] == 200


def test_closing_frees_the_port_and_ends_the_thread(member: Member) -> None:
    """Also while a client is connected."""
    (port,) = free_ports(1)
    for _ in range(2):
        with serving(CollectorRegistry(), member, port=port) as server, ExitStack() as stack:
            assert server.port == port
            stack.enter_context(socket.create_connection(server)).sendall(b"GET /healthz")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert not [thread for thread in threading.enumerate() if thread.name == "health"]


def test_slow_clients_leave_descriptors_for_checkpoints(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """They block no other; connections beyond the most are closed; when others end, there is room again."""
    monkeypatch.setattr(http_server, "SHORT_CONNECTION_S", 600.0)  # so that it is not what closes them
    with serving(CollectorRegistry(), member) as server, ExitStack() as stack:
        with socket.create_connection(server):
            assert get(server, "/healthz")[0] == 200
        slow = [stack.enter_context(socket.create_connection(server)) for _ in range(2 * MOST_CONNECTIONS)]
        closed: set[int] = set()
        wait_until(lambda: closed.update(_ended(slow)) or len(closed) > MOST_CONNECTIONS)
        assert len(closed) == len(_ended(slow)) < 2 * MOST_CONNECTIONS
        stack.close()
        wait_until(lambda: _answers(server))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _ended(clients: list[socket.socket]) -> set[int]:
    """The descriptors of connections that the server has ended."""
    polled = select.poll()
    for client in clients:
        polled.register(client, select.POLLIN | select.POLLHUP)
    return {descriptor for descriptor, _ in polled.poll(0)}


def _answers(server: Server) -> bool:
    try:
        return get(server, "/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False
