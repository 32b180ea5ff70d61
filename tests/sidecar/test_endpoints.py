"""Models, their versions, health and readiness."""

import json
import re
from typing import Any

import pytest
from fastapi import FastAPI
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from streampca.errors import StoreBusyError
from streampca.settings.commands import ServeSettings
from streampca.sidecar import schemas
from streampca.sidecar.app import create_app
from streampca.sidecar.errors import ErrorResponse, Problem
from streampca.sidecar.openapi import EXAMPLES
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, D, K, example_model, numbered
from tests.in_memory.store import FaultyStore
from tests.openapi_examples import examples
from tests.sidecar.http_client import Client, read_error

ROW = [1.0] * D


def test_details_of_a_model(client: Client) -> None:
    content = client.get("/v1/model").json()
    model = example_model(20)
    assert content.pop("published_at") > 1e9
    assert content == {
        "version": 20, "topic": TOPIC, "dimensions": D, "components": K,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "total_variance": model.total_variance, "weight": 20.0, "loss": 0.5, "loss_ratio": 0.25, "loss_ewma": 0.125,
        "rejected": 1, "positions": {"0": 3, "1": 20}, "first_timestamp_ms": 1, "last_timestamp_ms": 2,
        "settings": {"components": K}, "names": None, "subspace_error": None, "axis_errors": None, "drift": {},
    }  # fmt: skip
    old = client.get("/v1/model?version=10")
    assert old.json()["version"] == 10
    assert old.headers["x-model-version"] == "10"


def test_list_of_models(client: Client, models: Models, app: FastAPI) -> None:
    answer = client.get("/v1/models")
    assert answer.json() == {"version": 20, "versions": [10, 20], "pins": {}}
    assert answer.headers["x-model-version"] == "20"
    models.save(numbered(30))
    assert client.get("/v1/models").json() == {"version": 20, "versions": [10, 20, 30], "pins": {}}
    Pins(models.store, TOPIC).set("pinned", 10)
    app.state.model_cache.poll()
    assert client.get("/v1/models").json() == {"version": 30, "versions": [10, 20, 30], "pins": {"pinned": 10}}


def test_ready_after_the_first_model(store: FaultyStore, settings: ServeSettings) -> None:
    models = Models(store, TOPIC)
    app = create_app(store, settings)
    with Client(app) as client:
        reason = f"no model has been published yet in memory/models/{TOPIC}"
        answer = client.get("/readyz")
        assert read_error(answer, 503) == f"not ready: {reason}"
        assert answer.json()["reasons"] == [reason]
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/v1/models").json() == {"version": None, "versions": [], "pins": {}}
        for method, path in (
            ("POST", "project"), ("POST", "reconstruct"), ("GET", "model"), ("GET", "model/components")
        ):  # fmt: skip
            assert read_error(client.request(method, f"/v1/{path}", json={"vectors": [ROW]}), 503) == reason
        models.save(numbered(1))
        app.state.model_cache.poll()
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json(), ready.headers["x-model-version"]) == (200, {"version": 1}, "1")


def test_not_ready_when_the_model_is_old_or_the_store_unreadable_with_all_reasons(store: FaultyStore) -> None:
    models = Models(store, TOPIC)
    models.save(numbered(1))
    app = create_app(store, ServeSettings(topic=TOPIC, model_max_age_s=1e-9))
    with Client(app) as client:
        [reason] = client.get("/readyz").json()["reasons"]
        assert re.match("the newest model was found [0-9]+ s ago, more than 1e-09 s, and no running workers", reason)
        models.save(numbered(2))
        store.fail_reads(1, StoreBusyError("cannot read x: a retry may help"))
        app.state.model_cache.poll()
        unreadable, old = client.get("/readyz").json()["reasons"]
        assert unreadable.startswith("the store cannot be read: ")
        assert old == reason
        assert client.post("/v1/project", json={"vectors": [ROW]}).status_code == 200


