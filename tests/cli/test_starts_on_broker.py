"""A start and `streampca doctor` name the same mistake, and doctor changes nothing."""

import itertools
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from structlog.testing import capture_logs

from streampca.cli.doctor import FAILED, PASSED, Line, check_steps, list_steps
from streampca.cli.member_start import MemberStart
from streampca.cli.transform_start import TransformStart
from streampca.cli.worker_config import create_worker_config
from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.committed import format_store_metadata
from streampca.errors import StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.broker_errors import one_line
from streampca.sources.clients import create_client, create_transactions
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints, name_folder
from streampca.stores.directory import DirectoryStore
from streampca.stores.identity import StoreIdentity
from streampca.transform.record_packer import ORIGIN
from tests.cli.test_reset import commit
from tests.example_models import models_in, numbered
from tests.fold.streams import make_fold, vectors
from tests.guarantees.harness import BOTH_CLIENTS
from tests.http_server import HttpServer
from tests.kafka_broker import PASSWORD, USER, Broker

pytestmark = pytest.mark.broker

# What librdkafka adds to an error: how long an attempt took, and how many attempts failed in the same way.
_DETAILS_OF_ATTEMPTS = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class Place:
    """A topic with its output and dead-letter topics, and a store with a checkpoint and a model, all of them right."""

    def __init__(self, broker: Broker, topic: str, store: Path, client: str) -> None:
        self.broker = broker
        self.topic = topic
        self.path = store
        self.store = DirectoryStore(store)
        self.group = f"{topic}-group"
        self.settings = {
            "topic": topic, "bootstrap_servers": broker.bootstrap, "store": str(store), "kafka_client": client,
            "dead_letter_topic": f"{topic}-dead", "group_instance_id": "member-0",
        }  # fmt: skip
        for name in (topic, f"{topic}-out", f"{topic}-dead"):
            broker.create_topic(name, 1)
        broker.produce(topic, 0, [json.dumps([0.0] * 5).encode()] * 9)
        models_in(store, topic).save(replace(numbered(7), positions={0: 5}))  # as far as the checkpoint
        self.save(self.topic_id())

    def topic_id(self) -> str:
        with closing(create_client(self.worker().settings)) as source:
            return source.topic_id()

    def save(self, topic_id: str) -> None:
        """Save a checkpoint at offset 5, and commit it."""
        config = create_worker_config(self.worker().settings).fold
        fold = make_fold(vectors(5), config)
        Checkpoints(self.store, self.topic).save(Checkpoint(self.topic, topic_id, 0, fold, config.as_dict()))
        commit(self.broker, self.group, {(self.topic, 0): 5}, format_store_metadata(identity.ensure(self.store)))

    def worker(self, **changed: str) -> WorkerStart:
        more = {"dimensions": "5", "components": "2", "group_id": self.group}
        read = WorkerSettings.read(**self.settings | more | changed)
        return WorkerStart(read, DirectoryStore(read.store))

    def transform(self, **changed: str) -> TransformStart:
        more = {"output_topic": f"{self.topic}-out", "transform_group_id": f"{self.group}-t"}
        read = TransformSettings.read(**self.settings | more | changed)
        return TransformStart(read, DirectoryStore(read.store))

    def deny(self, kind: ResourceType, name: str) -> None:
        """Take all rights on a resource from every user, by giving another user a right on it."""
        # A topic is denied by its full name, which may be the beginning of another topic's name.
        is_prefix = kind == ResourceType.TRANSACTIONAL_ID
        pattern = ResourcePattern(
            kind, name, ACLResourcePatternType.PREFIXED if is_prefix else ACLResourcePatternType.LITERAL
        )
        self.broker.admin.create_acls([ACL("User:else", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern)])


def find_mistake(start: MemberStart) -> Line:
    """Return the first step at which a start ends, or waits, and why."""
    with start.opened:
        for step in start.steps():
            try:
                step.attempt()
            except (StreampcaError, TimeoutError) as error:
                return Line(FAILED, step.name, one_line(error))
    return Line(PASSED, "start", "")


def check_steps_of_doctor(start: MemberStart) -> list[Line]:
    with start.opened:
        return list(check_steps(list_steps([start])))


@pytest.fixture
def place(broker: Broker, topic: str, tmp_path: Path) -> Callable[[str], Place]:
    return partial(Place, broker, topic, tmp_path / "store")


def log_in(place: Place, **changed: str) -> dict[str, str]:
    """Return the settings of a login, of which some are changed."""
    secure = {
        "bootstrap_servers": place.broker.sasl_bootstrap, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD,
    }  # fmt: skip
    return secure | changed


def deny_rights(kind: ResourceType, name: str) -> Callable[[Place], dict[str, str]]:
    """Return a function that logs in a user who lacks rights on a topic, a group or a transactional id."""

    def prepare(place: Place) -> dict[str, str]:
        place.deny(kind, name.format(topic=place.topic, group=place.group))
        return log_in(place)

    return prepare


