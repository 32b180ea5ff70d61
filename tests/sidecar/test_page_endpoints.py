"""Everything but projections: models, health, metrics, and the OpenAPI document."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from prometheus_client.parser import text_string_to_metric_families

from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.v1 import schemas
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.sidecar.http_client import Client
from tests.sidecar.known import TOPIC, D, K, file_of, known, known_model
from tests.sidecar.test_errors import error_of

ROW = [1.0] * D


def test_details_of_a_model(client: Client) -> None:
    content = client.get("/v1/model").json()
    model = known_model(20)
    assert content.pop("published_at") > 1e9
    assert content == {
        "version": 20, "topic": TOPIC, "dimensions": D, "components": K,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "total_variance": model.total_variance, "weight": 20.0, "loss": 0.5, "loss_ratio": 0.25, "loss_ewma": 0.125,
        "rejected": 1, "positions": {"0": 3, "1": 20}, "first_timestamp_ms": 1, "last_timestamp_ms": 2,
        "settings": {"components": K}, "subspace_error": None, "axis_errors": None,
    }  # fmt: skip
    old = client.get("/v1/model?version=10")
    assert old.json()["version"] == 10
    assert old.headers["x-model-version"] == "10"


def test_sampling_errors_of_a_model(client: Client, models: Models, app: FastAPI) -> None:
    assert not [name for name in scraped(client) if "subspace_error" in name or "axis_error" in name]
    models.save(replace(known(30), subspace_error=0.5, axis_errors=[0.25, 1.5]))
    app.state.model_cache.poll()
    content = client.get("/v1/model").json()
    assert (content["subspace_error"], content["axis_errors"]) == (0.5, [0.25, 1.5])
    samples = scraped(client)
    assert samples["streampca_model_subspace_error"] == 0.5
    assert samples['streampca_model_axis_error_radians{component="2"}'] == 1.5


def test_list_of_models(client: Client, models: Models, app: FastAPI) -> None:
    answer = client.get("/v1/models")
    assert answer.json() == {"version": 20, "versions": [10, 20]}
    assert answer.headers["x-model-version"] == "20"
    models.save(known(30))
    assert client.get("/v1/models").json() == {"version": 20, "versions": [10, 20, 30]}
    app.state.model_cache.poll()
    assert client.get("/v1/models").json() == {"version": 30, "versions": [10, 20, 30]}


def test_health_and_readiness(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json(), ready.headers["x-model-version"]) == (200, {"version": 20}, "20")


def test_ready_after_the_first_model(store: MemoryStore, settings: ServeSettings) -> None:
    models = Models(store, TOPIC)
    app = create_app(store, settings)
    with Client(app) as client:
        reason = f"no model has been published yet in memory/models/{TOPIC}"
        answer = client.get("/readyz")
        assert error_of(answer, 503) == f"not ready: {reason}"
        assert answer.json()["reasons"] == [reason]
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/models").json() == {"version": None, "versions": []}
        for answer in (
            client.post("/v1/project", json={"vectors": [ROW]}),
            client.post("/v1/reconstruct", json={"vectors": [ROW]}),
            client.get("/v1/model"),
            client.get("/v1/model/components"),
        ):
            assert error_of(answer, 503) == reason
        models.save(known(1))
        app.state.model_cache.poll()
        assert client.get("/readyz").json() == {"version": 1}


def test_not_ready_when_the_model_is_old_or_the_store_unreadable_with_all_reasons(store: MemoryStore) -> None:
    models = Models(store, TOPIC)
    models.save(known(1, published_at=1000.0))
    app = create_app(store, ServeSettings(topic=TOPIC, model_max_age_s=60))
    with Client(app) as client:
        [reason] = client.get("/readyz").json()["reasons"]
        assert reason.startswith("the newest model was published ")
        assert reason.endswith(" s ago, more than 60 s")
        models.save(known(2, published_at=1000.0))
        store.fail_reads(1)
        app.state.model_cache.poll()
        answer = client.get("/readyz")
        assert answer.status_code == 503
        unreadable, old = answer.json()["reasons"]
        assert unreadable.startswith("the store cannot be read: ")
        assert old.endswith(" s ago, more than 60 s")
        assert client.post("/v1/project", json={"vectors": [ROW]}).status_code == 200


# --- metrics --------------------------------------------------------------------------------------------------------


def scraped(client: Client) -> dict[str, float]:
    """Samples by name and labels, as `name{label="value"}`; without the topic, which all have."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.labels.pop("topic") == TOPIC
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            samples[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return samples


def test_metrics_describe_the_model_in_use(client: Client) -> None:
    samples, model = scraped(client), known_model(20)
    assert samples["streampca_model_version"] == 20
    assert 0 <= samples["streampca_model_age_seconds"] < 60
    assert samples["streampca_model_loss_mean"] == 0.5
    assert samples["streampca_model_loss_ratio"] == 0.25
    assert samples["streampca_model_loss_ewma"] == 0.125
    for i, ratio in enumerate(model.explained_variance_ratio, start=1):
        assert samples[f'streampca_model_explained_variance_ratio{{component="{i}"}}'] == pytest.approx(ratio)
    assert samples['streampca_model_load_failures_total{cause="damaged"}'] == 0


def test_without_a_model_there_are_no_model_metrics(settings: ServeSettings) -> None:
    with Client(create_app(MemoryStore(), settings)) as client:
        assert not [name for name in scraped(client) if name.startswith("streampca_model_") and "failures" not in name]


def test_failures_are_counted(client: Client, app: FastAPI, models: Models, store: MemoryStore) -> None:
    models.save(known(30))
    store.damage(file_of(30), 500)
    app.state.model_cache.poll()
    store.fail_reads(1)
    models.save(known(40))
    app.state.model_cache.poll()
    samples = scraped(client)
    assert samples['streampca_model_load_failures_total{cause="damaged"}'] == 1
    assert samples['streampca_model_load_failures_total{cause="store"}'] == 1


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
    samples = scraped(client)
    counted = {
        name.removeprefix("streampca_request_duration_seconds_count"): value
        for name, value in samples.items()
        if name.startswith("streampca_request_duration_seconds_count")
    }
    assert counted.pop('{code="404",route="/docs/static"}', 5) == 5
    assert counted.pop('{code="404",route="other"}') in (5, 10)
    assert counted == {
        '{code="200",route="/v1/project"}': 1,
        '{code="422",route="/v1/project"}': 1,
        '{code="400",route="/v1/project"}': 1,
        '{code="405",route="/v1/project"}': 1,
        '{code="200",route="/v1/reconstruct"}': 1,
        '{code="200",route="/v1/model"}': 1,
    }
    assert samples['streampca_projected_vectors_total{act="project"}'] == 3
    assert samples['streampca_projected_vectors_total{act="reconstruct"}'] == 2


def test_openmetrics_on_request(client: Client) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


# --- OpenAPI --------------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_valid(client: Client) -> None:
    content = client.get("/openapi.json").json()
    OpenAPI.model_validate(content)
    operations = [each for path in content["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["tags"] for each in operations)


@pytest.mark.parametrize(
    ("shape", "method", "path", "content"),
    [
        (schemas.ProjectResponse, "POST", "/v1/project", {"vectors": [ROW]}),
        (schemas.ReconstructResponse, "POST", "/v1/reconstruct", {"vectors": [ROW]}),
        (schemas.ReconstructResponse, "POST", "/v1/reconstruct", {"coordinates": [[1, 2]]}),
        (schemas.ScoreResponse, "POST", "/v1/score", {"vectors": [ROW], "contributions": 2}),
        (schemas.ProjectResponse, "POST", "/v1/project", {"vectors": [ROW], "fields": ["t2", "score"]}),
        (schemas.ModelResponse, "GET", "/v1/model", None),
        (schemas.ModelsResponse, "GET", "/v1/models", None),
        (schemas.ComponentsResponse, "GET", "/v1/model/components", None),
        (schemas.HealthResponse, "GET", "/healthz", None),
        (schemas.ReadyResponse, "GET", "/readyz", None),
        (schemas.ErrorResponse, "GET", "/nowhere", None),
    ],
)
def test_answers_match_the_documented_schemas(client: Client, shape: Any, method: str, path: str, content: Any) -> None:
    answer = client.request(method, path, json=content).json()
    shape.model_validate(answer, strict=True)
    assert set(answer) <= set(shape.model_fields)
    required = {name for name, field in shape.model_fields.items() if field.is_required()}
    assert required <= set(answer)
