"""The Open Inference Protocol: what the clients of tests/foreign_clients do not send, and precise errors."""

from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from streampca.sidecar.errors import Problem
from streampca.sidecar.request import JSON_LENGTH_HEADER
from tests.example_models import TOPIC, D
from tests.sidecar.http_client import Client, create_client, read_error

INFER = f"/v2/models/{TOPIC}/infer"
ROWS = np.random.default_rng(0).standard_normal((3, D))


def tensor(**changes: Any) -> dict[str, Any]:
    fields = {"name": "vectors", "shape": [3, D], "datatype": "FP64", "data": ROWS.tolist()} | changes
    return {"inputs": [{name: value for name, value in fields.items() if value is not None}]}


def as_bytes(content: dict[str, Any], rest: bytes, **headers: str) -> dict[str, Any]:
    text = orjson.dumps(content)
    return {"content": text + rest, "headers": {JSON_LENGTH_HEADER: str(len(text))} | headers}


def values(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: np.reshape(output["data"], output["shape"]) for output in answer.json()["outputs"]}


def test_data_may_be_flat_or_rows(client: Client) -> None:
    rows, flat = (client.post(INFER, json=tensor(data=data)) for data in (ROWS.tolist(), ROWS.ravel().tolist()))
    assert rows.content == flat.content
    expected = client.post("/v1/project", json={"vectors": ROWS.tolist()}).json()
    assert all(np.array_equal(value, expected[name]) for name, value in values(rows).items())
    assert values(client.post(INFER, json=tensor(shape=[0, D], data=[])))["coordinates"].shape == (0, 2)


def test_an_output_says_for_itself_whether_it_is_binary(client: Client) -> None:
    outputs = [{"name": "residual", "parameters": {"binary_data": False}}, {"name": "coordinates"}]
    request = tensor() | {"outputs": outputs, "parameters": {"binary_data_output": True}}
    answer = client.post(INFER, json=request)
    length = int(answer.headers[JSON_LENGTH_HEADER])
    first, second = orjson.loads(answer.content[:length])["outputs"]
    assert (len(first["data"]), second["parameters"]) == (3, {"binary_data_size": 48})
    assert len(answer.content) == length + 48


def test_another_model_is_unknown(client: Client) -> None:
    assert f"this sidecar serves '{TOPIC}'" in read_error(client.get("/v2/models/other"), Problem.UNKNOWN_MODEL)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"json": {}}, "inputs: Field required"),
        ({"json": {"inputs": []}}, "inputs: List should have at least 1 item"),
        ({"json": tensor(shape=[3])}, "shape: List should have at least 2 items"),
        ({"json": tensor(shape=[2, D])}, "data of shape [3, 5] are not a tensor of shape [2, 5]"),
        ({"json": tensor(data=[1.0])}, "data of shape [1, 1] are not a tensor of shape [3, 5]"),
        ({"json": tensor(data=None)}, "either data, or bytes behind the JSON"),
        ({"json": tensor(data="x")}, "vectors must be an array of arrays of numbers, not a string"),
        (
            {"json": tensor(data=[*ROWS[:2].tolist(), ["a"] * D])},
            "vectors[2][0] must be a number, not a string (numbers have no quotes)",
        ),
        ({"json": tensor(datatype="INT64")}, "datatype: Input should be 'FP32' or 'FP64'"),
        ({"json": tensor() | {"outputs": [{"name": "other"}]}}, "name: Input should be 'coordinates'"),
        ({"json": tensor() | {"outputs": [{"name": "p"}]}}, "version 20 has no past scores yet, so it knows no p"),
        ({"json": tensor() | {"outputs": [0] * 1000}}, "outputs: List should have at most 5 items"),
        ({"json": tensor() | {"inputs": [0] * 9}}, "inputs: List should have at most 1 item"),
        ({"json": [1]}, "the body must be a JSON object, not an array"),
        (as_bytes(tensor(data=None, parameters={"binary_data_size": 8}), b"12345678"), "has 120 bytes, not 8, and 8"),
        (as_bytes(tensor(data=None, parameters={"binary_data_size": 120}), b"1"), "has 120 bytes, not 120, and 1"),
        (as_bytes(tensor(), b"1"), "either data, or bytes behind the JSON"),
    ],
)
def test_errors_are_precise(client: Client, request_: dict[str, Any], text: str) -> None:
    assert text in read_error(client.post(INFER, **request_), 422)


@pytest.mark.parametrize("name", ["version", "basis", "fields", "bais"])
@pytest.mark.parametrize("path", [INFER, f"/v2/models/{TOPIC}/versions/latest/infer"])
def test_query_parameters_are_refused(client: Client, path: str, name: str) -> None:
    """If they were ignored, ?version=10 would be answered by the newest version."""
    text = f"{name} is not read from the query: write a version into the path, and everything else into the body"
    assert read_error(client.post(f"{path}?{name}=10", json=tensor()), Problem.INVALID_REQUEST) == text


def test_a_wrong_length_of_the_json_is_refused(client: Client) -> None:
    for length in ("x", "-1", "9" * 30, "²", "0" * 5000):
        assert JSON_LENGTH_HEADER in read_error(
            client.post(INFER, content=b"{}", headers={JSON_LENGTH_HEADER: length.encode("latin-1")}), 400
        )
    assert "the body is" in read_error(client.post(INFER, content=b"{}", headers={JSON_LENGTH_HEADER: "1"}), 400)


def test_before_the_first_model_nothing_is_ready() -> None:
    with create_client() as client:
        assert client.get("/v2/health/live").json() == {"live": True}
        for path in ("/v2/health/ready", f"/v2/models/{TOPIC}/ready", f"/v2/models/{TOPIC}", "/ping"):
            assert "no model has been published yet" in read_error(client.get(path), 503)
        assert client.post("/v2/repository/index").json() == []
        assert "no model" in read_error(client.post(INFER, json=tensor()), 503)


@pytest.mark.parametrize("shape", [[2**62, 0], [2**63, 0], [0, 2**63], [2**31, 1], [-1, 1], [2**32, 2**32]])
def test_a_shape_that_no_tensor_has_is_refused(client: Client, shape: list[int]) -> None:
    content = {"inputs": [{"name": "vectors", "shape": shape, "datatype": "FP64", "data": []}]}
    assert "shape[" in read_error(client.post(INFER, json=content), 422)
    content["inputs"][0] |= {"data": None, "parameters": {"binary_data_size": 0}}
    assert "shape[" in read_error(client.post(INFER, **as_bytes(content, b"")), 422)
