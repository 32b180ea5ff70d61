"""Answers as JSON or, where the client accepts it, as NumPy files."""

import io
from typing import Any

import numpy as np
import orjson
from fastapi import Response

from streampca.api.compute import Answer

JSON, NPZ = "application/json", "application/x-npz"


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The content as JSON; it may contain NumPy arrays."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, status, headers, media_type=JSON)


def answer_response(answer: Answer, accept: str = "") -> Response:
    """The answer in the form that the client accepts."""
    headers = version_header(answer.version)
    if accepts(accept, NPZ):
        return Response(npz(answer.fields), headers=headers, media_type=NPZ)
    return json_response(answer.fields, headers=headers)


def version_header(version: int) -> dict[str, str]:
    """The header that names the model's version."""
    return {"X-Model-Version": str(version)}


def npz(fields: dict[str, Any]) -> bytes:
    """The fields of an answer as an uncompressed `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **fields)
    return buffer.getvalue()


def accepts(accept: str, *media_types: str) -> bool:
    """Whether the Accept header lists one of these media types before JSON."""
    for part in accept.lower().split(","):
        media_type = part.split(";")[0].strip()
        if media_type in media_types:
            return True
        if media_type == JSON:
            return False
    return False