def test_head_answers_wherever_get_does(client: Client) -> None:
    for path in ("/", "/healthz", "/readyz", "/metrics", "/v1/model", "/v2/health/live", "/docs", "/page/main.js"):
        got, head = client.get(path), client.request("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert client.request("HEAD", "/v1/project").status_code == 405


def test_a_model_is_sent_once_to_those_who_know_it(client: Client, app: FastAPI, models: Models) -> None:
    first = client.get("/v1/model")
    known_one = {"If-None-Match": first.headers["etag"]}
    again = client.get("/v1/model", headers=known_one)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get("/v1/models/latest").content == first.content
    assert client.get("/v1/models/10", headers=known_one).json()["version"] == 10
    assert "no model version 11" in read_error(client.get("/v1/models/11"), 404)
    models.save(numbered(30))
    app.state.model_cache.poll()
    assert client.get("/v1/model", headers=known_one).json()["version"] == 30


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        *(("POST", f"/v1/{act}", {"vectors": [ROW], "version": "{}"}) for act in ("project", "reconstruct", "score")),
        *(("POST", f"/v1/{act}?version={{}}", {"vectors": [ROW]}) for act in ("project", "reconstruct", "score")),
        ("POST", "/invocations", {"instances": [ROW], "params": {"version": "{}"}}),
        *(("GET", f"/v1/{path}", None) for path in ("model?version={}", "model/components?version={}", "models/{}")),
        ("GET", "/v1/page/recent?version={}", None),
        ("GET", f"/v2/models/{TOPIC}/versions/{{}}", None),
        (
            "POST", f"/v2/models/{TOPIC}/versions/{{}}/infer",
            {"inputs": [{"name": "x", "shape": [1, D], "datatype": "FP64", "data": ROW}]},
        ),
        ("GET", f"/v2/models/{TOPIC}/versions/{{}}/ready", None),
    ],
)  # fmt: skip
def test_a_pinned_model_is_served_by_its_name(
    client: Client, app: FastAPI, models: Models, method: str, path: str, content: Any
) -> None:
    Pins(models.store, TOPIC).set("at-noon.1", 10)
    app.state.model_cache.poll()
    named, by_number, unknown = (
        client.request(method, path.format(version), content=json.dumps(content).replace('"{}"', json.dumps(version)))
        for version in ("at-noon.1", 10, "at-night")
    )
    assert (named.status_code, named.content) == (200, by_number.content)
    assert named.headers.get("x-model-version", "10") == "10"
    assert "'at-night'; the names there are: at-noon.1" in read_error(unknown, Problem.UNKNOWN_VERSION)


def test_the_openapi_document_is_valid(client: Client) -> None:
    content = client.get("/openapi.json").json()
    assert list(OpenAPIV31SpecValidator(content).iter_errors()) == []
    operations = [operation for path in content["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["tags"] for operation in operations)
    assert all(operation["summary"] != operation["operationId"] for operation in operations)


def test_every_operation_has_an_example_that_is_a_sidecars_answer_and_fits_its_schema(client: Client) -> None:
    content = client.get("/openapi.json").json()
    assert examples(content) == json.loads(EXAMPLES.read_text(encoding="utf-8")), "python -m tests.openapi_examples"
    for path, operations in content["paths"].items():
        for operation in operations.values():
            for body in (operation["responses"]["200"], operation.get("requestBody", {})):
                for media_type, described in body.get("content", {}).items():
                    if media_type == "application/json":
                        schema = {**described["schema"], "components": content["components"]}
                        OAS31Validator(schema).validate(described["example"])
            assert "example" in str(operation), path


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
        (ErrorResponse, "GET", "/nowhere", None),
    ],
)
def test_answers_match_the_documented_schemas(client: Client, shape: Any, method: str, path: str, content: Any) -> None:
    answer = client.request(method, path, json=content).json()
    shape.model_validate(answer, strict=True)
    assert set(answer) <= set(shape.model_fields)
    required = {name for name, field in shape.model_fields.items() if field.is_required()}
    assert required <= set(answer)
