"""A store in memory, for modules that have none of their own, and what is logged."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from streampca.stores.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as logs:
        yield logs
