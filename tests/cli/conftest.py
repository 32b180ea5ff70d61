"""The client of the commands, for tests of those that go by it."""

import pytest

from tests.guarantees.harness import BOTH_CLIENTS


@pytest.fixture(params=BOTH_CLIENTS)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The client that is set in the environment."""
    monkeypatch.setenv("STREAMPCA_KAFKA_CLIENT", request.param)
    return str(request.param)
