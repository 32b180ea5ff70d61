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

from streampca.errors import StoreBusyError
from streampca.fold.model_file import PublishedModel
from streampca.sidecar.compute import draw_example
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.page.endpoints import FOLDER, PAGE_HEADERS, HistoryReader
from streampca.sidecar.parsing import Limits
from streampca.stores.models import Models
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses
from tests.example_models import TOPIC, example_model, file_of, newer, numbered, of_format, standardised
from tests.in_memory.store import FaultyStore
from tests.sidecar.http_client import Client, read_error

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
STRICT = {name.lower(): value for name, value in PAGE_HEADERS.items()} | {"x-content-type-options": "nosniff"}


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
    assert read_error(client.get(path), 404).startswith("there is nothing at /")


def test_the_angles_between_two_versions(client: Client, models: Models) -> None:
    """Of as many components as both have; of none if their vectors have different lengths."""
    for version, d, k in ((40, 12, 3), (50, 12, 2), (60, 5, 2)):
        models.save(numbered(version, d=d, k=k))
    A, B = (models.load(version).model.components.astype(float) for version in (40, 50))
    answer = client.get("/v1/page/angles?version=40&other=50").json()
    np.testing.assert_allclose(answer["between"], np.arccos(np.abs((A[:2] * B).sum(axis=1))), atol=1e-7)
    np.testing.assert_allclose(answer["principal"], np.sort(subspace_angles(A[:2].T, B.T)), atol=1e-7)
    assert client.get("/v1/page/angles?version=50&other=60").json() == {"between": [], "principal": []}
    read_error(client.get("/v1/page/angles?version=40&other=41"), Problem.UNKNOWN_VERSION)


# --- example: like the vectors that the model has learned ---


@pytest.mark.parametrize("k", [0, 1, 5])
def test_examples_have_the_mean_and_the_variances_of_the_model(k: int) -> None:
    published = standardised(replace(numbered(10, k=max(k, 1)), names=list("abcde")))
    model = replace(
        published.model, components=published.model.components[:k], explained_variance=np.arange(k, 0.0, -1)
    )
    published = replace(published, model=replace(model, total_variance=2.0 * k + 5))
    chance = np.random.default_rng(0)
    drawn = [draw_example(published, chance, Limits(rows=1, numbers=5)).fields for _ in range(20_000)]
    Y = (np.array([fields["vector"] for fields in drawn]) - published.model.mean) * published.model.D
    U, noise = published.model.components, published.model.noise_variance
    expected = U.T @ np.diag(published.model.explained_variance - noise) @ U + noise * np.eye(5)
    np.testing.assert_allclose(Y.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(np.cov(Y.T), expected, atol=0.15)
    np.testing.assert_allclose(drawn[0]["coordinates"], U @ Y[0], atol=1e-9)
    assert drawn[0]["names"] == list("abcde")


def test_an_example_with_too_many_numbers_is_refused() -> None:
    with pytest.raises(RequestError, match="5 numbers are too many") as raised:
        draw_example(numbered(10), np.random.default_rng(0), Limits(rows=1, numbers=4))
    assert raised.value.problem is Problem.TOO_LONG_FOR_JSON


def test_the_example_of_a_version_can_be_projected(client: Client) -> None:
    example = client.get("/v1/page/example?version=10").json()
    assert (example["version"], example["topic"], example["scale"]) == (10, TOPIC, None)
    answer = client.post("/v1/project", json={"vectors": [example["vector"]], "version": 10}).json()
    np.testing.assert_allclose(answer["coordinates"], [example["coordinates"]])


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
    assert content == {"version": 20, "not_ready": [], "unreadable": [], "topics": [TOPIC], "pins": {}, "drifts": {}}


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
    assert versions(history.read_after(-1)) == versions(history.read_after(-1)) == [10, 30]
    assert versions(history.read_after(10)) == [30]
    assert counting.read == [10, 20, 30]
    history.add(numbered(20))  # written again, and loaded since
    assert versions(history.read_after(-1)) == [10, 20, 30]


def test_pruned_versions_leave_the_cache(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    history = HistoryReader(counting)
    history.read_after(-1)
    counting.save(numbered(40))
    assert versions(history.read_after(-1)) == [20, 30, 40]
    assert set(history._metrics) == {20, 30, 40}
    monkeypatch.setattr(counting, "versions", lambda: [5, 20, 30])  # and 5 is pruned while it is read
    assert versions(history.read_after(-1)) == [20, 30]


def test_what_was_read_before_the_store_failed_stays_cached(client: Client, store: FaultyStore) -> None:
    store.fail_reads(1, StoreBusyError("cannot read x: a retry may help"))
    assert "cannot read" in read_error(client.get("/v1/page/history"), 503)
    assert history_of(client) == [10, 20]


def test_a_version_that_cannot_be_read_is_left_out_of_the_history_and_named(
    client: Client, app: FastAPI, models: Models, store: FaultyStore
) -> None:
    for version, data in (
        (30, of_format(1, store.read(file_of(20)), "model")),
        (40, newer(store.read(file_of(20)), "model")),
        (50, store.read(file_of(20))),
    ):
        store.write(file_of(version), data)
    app.state.model_cache.poll()
    store.fail_reads(1)  # version 10, which is in an archive
    content = client.get("/v1/page/history").json()
    assert versions(content["models"]) == [20]
    assert [sentence.split(":")[0] for sentence in content["unreadable"]] == [
        f"version {version} cannot be read" for version in (50, 40, 30)
    ]
    assert (content["version"], client.get("/readyz").status_code) == (20, 200)
    assert "an earlier release" in read_error(client.get("/v1/model?version=30"), 500)


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
    history.closed_event.set()
    assert history.read_after(-1) == []
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
    assert "cannot read" in read_error(client.get("/v1/page/workers"), 503)
