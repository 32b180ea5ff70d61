"""tritonclient, synchronous and asynchronous: JSON and binary, compression, versions, metadata, errors."""

import asyncio
import sys
from itertools import product
from typing import Any

import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as aio
from expected import NEWEST, TOPIC, VECTORS, asked, projected, same
from tritonclient.utils import InferenceServerException

PLACE = sys.argv[1].removeprefix("http://")


def inputs(module: Any, dtype: str, binary: bool) -> list[Any]:
    tensor = module.InferInput("vectors", list(VECTORS.shape), "FP64" if dtype == "f8" else "FP32")
    tensor.set_data_from_numpy(VECTORS.astype(dtype), binary_data=binary)
    return [tensor]


def check(result: Any, expected: dict[str, Any], names: list[str]) -> None:
    for name in names:
        same(result.as_numpy(name), expected[name])
    assert result.get_response()["model_version"] == str(expected["version"])


def synchronous() -> None:
    client = http.InferenceServerClient(PLACE)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(TOPIC)
    assert client.is_model_ready(TOPIC, "10")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready(TOPIC, "11")
    assert client.get_server_metadata()["name"] == "streampca"
    metadata = client.get_model_metadata(TOPIC)
    assert metadata["versions"] == ["10", str(NEWEST)]
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["vectors"]
    assert metadata["inputs"][0]["shape"] == [-1, VECTORS.shape[1]]
    assert client.get_model_metadata(TOPIC, "10")["versions"] == ["10"]
    assert {entry["version"] for entry in client.get_model_repository_index()} == {"10", str(NEWEST)}
    names = ["reconstruction", "score", "coordinates"]
    for dtype, binary, out, packed in product(("f4", "f8"), (True, False), (True, False), (None, "gzip", "deflate")):
        expected = projected(dtype)
        outputs = [http.InferRequestedOutput(name, binary_data=out) for name in names]
        result = client.infer(
            TOPIC, inputs(http, dtype, binary), outputs=outputs, request_id="a", request_compression_algorithm=packed,
            response_compression_algorithm=packed,
        )  # fmt: skip
        check(result, expected, names)
        assert result.get_response()["id"] == "a"
        assert [tensor["name"] for tensor in result.get_response()["outputs"]] == names
    named = http.InferInput("input-0", list(VECTORS.shape), "FP64").set_data_from_numpy(VECTORS)
    check(client.infer(TOPIC, [named]), projected("f8"), ["coordinates"])
    result = client.infer(TOPIC, inputs(http, "f8", True))
    check(result, projected("f8"), ["coordinates", "residual"])
    assert "parameters" in result.get_output("residual")  # binary, since no output was named
    whitened = client.infer(TOPIC, inputs(http, "f8", True), parameters={"basis": "whitened"}, model_version="10")
    check(whitened, asked(VECTORS, {"basis": "whitened", "version": 10}), ["coordinates"])
    for model, version, tensors, status in (
        ("other", "", inputs(http, "f8", True), "404"),
        (TOPIC, "11", inputs(http, "f8", True), "404"),
        (TOPIC, "x", inputs(http, "f8", True), "404"),
        (TOPIC, "-1", inputs(http, "f8", True), "422"),
        (TOPIC, "", [http.InferInput("vectors", [1, 4], "FP64").set_data_from_numpy(np.zeros((1, 4)))], "422"),
        (TOPIC, "", [http.InferInput("vectors", [1, 5], "INT64").set_data_from_numpy(np.zeros((1, 5), int))], "422"),
    ):
        try:
            client.infer(model, tensors, model_version=version)
        except InferenceServerException as error:
            assert error.status() == status, error
            assert "client" not in error.message(), error
        else:
            raise AssertionError((model, version))
    client.close()


async def asynchronous() -> None:
    async with aio.InferenceServerClient(PLACE) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(TOPIC)
        assert (await client.get_model_metadata(TOPIC))["name"] == TOPIC
        for packed in (None, "gzip", "deflate"):
            result = await client.infer(
                TOPIC,
                inputs(aio, "f4", True),
                request_compression_algorithm=packed,
                response_compression_algorithm=packed,
            )
            check(result, projected("f4"), ["coordinates", "residual"])


synchronous()
asyncio.run(asynchronous())
