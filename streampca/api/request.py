"""A request as it came: the bytes of its body, what they are, and the query; and the fault of who sent it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

NPY, RAW = "application/x-npy", "application/octet-stream"
BINARY = (NPY, RAW)


class RequestError(Exception):
    """The client's fault: a status of 4xx and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Body:
    """What was sent."""

    data: bytes
    kind: str = ""  # one of BINARY; of anything else it does not matter what it is called, it is taken for JSON
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""  # what the answer may be


async def read_body(request: Request, limit: int) -> Body:
    """The whole body, given up as soon as it is known to exceed `limit` bytes."""
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding != b"identity":
        raise RequestError(415, f"Content-Encoding {_text(encoding)} is not understood: send the body as it is")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_long(limit)
    kind = _text(headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
    query = dict(request.query_params) if request.scope["query_string"] else {}
    accept = _text(headers.get(b"accept", b""))
    return Body(await _read(request, limit), kind if kind in BINARY else "", query, accept)


def check_width(place: str, found: int, width: int) -> None:
    """Raise the fault of a row that is not as long as the model's."""
    if found != width:
        raise RequestError(422, f"{place} has {found} numbers where this model has {width}")


async def _read(request: Request, limit: int) -> bytes:
    chunks, length, more = [], 0, True
    while more:  # what `Request.stream` does, without a generator
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        chunks.append(chunk)
        length += len(chunk)
        if length > limit:
            raise _too_long(limit)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _text(header: bytes) -> str:
    return header.decode("latin-1")


def _too_long(limit: int) -> RequestError:
    return RequestError(413, f"the body exceeds {limit} bytes: send fewer rows at once")
