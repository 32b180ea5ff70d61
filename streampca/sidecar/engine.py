"""The engine that all protocols share: it turns the body of a request into the response.

An answer is JSON, or a NumPy file if the client accepts it. Large answers are sent in chunks.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import numpy as np
import orjson
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from streampca.fold.model_file import PublishedModel
from streampca.formats.labels import LabelFinder
from streampca.process.machine import count_usable_cores
from streampca.sidecar.compute import Answer
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.middleware import ANONYMOUS
from streampca.sidecar.parsing import Limits
from streampca.sidecar.recent_vectors import RecentVectors
from streampca.sidecar.request import RawRequest, read_request
from streampca.sidecar.schemas import RowsRequest, VectorsRequest
from streampca.sidecar.served_models import ServedModels
from streampca.stores.model_cache import NotLoadedError

JSON = "application/json"
NPZ = "application/x-npz"

# Within these limits, a request takes less than half a millisecond, as long as it takes to wake a thread. It is then
# answered on the event loop.
_QUICK_BYTES = 32 * 1024  # of JSON, or of a body with vectors whose missing entries are filled
_QUICK_WORK = 2**24  # bytes of the body, times the components of the model

_MAX_THREADS = 2  # parsing holds the interpreter's lock, so more threads would gain little
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
        label_path: str = "",
    ) -> None:
        """`label_path` leads to the field of a record that is shown beside its vector; "": records have no label."""
        self.models = models
        self.metrics = metrics
        self.topic = topic
        self.recent = RecentVectors()
        self._max_body_bytes = max_body_bytes
        self._label_finder = LabelFinder(label_path) if label_path else None
        most_numbers_in_body = max_body_bytes // 2  # a number in JSON takes two bytes or more: a digit and a comma
        self.limits = Limits(rows=_MAX_ROWS, numbers=min(_MAX_NUMBERS, most_numbers_in_body))
        self._threads = anyio.CapacityLimiter(min(_MAX_THREADS, count_usable_cores()))
        # One model is loaded at a time. If several requests need the same model, the first loads it, and the next ones
        # find it in memory.
        self._loads = anyio.CapacityLimiter(1)

    async def find(self, version: int | str | None) -> PublishedModel:
        """Return the model of a version or of a pin; None means the newest.

        Raises `NoModelError`, `UnknownVersionError`, `UnknownPinError`, `StoreError` or `DamagedFileError`.
        """
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

    def check_ready(self, request: Request) -> None:
        """Raise `RequestError` with the reasons if requests should not be sent here.

        A client without the required token learns only the kinds of failure.
        """
        reason_by_kind = self.models.explain_not_ready()
        if not reason_by_kind:
            return
        is_anonymous = getattr(request.state, ANONYMOUS, False)  # the middleware sets it
        kinds = list(reason_by_kind)
        reasons = kinds if is_anonymous else list(reason_by_kind.values())
        raise RequestError(Problem.NOT_READY, f"not ready: {'; '.join(reasons)}", reasons=reasons)

    async def answer(
        self,
        request: Request,
        *,
        operation: str,
        parse: Callable[[RawRequest, Limits], Parsed],
        compute: Callable[[PublishedModel, Parsed, Limits], Answer],
        respond: Callable[[Parsed, Answer, RawRequest], Response],
        run_on_loop_if_quick: bool = False,
    ) -> Response:
        """Read a request and return the response, in a thread or on the event loop.

        The metrics count the vectors of the request under `operation`.
        """
        raw = await read_request(request, self._max_body_bytes)
        process = partial(self._process, raw, operation, parse, compute, respond)
        try:
            if run_on_loop_if_quick and self._is_quick(raw):
                return process()
            return await self.run_in_thread(process)
        except NotLoadedError as error:  # the model that the request names is not in memory
            version = error.version
        # Leaving the `except` block drops the parsed numbers, which would take much memory while the model is being
        # loaded. So the request is parsed again once the model is there.
        loaded = await self.find(version)
        return await self.run_in_thread(partial(process, loaded=loaded))

    def _process(
        self,
        raw: RawRequest,
        operation: str,
        parse: Callable[[RawRequest, Limits], Parsed],
        compute: Callable[[PublishedModel, Parsed, Limits], Answer],
        respond: Callable[[Parsed, Answer, RawRequest], Response],
        loaded: PublishedModel | None = None,
    ) -> Response:
        """Return the response to a request. `loaded` is the model to use; None: the model that the request names.

        Raises `NotLoadedError` if the model that the request names is not in memory.
        """
        parsed = parse(raw.decompress(self._max_body_bytes), self.limits)
        published = loaded or self.models.get_loaded(parsed.version)
        answer = compute(published, parsed, self.limits)
        if answer.projected is not None:
            labels = self.find_labels(parsed)
            self.recent.add(answer.projected.vectors, labels)  # for the sidecar's page
        self.metrics.vectors[operation].inc(answer.vector_count)
        return respond(parsed, answer, raw)

    def find_labels(self, request: RowsRequest) -> list[str] | None:
        """Return the label of each record of a request; None if it has no records or no `label` is set."""
        if self._label_finder is None or not isinstance(request, VectorsRequest) or request.records is None:
            return None
        return [self._label_finder.find(record) for record in request.records]

    def _is_quick(self, raw: RawRequest) -> bool:
        """Return whether projecting the vectors of a request takes little time."""
        # `json_length` is the length of the JSON that the body begins with. Bytes of numbers may follow.
        if raw.is_compressed or raw.json_length > _QUICK_BYTES:
            return False
        newest = self.models.cache.current
        # The vectors of a model with `impute` may lack entries. Filling these takes longer.
        if newest is None or newest.impute:
            return len(raw.body) <= _QUICK_BYTES
        projection_work = len(raw.body) * newest.model.n_components
        return projection_work <= _QUICK_WORK

    async def run_in_thread(self, work: Callable[[], Returned]) -> Returned:
        """Call a function in a thread, and return its result. On the event loop it would delay other requests."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


