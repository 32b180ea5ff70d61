"""Each record has one output, in order, however often members and brokers are killed while transactions are open."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType

from streampca.formats import writer_of
from streampca.transform.output_fields import OutputFields
from tests.broker_client import BrokerClient
from tests.command_line import variables
from tests.example_models import models_in, numbered
from tests.forked import ForkedProcess
from tests.guarantees.harness import BOTH_CLIENTS, CODEC, D, K, as_json, vectors, with_polls_of
from tests.kafka_broker import SASL, USER, Broker
from tests.transform.harness import project_single, read_output_origin
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

PARTITIONS, KILLS, CHUNK = 4, 20, 300
BROKER_ENDS = {6: Broker.kill, 13: Broker.stop}  # together with these kills of members
FIELDS = ("coordinates", "residual", "score")
BAD = b"no vector"


@dataclass
class Members:
    """Processes of one group, of `streampca transform` unless said otherwise; they use both clients in turn."""

    broker: BrokerClient
    topic: str
    folder: Path
    started: list[ForkedProcess] = field(default_factory=list)

    def start(self, command: str = "transform", **settings: Any) -> ForkedProcess:
        number = len(self.started)
        environment = variables({
            "bootstrap_servers": self.broker.bootstrap, "topic": self.topic, "output_topic": f"{self.topic}-output",
            "dead_letter_topic": f"{self.topic}-dead", "store": self.folder / "store", "session_timeout_s": 2,
            "metrics_port": 0, "emit": ",".join(FIELDS),
            "kafka_client": BOTH_CLIENTS[number % 2], **settings,
        })  # fmt: skip
        log = self.folder / f"member-{number}.log"
        self.started.append(ForkedProcess([command], {**os.environ, **environment}, log, program=with_polls_of(50)))
        return self.started[-1]

    def text(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))

    def position(self) -> int:
        return sum(self.broker.committed(f"streampca-transform-{self.topic}", self.topic).values())

    def wait_for(self, position: int) -> None:
        self.wait(lambda: self.position() >= position, f"position {position}")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        wait_until(condition, timeout_s, lambda: f"{self.text()}\nat {self.position()}: {what}")

    def wait_for_all(self) -> None:
        self.wait_for(sum(self.broker.settled_ends(self.topic).values()))


@contextmanager
def members(broker: BrokerClient, topic: str, folder: Path, **output: int) -> Iterator[Members]:
    """A group on new topics, the output topic with these options, with a model in its store."""
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(f"{topic}-output", PARTITIONS, **output)
    broker.create_topic(f"{topic}-dead")
    models_in(folder / "store", topic).save(numbered(7, d=D, k=K))
    group = Members(broker, topic, folder)
    try:
        yield group
    finally:
        for process in group.started:
            process.kill()


class Feed:
    """Sends records in transactions, some of which are aborted; some records are bad."""

    def __init__(self, broker: Broker, topic: str, seed: int) -> None:
        self._topic, self._random = topic, random.Random(seed)
        self._producer = broker.producer(transactional_id=f"{topic}-feed")
        self._producer.init_transactions()

    def send(self, count: int) -> None:
        """Send so many records, and half as many that are aborted."""
        for aborted, many in ((True, count // 2), (False, count)):
            values = as_json(vectors(many, self._random.randrange(2**31)))
            self._producer.begin_transaction()
            for place, value in enumerate(values):
                partition = self._random.choice([0, 0, 1, 2, 3])
                self._producer.send(self._topic, BAD if place == 5 else value, b"key", partition=partition)
            (self._producer.abort_transaction if aborted else self._producer.commit_transaction)()

    def close(self) -> None:
        self._producer.close()


def assert_each_once(broker: BrokerClient, topic: str) -> None:
    """The committed outputs are those of all records, once and in order; bad records are dead letters, once."""
    read: dict[int, list[Any]] = {p: [] for p in range(PARTITIONS)}
    for record in broker.read_all(topic):
        read[record.partition].append(record)
    written: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(PARTITIONS)}
    for output in broker.read_all(f"{topic}-output"):
        written[output.partition] += read_output(output)
    bad = [(p, record.offset) for p, records in read.items() for record in records if record.value == BAD]
    letters = [dict(record.headers) for record in broker.read_all(f"{topic}-dead")]
    where = [(int(h["__connect.errors.partition"]), int(h["__connect.errors.offset"])) for h in letters]
    assert sorted(where) == sorted(bad)
    for partition, records in read.items():
        assert written[partition] == expected(partition, records)


def expected(partition: int, records: list[Any]) -> list[tuple[int, bytes]]:
    """The offset and the output of each record, computed in this process in one batch."""
    good = [record for record in records if record.value != BAD]
    vectors = CODEC.decode([record.value for record in good]).vectors
    offsets = [record.offset for record in good]
    fields = project_single(OutputFields(FIELDS), numbered(7, d=D, k=K), vectors, np.array(offsets))
    return list(zip(offsets, writer_of("json").write(fields), strict=True))


def read_output(output: Any) -> Iterator[tuple[int, bytes]]:
    """The offset and the output of each record in a message; rows of Arrow as JSON."""
    origin = read_output_origin(output.headers)
    assert origin.partition == output.partition
    if output.value.startswith(b"{"):
        yield origin.offset, output.value
        return
    for row in pa.ipc.open_stream(output.value).read_all().to_pylist():
        assert (row["partition"], row["key"]) == (output.partition, b"key")
        yield row["offset"], orjson.dumps({name: row[name] for name in FIELDS})


def test_each_record_has_one_output_though_members_and_brokers_are_killed(
    stoppable: Broker, topic: str, tmp_path: Path
) -> None:
    chance = random.Random(17)
    with members(stoppable, topic, tmp_path) as group:
        feed = Feed(stoppable, topic, 17)
        running = {name: group.start(group_instance_id=name) for name in ("one", "two")}
        for kill in range(KILLS):
            for name in [name for name, process in running.items() if process.poll() is not None]:
                assert running[name].poll() == 1  # there was no broker when it started
                running[name] = group.start(group_instance_id=name)
            before = group.position()
            feed.send(CHUNK)
            group.wait_for(before + CHUNK // 4)
            time.sleep(chance.uniform(0, 0.1))  # so that it dies in any phase of a transaction
            name = chance.choice(list(running))
            running[name].kill()
            if end_broker := BROKER_ENDS.get(kill):
                feed.close()
                end_broker(stoppable)
                stoppable.start()
                feed = Feed(stoppable, topic, kill)
            running[name] = group.start(group_instance_id=name)
        feed.send(CHUNK)
        group.wait_for_all()
        feed.close()
        assert_each_once(stoppable, topic)


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_outputs_are_dead_letters_where_brokers_refuse_their_size(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    """By a user who may not read the topic's options; the other outputs fill many requests."""
    allowed = {
        (ResourceType.TOPIC, topic): ACLOperation.READ,
        (ResourceType.TOPIC, f"{topic}-output"): ACLOperation.WRITE,
        (ResourceType.TOPIC, f"{topic}-output", ACLResourcePatternType.LITERAL): ACLOperation.READ,
        (ResourceType.TOPIC, f"{topic}-dead"): ACLOperation.WRITE,
        (ResourceType.GROUP, f"streampca-transform-{topic}"): ACLOperation.READ,
        (
            ResourceType.TRANSACTIONAL_ID,
            f"streampca-transform-{topic}-",
            ACLResourcePatternType.PREFIXED,
        ): ACLOperation.ALL,
    }
    broker.admin.create_acls(
        [
            ACL(f"User:{USER}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(*resource))
            for resource, operation in allowed.items()
        ]
    )
    login = {name.replace("_plain_", "_"): value for name, value in SASL.items()}
    sizes = [3_000 if i % 60 else 199_900 + 10_000 * (i % 7) for i in range(300)]
    records = [orjson.dumps({"v": v.tolist(), "x": "x" * n}) for v, n in zip(vectors(300, 1), sizes, strict=True)]
    with members(broker, topic, tmp_path, max_message_bytes=200_000) as group:
        broker.produce(topic, 0, records)
        group.start(kafka_client=client, bootstrap_servers=broker.sasl_bootstrap, field="v", emit="record", **login)
        group.wait_for(len(records))
        letters = broker.read_all(f"{topic}-dead")
        assert [letter.value for letter in letters] == records[::60]
        assert all(b"output_too_large" in dict(letter.headers).values() for letter in letters)
        written = [b'{"record":%s}' % record for i, record in enumerate(records) if i % 60]
        assert [output.value for output in broker.read_all(f"{topic}-output")] == written


def send_and_wait(feed: Feed, group: Members) -> None:
    """Send records, and wait until some of them are committed."""
    before = group.position()
    feed.send(2000)
    group.wait_for(before + 200)


def test_members_that_join_leave_and_die_share_the_work(broker: Broker, topic: str, tmp_path: Path) -> None:
    with members(broker, topic, tmp_path) as group:
        feed = Feed(broker, topic, 18)
        first = group.start(output_format="arrow")
        for _ in range(2):
            send_and_wait(feed, group)
            second = group.start(output_format="arrow")  # while transactions are open
            send_and_wait(feed, group)
            first.send_signal(15)
            assert first.wait(30) == 0
            first = second
        feed.send(1000)
        first.kill()  # its transaction stays open until the broker gives it up
        group.start(output_format="arrow")
        group.wait_for_all()
        feed.close()
        assert_each_once(broker, topic)
