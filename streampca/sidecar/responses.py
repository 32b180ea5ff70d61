"""Answers as JSON or, where the client accepts it, as NumPy files; large ones in chunks."""

import asyncio
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from streampca.sidecar.compute import Answer

JSON, NPZ = "application/json", "application/x-npz"

_CHUNK_BYTES = 128 * 1024  # each connection may have one that its client has not read


class ChunkedResponse(StreamingResponse):
    """A long answer; between two chunks, other requests get their turn."""

    def __init__(self, chunks: Iterable[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__((), headers=headers, media_type=media_type)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in self._chunks:  # without the task that a StreamingResponse starts to listen for the client's end
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def json_response(content: Any, headers: dict[str, str] | None = None) -> Response:
    """The content as JSON; it may contain NumPy arrays."""
    return Response(json_bytes(content), headers=headers, media_type=JSON)


def answer_response(answer: Answer, accept: str = "") -> Response:
    """The answer in the form that the client accepts; as a file it is without the fields that are null."""
    headers = version_header(answer.version)
    if accepts(accept, NPZ):
        buffer, arrays = io.BytesIO(), {name: value for name, value in answer.fields.items() if value is not None}
        np.savez(buffer, allow_pickle=False, **arrays)
        return bytes_response([buffer.getbuffer()], NPZ, headers)
    return bytes_response([memoryview(json_bytes(answer.fields))], JSON, headers)


def bytes_response(parts: Sequence[memoryview], media_type: str, headers: dict[str, str]) -> Response:
    """The concatenated parts; they are not copied as a whole."""
    size = sum(part.nbytes for part in parts)
    if size <= _CHUNK_BYTES:
        return Response(b"".join(parts), headers=headers, media_type=media_type)
    chunks = (bytes(part[i : i + _CHUNK_BYTES]) for part in parts for i in range(0, part.nbytes, _CHUNK_BYTES))
    return ChunkedResponse(chunks, media_type, headers | {"Content-Length": str(size)})


def version_header(version: int | None) -> dict[str, str]:
    """The header that names the model's version, if there is one."""
    return {} if version is None else {"X-Model-Version": str(version)}


def accepts(accept: str, expected: str) -> bool:
    """Return whether the Accept header lists this media type before JSON."""
    media_types = [part.split(";")[0].strip() for part in accept.lower().split(",")]
    return next((media_type == expected for media_type in media_types if media_type in (expected, JSON)), False)


def json_bytes(content: Any) -> bytes:
    """The content as JSON; it may contain NumPy arrays."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
