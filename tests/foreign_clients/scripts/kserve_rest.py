"""KServe's InferenceRESTClient: JSON and binary, health, errors."""

import asyncio
import sys

import httpx
import numpy as np
from expected import TOPIC, VECTORS, projected, same
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

URL = sys.argv[1]


async def main() -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(URL)
    assert await client.is_server_ready(URL)
    assert await client.is_model_ready(URL, TOPIC)
    assert not await client.is_model_ready(URL, "other")
    for binary in (True, False):
        tensor = InferInput("vectors", list(VECTORS.shape), "FP64")
        tensor.set_data_from_numpy(VECTORS, binary_data=binary)
        answer = await client.infer(URL, InferRequest(TOPIC, [tensor], request_id="b"), TOPIC)
        assert (answer.id, answer.model_name) == ("b", TOPIC)
        expected = projected("f8")
        for output in answer.outputs:
            same(np.asarray(output.as_numpy()), expected[output.name])
        assert [output.name for output in answer.outputs] == ["coordinates", "residual"]
    tensor = InferInput("vectors", [1, 4], "FP64", data=[[1.0, 2.0, 3.0, 4.0]])
    try:
        await client.infer(URL, InferRequest(TOPIC, [tensor]), TOPIC)
    except httpx.HTTPStatusError as error:
        assert "vectors[0] has 4 numbers where this model has 5" in str(error), error
    else:
        raise AssertionError
    await client.close()


asyncio.run(main())
