"""MLflow's scoring protocol: precise errors; tests/foreign_clients has what its client sends."""

import numpy as np

from tests.example_models import D
from tests.sidecar.http_client import Client, error_of

ROWS = np.random.default_rng(0).standard_normal((3, D))


def test_mlflow_requests_have_one_form(client: Client) -> None:
    for content, text in (
        ({}, "the body must have one of instances, inputs, dataframe_split"),
        ({"instances": [[1]], "inputs": [[1]]}, "the body must have one of"),
        ({"instances": ROWS.tolist(), "params": 1}, "params must be an object"),
        ({"instances": ROWS.tolist(), "params": {"bais": 1}}, "unknown parameter 'bais'"),
        ({"dataframe_split": {"columns": []}}, "vectors must be an array of arrays of numbers, not null"),
    ):
        assert text in error_of(client.post("/invocations", json=content), 422)
