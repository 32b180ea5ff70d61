"""The sidecar as users run it: a process, a real port, a real folder, signals, and the loss of a thread."""

import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest
from structlog.typing import EventDict

from streampca.errors import StoreBusyError, StoreError
from streampca.process.start import PreparedProcess
from streampca.settings.commands import ServeSettings
from streampca.sidecar.server import run
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, D, example_model, models_in, numbered
from tests.sidecar.process import SidecarProcess, connect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # whole processes

ROW = [1.0] * D


@pytest.fixture
def models(tmp_path: Path) -> Models:
    models = models_in(tmp_path, keep=5)
    models.save(numbered(1))
    return models


# --- switching versions under load ----------------------------------------------------------------------------------

VERSIONS = range(1, 52)


def load(url: str, seed: int, versions: list[int], done: threading.Event) -> None:
    """Send requests on one connection, and check each answer against the model of its version."""
    rng = np.random.default_rng(seed)
    with httpx.Client(base_url=url, timeout=60) as client:
        while not done.is_set():
            rows = rng.normal(size=(int(rng.choice([1, 3, 600])), D))
            answer = client.post("/v1/project", content=orjson.dumps({"vectors": rows.tolist()}))
            assert answer.status_code == 200, answer.text
            content = answer.json()
            projected = example_model(content["version"]).project(rows)
            np.testing.assert_allclose(content["coordinates"], projected.coordinates, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(content["residual"], projected.residual, rtol=1e-12, atol=1e-12)
            assert answer.headers["x-model-version"] == str(content["version"])
            versions.append(content["version"])


@pytest.mark.timeout(120)
def test_versions_switch_under_load_without_a_failed_request(models: Models, tmp_path: Path) -> None:
    """Each version is published once all clients have had an answer of the one before."""
    done, versions = threading.Event(), [list[int]() for _ in range(4)]
    with SidecarProcess(tmp_path) as sidecar, ThreadPoolExecutor(len(versions)) as threads:
        url = sidecar.wait_for_url()
        loads = [threads.submit(load, url, seed, own, done) for seed, own in enumerate(versions)]
        try:
            for version in VERSIONS:
                models.save(numbered(version))
                wait_until(lambda v=version: all(v in own[-1:] for own in versions) or any(one.done() for one in loads))
        finally:
            done.set()
        for one in loads:
            one.result()
        code, log = sidecar.stop(within_s=60)
    assert (code, "error" in log) == (0, False), log
    for own in versions:
        assert own == sorted(own), "versions went backwards on a connection"
        assert set(own) == set(VERSIONS)


# --- the end --------------------------------------------------------------------------------------------------------


def open_request(url: str, body: bytes, first: int) -> socket.socket:
    """A request of which the server has received only the first bytes of its body."""
    connection = connect(url)
    head = f"POST /v1/project HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:first])
    for _ in range(3):  # once a later request on another connection is answered, the server has seen this one
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    return connection


def refuses(url: str) -> bool:
    try:
        connect(url).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_finish_after_a_signal(models: Models, tmp_path: Path, number: int) -> None:
    """They get more time than shipped, and the process ends sooner than that: it waits for nothing else."""
    first = "from streampca.sidecar import server; server._SHUTDOWN_TIMEOUT_S = 120"
    body = orjson.dumps({"vectors": [ROW] * 200})
    with SidecarProcess(tmp_path, first=first) as sidecar:
        url = sidecar.wait_for_url()
        idle = httpx.Client(base_url=url, timeout=60)
        assert idle.get("/healthz").status_code == 200  # and its connection stays open
        with open_request(url, body, first=100) as connection:
            sidecar.process.send_signal(number)
            wait_until(lambda: refuses(url), 60)
            connection.sendall(body[100:])
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        code, log = sidecar.wait_for_exit(within_s=60)
        idle.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert len(orjson.loads(answer.split(b"\r\n\r\n", 1)[1])["coordinates"]) == 200
    assert (code, "Traceback" in log) == (0, False), log


def test_a_request_that_never_ends_is_abandoned(models: Models, tmp_path: Path) -> None:
    with SidecarProcess(tmp_path) as sidecar, open_request(sidecar.wait_for_url(), b"x" * 1000, first=10):
        code, _ = sidecar.stop(within_s=30)  # the body's deadline is a minute
    assert code == 0


# A failure in the thread that is named, while the sidecar serves.
FAILURE = """
import threading
from streampca.stores.model_cache import ModelCache

def fail(*_):
    raise RuntimeError("injected into " + threading.current_thread().name)

def start(cache, interval_s):
    if NAME == "model-poller":
        cache._poll_forever = fail
    else:
        threading.Thread(target=fail, name=NAME).start()
    really_start(cache, interval_s)

really_start, ModelCache.start = ModelCache.start, start
"""


@pytest.mark.parametrize("name", ["model-poller", "another"])
def test_the_death_of_a_thread_ends_the_sidecar(tmp_path: Path, name: str) -> None:
    with SidecarProcess(tmp_path, first=f"NAME = {name!r}\n{FAILURE}") as sidecar:
        code, log = sidecar.wait_for_exit(within_s=60)
    assert code == 1, log
    assert f"RuntimeError: injected into {name}" in log.strip().splitlines()[-1]


def test_a_store_that_does_not_exist_yet_is_named_and_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "absent"
    with SidecarProcess(folder) as sidecar:
        first = orjson.loads(next(sidecar.read_lines()))
        assert (first["level"], first["event"], first["path"]) == ("warning", "store does not exist yet", str(folder))
        url = sidecar.wait_for_url()
        answer = httpx.get(f"{url}/readyz", timeout=60)
        assert answer.status_code == 503
        reason = f"there is no store at {folder} yet: no worker has written to it, or its volume is not mounted"
        assert answer.json()["reasons"] == [reason]
        assert not folder.exists()
        models_in(folder).save(numbered(1))
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, 60)
        assert sidecar.stop(within_s=60)[0] == 0


def test_a_topic_without_files_is_logged_with_the_topics_that_have_some(tmp_path: Path) -> None:
    models_in(tmp_path, "readings").save(numbered(1))
    with SidecarProcess(tmp_path, topic="readngs") as sidecar:
        warned = next(json.loads(line) for line in sidecar.read_lines() if "not in the store" in line)
        assert (warned["topic"], warned["topics"]) == ("readngs", ["readings"])
        reasons = httpx.get(f"{sidecar.wait_for_url()}/readyz", timeout=60).json()["reasons"]
        assert reasons[0].endswith("; the store has models of readings")


def test_a_bucket_that_is_away_does_not_end_the_start(monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]) -> None:
    def away(self: object, folder: str = "") -> None:
        raise StoreBusyError("a retry may help")

    for call in ("names", "missing"):
        monkeypatch.setattr(MemoryStore, call, away)
    monkeypatch.setattr(PreparedProcess, "run_loop", lambda self, loop, stop: loop.args[1].close())
    run(ServeSettings(topic=TOPIC, port=0), MemoryStore())
    assert [line["event"] for line in logs] == ["serving", "sidecar stopped"]


def test_a_store_that_is_a_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot list "):
        run(ServeSettings(topic=TOPIC), DirectoryStore(tmp_path / "store"))
