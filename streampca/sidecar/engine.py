"""The engine that all protocols share: it turns the body of a request into the response.

An answer is JSON, or a NumPy file if the client accepts it. Large answers are sent in chunks.
"""

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import numpy as np
import orjson
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from streampca.fold.model_file import PublishedModel
from streampca.process.machine import usable_cores
from streampca.sidecar.compute import Answer
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.middleware import ANONYMOUS
from streampca.sidecar.parsing import Limits
from streampca.sidecar.recent_vectors import RecentVectors
from streampca.sidecar.request import RawRequest, read_request
from streampca.sidecar.schemas import RowsRequest
from streampca.sidecar.served_models import ServedModels
from streampca.stores.model_cache import NotLoadedError

JSON = "application/json"
NPZ = "application/x-npz"

# Within these limits, a request takes less than half a millisecond, as long as it takes to wake a thread. It is then
# answered on the event loop.
_QUICK_BYTES = 32 * 1024  # of JSON
_QUICK_WORK = 2**24  # bytes of numbers, times the components

_MAX_THREADS = 2
_MAX_ROWS = 10_000  # in a request
_MAX_NUMBERS = 1_000_000  # in a request, and in an answer: 8 MB
_CHUNK_BYTES = 128 * 1024  # of a large answer; each connection may hold one chunk that its client has not read

Parsed = TypeVar("Parsed", bound=RowsRequest)  # a request after the parser of its protocol
Returned = TypeVar("Returned")


