"""Workers whose tokens expire every few seconds, whose token server is away for longer, and refuses them at last."""

import re
from pathlib import Path

import pytest

from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.token_server import SECRET, TokenServer

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

LIFETIME_S = 10


def test_expired_tokens_change_no_bit(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 2)
    rows = vectors(4000, seed=4).reshape(2, 2, 1000, -1)
    with (
        TokenServer(broker.folder) as tokens,
        group(broker, topic, tmp_path, BOTH_CLIENTS, **tokens.login(broker.tokens_bootstrap)) as members,
    ):
        tokens.lifetime_s = LIFETIME_S
        workers = [members.start() for _ in BOTH_CLIENTS]
        members.wait(lambda: len(tokens.asked) >= 2 * len(workers), "renewals")
        for partition in (0, 1):
            broker.produce(topic, partition, as_json(rows[0, partition]))
        members.wait_until_learned()
        unreachable, waiting = "broker unreachable, waiting", "no new token, waiting"
        slow = [worker.count(waiting) for worker in workers]  # tokens that came later than in three seconds
        assert not any(w.count(unreachable) > n for w, n in zip(workers, slow, strict=True)), "renewals interrupt"
        tokens.stop()
        members.wait(lambda: all(worker.count(unreachable) for worker in workers), "the end of the last tokens")
        for partition in (0, 1):
            broker.produce(topic, partition, as_json(rows[1, partition]))
        tokens.start()
        members.wait_until_learned()
        members.assert_commits_not_ahead()
        members.assert_same_bits()
        tokens.knows_client = False
        for worker, before in zip(workers, slow, strict=True):
            assert worker.wait() == 1
            text = worker.text()
            assert f"the token endpoint {tokens.url} gives no token (401 invalid_client)" in text
            assert 1 <= worker.count(waiting) - before <= 2  # for each trouble; librdkafka may see one of the two
            assert not re.search(rf"eyJ|{SECRET}", text)
