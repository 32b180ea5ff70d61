"""The engine that all dialects share: from the body of a request to the response.

Answers are JSON or, where the client accepts it, NumPy files; large ones are sent in chunks.
"""

import asyncio
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
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

JSON, NPZ = "application/json", "application/x-npz"

# What takes no longer than a thread that wakes up is processed at once: half a millisecond.
_QUICK_BYTES = 32 * 1024  # of JSON
_QUICK_WORK = 2**24  # bytes of numbers, times the components

_MAX_THREADS = 2
_MAX_ROWS = 10_000  # in a request: a batch of what people send
_MAX_NUMBERS = 1_000_000  # in a request, and in an answer: 8 MB
_CHUNK_BYTES = 128 * 1024  # of a large answer: each connection may have one that its client has not read

Parsed = TypeVar("Parsed", bound=RowsRequest)  # a request as a dialect has parsed it
Returned = TypeVar("Returned")


class Engine:
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
        # A body of n bytes holds at most n/2 numbers; an answer may hold no more.
        self.limits = Limits(_MAX_ROWS, min(_MAX_NUMBERS, max_body_bytes // 2))
        # Each may hold a parsed body and its results; parsing holds the GIL, so more threads would gain little.
        self._threads = anyio.CapacityLimiter(min(_MAX_THREADS, usable_cores()))
        self._loads = anyio.CapacityLimiter(1)  # reads of the store: who waits finds what another has loaded

    async def find(self, version: int | str | None) -> PublishedModel:
        """The model of a version or of a pin (None: the newest). Raises what `ModelCache.get` raises."""
        try:
            return self.models.get_loaded(version)
        except NotLoadedError as error:
            return await anyio.to_thread.run_sync(self.models.cache.get, error.version, limiter=self._loads)

    async def versions(self) -> list[int]:
        """All versions in the store, in ascending order."""
        return await anyio.to_thread.run_sync(self.models.cache.versions, limiter=self._loads)

    @property
    def current_version(self) -> int | None:
        """The version in use, None until there is one."""
        current = self.models.cache.current
        return current.version if current else None

    def reasons_not_ready(self) -> dict[str, str]:
        """Why requests should not be sent here, by the kind of failure; empty if it is ready."""
        return self.models.reasons_not_ready(self._model_max_age_s)

    def check_ready(self, request: Request) -> None:
        """Raise `RequestError` unless requests should be sent here; without a token it names kinds of failure alone."""
        if found := self.reasons_not_ready():
            reasons = list(found if getattr(request.state, ANONYMOUS, False) else found.values())
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
        """Parse, compute and respond in one turn of a thread; or at once, `if_quick` and there is little to do.

        If the model must be loaded first, the request is parsed again afterwards: its numbers, which may need several
        times as many bytes as its body, do not stay in memory meanwhile.
        """
        raw = await read_request(request, self._max_body_bytes)

        def work(find: Callable[[int | str | None], PublishedModel]) -> Response:
            parsed = parse(raw.unpacked(self._max_body_bytes), self.limits)
            answer = compute(find(parsed.version), parsed, self.limits)
            if answer.projected is not None:
                self.recent.add(answer.projected.vectors)
            self.metrics.vectors[operation].inc(answer.vectors)
            return respond(parsed, answer, raw)

        try:
            if if_quick and self._is_quick(raw):
                return work(self.models.get_loaded)
            return await self.in_thread(partial(work, self.models.get_loaded))
        except NotLoadedError as error:
            published = await self.find(error.version)
        return await self.in_thread(partial(work, lambda _: published))

    def _is_quick(self, raw: RawRequest) -> bool:
        """Return whether projecting takes little time: not if it fills entries, unpacks, or parses much text."""
        current = self.models.cache.current
        if raw.is_compressed or raw.json_bytes > _QUICK_BYTES:
            return False
        if current is None or current.impute:
            return len(raw.body) <= _QUICK_BYTES
        return len(raw.body) * current.model.n_components <= _QUICK_WORK

    async def in_thread(self, work: Callable[[], Returned]) -> Returned:
        """The result of some work that would keep the event loop from other requests."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


class Dialect:
    """Endpoints of one protocol, on the engine of all."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


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
