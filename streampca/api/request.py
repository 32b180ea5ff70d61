"""An HTTP request before it is parsed: the bytes of its body, their media type, the query; and the client's errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

NPY, RAW = "application/x-npy", "application/octet-stream"
BINARY = (NPY, RAW)


class RequestError(Exception):
    """The request is wrong or too large: a status and one sentence; `limit` names the limit that it exceeds."""

    def __init__(
        self, status: int, text: str, *, limit: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.limit, self.headers = status, limit, dict(headers or {})


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The parts of a request that `parsing.parse` needs."""

    body: bytes
    media_type: str = ""  # any other than those of BINARY means JSON
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""


async def read_request(request: Request, max_bytes: int) -> RawRequest:
    """Read the whole body; stop as soon as it is known to exceed `max_bytes`. Raises `RequestError`."""
    try:
        return await _read_request(request, max_bytes)
    except RequestError as error:
        error.headers["Connection"] = "close"  # or the server would read and discard the rest of the body
        raise


async def _read_request(request: Request, max_bytes: int) -> RawRequest:
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding != b"identity":
        raise RequestError(415, f"Content-Encoding {_text(encoding)} is not supported: send the body uncompressed")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_long(max_bytes)
    media_type = _text(headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
    query = dict(request.query_params) if request.scope["query_string"] else {}
    return RawRequest(await _read(request, max_bytes), media_type, query, _text(headers.get(b"accept", b"")))


async def _read(request: Request, max_bytes: int) -> bytes:
    """As `Request.stream`, without a generator, which costs more than a short body."""
    chunks, length, more = [], 0, True
    lease = request.scope["lease"]
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        chunks.append(chunk)
        length += len(chunk)
        if length > max_bytes:
            raise _too_long(max_bytes)
        lease.resize(length)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _text(header: bytes) -> str:
    return header.decode("latin-1")


def _too_long(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body exceeds {max_bytes} bytes: send fewer rows at once", limit="body_bytes")
