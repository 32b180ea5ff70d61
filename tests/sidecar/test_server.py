"""The sidecar as users run it: a process, a real port, a real folder, signals."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import orjson
import pytest

from streampca.errors import SettingsError
from streampca.sidecar.server import listen
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.broker_process import wait_until
from tests.sidecar import process
from tests.sidecar.known import TOPIC, D, known, known_model
from tests.sidecar.process import SidecarProcess

pytestmark = pytest.mark.slow  # whole processes

ROW = [1.0] * D


@pytest.fixture
def models(tmp_path: Path) -> Models:
    models = Models(DirectoryStore(tmp_path), TOPIC, keep=5)
    models.save(known(1))
    return models


async def until(client: httpx.AsyncClient, path: str, status: int, within_s: float = 60.0) -> httpx.Response:
    deadline = time.monotonic() + within_s
    while (answer := await client.get(path)).status_code != status:
        assert time.monotonic() < deadline, answer.text
        await asyncio.sleep(0.01)
    return answer


# --- switching versions under load ----------------------------------------------------------------------------------

VERSIONS = range(1, 52)
CONNECTIONS = 8


class LoadGenerator:
    """Sequential requests on one connection; each answer is checked against the model of its version."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._rng = url, np.random.default_rng(seed)
        self.versions: list[int] = []

    async def run(self, done: asyncio.Event) -> None:
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(base_url=self._url, limits=limits, timeout=60) as client:
            while not done.is_set():
                await self._ask(client)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        rows = self._rng.normal(size=(int(self._rng.choice([1, 3, 600])), D))
        answer = await client.post("/v1/project", content=orjson.dumps({"vectors": rows.tolist()}))
        assert answer.status_code == 200, answer.text
        content = answer.json()
        model = known_model(content["version"])
        coordinates, residual = model.project(rows)
        np.testing.assert_allclose(content["coordinates"], coordinates, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(content["residual"], residual, rtol=1e-12, atol=1e-12)
        assert answer.headers["x-model-version"] == str(content["version"])
        self.versions.append(content["version"])


def publish(models: Models, next_version: threading.Semaphore) -> None:
    for version in VERSIONS:
        assert next_version.acquire(timeout=60)
        models.save(known(version))


async def wait_until_served(loads: list[LoadGenerator], version: int) -> None:
    """Wait until each has had an answer of this version."""
    deadline = time.monotonic() + 60
    while not all(load.versions and load.versions[-1] >= version for load in loads):
        assert time.monotonic() < deadline, f"version {version} was not loaded"
        await asyncio.sleep(0.005)


async def under_load(url: str, models: Models) -> list[LoadGenerator]:
    """Publish fifty versions, each after the previous one is in use."""
    loads, done, next_version = (
        [LoadGenerator(url, seed) for seed in range(CONNECTIONS)],
        asyncio.Event(),
        threading.Semaphore(1),
    )
    writer = threading.Thread(target=publish, args=(models, next_version), daemon=True)
    writer.start()
    async with asyncio.TaskGroup() as tasks:
        for load in loads:
            tasks.create_task(load.run(done))
        for version in VERSIONS:
            await wait_until_served(loads, version)
            next_version.release()
        done.set()
    writer.join(timeout=30)
    return loads


@pytest.mark.timeout(120)
def test_versions_switch_under_load_without_a_failed_request(models: Models, tmp_path: Path) -> None:
    with SidecarProcess(tmp_path) as sidecar:
        loads = asyncio.run(under_load(sidecar.url(), models))
        code, log = sidecar.end(within_s=60)
    assert (code, "error" in log) == (0, False), log
    assert sum(len(load.versions) for load in loads) >= 300
    seen = {version for load in loads for version in load.versions}
    assert seen == set(VERSIONS)
    for load in loads:
        assert load.versions == sorted(load.versions), "versions went backwards on a connection"


# --- the end --------------------------------------------------------------------------------------------------------


def open_request(url: str, body: bytes, first: int) -> socket.socket:
    """A request of which only the first bytes of its body have been sent."""
    where = urlsplit(url)
    connection = socket.create_connection((where.hostname, where.port), timeout=60)
    head = f"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:first])
    return connection


def refuses(url: str) -> bool:
    where = urlsplit(url)
    try:
        socket.create_connection((where.hostname, where.port), timeout=1).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_finish_after_a_signal(
    models: Models, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get more time than shipped, and the process ends sooner than that: it waits for nothing else."""
    first = "from streampca.sidecar import server\nserver._FINISH_WITHIN_S = 120\n"
    monkeypatch.setattr(process, "PROGRAM", first + process.PROGRAM)
    body = orjson.dumps({"vectors": [ROW] * 200})
    with SidecarProcess(tmp_path) as sidecar:
        url = sidecar.url()
        idle = httpx.Client(base_url=url, timeout=60)
        assert idle.get("/healthz").status_code == 200  # and its connection stays open
        with open_request(url, body, first=100) as connection:
            wait_until_open(idle)
            sidecar.process.send_signal(number)
            wait_until(lambda: refuses(url), 60)
            connection.sendall(body[100:])
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        code, log = sidecar.ended(within_s=60)
        idle.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert len(orjson.loads(answer.split(b"\r\n\r\n", 1)[1])["coordinates"]) == 200
    assert code == 0, log
    assert "Traceback" not in log


def wait_until_open(client: httpx.Client) -> None:
    """Once a later request on another connection is answered, the server has seen the earlier one."""
    for _ in range(3):
        assert client.get("/healthz").status_code == 200


def test_a_request_that_never_ends_is_abandoned(models: Models, tmp_path: Path) -> None:
    with SidecarProcess(tmp_path) as sidecar:
        url = sidecar.url()
        with open_request(url, b"x" * 1000, first=10), httpx.Client(base_url=url, timeout=60) as client:
            wait_until_open(client)
            code, _ = sidecar.end(within_s=30)  # the body's deadline is a minute
    assert code == 0


def test_a_store_that_does_not_exist_yet_is_named_and_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "absent"
    with SidecarProcess(place) as sidecar:
        first = orjson.loads(next(sidecar.lines()))
        assert (first["level"], first["event"], first["path"]) == ("warning", "store does not exist yet", str(place))
        url = sidecar.url()
        answer = httpx.get(f"{url}/readyz", timeout=60)
        assert answer.status_code == 503
        reason = f"there is no store at {place} yet: no worker has written to it, or its volume is not mounted"
        assert answer.json()["reasons"] == [reason]
        assert not place.exists()
        Models(DirectoryStore(place), TOPIC).save(known(1))
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, 60)
        assert sidecar.end(within_s=60)[0] == 0


# --- the start ------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_reported_in_one_line(models: Models, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with SidecarProcess(tmp_path, port=port) as sidecar:
            code, log = sidecar.ended(within_s=60)
    assert code == 1
    assert log == (
        f"streampca: cannot listen on 127.0.0.1:{port}: Address already in use "
        "(stop the process there or set STREAMPCA_PORT)\n"
    )


def test_a_store_that_is_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    with SidecarProcess(tmp_path / "store") as sidecar:
        code, log = sidecar.ended(within_s=60)
    assert code == 1
    assert log.startswith("streampca: cannot list ")
    assert log.count("\n") == 1


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_of_another_machine_is_reported_in_one_line(host: str) -> None:
    with pytest.raises(SettingsError, match=f"cannot listen on {host}.*set STREAMPCA_HOST"):
        listen(host, 0)


def test_answers_on_a_persistent_connection_are_not_delayed(models: Models, tmp_path: Path) -> None:
    """Nagle's algorithm would delay each by the 40 ms until the client's kernel acknowledges."""
    seconds = []
    with SidecarProcess(tmp_path) as sidecar, httpx.Client(base_url=sidecar.url(), timeout=60) as client:
        for _ in range(40):
            began = time.perf_counter()
            client.post("/v1/project", json={"vectors": [ROW]})
            seconds.append(time.perf_counter() - began)
    assert min(seconds[5:]) < 0.03


def test_it_starts_fast_and_imports_nothing_heavy(models: Models, tmp_path: Path) -> None:
    program = (
        "import sys, streampca.sidecar.server, streampca.stores.directory; "
        "print([name for name in ('scipy', 'numba', 'sklearn', 'kafka', 'confluent_kafka') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with SidecarProcess(tmp_path, forked=False) as sidecar:
        assert httpx.get(f"{sidecar.url()}/readyz", timeout=60).status_code == 200
        assert processor_s(sidecar.process.pid) < 8  # it takes 0.8 s


def processor_s(pid: int) -> float:
    """The processor time of a process so far, which depends less on what else runs than the clock does."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
