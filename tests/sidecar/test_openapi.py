"""`/openapi.json` is valid, and answers have the schemas that it shows."""

from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI

from streampca.sidecar import schemas
from tests.example_models import D
from tests.sidecar.http_client import Client

ROW = [1.0] * D


def test_the_openapi_document_is_valid(client: Client) -> None:
    content = client.get("/openapi.json").json()
    OpenAPI.model_validate(content)
    operations = [operation for path in content["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["tags"] for operation in operations)


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
