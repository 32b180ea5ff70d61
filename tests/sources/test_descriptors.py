"""Clients that are opened and closed again and again leave no socket, pipe or file open."""

import gc
from pathlib import Path

import pytest

from tests.kafka_broker import Broker
from tests.sources.backends import Backend, OnConfluentPrefetching, OnKafka
from tests.sources.reader import Reader

CYCLES = 50


@pytest.mark.broker
@pytest.mark.parametrize("client", [OnKafka, OnConfluentPrefetching])
def test_fifty_clients_leave_no_descriptor_open(broker: Broker, topic: str, client: type[Backend]) -> None:
    backend = client(broker, topic, 1)  # type: ignore[call-arg]
    backend.append(0, [b"1"])
    open_after = [descriptors_after(backend) for _ in range(CYCLES)]
    assert open_after[-1] <= open_after[0], open_after


def descriptors_after(backend: Backend) -> int:
    """The open descriptors of this process after a member has joined, read and left."""
    reader = Reader(backend.open())
    reader.assigned()
    reader.source.seek({0: None})
    reader.read_to({0: 1})
    backend.opened.pop().close()
    gc.collect()  # kafka-python leaves some sockets to it
    return len(list(Path("/dev/fd").iterdir()))
