"""A store in memory, for modules that have none of their own, and what is logged."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.in_memory.store import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as logs:
        yield logs
