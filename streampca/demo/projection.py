"""Projections through the HTTP API: one to show on the terminal, and more to fill the page."""

import contextlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from streampca.pca.arrays import F32

_TIMEOUT_S = 2.0


def is_ready(address: str) -> bool:
    """Whether the sidecar has a model to serve."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the local sidecar
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def project(address: str, vector: F32, request_file: Path) -> dict[str, Any]:
    """The response for one vector; the request is saved to a file for curl. Raises `OSError` if it fails."""
    request_file.write_bytes(_body(vector[None]))
    return _post(address, request_file.read_bytes())


def project_for_page(address: str, vectors: F32) -> None:
    """Project vectors (n, d) for the page to show; failures are ignored."""
    with contextlib.suppress(OSError):
        _post(address, _body(vectors))


def _body(vectors: F32) -> bytes:
    return json.dumps({"vectors": [[round(float(number), 4) for number in vector] for vector in vectors]}).encode()


def _post(address: str, body: bytes) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - the local sidecar
        f"{address}/v1/project", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        result: dict[str, Any] = json.load(answer)
        return result


def describe(address: str, answer: dict[str, Any], request_file: Path, elapsed: float) -> str:
    """The projection and the curl command that repeats it, as text."""
    coordinates = ", ".join(f"{number:.3f}" for number in answer["coordinates"][0])
    return (
        f"first projection after {elapsed:.1f} s, by model version {answer['version']}:\n"
        f"  coordinates [{coordinates}]\n"
        f"  residual    {answer['residual'][0]:.3f}\n"
        "the same with curl:\n"
        f"  curl -s {address}/v1/project -H 'content-type: application/json' -d @{request_file}\n"
    )
