"""What all tests share: the real Kafka broker, one for the whole session."""

import logging
import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.kafka_broker import Broker, BrokerUnavailableError
from tests.kafka_sockets import close_what_is_not_used

# As streampca/logs.py has it: else a failing test shows hundreds of lines of the client about an absent broker.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


# A busy machine is no fault of an example's; in CI the examples are the same at every run.
settings.register_profile("person", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "person")

close_what_is_not_used()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, the same for all tests: use `topic` or names of your own. Who stops it starts it again."""
    running = new_broker(tmp_path_factory)
    with running:
        yield running


def new_broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """A broker that has not been started; skips the test where it cannot run, but never in CI."""
    try:
        return Broker(tmp_path_factory.mktemp("broker"))
    except BrokerUnavailableError as lack:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no broker in CI: {lack}")
        pytest.skip(f"no broker here: {lack}")


@pytest.fixture
def topic() -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"t-{uuid.uuid4().hex[:12]}"