def damage_checkpoints(place: Place) -> None:
    for path in (place.path / name_folder(place.topic, 0)).iterdir():
        path.write_bytes(path.read_bytes()[:-100])


def commit_outputs(place: Place, metadata: str) -> None:
    commit(place.broker, f"{place.group}-t", {(place.topic, 0): 5}, metadata)


def commit_as_other_store(place: Place) -> None:
    other = StoreIdentity("ab" * 16, "s3://bucket/other", "worker-7")
    commit(place.broker, place.group, {(place.topic, 0): 5}, format_store_metadata(other))


def put_file_in_place_of_folder(place: Place) -> dict[str, str]:
    (place.path / "file").write_text("")
    return {"store": str(place.path / "file" / "store")}


def name_absent_topic(place: Place) -> dict[str, str]:
    absent = f"{place.topic}-absent"
    models_in(place.path, absent).save(numbered(7))
    return {"topic": absent}


def name_compacted_dead_letter_topic(place: Place) -> dict[str, str]:
    return {"dead_letter_topic": place.broker.create_topic(f"{place.topic}-kept", cleanup_policy="compact,delete")}


def write_output(place: Place) -> None:
    """Write the output of the record at offset 5, of whose partition the group has committed nothing."""
    header = b'{"model_version":7,"partition":0,"offset":5,"topic_id":"%s"}' % place.topic_id().encode()
    with closing(place.broker.producer()) as producer:
        producer.send(f"{place.topic}-out", b"{}", partition=0, headers=[(ORIGIN, header)]).get(10)


def write_output_without_right(place: Place) -> dict[str, str]:
    write_output(place)
    pattern = ResourcePattern(ResourceType.TOPIC, f"{place.topic}-out", ACLResourcePatternType.LITERAL)
    place.broker.admin.create_acls([ACL(f"User:{USER}", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)])
    return log_in(place)


def lose_outputs(place: Place) -> dict[str, str]:
    write_output(place)
    place.broker.delete_records(f"{place.topic}-out", 0, 1)
    return {"transform_start": "outputs"}


Prepare = Callable[[Place], dict[str, str] | None]

BOTH: dict[str, tuple[str, Prepare]] = {
    "wrong password": ("broker", lambda place: log_in(place, sasl_password=USER)),
    "authority is no file of certificates": (
        "broker", lambda place: {"security_protocol": "SSL", "ssl_cafile": str(place.path / "store.json")}
    ),
    "no topic": ("topic", name_absent_topic),
    "no right on the topic": ("topic", deny_rights(ResourceType.TOPIC, "{topic}")),
    "no dead-letter topic": ("dead-letter topic", lambda place: {"dead_letter_topic": f"{place.topic}-absent"}),
    "compacted dead-letter topic": ("dead-letter topic", name_compacted_dead_letter_topic),
    "no right on the dead-letter topic": ("dead-letter topic", deny_rights(ResourceType.TOPIC, "{topic}-dead")),
}  # fmt: skip
OF_WORKER: dict[str, tuple[str, Prepare]] = {
    "no broker": ("broker", lambda place: {"bootstrap_servers": "127.0.0.1:1"}),  # takes six seconds
    "no right on the group": ("consumer group", deny_rights(ResourceType.GROUP, "{group}")),
    "store cannot be written": ("store", put_file_in_place_of_folder),
    "store of another group": ("checkpoints", commit_as_other_store),
    "other settings": ("checkpoints", lambda place: {"components": "3"}),
    "other format": ("checkpoints", lambda place: {"format": "float64"}),
    "topic was recreated": ("checkpoints", lambda place: place.save("former")),
    "damaged checkpoints": ("checkpoints", damage_checkpoints),
}
OF_TRANSFORM: dict[str, tuple[str, Prepare]] = {
    "no store": ("model", lambda place: {"store": str(place.path / "absent")}),
    "no such version": ("model", lambda place: {"model_version": "6"}),
    "no past scores": ("model", lambda place: {"model_version": "7", "only_p_below": "0.1"}),
    "no past scores yet": ("model", lambda place: {"only_p_below": "0.1"}),
    "no output topic": ("output topic", lambda place: {"output_topic": f"{place.topic}-absent"}),
    "no right on the output topic": ("output topic", deny_rights(ResourceType.TOPIC, "{topic}-out")),
    "no right on transactional ids": (
        "transactions", deny_rights(ResourceType.TRANSACTIONAL_ID, "{group}-t-"),
    ),
    "no registry": (
        "output schema", lambda place: {"output_format": "avro", "schema_registry_url": "http://127.0.0.1:1"}
    ),
    "outputs of another shape": ("transform group", lambda place: commit_outputs(place, "k=3 d=5")),
    "outputs of another topic": ("transform group", lambda place: commit_outputs(place, "k=2 d=5 topic=former")),
    "outputs without an offset": ("transform group", write_output),
    "outputs without the right to read them": ("transform group", write_output_without_right),
    "outputs that are gone": ("transform group", lose_outputs),
}  # fmt: skip
CASES = [
    *(("worker", name, *case) for name, case in (BOTH | OF_WORKER).items()),
    *(("transform", name, *case) for name, case in (BOTH | OF_TRANSFORM).items()),
]


