"""The vectors projected most recently, along two components of any version."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from streampca.sidecar import recent_vectors as module
from streampca.sidecar.recent_vectors import RecentVectors
from streampca.stores.models import Models
from tests.example_models import D, K, example_model, numbered, with_past_scores
from tests.sidecar.http_client import Client, create_client, read_error

CHANCE = np.random.default_rng(0)
VECTORS = CHANCE.normal(size=(7, D)) * 3


def project(client: Client, vectors: Any, **more: Any) -> None:
    answer = client.post("/v1/project", json={"vectors": np.asarray(vectors).tolist(), **more})
    assert answer.status_code == 200, answer.text


def get_recent(client: Client, query: str = "") -> dict[str, Any]:
    answer = client.get(f"/v1/page/recent{query}")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    assert answer.headers["x-model-version"] == str(content["version"])
    return content


QUERIES = [("?y=2", 20, 1, 2), ("?version=10&y=2", 10, 1, 2), ("?x=2&y=1", 20, 2, 1), ("?version=10&x=2&y=2", 10, 2, 2)]


@pytest.mark.parametrize(("query", "version", "x", "y"), QUERIES)
def test_recent_vectors_along_the_requested_components_of_the_requested_version(
    client: Client, query: str, version: int, x: int, y: int
) -> None:
    project(client, VECTORS[:3])
    project(client, VECTORS[3:], basis="whitened", version=10)
    content = get_recent(client, query)
    projected = example_model(version).project(VECTORS)
    assert content["version"] == version
    np.testing.assert_allclose(content["coordinates"], projected.coordinates[:, [x - 1, y - 1]], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(content["residual"], projected.residual, rtol=1e-5, atol=1e-5)
    assert all(abs(at - time.time()) < 60 for at in [*content["at"], *(vector["at"] for vector in content["worst"])])
    assert set(content) == {"version", "coordinates", "at", "residual", "p", "worst"}
    assert (content["p"], [vector["p"] for vector in content["worst"]]) == (None, [None] * 5)  # without past scores


def test_the_most_unusual_vectors_are_described() -> None:
    published = with_past_scores(numbered(30), CHANCE.normal(size=(2000, D)))
    odd = published.model.mean + np.diag([0, -90.0, 40.0, 0, 0])[[2, 1]]
    with create_client(published) as client:
        project(client, [*VECTORS, *odd])
        content, request = get_recent(client), {"vectors": [*VECTORS.tolist(), *odd.tolist()], "contributions": 3}
        scores = client.post("/v1/score", json=request).json()
    np.testing.assert_allclose(content["p"], scores["p"], rtol=1e-6)
    worst = np.argsort(-np.array(scores["score"]))[:5]
    assert worst[:2].tolist() == [8, 7]
    for described, i in zip(content["worst"], worst, strict=True):
        assert described["score"] == pytest.approx(scores["score"][i], rel=1e-4)
        assert described["p"] == pytest.approx(scores["p"][i])
        assert described["dimensions"] == scores["spe_dimensions"][i]
        shares = np.array(scores["spe_contributions"][i]) / scores["spe"][i]
        assert described["shares"] == pytest.approx(shares, rel=1e-3)


def test_dimensions_are_called_by_their_names() -> None:
    names = ["temp", "hum", "<b>press</b>", "flow", "vibration"]
    with create_client(replace(numbered(30), names=names)) as client:
        scores = client.post("/v1/score", json={"vectors": VECTORS.tolist(), "contributions": 3}).json()
        worst = np.argsort(-np.array(scores["score"]))[:5]
        described = [vector["dimensions"] for vector in get_recent(client)["worst"]]
    assert described == [[names[j] for j in scores["spe_dimensions"][i]] for i in worst]


@pytest.mark.parametrize("query", ["x=0", "x=3", "y=0", f"y={K + 1}", "x=-1", f"x={10**30}"])
def test_components_out_of_range_are_refused(client: Client, query: str) -> None:
    answer = client.get(f"/v1/page/recent?{query}")
    name, _, number = query.partition("=")
    assert read_error(answer, 422) == f"{name} must be a component of the model, 1 to {K}, not {number}"


def test_refused_and_reconstructed_vectors_are_not_recent_ones(client: Client) -> None:
    for vectors in ([[1.0]], [[1e308] * D], []):
        client.post("/v1/project", json={"vectors": vectors})
    client.post("/v1/reconstruct", json={"vectors": VECTORS.tolist()})
    assert get_recent(client) == {
        "version": 20, "coordinates": [], "at": [], "residual": [], "p": None, "worst": [],
    }  # fmt: skip


def test_vectors_of_another_dimension_replace_the_old_ones(client: Client, app: FastAPI, models: Models) -> None:
    project(client, VECTORS)
    models.save(numbered(30, d=3))
    app.state.model_cache.poll()
    assert get_recent(client)["coordinates"] == []
    assert len(get_recent(client, "?version=20")["coordinates"]) == 7
    project(client, [[1.0, 2.0, 3.0]])
    assert len(get_recent(client)["coordinates"]) == 1
    assert get_recent(client, "?version=20")["coordinates"] == []


@pytest.mark.parametrize("sizes", [[1] * 37, [3] * 12, [10], [25], [4, 25], [9, 1, 10, 11], [0, 5, 0, 9]])
def test_the_last_vectors_are_kept_in_order(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    monkeypatch.setattr(module, "_MAX_VECTORS", 10)
    recent, numbers = RecentVectors(), iter(range(1000))
    came: list[float] = []
    for size in sizes:
        batch = np.array([[float(next(numbers))] * D for _ in range(size)]).reshape(size, D)
        came += batch[:, 0].tolist()
        recent.add(batch)
        assert recent._snapshot(D)[0][:, 0].tolist() == came[-10:]


@pytest.mark.parametrize(("d", "most"), [(1, 500), (784, 500), (3072, 341), (2**12, 256), (2**20, 1), (2**20 + 1, 0)])
def test_memory_is_bounded_for_vectors_of_any_length(d: int, most: int) -> None:
    recent = RecentVectors()
    for _ in range(2):
        recent.add(np.zeros((min(most + 1, 300), d)))
        recent.add(np.ones((1, d)))
    vectors, labels, at = recent._snapshot(d)
    assert len(vectors) == len(labels) == len(at) == most
    assert vectors.nbytes <= 8 * 1024 * 1024
    kept = [request.vectors for request in recent._requests]
    arrays = {id(part.base): part.base for part in kept if part.base is not None}
    assert sum(array.nbytes for array in arrays.values()) <= 16 * 1024 * 1024


def test_vectors_with_infinite_distances_are_ignored() -> None:
    published, recent = numbered(1), RecentVectors()
    recent.add(VECTORS)
    far = replace(published, model=replace(published.model, mean=np.full(D, 1e200)))
    assert recent.project(far, 1, 1)["coordinates"].tolist() == []
    assert len(recent.project(published, 1, 1)["coordinates"]) == len(VECTORS)
