"""Tokens that expire every few seconds, and logins and rights that brokers or a token server refuse for a while."""

import os
import re
import signal
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.broker_config import write_keystore
from tests.certificates import Certificates
from tests.forked import ForkedProcess
from tests.guarantees.harness import BOTH_CLIENTS, D, K, as_json, group, vectors
from tests.guarantees.test_transform import BAD, PARTITIONS, assert_each_once, members
from tests.kafka_broker import MECHANISMS, PASSWORD, USER, Broker
from tests.token_server import SECRET, TokenServer
from tests.waiting import every

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

LIFETIME_S = 10
REFUSED_S = 8.0  # a minute shows more: run it so after changes in a client
EXIT_CODES = {0, 1, 128 + signal.SIGTERM}  # the last: a start has nothing to save, so SIGTERM ends it at once


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


def refuse_tokens(broker: Broker, tokens: TokenServer, refused: bool) -> None:
    tokens.knows_client = not refused


def refuse_password(broker: Broker, tokens: TokenServer, refused: bool) -> None:
    password = PASSWORD[::-1] if refused else PASSWORD
    changed = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, password=password)
    broker.admin.alter_user_scram_credentials([changed])
    broker.stop()  # what is connected stays so
    broker.start()


def refuse_certificates(broker: Broker, tokens: TokenServer, refused: bool) -> None:
    broker.stop()
    (others := broker.folder / "others").mkdir(exist_ok=True)
    write_keystore(broker.folder, Certificates(others).make() if refused else broker.certificates)
    broker.start()


def refuse_rights(broker: Broker, tokens: TokenServer, refused: bool) -> None:
    topics = ResourcePattern(ResourceType.TOPIC, "t-", ACLResourcePatternType.PREFIXED)
    denied = ACL(f"User:{USER}", "*", ACLOperation.WRITE, ACLPermissionType.DENY, topics)
    (broker.admin.create_acls if refused else broker.admin.delete_acls)([denied])


def usage(process: ForkedProcess) -> tuple[float, float]:
    """A process's resident memory, MiB, and its processor time, s."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20, ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("refuse", "stopped"),
    [
        (refuse_tokens, "worker"), (refuse_password, "transform"),
        (refuse_certificates, "transform"), (refuse_rights, "worker"),
    ],
)  # fmt: skip
def test_a_refusal_that_ends_costs_no_record_and_the_machine_nothing(
    stoppable: Broker, topic: str, tmp_path: Path, refuse: Any, stopped: str
) -> None:
    """Workers and members of transform of both clients wait, idly, or end and are started again, or hear SIGTERM."""
    rejected = stoppable.create_topic(f"{topic}-rejected")
    with TokenServer(stoppable.folder) as tokens, members(stoppable, topic, tmp_path) as group:
        tokens.lifetime_s = LIFETIME_S / 2
        login: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT", "bootstrap_servers": stoppable.sasl_bootstrap,
            "sasl_mechanism": MECHANISMS[-1], "sasl_username": USER, "sasl_password": PASSWORD,
        }  # fmt: skip
        if refuse is refuse_tokens:
            login = tokens.login(stoppable.tokens_bootstrap)
        if refuse is refuse_certificates:
            login = stoppable.certificate_login
        learning = {
            "dimensions": D, "components": K, "store": tmp_path / "learned", "group_id": topic,
            "dead_letter_topic": rejected, "checkpoint_interval_s": 0.2,
        }  # fmt: skip
        saved = Checkpoints(DirectoryStore(tmp_path / "learned"), topic).offsets
        running: dict[tuple[str, str], ForkedProcess] = {}

        def send() -> None:
            for partition in range(PARTITIONS):
                stoppable.produce(topic, partition, [*as_json(vectors(20, seed=partition)), BAD])

        def caught_up() -> bool:
            for command, client in product(("worker", "transform"), BOTH_CLIENTS):
                process = running.get((command, client))
                if process is None or process.poll() is not None:
                    assert process is None or process.poll() in EXIT_CODES
                    more = learning if command == "worker" else {}
                    running[command, client] = group.start(command, kafka_client=client, **login, **more)
            ends = stoppable.end_offsets(topic)
            return all(saved(p)[-1:] == [end] for p, end in ends.items()) and group.position() == sum(ends.values())

        send()
        group.wait(caught_up, "all before")
        refuse(stoppable, tokens, True)
        try:
            before = {role: usage(process) for role, process in running.items() if process.poll() is None}
            with every(1.0, send):
                time.sleep(REFUSED_S)  # how long it is watched
            for role in [role for role in before if running[role].poll() is None]:
                memory, processor = np.subtract(usage(running[role]), before[role])
                assert memory < 100
                assert processor < REFUSED_S / 3
                if stopped in role:
                    running[role].send_signal(signal.SIGTERM)
            codes = {process.wait(30) for role, process in running.items() if stopped in role}
            assert codes <= EXIT_CODES
        finally:
            refuse(stoppable, tokens, False)
        group.wait(caught_up, "all after")
        assert_each_once(stoppable, topic)
