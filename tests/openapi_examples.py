"""Writes the examples of `/openapi.json`: `python -m tests.openapi_examples` asks a sidecar with a small model."""

import json
from typing import Any

import numpy as np

from streampca.fold.model_file import PublishedModel
from streampca.pca.model import Model
from streampca.sidecar.openapi import EXAMPLES
from tests.example_models import stats_of
from tests.sidecar.http_client import create_client

MODEL = PublishedModel(
    version=4000, topic="readings", topic_id="5fJx41ZNQ6u3sVYq2mTq0g", positions={0: 2100, 1: 1900},
    model=Model(np.eye(2, 3), np.array([4.0, 1.0]), np.array([21.5, 48.0, 1013.0]), total_variance=5.5, weight=4000.0),
    names=["temp", "hum", "press"], published_at=1767225600.0,
    stats=stats_of(loss=0.5, loss_ratio=0.1, loss_ewma=0.1),
)  # fmt: skip
VECTORS = [[23.5, 48.0, 1013.5], [21.5, 47.0, 1013.0]]
TENSOR = {"name": "vectors", "shape": [2, 3], "datatype": "FP64", "data": [*VECTORS[0], *VECTORS[1]]}
REQUESTS: dict[str, Any] = {
    "/v1/project": {"vectors": VECTORS}, "/v1/reconstruct": {"coordinates": [[2.0, 0.0], [0.0, -1.0]]},
    "/v1/score": {"records": [{"temp": 23.5, "hum": 48, "press": 1013.5}], "contributions": 1},
    "/v2/models/{model_name}/infer": {"inputs": [TENSOR]},
    "/v2/models/{model_name}/versions/{model_version}/infer": {"inputs": [TENSOR]},
    "/v2/repository/index": {"ready": True}, "/invocations": {"instances": VECTORS},
}  # fmt: skip


def examples(documented: dict[str, Any]) -> dict[str, Any]:
    """Requests and answers, by path."""
    found: dict[str, Any] = {}
    with create_client(MODEL) as client:
        for path, operations in documented["paths"].items():
            [method] = operations
            url = path.format(version=4000, model_version=4000, model_name="readings")
            request = REQUESTS.get(path)
            answer = client.request(method, url, json=request)
            assert answer.status_code == 200, (path, answer.text)
            is_json = answer.headers["content-type"].startswith("application/json")
            lines = [line for line in answer.text.splitlines() if path != "/metrics" or "model_loss_ratio" in line]
            found[path] = {"answer": answer.json() if is_json else "\n".join(lines)}
            found[path] |= {"request": request} if request else {}
    return found


def documented() -> dict[str, Any]:
    """The description without the examples."""
    with create_client() as client:
        return dict(client.get("/openapi.json").json())


if __name__ == "__main__":
    EXAMPLES.write_text(json.dumps(examples(documented()), indent=1) + "\n", encoding="utf-8")
