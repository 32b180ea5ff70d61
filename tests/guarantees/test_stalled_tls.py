"""A broker that takes connections and does not answer, so that TLS handshakes stall."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import KEY_PASSWORD
from tests.guarantees.harness import BOTH_CLIENTS, group
from tests.kafka_broker import Broker, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]


@contextmanager
def stalled(broker: Broker) -> Iterator[None]:
    """The broker's process is stopped; the kernel goes on taking connections to its ports."""
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    os.waitpid(broker.process.pid, os.WUNTRACED)  # returns when it has stopped
    try:
        yield
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
        wait_until(broker._is_ready)  # the cluster has given it up meanwhile


def tls(broker: Broker) -> dict[str, Any]:
    ours = broker.certificates
    return {
        "security_protocol": "SSL", "bootstrap_servers": broker.mutual_bootstrap, "ssl_cafile": ours.authority,
        "ssl_certfile": ours.client, "ssl_keyfile": ours.client_key, "ssl_password": KEY_PASSWORD,
    }  # fmt: skip


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_start_whose_handshake_stalls_ends(stoppable: Broker, topic: str, tmp_path: Path, client: str) -> None:
    stoppable.create_topic(topic, 1)
    with group(stoppable, topic, tmp_path, [client], **tls(stoppable)) as members, stalled(stoppable):
        worker = members.start()
        assert worker.wait() == 1
        assert "no broker answers" in worker.text()
