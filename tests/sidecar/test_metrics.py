"""The sidecar's metrics: the model in use, requests, vectors, failures."""

from dataclasses import replace

import pytest
from fastapi import FastAPI

from streampca.errors import StoreBusyError
from streampca.pca.drift import measure_drift
from streampca.sidecar.metrics import _DRIFT_TEXTS
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, D, example_model, file_of, numbered
from tests.in_memory.store import FaultyStore
from tests.monitoring.prometheus import assert_includes, samples_of
from tests.sidecar.http_client import Client, create_client

ROW = [1.0] * D
CAUSES = ("damaged", "unreadable", "store", "bug")  # of failed loads


def scrape(client: Client) -> dict[str, float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples_of(answer.text, TOPIC)


def test_metrics_describe_the_model_in_use(client: Client) -> None:
    samples = {name: value for name, value in scrape(client).items() if name.startswith("streampca_model_")}
    first, second = example_model(20).explained_variance_ratio
    assert 0 <= samples.pop("streampca_model_age_seconds") < 60
    assert samples == {
        "streampca_model_version": 20, "streampca_model_loss_mean": 0.5, "streampca_model_loss_ratio": 0.25,
        "streampca_model_loss_ewma": 0.125,
        'streampca_model_explained_variance_ratio{component="1"}': pytest.approx(first),
        'streampca_model_explained_variance_ratio{component="2"}': pytest.approx(second),
        **{f'streampca_model_load_failures_total{{cause="{cause}"}}': 0 for cause in CAUSES},
    }  # fmt: skip


def test_without_a_model_there_are_no_model_metrics() -> None:
    with create_client() as client:
        assert not [name for name in scrape(client) if name.startswith("streampca_model_") and "failures" not in name]


def test_failures_are_counted(client: Client, app: FastAPI, models: Models, store: FaultyStore) -> None:
    models.save(numbered(30))
    store.damage(file_of(30), 500)
    app.state.model_cache.poll()
    store.fail_reads(1)
    models.save(numbered(40))
    app.state.model_cache.poll()
    store.fail_reads(1, StoreBusyError("cannot read x: a retry may help"))
    models.save(numbered(50))
    app.state.model_cache.poll()
    failures = {f'streampca_model_load_failures_total{{cause="{cause}"}}': float(cause != "bug") for cause in CAUSES}
    assert_includes(scrape(client), failures)


def test_the_newest_model_has_its_drift_from_pinned_ones(client: Client, app: FastAPI, models: Models) -> None:
    etag, pins = client.get("/v1/model").headers["etag"], Pins(models.store, TOPIC)
    drift = measure_drift(example_model(10), example_model(20))
    for pin in (pins.set, lambda name, _: pins.remove(name)):
        pin("pinned", 10)
        app.state.model_cache.poll()
        answer = client.get("/v1/model", headers={"If-None-Match": etag})
        moved = {"version": 10, **drift._asdict(), "outdated": drift.why_outdated} if pin == pins.set else {}
        assert answer.json()["drift"] == ({"pinned": moved} if moved else {})
        samples = {f'streampca_drift_{field}{{pin="pinned"}}': moved[field] for field in _DRIFT_TEXTS if moved}
        if moved:
            samples['streampca_drift_outdated{pin="pinned"}'] = float(bool(drift.why_outdated))
        assert {name: value for name, value in scrape(client).items() if "_drift_" in name} == samples
        etag = answer.headers["etag"]
        assert client.get("/v1/model", headers={"If-None-Match": etag}).status_code == 304
    assert client.get("/v1/model?version=10").json()["drift"] == {}


def test_requests_are_timed_by_route_and_code_and_never_by_path(client: Client) -> None:
    client.post("/v1/project", json={"vectors": [ROW] * 3})
    client.post("/v1/project", json={"vectors": [[]]})
    client.post("/v1/project", content=b"{")
    client.post("/v1/reconstruct", json={"vectors": [ROW] * 2})
    client.get("/v1/model?version=10")
    client.get("/v1/project")
    for i in range(5):
        client.get(f"/no/{i}")
        client.get(f"/docs/static/{i}")
    samples, prefix = scrape(client), "streampca_request_duration_seconds_count"
    counted = {name.removeprefix(prefix): value for name, value in samples.items() if name.startswith(prefix)}
    assert counted.pop('{code="404",route="/docs/static"}', 5) == 5
    assert counted.pop('{code="404",route="other"}') in (5, 10)
    expected = [*((code, "project") for code in (200, 400, 405, 422)), (200, "reconstruct"), (200, "model")]
    assert counted == {f'{{code="{code}",route="/v1/{route}"}}': 1 for code, route in expected}
    assert samples['streampca_vectors_total{operation="project"}'] == 3
    assert samples['streampca_vectors_total{operation="reconstruct"}'] == 2


def test_openmetrics_on_request(client: Client) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_sampling_errors_of_a_model(client: Client, models: Models, app: FastAPI) -> None:
    assert not [name for name in scrape(client) if "subspace_error" in name or "axis_error" in name]
    models.save(replace(numbered(30), subspace_error=0.5, axis_errors=[0.25, 1.5]))
    app.state.model_cache.poll()
    content, samples = client.get("/v1/model").json(), scrape(client)
    assert content["subspace_error"] == samples["streampca_model_subspace_error"] == 0.5
    errors = [samples[f'streampca_model_axis_error_radians{{component="{i}"}}'] for i in (1, 2)]
    assert content["axis_errors"] == errors == [0.25, 1.5]
