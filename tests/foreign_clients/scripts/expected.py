"""What `/v1/project` and its neighbours answer: the clients must get the same numbers, to the last bit."""

import io
import json
import sys
import urllib.request
from typing import Any

import numpy as np

TOPIC, NEWEST = "readings", 20
VECTORS = np.random.default_rng(0).standard_normal((7, 5))


def post(path: str, body: bytes, media_type: str) -> dict[str, Any]:
    headers = {"Content-Type": media_type, "Accept": "application/x-npz"}
    with urllib.request.urlopen(urllib.request.Request(f"{sys.argv[1]}{path}", body, headers)) as answer:
        return dict(np.load(io.BytesIO(answer.read())))


def asked(vectors: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer of `/v1/project` to a JSON body with these fields."""
    return post("/v1/project", json.dumps({"vectors": vectors.tolist(), **fields}).encode(), "application/json")


def projected(dtype: str) -> dict[str, Any]:
    """Coordinates, residual, score and reconstruction of vectors of this type."""
    raw = VECTORS.astype(dtype).tobytes(), f"application/octet-stream;dtype=float{8 * int(dtype[1])}"
    answer = post("/v1/project?fields=score", *raw)
    return answer | {"reconstruction": post("/v1/reconstruct?of=vectors", *raw)["vectors"]}


def same(actual: Any, expected: Any) -> None:
    """Assert that two arrays have the same bits."""
    assert actual.dtype == np.float64, actual.dtype
    assert np.array_equal(actual, expected), (actual, expected)
