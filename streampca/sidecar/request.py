"""An HTTP request before it is parsed: its headers, and the bytes of its body."""

import asyncio
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from starlette.requests import Request

from streampca.sidecar.errors import Problem, RequestError, too_large

NPY = "application/x-npy"
OCTET_STREAM = "application/octet-stream"

# Media types of bodies that are only numbers, without a header → the NumPy type of the numbers.
RAW_TYPES = {f"{OCTET_STREAM};dtype=float32": "<f4", f"{OCTET_STREAM};dtype=float64": "<f8"}
BINARY_TYPES = (NPY, *RAW_TYPES)  # of all bodies that hold only rows of numbers

# Media types of JSON, beside those that end with +json. The empty one stands for a request without the header, and curl
# and fetch send the last two if the user has not set the header.
_JSON_TYPES = ("application/json", "", "application/x-www-form-urlencoded", "text/plain")

# In the Open Inference Protocol: how many bytes of JSON come before the bytes of the tensors.
JSON_LENGTH_HEADER = "Inference-Header-Content-Length"

_COMPRESSED = (b"gzip", b"deflate")
_GZIP_OR_ZLIB = 32  # a flag of zlib: the body's first bytes say in which of the two formats it is
_DIGITS = re.compile("[0-9]{1,18}")

BODY_TIMEOUT_S = 60.0  # 16 MiB at 2 Mbit/s
SMALL_BYTES = 64 * 1024  # bodies and answers up to this size are not limited in number


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request after its body was read, and before it is parsed."""

    body: bytes
    media_type: str = ""  # without parameters such as ";charset=utf-8"; only those in RAW_TYPES keep ";dtype=…"
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_compressed(self) -> bool:
        return self.headers.get(b"content-encoding", b"").lower() in _COMPRESSED

    @property
    def json_length(self) -> int:
        """Number of bytes of JSON at the beginning of the body; 0 if its media type is binary.

        Raises `RequestError` if the header with the length is wrong.
        """
        if self.media_type in BINARY_TYPES:
            return 0
        length = self.header(JSON_LENGTH_HEADER.lower().encode())
        if not length:
            return len(self.body)
        if not _DIGITS.fullmatch(length) or int(length) > len(self.body):
            raise RequestError(
                Problem.MALFORMED_BODY,
                f"{JSON_LENGTH_HEADER} {length[:20]} is not the length of the JSON in a body of {len(self.body)}",
            )
        return int(length)

    def require_json(self, also_named_in_error: Iterable[str] = ()) -> None:
        """Raise `RequestError` unless the media type is JSON. The error names JSON and the other supported types."""
        if self.media_type not in _JSON_TYPES and not self.media_type.endswith("+json"):
            supported = ", ".join(["application/json", *also_named_in_error])
            raise RequestError(
                Problem.UNSUPPORTED_TYPE, f"Content-Type {self.media_type[:80]} is not read here: send {supported}"
            )

    def decompress(self, max_bytes: int) -> "RawRequest":
        """Return the request with its body decompressed.

        Raises `RequestError` if the body is damaged, or has more than `max_bytes` once it is decompressed.
        """
        if not self.is_compressed:
            return self
        decoder = zlib.decompressobj(zlib.MAX_WBITS | _GZIP_OR_ZLIB)
        try:
            plain = decoder.decompress(self.body, max_bytes + 1)  # a byte more shows that the body is too long
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
    """Read the whole body. Raises `RequestError` if it exceeds `max_bytes` or comes too slowly."""
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", *_COMPRESSED):
        raise RequestError(
            Problem.UNSUPPORTED_TYPE,
            f"Content-Encoding {encoding.decode('latin-1')} is not supported: use gzip, deflate or none",
        )
    if _parse_content_length(headers) > max_bytes:
        raise _too_long(max_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        raise RequestError(
            Problem.SLOW_BODY,
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s: send fewer rows at once",
            limit="body_time",
            headers={"Connection": "close"},
        ) from None
    parameters = request.query_params
    query = {name: ",".join(parameters.getlist(name)) for name in parameters}
    return RawRequest(body, media_type=_parse_media_type(headers), query=query, headers=headers)


def _parse_media_type(headers: Mapping[bytes, bytes]) -> str:
    """Return the media type of the body; only those in `RAW_TYPES` keep their parameter `dtype`."""
    content_type = headers.get(b"content-type", b"").decode("latin-1").lower()
    with_parameters = content_type.replace(" ", "").replace('"', "")
    if with_parameters in RAW_TYPES:
        return with_parameters
    return with_parameters.partition(";")[0]


def has_large_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the body is declared to be long, or may be long."""
    is_compressed = headers.get(b"content-encoding", b"").lower() in _COMPRESSED
    return is_compressed or b"transfer-encoding" in headers or _parse_content_length(headers) > SMALL_BYTES


def _parse_content_length(headers: Mapping[bytes, bytes]) -> int:
    """Return the length of the body by the header Content-Length, or 0 without the header."""
    digits = headers.get(b"content-length", b"0")  # the server refuses a header that is not digits
    return int(digits[:20])  # Python refuses to convert thousands of digits


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body. Raises `RequestError` as soon as it exceeds `max_bytes`."""
    chunks = []
    length = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        length += len(chunk)
        if length > max_bytes:
            raise _too_long(max_bytes)
    return b"".join(chunks)


def _too_long(max_bytes: int) -> RequestError:
    return too_large(f"the body exceeds {max_bytes} bytes: send fewer rows at once", "body_bytes")
