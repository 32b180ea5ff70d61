"""A store with one known model, the application on it, and a client without a network."""

import sys
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from streampca.api.app import create_app
from streampca.settings import ServeSettings
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.vectors.json import SimdjsonParser
from tests.api.client import Client
from tests.api.known import TOPIC, known


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def models(store: MemoryStore) -> Models:
    """Versions 10 and 20."""
    models = Models(store, TOPIC, keep=10)
    for version in (10, 20):
        models.save(known(version))
    return models


@pytest.fixture
def settings() -> ServeSettings:
    """Small limits. The store is asked once; tests that want more call `poll`."""
    return ServeSettings(topic=TOPIC, max_body_bytes=20_000, max_rows=50, reload_interval_s=3600)


@pytest.fixture
def app(models: Models, store: MemoryStore, settings: ServeSettings) -> FastAPI:
    return create_app(store, settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[Client]:
    with Client(app) as client:
        yield client


@pytest.fixture(params=["simdjson", "orjson"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the rows are read by: simdjson where it is installed, and orjson."""
    if request.param == "orjson":
        monkeypatch.setitem(sys.modules, "simdjson", None)
    elif sys.version_info < (3, 14):  # the extra has it, and tests have the extra
        assert SimdjsonParser.installed(1, []) is not None
    return str(request.param)
