"""An HTTP request before it is parsed: its headers, and the bytes of its body."""

import asyncio
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from streampca.sidecar.errors import Problem, RequestError, too_large

NPY = "application/x-npy"
BYTES = "application/octet-stream"

# Media type of numbers without a header → their type.
RAW = {f"{BYTES};dtype=float32": "<f4", f"{BYTES};dtype=float64": "<f8"}
BINARY = (NPY, *RAW)

# Header of the Open Inference Protocol: how many bytes of JSON come before the bytes of the tensors.
LENGTH = "Inference-Header-Content-Length"

_COMPRESSED = (b"gzip", b"deflate")
_DIGITS = re.compile("[0-9]{1,18}")

BODY_WITHIN_S = 60.0  # 16 MiB at 2 Mbit/s
SMALL_BYTES = 64 * 1024  # bodies and answers up to this size are not limited in number


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request after its body was read, and before it is parsed."""

    body: bytes
    media_type: str = ""  # any that is not in BINARY means JSON
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_compressed(self) -> bool:
        return self.headers.get(b"content-encoding", b"").lower() in _COMPRESSED

    @property
    def json_length(self) -> int:
        """Number of bytes of JSON at the beginning of the body. Raises `RequestError` for a wrong header."""
        if self.media_type in BINARY:
            return 0
        length = self.header(LENGTH.lower().encode())
        if length and not (_DIGITS.fullmatch(length) and int(length) <= len(self.body)):
            raise RequestError(
                Problem.MALFORMED_BODY,
                f"{LENGTH} {length[:20]} is not the length of the JSON in a body of {len(self.body)}",
            )
        return int(length) if length else len(self.body)

    def decompress(self, max_bytes: int) -> "RawRequest":
        """Return the request with its body decompressed. Raises `RequestError` if that has more than `max_bytes`."""
        if not self.is_compressed:
            return self
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            plain = decoder.decompress(self.body, max_bytes + 1)
        except zlib.error as error:
            raise RequestError(
                Problem.MALFORMED_BODY, f"the body is not what its Content-Encoding says: {error}"
            ) from None
        if len(plain) > max_bytes:
            raise _too_long(max_bytes)
        if not decoder.eof:
            raise RequestError(Problem.MALFORMED_BODY, "the compressed body ends too early")
        return replace(self, body=plain)

    def header(self, name: bytes) -> str:
        """Return the text of a header, or "" if it is missing."""
        return self.headers.get(name, b"").decode("latin-1")


async def read_request(request: Request, max_bytes: int) -> RawRequest:
    """Read the whole body. Raises `RequestError` as soon as it exceeds `max_bytes`, or if it comes too slowly."""
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", *_COMPRESSED):
        raise RequestError(
            Problem.UNSUPPORTED_TYPE,
            f"Content-Encoding {encoding.decode('latin-1')} is not supported: use gzip, deflate or none",
        )
    if _declared_bytes(headers) > max_bytes:
        raise _too_long(max_bytes)
    media_type = headers.get(b"content-type", b"").decode("latin-1").lower().replace(" ", "").replace('"', "")
    if media_type not in RAW:
        media_type, _, _ = media_type.partition(";")
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        raise RequestError(
            Problem.SLOW_BODY,
            f"the body did not arrive within {BODY_WITHIN_S:g} s: send fewer rows at once",
            limit="body_time",
            headers={"Connection": "close"},
        ) from None
    parameters = request.query_params if request.scope["query_string"] else QueryParams()
    query = {name: ",".join(parameters.getlist(name)) for name in parameters}
    return RawRequest(body, media_type, query, headers)


def has_large_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the body may be large: by its declared length, or since it is chunked or compressed."""
    is_compressed = headers.get(b"content-encoding", b"").lower() in _COMPRESSED
    return is_compressed or b"transfer-encoding" in headers or _declared_bytes(headers) > SMALL_BYTES


def _declared_bytes(headers: Mapping[bytes, bytes]) -> int:
    """Return the length of the body by its headers, or 0 if they do not tell it."""
    digits = headers.get(b"content-length", b"0")  # the server refuses anything else
    return int(digits[:20])  # Python refuses to convert thousands of digits; 20 are enough to exceed every limit


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body. Raises `RequestError` as soon as it exceeds `max_bytes`.

    As an optimisation, `Request.stream` is not used: its generator takes longer than reading a short body.
    """
    chunks = []
    length = 0
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        chunks.append(chunk)
        length += len(chunk)
        if length > max_bytes:
            raise _too_long(max_bytes)
        has_more = message.get("more_body", False)
    return b"".join(chunks)


def _too_long(max_bytes: int) -> RequestError:
    return too_large(f"the body exceeds {max_bytes} bytes: send fewer rows at once", "body_bytes")
