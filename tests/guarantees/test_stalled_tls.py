"""A broker that takes connections and does not answer, so that TLS handshakes stall."""

from pathlib import Path

import pytest

from tests.guarantees.harness import BOTH_CLIENTS, group
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_start_whose_handshake_stalls_ends(stoppable: Broker, topic: str, tmp_path: Path, client: str) -> None:
    stoppable.create_topic(topic, 1)
    login = stoppable.certificate_login
    with group(stoppable, topic, tmp_path, [client], **login) as members, stoppable.frozen():
        worker = members.start()
        assert worker.wait() == 1
        assert "no broker answers" in worker.text()
