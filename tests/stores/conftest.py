"""A store in memory, for modules that have none of their own."""

import pytest

from tests.in_memory.store import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()
