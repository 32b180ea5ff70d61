"""A store with one published model, the application on it, and a client without a network."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from streampca.settings.commands import ServeSettings
from streampca.sidecar import app as sidecar_app, engine
from streampca.stores.models import Models
from tests.example_models import TOPIC, empty_models, save
from tests.in_memory.store import FaultyStore
from tests.sidecar.http_client import Client


@pytest.fixture
def models(store: FaultyStore) -> Models:
    """The models of a store with versions 10 and 20."""
    models = empty_models(store)
    save(models, 10, 20)
    return models


@pytest.fixture(autouse=True)
def _poll_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is polled once; tests call `poll` for more."""
    monkeypatch.setattr(sidecar_app, "POLL_INTERVAL_S", 3600.0)


@pytest.fixture
def settings() -> ServeSettings:
    """Settings with a small limit of the body."""
    return ServeSettings(topic=TOPIC, max_body_bytes=20_000)


@pytest.fixture
def app(models: Models, store: FaultyStore, settings: ServeSettings, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(engine, "_MAX_ROWS", 50)
    return sidecar_app.create_app(store, settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[Client]:
    with Client(app) as client:
        yield client
