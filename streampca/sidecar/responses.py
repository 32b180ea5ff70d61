"""Answers as JSON or, where the client accepts it, as NumPy files; large ones in chunks."""

import asyncio
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from streampca.pca.arrays import Array
from streampca.sidecar.compute import Answer

JSON, NPZ = "application/json", "application/x-npz"

_QUICKLY = 1  # numbers compress little, however long it takes
_CHUNK_BYTES = 128 * 1024  # each connection may have one that its client has not read
_CHUNK_NUMBERS = 2048  # some 40 kB of JSON
_MAX_WHOLE_NUMBERS = 32 * 1024  # a longer answer is serialized in chunks, while it is sent


class ChunkedResponse(StreamingResponse):
    """An answer that holds `nbytes` of memory until it is sent; between two chunks, other requests get their turn."""

    def __init__(self, chunks: Iterable[bytes], nbytes: int, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__((), headers=headers, media_type=media_type)
        self._chunks, self._nbytes = chunks, nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises `RequestError` if there is no memory for it."""
        scope["hold"](self._nbytes)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in self._chunks:  # without the task that a StreamingResponse starts to listen for the client's end
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The content as JSON; it may contain NumPy arrays."""
    return Response(json_bytes(content), status, headers, media_type=JSON)


def error_response(status: int, text: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """What is wrong, as `error` and as RFC 9457 has it. Some clients read no errors but those of `application/json`."""
    problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": text}
    return json_response({**problem, "error": text, **more}, status, headers)


def answer_response(answer: Answer, accept: str = "") -> Response:
    """The answer in the form that the client accepts."""
    headers = version_header(answer.version)
    if accepts(accept, NPZ):
        return bytes_response([npz(answer.fields)], NPZ, headers)
    nbytes = sum(value.nbytes for value in answer.fields.values() if isinstance(value, np.ndarray))
    if nbytes // 8 <= _MAX_WHOLE_NUMBERS:
        return bytes_response([memoryview(json_bytes(answer.fields))], JSON, headers)
    return ChunkedResponse(_joined(_json_chunks(answer.fields)), nbytes, JSON, headers)


def bytes_response(parts: Sequence[memoryview], media_type: str, headers: dict[str, str]) -> Response:
    """The concatenated parts; they are not copied as a whole."""
    size = sum(part.nbytes for part in parts)
    if size <= _CHUNK_BYTES:
        return Response(b"".join(parts), headers=headers, media_type=media_type)
    chunks = (bytes(part[i : i + _CHUNK_BYTES]) for part in parts for i in range(0, part.nbytes, _CHUNK_BYTES))
    return ChunkedResponse(chunks, size, media_type, headers | {"Content-Length": str(size)})


def compressed(parts: Sequence[memoryview], accepted: str) -> tuple[Sequence[memoryview], dict[str, str]]:
    """The parts as a client accepts them that lists gzip or deflate, and the header that says so."""
    listed = [each.split(";")[0].strip() for each in accepted.lower().split(",")]
    encoding = next((each for each in listed if each in ("gzip", "deflate")), None)
    if encoding is None:
        return parts, {}
    coder = zlib.compressobj(_QUICKLY, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    body = b"".join([*map(coder.compress, parts), coder.flush()])
    return [memoryview(body)], {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}


def version_header(version: int) -> dict[str, str]:
    """The header that names the model's version."""
    return {"X-Model-Version": str(version)}


def npz(fields: dict[str, Any]) -> memoryview:
    """The fields of an answer that are not null, as an uncompressed `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: value for name, value in fields.items() if value is not None})
    return buffer.getbuffer()


def accepts(accept: str, *media_types: str) -> bool:
    """Whether the Accept header lists one of these media types before JSON."""
    for part in accept.lower().split(","):
        media_type = part.split(";")[0].strip()
        if media_type in media_types:
            return True
        if media_type == JSON:
            return False
    return False


def json_bytes(content: Any) -> bytes:
    """The content as JSON; it may contain NumPy arrays."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _json_chunks(fields: dict[str, Any]) -> Iterator[bytes]:
    """The same text as of `json_bytes`, piece by piece."""
    before = b"{"
    for name, value in fields.items():
        yield before + json_bytes(name) + b":"
        yield from _array_chunks(value) if isinstance(value, np.ndarray) else [json_bytes(value)]
        before = b","
    yield b"}"


def _array_chunks(array: Array) -> Iterator[bytes]:
    width = array[0].size if len(array) else 1
    yield b"["
    if width > _CHUNK_NUMBERS:
        for i, row in enumerate(array):
            yield b"," if i else b""
            yield from _array_chunks(row)
    else:
        step = _CHUNK_NUMBERS // width
        for i in range(0, len(array), step):
            yield (b"," if i else b"") + json_bytes(array[i : i + step])[1:-1]
    yield b"]"


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of some size instead of many small ones."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK_BYTES // 2:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)
