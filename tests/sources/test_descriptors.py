"""Clients that are opened and closed again and again leave no socket, pipe or file open."""

import gc
from pathlib import Path

import pytest

from tests.kafka_broker import Broker
from tests.sources.backends import Backend, OnConfluentPrefetching, OnKafka

CYCLES = 8


@pytest.mark.broker
@pytest.mark.parametrize("client", [OnKafka, OnConfluentPrefetching])
def test_clients_that_come_and_go_leave_no_descriptor_open(broker: Broker, topic: str, client: type[Backend]) -> None:
    backend = client(broker, topic, 1)  # type: ignore[call-arg]
    open_after = [descriptors_after(backend) for _ in range(CYCLES)]
    assert open_after[-1] <= open_after[0], open_after


def descriptors_after(backend: Backend) -> int:
    """The open descriptors of this process after a client has asked the broker and was closed."""
    backend.open().topic_id()
    backend.opened.pop().close()
    gc.collect()  # kafka-python leaves some sockets to it
    return len(list(Path("/dev/fd").iterdir()))
