"""A client that calls the application without a network; it also runs startup and shutdown."""

from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import httpx
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from streampca.fold.model_file import PublishedModel
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.errors import Problem
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC


class Client:
    """A synchronous client, whose application runs on an event loop in a thread.

    It raises the error of a bug in the application. With `return_server_errors`, it returns the answer instead.
    """

    def __init__(self, app: FastAPI, *, return_server_errors: bool = False) -> None:
        self._app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=not return_server_errors)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._portal = self._open.enter_context(start_blocking_portal())
        lifespan = self._app.router.lifespan_context(self._app)
        self._open.enter_context(self._portal.wrap_async_context_manager(lifespan))
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._client.aclose)
        self._open.close()

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._portal.call(partial(self._client.request, method, path, **more))

    async def request_in_loop(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request from the event loop, such as within the body of another request."""
        return await self._client.request(method, path, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)


def create_client(*published: PublishedModel, **settings: Any) -> Client:
    """Return a client of an application whose store has these models."""
    store = MemoryStore()
    for model in published:
        Models(store, TOPIC, keep=10).save(model)
    return Client(create_app(store, ServeSettings(topic=TOPIC, **settings)))


def read_error(answer: httpx.Response, expected: int | Problem) -> str:
    """Return the sentence of an error. Assert that it has this type or status, and the form of its protocol."""
    status = expected if isinstance(expected, int) else expected.status
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert {"type", "title", "status", "detail", "error"} <= set(content)
    problem = Problem[content["type"].removeprefix("urn:streampca:error:").upper().replace("-", "_")]
    assert expected in (problem, problem.status)
    assert (content["status"], content["detail"]) == (status, content["error"])
    path = answer.request.url.path
    media_type = "json" if path.startswith(("/v2", "/invocations", "/ping")) else "problem+json"
    assert answer.headers["content-type"] == f"application/{media_type}", path
    assert "\n" not in content["error"]
    assert len(content["error"]) < 1000
    return str(content["error"])