class Engine:
    """Answers requests with the models of one topic."""

    def __init__(
        self,
        models: ServedModels,
        metrics: SidecarMetrics,
        topic: str,
        max_body_bytes: int,
        model_max_age_s: float | None,
    ) -> None:
        self.models = models
        self.metrics = metrics
        self.topic = topic
        self.recent = RecentVectors()
        self._max_body_bytes = max_body_bytes
        self._model_max_age_s = model_max_age_s
        # A JSON body of n bytes holds at most n/2 numbers, and an answer may hold as many.
        self.limits = Limits(_MAX_ROWS, min(_MAX_NUMBERS, max_body_bytes // 2))
        # Each thread may hold a parsed body and its results. Parsing holds the interpreter's lock, so more threads
        # would take more memory and gain little.
        self._threads = anyio.CapacityLimiter(min(_MAX_THREADS, usable_cores()))
        # Of several requests for a model that is not loaded, one loads it, and the others then find it in memory.
        self._loads = anyio.CapacityLimiter(1)

    async def find(self, version: int | str | None) -> PublishedModel:
        """Return the model of a version or of a pin; None means the newest. Raises what `ModelCache.get` raises."""
        try:
            return self.models.get_loaded(version)
        except NotLoadedError as error:
            return await anyio.to_thread.run_sync(self.models.cache.get, error.version, limiter=self._loads)

    async def versions(self) -> list[int]:
        """Return all versions in the store, in ascending order."""
        return await anyio.to_thread.run_sync(self.models.cache.versions, limiter=self._loads)

    @property
    def current_version(self) -> int | None:
        """The newest version in memory; None until there is one."""
        current = self.models.cache.current
        return current.version if current else None

    def reasons_not_ready(self) -> dict[str, str]:
        """Return why requests should not be sent here, by the kind of failure; {} if the sidecar is ready."""
        return self.models.reasons_not_ready(self._model_max_age_s)

    def check_ready(self, request: Request) -> None:
        """Raise `RequestError` unless requests should be sent here.

        A client without a token, where one is needed, learns only the kinds of failure.
        """
        reason_by_kind = self.reasons_not_ready()
        if not reason_by_kind:
            return
        is_anonymous = getattr(request.state, ANONYMOUS, False)
        reasons = list(reason_by_kind.keys() if is_anonymous else reason_by_kind.values())
        raise RequestError(Problem.NOT_READY, f"not ready: {'; '.join(reasons)}", reasons=reasons)

    async def answer(
        self,
        request: Request,
        *,
        operation: str,
        parse: Callable[[RawRequest, Limits], Parsed],
        compute: Callable[[PublishedModel, Parsed, Limits], Answer],
        respond: Callable[[Parsed, Answer, RawRequest], Response],
        if_quick: bool = False,
    ) -> Response:
        """Parse, compute and respond in one turn of a thread.

        With `if_quick`, a request that needs little work is answered on the event loop instead. If the model must be
        loaded first, the request is parsed a second time afterwards: parsed numbers may take several times as much
        memory as the body, so they do not stay in memory while the model is loaded.
        """
        raw = await read_request(request, self._max_body_bytes)

        def work(find: Callable[[int | str | None], PublishedModel]) -> Response:
            parsed = parse(raw.decompress(self._max_body_bytes), self.limits)
            answer = compute(find(parsed.version), parsed, self.limits)
            if answer.projected is not None:
                self.recent.add(answer.projected.vectors)
            self.metrics.vectors[operation].inc(answer.vector_count)
            return respond(parsed, answer, raw)

        try:
            if if_quick and self._is_quick(raw):
                return work(self.models.get_loaded)
            return await self.in_thread(partial(work, self.models.get_loaded))
        except NotLoadedError as error:
            published = await self.find(error.version)
        return await self.in_thread(partial(work, lambda _: published))

    def _is_quick(self, raw: RawRequest) -> bool:
        """Return whether projecting takes little time: the body is not compressed, and has little JSON and few numbers.

        The limit is lower if the newest model fills missing entries, which takes more time, or if there is no model.
        """
        current = self.models.cache.current
        if raw.is_compressed or raw.json_length > _QUICK_BYTES:
            return False
        if current is None or current.impute:
            return len(raw.body) <= _QUICK_BYTES
        return len(raw.body) * current.model.n_components <= _QUICK_WORK

    async def in_thread(self, work: Callable[[], Returned]) -> Returned:
        """Do some work in a thread, since it would keep the event loop from other requests."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


class Endpoints:
    """Base class of the endpoints of a protocol. All protocols share the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


class ChunkedResponse(StreamingResponse):
    """A long answer. Other requests get their turn between two chunks."""

    def __init__(self, chunks: Iterable[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__((), headers=headers, media_type=media_type)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # As an optimisation, no task waits for the client to disconnect, as it would in `StreamingResponse`.
        for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def json_response(content: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response with this content as JSON. It may contain NumPy arrays."""
    return Response(encode_json(content), headers=headers, media_type=JSON)


def answer_response(answer: Answer, accept: str = "") -> Response:
    """Return an answer in the form that the client accepts. A NumPy file lacks the fields that are null in JSON."""
    headers = version_header(answer.version)
    if accepts(accept, NPZ):
        buffer = io.BytesIO()
        arrays = {name: value for name, value in answer.fields.items() if value is not None}
        np.savez(buffer, allow_pickle=False, **arrays)
        return bytes_response([buffer.getbuffer()], NPZ, headers)
    return bytes_response([memoryview(encode_json(answer.fields))], JSON, headers)


def bytes_response(parts: Sequence[memoryview], media_type: str, headers: dict[str, str]) -> Response:
    """Return a response with these parts one after the other. If it is large, it is copied chunk by chunk."""
    size = sum(part.nbytes for part in parts)
    if size <= _CHUNK_BYTES:
        return Response(b"".join(parts), headers=headers, media_type=media_type)
    headers = headers | {"Content-Length": str(size)}
    return ChunkedResponse(_split_into_chunks(parts), media_type, headers)


def _split_into_chunks(parts: Iterable[memoryview]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, part.nbytes, _CHUNK_BYTES):
            yield bytes(part[start : start + _CHUNK_BYTES])


def version_header(version: int | None) -> dict[str, str]:
    """Return the header that names the version of the model; no header for None."""
    if version is None:
        return {}
    return {"X-Model-Version": str(version)}


def accepts(accept: str, expected: str) -> bool:
    """Return whether the Accept header lists the expected media type, and not JSON before it."""
    for part in accept.lower().split(","):
        media_type = part.split(";")[0].strip()
        if media_type in (expected, JSON):
            return media_type == expected
    return False


def encode_json(content: Any) -> bytes:
    """Encode the content as JSON. It may contain NumPy arrays."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
