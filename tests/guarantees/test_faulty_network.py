"""Connections that are cut in the middle of an answer, slow, or half-open lose and repeat no record."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.faulty_proxy import FaultyProxy
from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

FAULTS = {"cut": 3, "slow": 500, "silent": 1}  # how many of each
SILENCE_S = 2.5  # longer than the session


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_faulty_network_changes_no_bit(broker: Broker, topic: str, tmp_path: Path, client: str) -> None:
    broker.create_topic(topic, 2)
    parts = [as_json(rows) for rows in np.array_split(vectors(8000, seed=6), 8)]
    settings = {"bootstrap_servers": f"127.0.0.1:{broker.proxy}", "poll_records": 100}
    with (
        FaultyProxy(broker.proxy, broker.proxied) as proxy,
        group(broker, topic, tmp_path, [client], **settings) as members,
    ):
        for i, fault in enumerate(["", *FAULTS]):
            proxy.begin(fault)
            for partition in (0, 1):
                broker.produce(topic, partition, parts[2 * i + partition])
            if not fault:
                worker = members.start()
            else:
                members.wait(lambda fault=fault: proxy.faults >= FAULTS[fault], f"faults: {fault}")  # type: ignore[misc]
            if fault == "silent":
                time.sleep(SILENCE_S)  # the length of the fault is what is tested
            proxy.reset()
            members.wait_until_learned()
            members.assert_commits_not_ahead()
        members.assert_same_bits()
        assert sum(checkpoint.fold.stats.learned for checkpoint in members.newest().values()) == 8000
        assert worker.stop() == 0
