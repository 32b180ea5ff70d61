"""An HTTP request before it is parsed: the bytes of its body, their media type, the query; and the client's errors."""

import asyncio
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from starlette.requests import ClientDisconnect, Request

NPY, BYTES = "application/x-npy", "application/octet-stream"
RAW = {f"{BYTES};dtype=float32": "<f4", f"{BYTES};dtype=float64": "<f8"}
BINARY = (NPY, *RAW)

LENGTH = "Inference-Header-Content-Length"  # of the Open Inference Protocol: bytes of JSON before those of tensors

_NUMBER = re.compile("[0-9]{1,18}")

BODY_WITHIN_S = 60.0  # 16 MiB at 2 Mbit/s
UNCOUNTED_BYTES = 64 * 1024  # a body or an answer up to this size holds no memory that others lack


class RequestError(Exception):
    """The request is wrong or too large: a status and one sentence; `limit` names the limit that it exceeds."""

    def __init__(
        self, status: int, text: str, *, limit: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.limit, self.headers = status, limit, dict(headers or {})


def no_memory() -> RequestError:
    """The answer to a request that there is no memory for at the moment."""
    text = "too many large requests at once: try again"
    return RequestError(503, text, limit="memory", headers={"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The parts of a request that are needed to parse and answer it."""

    body: bytes
    media_type: str = ""  # any other than those of BINARY means JSON
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_compressed(self) -> bool:
        """Whether the body is to be unpacked."""
        return self.header(b"content-encoding").lower() in ("gzip", "deflate")

    @property
    def json_bytes(self) -> int:
        """Bytes of JSON, with which the body begins. Raises `RequestError`."""
        if self.media_type in BINARY:
            return 0
        length = self.header(LENGTH.lower().encode())
        if length and not (_NUMBER.fullmatch(length) and int(length) <= len(self.body)):
            text = f"{LENGTH} {length[:20]} is not the length of the JSON in a body of {len(self.body)}"
            raise RequestError(400, text)
        return int(length) if length else len(self.body)

    def unpacked(self, max_bytes: int) -> "RawRequest":
        """With the body that gzip or zlib have compressed; of what would be too long no more than that is unpacked.

        Takes memory that is not counted: so only the threads that parse do this, one request at a time.
        """
        if not self.is_compressed:
            return self
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            plain = decoder.decompress(self.body, max_bytes + 1)
        except zlib.error as error:
            raise RequestError(400, f"the body is not what its Content-Encoding says: {error}") from None
        if len(plain) > max_bytes:
            raise _too_long(max_bytes)
        if not decoder.eof:
            raise RequestError(400, "the compressed body ends too early")
        return replace(self, body=plain)

    def header(self, name: bytes) -> str:
        """A header's text; empty if it is missing."""
        return self.headers.get(name, b"").decode("latin-1")


async def read_request(request: Request, max_bytes: int) -> RawRequest:
    """Read the whole body; stop as soon as it is known to exceed `max_bytes`. Raises `RequestError`."""
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"gzip", b"deflate"):
        raise RequestError(415, f"Content-Encoding {_text(encoding)} is not supported: use gzip, deflate or none")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_long(max_bytes)
    if headers.get(b"sec-fetch-site") == b"cross-site":
        raise RequestError(403, "a page of another site may not send requests: let its own server do it")
    media_type = _text(headers.get(b"content-type", b"")).lower().replace(" ", "").replace('"', "")
    media_type = media_type if media_type in RAW else media_type.partition(";")[0]
    query = dict(request.query_params) if request.scope["query_string"] else {}
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            body = await _read(request, max_bytes)
    except TimeoutError:
        text = f"the body did not arrive within {BODY_WITHIN_S:g} s: send fewer rows at once"
        raise RequestError(408, text, limit="body_time", headers={"Connection": "close"}) from None
    return RawRequest(body, media_type, query, headers)


async def _read(request: Request, max_bytes: int) -> bytes:
    """As `Request.stream`, without a generator, which costs more than a short body."""
    chunks, length, more = [], 0, True
    hold = request.scope["hold"]
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        chunks.append(chunk)
        length += len(chunk)
        if length > max_bytes:
            raise _too_long(max_bytes)
        hold(length)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _text(header: bytes) -> str:
    return header.decode("latin-1")


def _too_long(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body exceeds {max_bytes} bytes: send fewer rows at once", limit="body_bytes")
