"""A sidecar that cannot get more memory refuses requests, and lives."""

import contextlib
import resource
from collections import Counter
from pathlib import Path

import httpx
import pytest

from streampca.api import compute
from streampca.api.app import create_app
from streampca.settings import ServeSettings
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.api.client import Client
from tests.api.known import TOPIC, known
from tests.api.process import SidecarProcess, connect
from tests.api.test_errors import error_of
from tests.api.test_memory_limits import CLIENTS, MIB, REQUESTS
from tests.broker_process import wait_until

SHIPPED = 512 * MIB  # docker-compose.yml's limit


def memory_of(pid: int, name: str) -> int:
    """Bytes, by their name in /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def allow(pid: int, more: int) -> None:
    """Let a process map this many bytes more than it does, and no byte beyond."""
    limit = memory_of(pid, "VmSize") + more
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.slow
def test_unread_answers_fit_into_a_hard_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the memory limit that is shipped, less what an idle sidecar uses."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # a thread's arena reserves 64 MiB of addresses, not of memory
    Models(DirectoryStore(tmp_path), TOPIC).save(known(1, d=100_000, k=20))
    with SidecarProcess(tmp_path, forked=False) as sidecar, contextlib.ExitStack() as stack:
        url, pid = sidecar.url(), sidecar.process.pid
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, 60)
        allow(pid, SHIPPED - memory_of(pid, "VmRSS"))
        clients = [stack.enter_context(connect(url)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(REQUESTS["reconstruct"] * 3)
        answers = Counter(client.recv(12) for client in clients)
        assert {b"HTTP/1.1 200"} < set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        stack.close()
        small = {"coordinates": [[1.0] * 20]}
        wait_until(lambda: httpx.post(f"{url}/v1/reconstruct", json=small, timeout=60).status_code == 200, 60)
        code, log = sidecar.end(within_s=60)
    assert (code, "Traceback" in log) == (0, False)


def test_a_request_that_gets_no_memory_can_be_tried_again(
    store: MemoryStore, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 7.63 MiB")

    with Client(create_app(store, ServeSettings(topic=TOPIC))) as client:
        with monkeypatch.context() as failing:
            failing.setattr(compute, "project", fails)
            refused = client.post("/v1/project", json={"vectors": [[0.0] * 5]})
        assert error_of(refused, 503) == "too many large requests at once: try again"
        assert refused.headers["retry-after"] == "1"
        assert f'streampca_limits_reached_total{{limit="memory",topic="{TOPIC}"}} 1.0' in client.get("/metrics").text
        assert client.post("/v1/project", json={"vectors": [[0.0] * 5]}).status_code == 200
