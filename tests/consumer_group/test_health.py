"""The HTTP port of a member, requested as Prometheus and Kubernetes do."""

import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from prometheus_client import CollectorRegistry, Counter

from streampca.consumer_group import events, health as health_module
from streampca.consumer_group.health import MOST_CONNECTIONS, HealthListener, HealthServer, health_server
from streampca.errors import SettingsError
from streampca.process.metrics import LabelledRegistry
from streampca.sources.events import SourceStatus
from tests.ports import free_ports
from tests.waiting import Clock, wait_until
from tests.worker.environment import notify

MEMBER, NON_MEMBER = (events.SourcePolled(SourceStatus(connected=True, member=is_one)) for is_one in (True, False))
ASSIGNED = events.PartitionsAssigned({0: 5})


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def health(clock: Clock) -> HealthListener:
    return HealthListener(clock)


@pytest.fixture
def server(health: HealthListener) -> Iterator[HealthServer]:
    registry = LabelledRegistry("worker", topic="readings")
    Counter("streampca_trials", "Trials.", ["outcome"], registry=registry).labels("ok").inc(3)
    with health_server("127.0.0.1", 0, registry, health) as server:
        yield server


def get(server: HealthServer, path: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_metrics_expose_the_registry(server: HealthServer) -> None:
    status, kind, text = get(server, "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert 'streampca_trials_total{outcome="ok",topic="readings"} 3.0' in text.splitlines()


def test_healthy_while_the_loop_has_run_within_a_minute_and_five_minutes_before_it_starts(
    server: HealthServer, health: HealthListener, clock: Clock
) -> None:
    """Compiling takes long."""
    for seconds, has_run, *expected in (
        (299, False, 200, "ok\n"),
        (2, False, 503, "the loop has not run for 301 s\n"),
        (0, True, 200, "ok\n"),
        (59, False, 200, "ok\n"),
        (2, False, 503, "the loop has not run for 61 s\n"),
        (0, True, 200, "ok\n"),
    ):
        clock.now += seconds
        notify(health, *[events.LoopTicked()] * has_run)
        assert [*get(server, "/healthz")[::2]] == expected


def test_ready_from_the_first_assignment_until_it_stops(server: HealthServer, health: HealthListener) -> None:
    status, _, text = get(server, "/readyz")
    assert status == 503
    assert "group" in text
    health.notify(ASSIGNED)
    assert get(server, "/readyz")[0] == 200
    health.notify(events.MemberStopping("SIGTERM"))
    assert get(server, "/readyz")[::2] == (503, "stopping: SIGTERM\n")
    assert get(server, "/healthz")[0] == 200


@pytest.mark.parametrize(
    "timeline",
    [
        # More workers than partitions: after ten seconds as a member, an empty assignment is the last one.
        [(0, MEMBER, False), (9, MEMBER, False), (0, NON_MEMBER, False), (0, MEMBER, False), (9, MEMBER, False),
         (1, MEMBER, True), (0, NON_MEMBER, True), (10, NON_MEMBER, False)],
        # Partitions that are lost must come back; it has rejoined at the next poll already.
        [(0, MEMBER, False), (0, ASSIGNED, True), (100, events.PartitionsReleased([0], lost=False), True),
         (0, events.PartitionsReleased([0], lost=True), False), (0, MEMBER, False), (0, ASSIGNED, True)],
    ],
    ids=["standby", "lost partitions"],
)  # fmt: skip
def test_when_a_worker_is_ready(
    health: HealthListener, clock: Clock, timeline: list[tuple[float, events.MemberEvent, bool]]
) -> None:
    for seconds, event, is_ready in timeline:
        clock.now += seconds
        health.notify(event)
        assert (health.why_not_ready() is None) == is_ready
    assert is_ready or health.why_not_ready() == ("group", "no place in the consumer group yet")


def test_other_paths_are_not_found_and_queries_are_ignored(server: HealthServer) -> None:
    statuses = {"/": 404, "/metrics/": 404, "/healthz?verbose=1": 200}
    assert {path: get(server, path)[0] for path in statuses} == statuses


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/nothing"])
def test_head_and_a_target_with_scheme_and_host_are_answered_as_get(server: HealthServer, path: str) -> None:
    port, heads = server.server_port, []
    for method, target in (("GET", path), ("HEAD", path), ("HEAD", f"http://pod:{port}{path}")):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert (body == b"") == (method == "HEAD")
        heads.append({line for line in head.splitlines() if not line.startswith((b"Date", b"Content-Length"))})
    assert heads[0] == heads[1] == heads[2]


def test_a_scrape_may_name_its_metrics(server: HealthServer) -> None:
    _, _, text = get(server, "/metrics?name[]=streampca_trials_total")
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        'streampca_trials_total{outcome="ok",topic="readings"} 3.0'
    ]


def test_a_silent_client_is_disconnected(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_CONNECTED_S", 0.1)
    address = ("127.0.0.1", server.server_port)
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: a"):
        with suppress(ConnectionError), socket.create_connection(address, timeout=60) as client:
            client.sendall(sent)
            assert client.recv(100) == b""  # or reset, if it was late
    monkeypatch.undo()  # this client may be late, too
    assert get(server, "/healthz")[0] == 200


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_CONNECTED_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nA: ")
        for _ in range(200):
            if select.select([client], [], [], 0.1)[0]:
                return  # closed, or reset
            client.sendall(b"b")
    pytest.fail("still connected after 20 s")


def test_invalid_requests_and_closed_connections_do_no_harm(server: HealthServer) -> None:
    endless = b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n"
    for garbage in (b"\x00\xff\r\n\r\n", b"GET /metrics", endless, b""):
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(garbage)
    assert get(server, "/healthz")[0] == 200


def test_it_also_listens_on_ipv6(health: HealthListener) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(health_server("::1", 0, CollectorRegistry(), health))
        except SettingsError as error:
            pytest.skip(str(error))
        client = stack.enter_context(socket.create_connection(("::1", server.server_port)))
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200")


def test_closing_frees_the_port_and_ends_the_thread(health: HealthListener) -> None:
    (port,) = free_ports(1)
    for _ in range(2):
        with health_server("127.0.0.1", port, CollectorRegistry(), health) as server:
            assert server.server_port == port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert not [thread for thread in threading.enumerate() if thread.name == "health"]


def test_slow_clients_leave_descriptors_for_checkpoints(
    health: HealthListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They block no other; connections beyond the most are closed; when others end, there is room again."""
    monkeypatch.setattr(health_module, "_CONNECTED_S", 600.0)  # so that it is not what closes them
    with health_server("127.0.0.1", 0, CollectorRegistry(), health) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.server_port)
        before = set(threading.enumerate())  # other tests' threads may end meanwhile
        with socket.create_connection(address):
            assert get(server, "/healthz")[0] == 200
        wait_until(lambda: set(threading.enumerate()) <= before)  # else they take places
        for _ in range(MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET /healthz")
        wait_until(lambda: len(set(threading.enumerate()) - before) == 2 * MOST_CONNECTIONS)  # answering, and timers
        for _ in range(20):
            with socket.create_connection(address, timeout=60) as more:
                assert more.recv(100) == b""
        stack.close()
        wait_until(lambda: set(threading.enumerate()) <= before)
        assert get(server, "/healthz")[0] == 200
