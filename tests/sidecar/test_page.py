"""The page at `/`: its files, the history of versions, and the workers' reports; tests/page has it in a browser."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from scipy.linalg import subspace_angles

from streampca.fold.model_file import PublishedModel
from streampca.sidecar.errors import Problem
from streampca.sidecar.page.endpoints import FOLDER, HEADERS, HistoryReader
from streampca.stores.models import Models
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses
from tests.example_models import TOPIC, example_model, file_of, numbered
from tests.in_memory.store import FaultyStore
from tests.sidecar.http_client import Client, error_of

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
STRICT = {name.lower(): value for name, value in HEADERS.items()} | {"x-content-type-options": "nosniff"}


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_security_headers_and_is_revalidated_by_etag(client: Client, file: str) -> None:
    answer = client.get(f"/page/{file}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / file).read_bytes()
    assert answer.headers.items() >= STRICT.items()
    kinds = {"js": "javascript", "css": "css", "html": "html", "svg": "svg"}
    assert kinds.get(file.rsplit(".", 1)[-1], "") in answer.headers["content-type"]
    again = client.get(f"/page/{file}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers.items() >= STRICT.items()


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_refer_to_their_files_by_relative_paths_that_exist(client: Client, path: str) -> None:
    """So they work behind a proxy with a path prefix."""
    names = re.findall(r'(?:src|href)="([^"#][^"]*)"', client.get(path).text)
    assert "page/style.css" in names
    assert not [name for name in names if name.startswith("/") or client.get(f"/{name}").status_code != 200]
    assert client.get("/openapi.json").json()["servers"] == [{"url": "."}]


@pytest.mark.parametrize("path", ["/page/", "/page", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py"])
def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert error_of(client.get(path), 404).startswith("there is nothing at /")


def test_the_angles_between_two_versions(client: Client, models: Models) -> None:
    """Of as many components as both have; of none if their vectors have different lengths."""
    for version, d, k in ((40, 12, 3), (50, 12, 2), (60, 5, 2)):
        models.save(numbered(version, d=d, k=k))
    A, B = (models.load(version).model.components.astype(float) for version in (40, 50))
    answer = client.get("/v1/page/angles?version=40&other=50").json()
    np.testing.assert_allclose(answer["between"], np.arccos(np.abs((A[:2] * B).sum(axis=1))), atol=1e-7)
    np.testing.assert_allclose(answer["principal"], np.sort(subspace_angles(A[:2].T, B.T)), atol=1e-7)
    assert client.get("/v1/page/angles?version=50&other=60").json() == {"between": [], "principal": []}
    error_of(client.get("/v1/page/angles?version=40&other=41"), Problem.UNKNOWN_VERSION)


# --- history: each file is read once, by one thread, and a damaged one hides no other ---


class Counting(Models):
    """Records which versions are read."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(store, TOPIC, keep=3)
        self.read: list[int] = []

    def load(self, version: int) -> PublishedModel:
        self.read.append(version)
        return super().load(version)


@pytest.fixture
def counting(store: FaultyStore) -> Counting:
    counting = Counting(store)
    for version in (10, 20, 30):
        counting.save(numbered(version))
    counting.read.clear()
    return counting


def history_of(client: Client, query: str = "") -> list[int]:
    """The versions in an answer."""
    return versions(client.get(f"/v1/page/history{query}").json()["models"])


def versions(figures: list[dict[str, Any]]) -> list[int]:
    return [one["version"] for one in figures]


def test_every_version_is_listed_in_ascending_order_with_its_metrics(client: Client) -> None:
    answer = client.get("/v1/page/history")
    content = answer.json()
    assert abs(content.pop("now") - time.time()) < 60
    assert answer.headers["x-model-version"] == "20"
    for one, version in zip(content.pop("models"), (10, 20), strict=True):
        assert one.pop("published_at") > 1e9
        ratio = example_model(version).explained_variance_ratio.sum()
        assert one.pop("explained_variance_ratio") == pytest.approx(ratio)
        assert one == {
            "version": version, "last_timestamp_ms": 2, "loss_ewma": 0.125, "loss_ratio": 0.25, "partition_losses": {},
            "settings": {"components": 2} if version == 10 else None,  # the version before has the same
        }  # fmt: skip
    assert content == {"version": 20, "not_ready": [], "topics": [TOPIC], "pins": {}}


def test_a_history_has_the_partitions_with_the_greatest_losses(client: Client, models: Models) -> None:
    models.save(
        replace(
            numbered(30),
            partition_losses={p: 1 / (1 + p) for p in reversed(range(100))},
            settings={"components": 3},
        )
    )
    [figures] = client.get("/v1/page/history?after=20").json()["models"]
    assert figures["partition_losses"] == {str(p): 1 / (1 + p) for p in range(64)}
    assert figures["settings"] == {"components": 3}


