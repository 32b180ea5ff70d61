"""The engine of all dialects: where it works, and what it counts and remembers."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fastapi import Request, Response

from streampca.process.metrics import StoreMetrics
from streampca.settings.commands import ServeSettings
from streampca.sidecar.compute import Answer
from streampca.sidecar.engine import Engine
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.model_loader import ModelLoader
from streampca.sidecar.page.recent_vectors import RecentVectors
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from tests.sidecar.known import TOPIC, known


@dataclass
class Parsed:
    version: int | None


@dataclass
class Dialect:
    """One that answers with the model's version, and notes what it is asked to do, and in which thread."""

    version: int | None = None
    calls: list[tuple[str, bool]] = field(default_factory=list)

    def _note(self, name: str) -> None:
        self.calls.append((name, threading.current_thread() is threading.main_thread()))

    def parse(self, raw: Any, limits: Any) -> Parsed:
        self._note("parse")
        return Parsed(self.version)

    def compute(self, published: Any, parsed: Parsed, limits: Any) -> Answer:
        self._note("compute")
        return Answer(published.version, {}, vectors=3, projected=np.ones((3, 5)))

    def respond(self, parsed: Parsed, answer: Answer, raw: Any) -> Response:
        self._note("respond")
        return Response(str(answer.version))


@pytest.fixture
def engine(models: Models) -> Engine:
    cache, settings = ModelCache(models), ServeSettings(topic=TOPIC)
    cache.poll()
    metrics = SidecarMetrics(cache, TOPIC, StoreMetrics())
    return Engine(cache, ModelLoader(cache), metrics, settings, RecentVectors())


def ask(engine: Engine, dialect: Dialect, body: bytes = b"{}", *, if_quick: bool = True) -> bytes:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def answer() -> Response:
        request = Request({"type": "http", "headers": [], "query_string": b""}, receive)
        return await engine.answer(
            request, operation="score", parse=dialect.parse, compute=dialect.compute, respond=dialect.respond,
            if_quick=if_quick,
        )  # fmt: skip

    return bytes(asyncio.run(answer()).body)


ALL = ("parse", "compute", "respond")


@pytest.mark.parametrize(
    ("body", "if_quick", "at_once"), [(b"{}", True, True), (b"{}", False, False), (b" " * 40_000, True, False)]
)
def test_only_quick_work_is_done_on_the_event_loop(engine: Engine, body: bytes, if_quick: bool, at_once: bool) -> None:
    dialect = Dialect()
    assert ask(engine, dialect, body, if_quick=if_quick) == b"20"
    assert dialect.calls == [(name, at_once) for name in ALL]


def test_with_a_model_that_fills_gaps_the_body_decides(engine: Engine, models: Models) -> None:
    published = known(30)
    published.settings["missing"] = "impute"
    models.save(published)
    engine._cache.poll()
    dialect = Dialect()
    assert ask(engine, dialect) == b"30"
    assert dialect.calls == [(name, True) for name in ALL]


def test_a_request_whose_model_is_not_loaded_is_parsed_again_when_it_is(engine: Engine) -> None:
    dialect = Dialect(version=10)
    assert ask(engine, dialect) == b"10"
    assert dialect.calls == [("parse", True), *((name, False) for name in ALL)]
    assert ask(engine, dialect) == b"10"
    assert dialect.calls[4:] == [(name, True) for name in ALL]


def test_vectors_are_counted_by_operation_and_remembered(engine: Engine) -> None:
    ask(engine, Dialect())
    text, _ = engine.metrics.text("")
    assert f'streampca_projected_vectors_total{{act="score",topic="{TOPIC}"}} 3.0' in text.decode()
    assert len(engine._recent.project(known(20), 1, 2)["coordinates"]) == 3