class Endpoints:
    """Base class of the endpoints of a protocol. All protocols share the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


class ChunkedResponse(StreamingResponse):
    """A long answer, which no task accompanies that waits for the client to disconnect.

    The traceback of an error in such a task would keep a refused answer in memory until a garbage collection.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


def json_response(content: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response with this content as JSON. It may contain NumPy arrays."""
    return Response(encode_json(content), headers=headers, media_type=JSON)


def answer_response(answer: Answer, accept: str = "") -> Response:
    """Return an answer as JSON, or as a NumPy file if the Accept header `accept` asks for it.

    A NumPy file lacks the fields that are null in JSON.
    """
    headers = version_header(answer.version)
    if accepts(accept, NPZ):
        buffer = io.BytesIO()
        arrays = {name: value for name, value in answer.fields.items() if value is not None}
        np.savez(buffer, allow_pickle=False, **arrays)
        return bytes_response([buffer.getbuffer()], NPZ, headers)
    return bytes_response([encode_json(answer.fields)], JSON, headers)


def bytes_response(parts: Sequence[bytes | memoryview], media_type: str, headers: dict[str, str]) -> Response:
    """Return a response whose body is these parts, one after the other. A large response is sent in chunks."""
    size = sum(len(part) for part in parts)
    if size <= _CHUNK_BYTES:
        return Response(b"".join(parts), headers=headers, media_type=media_type)
    headers = headers | {"Content-Length": str(size)}
    return ChunkedResponse(_split_into_chunks(parts), headers=headers, media_type=media_type)


async def _split_into_chunks(parts: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Yield the parts as chunks of at most 128 KiB. Other requests get their turn between two chunks."""
    for part in parts:
        for start in range(0, len(part), _CHUNK_BYTES):
            yield bytes(part[start : start + _CHUNK_BYTES])
            await asyncio.sleep(0)


def version_header(version: int | None) -> dict[str, str]:
    """Return the header that names the version of the model; without a version, return no header."""
    if version is None:
        return {}
    return {"X-Model-Version": str(version)}


def accepts(accept: str, expected: str) -> bool:
    """Return whether the Accept header `accept` lists the expected media type, and not JSON before it."""
    for part in accept.lower().split(","):
        media_type = part.split(";")[0].strip()  # without parameters such as ";q=0.9"
        if media_type in (expected, JSON):
            return media_type == expected
    return False


def encode_json(content: Any) -> bytes:
    """Encode the content as JSON. It may contain NumPy arrays."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