def test_a_history_of_any_topic_in_the_store_is_read_on_request(client: Client, store: FaultyStore) -> None:
    others = {name: Models(store, name) for name in ("a", "b", "c", "d", "orders")}
    for version, other in enumerate(others.values()):
        other.save(numbered(version))
    assert client.get("/v1/page/history").json()["topics"] == [TOPIC, *others]
    assert "topics" not in client.get("/v1/page/history?after=0").json()
    for version, name in enumerate(others):
        assert history_of(client, f"?topic={name}") == [version]
    about = client.get("/v1/page/model?topic=orders&version=4").json()
    assert (about["version"], about["explained_variance"]) == (4, example_model(4).explained_variance.tolist())
    assert history_of(client, f"?topic={TOPIC}") == [10, 20]
    assert history_of(client, "?topic=unknown") == []
    for path, status in (
        ("model?topic=orders&version=20", 404), ("history?topic=..", 503),
        ("history?topic=a/b", 422), ("workers?topic=%C3%A4", 422), ("model?topic=&version=1", 422),
    ):  # fmt: skip
        assert client.get(f"/v1/page/{path}").status_code == status


def test_a_history_may_begin_after_a_version(client: Client, models: Models, app: FastAPI) -> None:
    after = [history_of(client, f"?after={version}") for version in (0, 10, 15, 20)]
    assert after == [[10, 20], [20], [20], []]
    models.save(numbered(30))
    app.state.model_cache.poll()
    assert history_of(client, "?after=10") == [20, 30]


def test_a_damaged_version_is_skipped_and_not_read_again(counting: Counting, store: FaultyStore) -> None:
    store.damage(file_of(20), 500)
    history = HistoryReader(counting)
    assert versions(history.after(-1)) == versions(history.after(-1)) == [10, 30]
    assert versions(history.after(10)) == [30]
    assert counting.read == [10, 20, 30]
    history.add(numbered(20))  # written again, and loaded since
    assert versions(history.after(-1)) == [10, 20, 30]


def test_pruned_versions_leave_the_cache(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    history = HistoryReader(counting)
    history.after(-1)
    counting.save(numbered(40))
    assert versions(history.after(-1)) == [20, 30, 40]
    assert set(history._metrics) == {20, 30, 40}
    monkeypatch.setattr(counting, "versions", lambda: [5, 20, 30])  # and 5 is pruned while it is read
    assert versions(history.after(-1)) == [20, 30]


def test_what_was_read_before_the_store_failed_stays_cached(client: Client, store: FaultyStore) -> None:
    store.fail_reads(1)
    assert "cannot read" in error_of(client.get("/v1/page/history"), 503)
    assert history_of(client) == [10, 20]


def test_concurrent_requests_share_one_reader(
    client: Client, counting: Counting, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
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
        assert list(pool.map(lambda _: history_of(client), range(8))) == [[10, 20, 30]] * 8
    assert at_once == [True, True]  # 10 and 30; 20 is in use


def test_reading_stops_with_the_application(counting: Counting) -> None:
    history = HistoryReader(counting)
    history.closed.set()
    assert history.after(-1) == []
    assert counting.read == []


# --- workers ---


def report(store: FaultyStore, name: str, age: float, topic: str = TOPIC) -> ProcessStatus:
    partition = PartitionStatus(position=5, lag=0, learned=4, rejected=1, loss_ewma=None)
    report = ProcessStatus(
        name=name, state="waiting", trouble="disk full", started_at=1.0, updated_at=time.time() - age,
        messages_per_second=2.5, partitions={"0": partition},
    )  # fmt: skip
    ProcessStatuses(store, topic).write(report)
    return report


def workers(client: Client, query: str = "") -> list[dict[str, Any]]:
    content = client.get(f"/v1/page/workers{query}").json()
    assert abs(content["now"] - time.time()) < 60
    return list(content["workers"])


def test_reports_are_sorted_by_name_and_have_an_age(client: Client, store: FaultyStore) -> None:
    assert workers(client) == []
    b, a = report(store, "b", age=100), report(store, "a", age=0)
    reports = workers(client)
    assert 0 <= reports[0].pop("silent_s") < 60 <= reports[1].pop("silent_s") < 160
    assert reports == [a.model_dump(), b.model_dump()]


def test_old_and_damaged_reports_are_left_out_and_another_topic_is_read_on_request(
    client: Client, store: FaultyStore
) -> None:
    for name, age in (("old", 3700), ("recent", 3500), ("ahead", -50)):
        report(store, name, age)
    store.write(f"workers/{TOPIC}/broken.json", b"{")
    report(store, "x", age=0, topic="orders")
    reports = workers(client)
    assert [one["name"] for one in reports] == ["ahead", "recent"]
    assert reports[0]["silent_s"] == 0
    assert [one["name"] for one in workers(client, "?topic=orders")] == ["x"]


def test_an_unreadable_store_is_503(client: Client, store: FaultyStore) -> None:
    report(store, "a", age=0)
    store.fail_reads(1)
    assert "cannot read" in error_of(client.get("/v1/page/workers"), 503)
