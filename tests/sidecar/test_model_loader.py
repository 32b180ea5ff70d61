"""Old versions are loaded once for all who wait, few at a time; a clock set back makes no model younger."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.model_loader import ModelLoader
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.broker_process import wait_until
from tests.sidecar.http_client import Client
from tests.sidecar.known import TOPIC, known

PATHS = ["/v1/model?version={}", "/v1/page/recent?version={}", "/v1/model/components?version={}"]


class SlowStore(MemoryStore):
    """Counts the reads of each file, and how many there are at once; they wait until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.now = self.most = 0
        self.released = threading.Event()
        self.released.set()
        self._counting = threading.Lock()

    def read(self, name: str) -> bytes:
        with self._counting:
            self.reads[name] += 1
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.released.wait(60)
        with self._counting:
            self.now -= 1
        return super().read(name)


def statuses(client: Client, paths: list[str]) -> Counter[int]:
    with ThreadPoolExecutor(len(paths)) as threads:
        return Counter(answer.status_code for answer in threads.map(client.get, paths))


@pytest.fixture
def slow() -> SlowStore:
    store = SlowStore()
    models = Models(store, TOPIC, keep=100)
    for version in range(1, 41):
        models.save(known(version))
    return store


def served(store: SlowStore) -> Client:
    return Client(create_app(store, ServeSettings(topic=TOPIC)))


def begin(store: SlowStore) -> None:
    store.reads.clear()
    store.most = 0
    store.released.clear()


@contextmanager
def released_at_the_end(store: SlowStore) -> Iterator[None]:
    try:
        yield
    finally:
        store.released.set()


def test_requests_for_one_version_share_one_load(slow: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, looked_up = [path.format(7) for path in PATHS] * 10, [0]
    find = ModelLoader.find

    async def counted(loader: ModelLoader, version: int | None) -> object:
        looked_up[0] += 1
        return await find(loader, version)

    monkeypatch.setattr(ModelLoader, "find", counted)
    with served(slow) as client, ThreadPoolExecutor(1) as background:
        begin(slow)
        asked = background.submit(statuses, client, paths)
        with released_at_the_end(slow):
            wait_until(lambda: looked_up[0] == len(paths))
        assert asked.result() == {200: len(paths)}
        assert sum(slow.reads.values()) == 1


def test_few_versions_are_loaded_at_once_and_the_newest_waits_for_none(slow: SlowStore) -> None:
    refused = f'streampca_limits_reached_total{{limit="loads",topic="{TOPIC}"}} 23.0'
    with served(slow) as client, ThreadPoolExecutor(1) as background:
        begin(slow)
        asked = background.submit(statuses, client, [PATHS[i % 3].format(i + 1) for i in range(39)])
        with released_at_the_end(slow):
            wait_until(lambda: refused in client.get("/metrics").text)
            assert client.get("/v1/model").status_code == 200
            assert client.post("/v1/reconstruct", json={"coordinates": [[1.0, 2.0]]}).status_code == 200
            assert sum(slow.reads.values()) <= 2
        assert asked.result() == {200: 16, 503: 23}
        assert slow.most <= 2
        assert refused in client.get("/metrics").text


def test_a_failed_load_is_tried_again(slow: SlowStore) -> None:
    with served(slow) as client:
        assert statuses(client, [PATHS[0].format(77)] * 5) == {404: 5}
        Models(slow, TOPIC, keep=100).save(known(77))
        assert client.get(PATHS[0].format(77)).status_code == 200
