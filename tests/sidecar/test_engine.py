"""The engine of all protocols: in which thread it works, what it counts and keeps, and how it loads old versions."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fastapi import Request, Response
from pydantic import Field

from streampca.process.metrics import StoreMetrics
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.compute import Answer
from streampca.sidecar.engine import Engine
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.schemas import RowsRequest
from streampca.sidecar.served_models import ServedModels
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, numbered
from tests.sidecar.http_client import Client
from tests.waiting import wait_until


class FakeProtocol(RowsRequest):
    """A protocol that answers with the version of the model, and notes its calls."""

    calls: list[tuple[str, bool]] = Field(default_factory=list)  # name, and whether it was called in the main thread

    def _note(self, name: str) -> None:
        self.calls.append((name, threading.current_thread() is threading.main_thread()))

    def parse(self, raw: Any, limits: Any) -> "FakeProtocol":
        self._note("parse")
        return self

    def compute(self, published: Any, parsed: "FakeProtocol", limits: Any) -> Answer:
        self._note("compute")
        return Answer(published.version, {}, vector_count=3, projected=published.project(np.ones((3, 5))))

    def respond(self, parsed: "FakeProtocol", answer: Answer, raw: Any) -> Response:
        self._note("respond")
        return Response(str(answer.version))


@pytest.fixture
def engine(models: Models) -> Engine:
    served, settings = ServedModels(models), ServeSettings(topic=TOPIC)
    served.cache.poll()
    metrics = SidecarMetrics(served, TOPIC, StoreMetrics())
    return Engine(served, metrics, settings.topic, settings.max_body_bytes)


def ask(engine: Engine, protocol: FakeProtocol, body: bytes = b"{}", *, if_quick: bool = True) -> bytes:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def answer() -> Response:
        request = Request({"type": "http", "headers": [], "query_string": b""}, receive)
        return await engine.answer(
            request, operation="score", parse=protocol.parse, compute=protocol.compute, respond=protocol.respond,
            run_on_loop_if_quick=if_quick,
        )  # fmt: skip

    return bytes(asyncio.run(answer()).body)


ALL = ("parse", "compute", "respond")


@pytest.mark.parametrize(
    ("body", "if_quick", "at_once"), [(b"{}", True, True), (b"{}", False, False), (b" " * 40_000, True, False)]
)
def test_only_quick_work_is_done_on_the_event_loop(engine: Engine, body: bytes, if_quick: bool, at_once: bool) -> None:
    protocol = FakeProtocol()
    assert ask(engine, protocol, body, if_quick=if_quick) == b"20"
    assert protocol.calls == [(name, at_once) for name in ALL]


def test_with_a_model_that_fills_missing_entries_the_size_of_the_body_decides(engine: Engine, models: Models) -> None:
    published = numbered(30)
    published.settings["missing"] = "impute"
    models.save(published)
    engine.models.cache.poll()
    protocol = FakeProtocol()
    assert ask(engine, protocol) == b"30"
    assert protocol.calls == [(name, True) for name in ALL]


def test_a_request_whose_model_is_not_loaded_is_parsed_again_when_it_is(engine: Engine) -> None:
    protocol = FakeProtocol(version=10)
    assert ask(engine, protocol) == b"10"
    assert protocol.calls == [("parse", True), *((name, False) for name in ALL)]
    assert ask(engine, protocol) == b"10"
    assert protocol.calls[4:] == [(name, True) for name in ALL]


# --- old versions ---

PATHS = ["/v1/model?version={}", "/v1/page/recent?version={}", "/v1/model/components?version={}"]


class SlowStore(MemoryStore):
    """Counts the reads of each file, and the reads that run at once. Within `held`, reads wait."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.running = 0  # reads
        self.most_running = 0  # since the beginning of `held`
        self.released = threading.Event()
        self.released.set()
        self._counting = threading.Lock()

    def read(self, name: str) -> bytes:
        with self._counting:
            self.reads[name] += 1
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        assert self.released.wait(60)
        with self._counting:
            self.running -= 1
        return super().read(name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let reads wait until the end of the block."""
        self.reads.clear()
        self.most_running = 0
        self.released.clear()
        try:
            yield
        finally:
            self.released.set()


def statuses(client: Client, paths: list[str]) -> Counter[int]:
    """Send requests at once, and count the status codes of their answers."""
    with ThreadPoolExecutor(len(paths)) as threads:
        return Counter(answer.status_code for answer in threads.map(client.get, paths))


@pytest.fixture
def slow() -> SlowStore:
    """A store with the models 1 to 40."""
    store = SlowStore()
    for version in range(1, 41):
        Models(store, TOPIC, keep=100).save(numbered(version))
    return store


@pytest.fixture
def served(slow: SlowStore) -> Iterator[Client]:
    with Client(create_app(slow, ServeSettings(topic=TOPIC))) as client:
        yield client


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_requests_for_one_version_share_one_load(
    slow: SlowStore, served: Client, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, looked_up, find = [path.format(7) for path in PATHS] * 10, Counter[str](), Engine.find

    async def counted(loader: Engine, version: int | None) -> object:
        looked_up["all"] += 1
        return await find(loader, version)

    monkeypatch.setattr(Engine, "find", counted)
    with slow.held():
        asked = background.submit(statuses, served, paths)
        wait_until(lambda: looked_up["all"] == len(paths))
    assert asked.result() == {200: len(paths)}
    assert sum(slow.reads.values()) == 1


def test_old_versions_are_loaded_one_at_a_time_and_the_newest_does_not_wait(
    slow: SlowStore, served: Client, background: ThreadPoolExecutor
) -> None:
    with slow.held():
        asked = background.submit(statuses, served, [PATHS[i % 3].format(i + 1) for i in range(39)])
        wait_until(lambda: sum(slow.reads.values()) == 1)
        assert served.get("/v1/model").status_code == 200
        assert served.post("/v1/reconstruct", json={"coordinates": [[1.0, 2.0]]}).status_code == 200
        assert sum(slow.reads.values()) == 1
    assert asked.result() == {200: 39}
    assert slow.most_running == 1


def test_a_failed_load_is_tried_again(slow: SlowStore, served: Client) -> None:
    assert statuses(served, [PATHS[0].format(77)] * 5) == {404: 5}
    Models(slow, TOPIC, keep=100).save(numbered(77))
    assert served.get(PATHS[0].format(77)).status_code == 200
