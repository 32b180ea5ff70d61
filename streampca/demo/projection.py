"""One projection through the HTTP API, as a person would ask for it."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from streampca.demo.vectors import F32

_TIMEOUT_S = 2.0


def is_ready(address: str) -> bool:
    """Whether the sidecar has a model to serve."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - our own http
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def project(address: str, vector: F32, request_file: Path) -> dict[str, Any]:
    """The answer for one vector, whose request is left in a file for curl. Raises `OSError` when there is none."""
    body = json.dumps({"vectors": [[round(float(number), 4) for number in vector]]}).encode()
    request_file.write_bytes(body)
    request = urllib.request.Request(  # noqa: S310 - our own http
        f"{address}/v1/project", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        result: dict[str, Any] = json.load(answer)
        return result


def told(address: str, answer: dict[str, Any], request_file: Path, elapsed: float) -> str:
    """The projection and how to repeat it, in some lines for people."""
    coordinates = ", ".join(f"{number:.3f}" for number in answer["coordinates"][0])
    return (
        f"first projection after {elapsed:.1f} s, by model version {answer['version']}:\n"
        f"  coordinates [{coordinates}]\n"
        f"  residual    {answer['residual'][0]:.3f}\n"
        "the same with curl:\n"
        f"  curl -s {address}/v1/project -H 'content-type: application/json' -d @{request_file}\n"
    )