@pytest.mark.parametrize(
    ("role", "step", "prepare", "client"),
    [
        pytest.param(role, step, prepare, client, id=f"{role}: {name}")
        for (role, name, step, prepare), client in zip(CASES, itertools.cycle(BOTH_CLIENTS))
    ],
)
def test_a_start_and_doctor_name_the_same_mistake(
    place: Callable[[str], Place], role: str, step: str, prepare: Prepare, client: str
) -> None:
    at = place(client)
    changed = prepare(at) or {}
    create: Callable[..., MemberStart] = getattr(at, role)
    mistake = find_mistake(create(**changed))
    assert mistake.step == step, mistake
    said = {line.step: line for line in check_steps_of_doctor(create(**changed))}[step]
    assert said.mark != PASSED
    texts = [_DETAILS_OF_ATTEMPTS.sub("", text) for text in (said.text, mistake.text)]
    assert texts[0].removeprefix("a start waits: ") == texts[1]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_without_the_right_to_look_a_start_notes_that_compaction_is_unknown(
    place: Callable[[str], Place], client: str
) -> None:
    at = place(client)
    dead = at.broker.create_topic(f"{at.topic}-kept", cleanup_policy="compact")
    pattern = ResourcePattern(ResourceType.TOPIC, dead, ACLResourcePatternType.LITERAL)
    at.broker.admin.create_acls([ACL(f"User:{USER}", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)])
    with capture_logs() as logs:
        assert find_mistake(at.worker(**log_in(at), dead_letter_topic=dead)) == Line(PASSED, "start", "")
    assert {"topic": dead, "missing_right": "DescribeConfigs"}.items() <= next(
        line for line in logs if line["event"] == "compaction of dead letters unknown"
    ).items()


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_doctor_fails_where_partitions_wait_for_a_place_and_a_start_goes_on(
    place: Callable[[str], Place], client: str
) -> None:
    at = place(client)
    at.broker.add_partitions(at.topic, 3)
    said = {line.step: line for line in check_steps_of_doctor(at.transform())}["output topic"]
    assert said.mark == FAILED
    assert f"{at.topic}-out has 1 partitions, so partitions 1, 2 of {at.topic} wait" in said.text
    assert find_mistake(at.transform()) == Line(PASSED, "start", "")


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_transform_continues_behind_the_last_output(place: Callable[[str], Place], client: str) -> None:
    at = place(client)
    write_output(at)
    at.broker.produce_aborted(f"{at.topic}-out", 0, [b"aborted"] * 3)
    start = at.transform(transform_start="outputs")
    assert find_mistake(start) == Line(PASSED, "start", "")
    assert start.positions == {0: 6}
    lag = {line.step: line for line in check_steps_of_doctor(at.transform(transform_start="outputs"))}["lag"]
    assert lag.text == f"{at.group}-t is 3 records behind"


def read_files(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_doctor_changes_nothing_and_fences_no_member(place: Callable[[str], Place], client: str) -> None:
    at = place(client)
    output = f"{at.topic}-out"
    requested: list[str] = []  # paths
    commit_outputs(at, "")

    def answer(request: Any, body: bytes) -> tuple[int, object]:
        requested.append(request.path.partition("?")[0])
        return 200, {"is_compatible": True, "id": 1}

    with HttpServer(answer) as registry:
        avro = {"output_format": "avro", "schema_registry_url": registry.root}
        member = at.transform(**avro)
        with closing(create_transactions(member.settings, None, [output])) as transactions:
            transactions.recover()
            transactions.send([(output, 0, b"output", None, [], -1)])
            before = read_state(at)
            lines = [*check_steps_of_doctor(at.worker()), *check_steps_of_doctor(at.transform(**avro))]
            assert {line for line in lines if line.mark != PASSED} == set()
            assert read_state(at) == before
            transactions.commit({})  # raises if another producer has taken the id
        assert requested == [f"/compatibility/subjects/{output}-value/versions/latest"]
        for step in member.steps():
            step.attempt()
        member.opened.close()
        assert requested[-1] == f"/subjects/{output}-value/versions"
    assert [record.value for record in at.broker.read_all(output)] == [b"output"]


def read_state(place: Place) -> object:
    """Return the files of the store, the offsets of both groups, and the ends of all topics."""
    groups = (place.group, f"{place.group}-t")
    topics = (place.topic, f"{place.topic}-dead")
    return (
        read_files(place.path),
        [place.broker.committed(group, place.topic) for group in groups],
        [place.broker.end_offsets(name) for name in topics],
    )
