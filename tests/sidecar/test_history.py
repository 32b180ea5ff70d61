"""The metrics of all versions: each file is read once, by one thread, and a damaged one hides no other."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from streampca.fold.model_file import PublishedModel
from streampca.sidecar.page.endpoints import HistoryReader
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, example_model, file_of, numbered
from tests.sidecar.http_client import Client


class Counting(Models):
    """Records which versions are read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, TOPIC, keep=3)
        self.read: list[int] = []

    def load(self, version: int) -> PublishedModel:
        self.read.append(version)
        return super().load(version)


@pytest.fixture
def counting(store: MemoryStore) -> Counting:
    counting = Counting(store)
    for version in (10, 20, 30):
        counting.save(numbered(version))
    counting.read.clear()
    return counting


def versions(figures: list[dict[str, Any]]) -> list[int]:
    return [one["version"] for one in figures]


def test_every_version_is_listed_in_ascending_order_with_its_metrics(client: Client) -> None:
    answer = client.get("/v1/page/history")
    content = answer.json()
    assert abs(content.pop("now") - time.time()) < 60
    assert answer.headers["x-model-version"] == "20"
    for one, version in zip(content["models"], (10, 20), strict=True):
        assert one.pop("published_at") > 1e9
        ratio = example_model(version).explained_variance_ratio.sum()
        assert one.pop("explained_variance_ratio") == pytest.approx(ratio)
        assert one == {
            "version": version, "last_timestamp_ms": 2, "loss_ewma": 0.125, "loss_ratio": 0.25, "partition_losses": {},
        }  # fmt: skip
    assert content.keys() == {"version", "not_ready", "models", "topics"}
    assert content["not_ready"] == []
    assert content["version"] == 20


def test_of_many_partitions_those_with_the_greatest_losses(client: Client, models: Models) -> None:
    models.save(replace(numbered(30), partition_losses={p: 1 / (1 + p) for p in reversed(range(100))}))
    [figures] = client.get("/v1/page/history?after=20").json()["models"]
    assert figures["partition_losses"] == {str(p): 1 / (1 + p) for p in range(64)}


def test_any_topic_of_the_store_on_request(client: Client, store: MemoryStore) -> None:
    others = {name: Models(store, name) for name in ("a", "b", "c", "d", "orders")}
    for version, other in enumerate(others.values()):
        other.save(numbered(version))
    assert client.get("/v1/page/history").json()["topics"] == [TOPIC, *others]
    assert "topics" not in client.get("/v1/page/history?after=0").json()
    for version, name in enumerate(others):
        assert versions(client.get(f"/v1/page/history?topic={name}").json()["models"]) == [version]
    about = client.get("/v1/page/model?topic=orders&version=4").json()
    assert (about["version"], about["explained_variance"]) == (4, example_model(4).explained_variance.tolist())
    assert versions(client.get(f"/v1/page/history?topic={TOPIC}").json()["models"]) == [10, 20]
    assert client.get("/v1/page/history?topic=unknown").json()["models"] == []
    assert client.get("/v1/page/model?topic=orders&version=20").status_code == 404
    for path in ("history?topic=a/b", "workers?topic=%C3%A4", "model?topic=&version=1"):
        assert client.get(f"/v1/page/{path}").status_code == 422
    assert client.get("/v1/page/history?topic=..").status_code == 503


def test_only_later_versions_on_request(client: Client, models: Models, app: FastAPI) -> None:
    def after(version: int) -> list[int]:
        return versions(client.get(f"/v1/page/history?after={version}").json()["models"])

    assert (after(0), after(10), after(15), after(20)) == ([10, 20], [20], [20], [])
    models.save(numbered(30))
    app.state.model_cache.poll()
    assert after(10) == [20, 30]


def test_a_model_loaded_for_serving_is_not_read_again(store: MemoryStore, client: Client) -> None:
    store.damage(file_of(20), 500)  # after it was loaded
    assert versions(client.get("/v1/page/history").json()["models"]) == [10, 20]


def test_a_damaged_version_is_skipped_and_not_read_again(counting: Counting, store: MemoryStore) -> None:
    store.damage(file_of(20), 500)
    history = HistoryReader(counting)
    assert versions(history.after(-1)) == versions(history.after(-1)) == [10, 30]
    assert versions(history.after(10)) == [30]
    assert counting.read == [10, 20, 30]
    history.add(numbered(20))  # written again, and loaded since
    assert versions(history.after(-1)) == [10, 20, 30]


def test_pruned_versions_leave_the_cache(counting: Counting) -> None:
    history = HistoryReader(counting)
    history.after(-1)
    counting.save(numbered(40))
    assert versions(history.after(-1)) == [20, 30, 40]
    assert set(history._figures) == {20, 30, 40}


def test_a_version_pruned_while_it_is_read_is_skipped(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    history = HistoryReader(counting)
    monkeypatch.setattr(counting, "versions", lambda: [5, 10, 20, 30])
    assert versions(history.after(-1)) == [10, 20, 30]


def test_what_was_read_before_the_store_failed_stays_cached(client: Client, store: MemoryStore, app: FastAPI) -> None:
    store.fail_reads(1)
    answer = client.get("/v1/page/history")
    assert answer.status_code == 503
    assert "cannot read" in answer.json()["error"]
    assert versions(client.get("/v1/page/history").json()["models"]) == [10, 20]


def test_concurrent_requests_share_one_reader(
    client: Client, counting: Counting, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes long enough for the other requests to arrive: a second reader would meet the first."""
    reading, at_once = threading.Lock(), []
    read = store.read

    def slowly(name: str) -> bytes:
        alone = reading.acquire(blocking=False)
        at_once.append(alone)
        try:
            time.sleep(0.05)
            return read(name)
        finally:
            if alone:
                reading.release()

    monkeypatch.setattr(store, "read", slowly)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get("/v1/page/history").json(), range(8)))
    assert all(versions(answer["models"]) == [10, 20, 30] for answer in answers)
    assert at_once == [True, True]  # 10 and 30; 20 is in use


def test_reading_stops_with_the_application(counting: Counting) -> None:
    history = HistoryReader(counting)
    history.close()
    assert history.after(-1) == []
    assert counting.read == []
