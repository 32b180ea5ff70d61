"""A start and `streampca doctor` name the same mistake, and doctor changes nothing."""

import itertools
import json
import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType

from streampca.cli.doctor import FAILED, PASSED, Line, lines_of, steps_of
from streampca.cli.member_start import MemberStart
from streampca.cli.transform_start import TransformStart
from streampca.cli.worker_config import create_worker_config
from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.committed import metadata_of_store
from streampca.errors import StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.client_connection import one_line
from streampca.sources.clients import create_client, create_transactions
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints, folder_of
from streampca.stores.directory import DirectoryStore
from streampca.stores.identity import StoreIdentity
from tests.cli.test_reset import commit
from tests.example_models import models_in, numbered
from tests.fold.streams import fold_of, vectors
from tests.guarantees.harness import BOTH_CLIENTS
from tests.http_server import HttpServer
from tests.kafka_broker import PASSWORD, USER, Broker

pytestmark = pytest.mark.broker


class Place:
    """A topic with its output and dead-letter topics, and a store with a checkpoint and a model, all of them right."""

    def __init__(self, broker: Broker, topic: str, store: Path, client: str) -> None:
        self.broker, self.topic, self.path, self.store = broker, topic, store, DirectoryStore(store)
        self.group = f"{topic}-group"
        self.settings = {
            "topic": topic, "bootstrap_servers": broker.bootstrap, "store": str(store), "kafka_client": client,
            "dead_letter_topic": f"{topic}-dead", "group_instance_id": "member-0",
        }  # fmt: skip
        for name in (topic, f"{topic}-out", f"{topic}-dead"):
            broker.create_topic(name, 1)
        broker.produce(topic, 0, [json.dumps([0.0] * 5).encode()] * 9)
        models_in(store, topic).save(numbered(7))
        self.save(self.topic_id())

    def topic_id(self) -> str:
        with closing(create_client(self.worker().settings)) as source:
            return source.topic_id()

    def save(self, topic_id: str) -> None:
        """Save a checkpoint at offset 5, and commit it."""
        config = create_worker_config(self.worker().settings).fold
        fold = fold_of(vectors(5), config)
        Checkpoints(self.store, self.topic).save(Checkpoint(self.topic, topic_id, 0, fold, config.as_dict()))
        commit(self.broker, self.group, {(self.topic, 0): 5}, metadata_of_store(identity.ensure(self.store)))

    def worker(self, **changed: str) -> WorkerStart:
        more = {"dimensions": "5", "components": "2", "group_id": self.group}
        read = WorkerSettings.read(**self.settings | more | changed)
        return WorkerStart(read, DirectoryStore(read.store))

    def transform(self, **changed: str) -> TransformStart:
        more = {"output_topic": f"{self.topic}-out", "transform_group_id": f"{self.group}-t"}
        read = TransformSettings.read(**self.settings | more | changed)
        return TransformStart(read, DirectoryStore(read.store))

    def deny(self, kind: ResourceType, name: str) -> None:
        """Only another user has a right on a resource, which takes it from all others."""
        # Of topics, one name might be the beginning of another one.
        is_prefix = kind == ResourceType.TRANSACTIONAL_ID
        pattern = ResourcePattern(
            kind, name, ACLResourcePatternType.PREFIXED if is_prefix else ACLResourcePatternType.LITERAL
        )
        self.broker.admin.create_acls([ACL("User:else", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern)])


def mistake_of(start: MemberStart) -> Line:
    """The first step at which a start ends, or waits, and why."""
    with start.opened:
        for step in start.steps():
            try:
                step.attempt()
            except (StreampcaError, TimeoutError) as error:
                return Line(FAILED, step.name, one_line(error))
    return Line(PASSED, "start", "")


def lines_of_doctor(start: MemberStart) -> list[Line]:
    with start.opened:
        return list(lines_of(steps_of([start])))


@pytest.fixture
def place(broker: Broker, topic: str, tmp_path: Path) -> Callable[[str], Place]:
    return partial(Place, broker, topic, tmp_path / "store")


def login(place: Place, **changed: str) -> dict[str, str]:
    secure = {
        "bootstrap_servers": place.broker.sasl_bootstrap, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD,
    }  # fmt: skip
    return secure | changed


def without_rights(kind: ResourceType, name: str) -> Callable[[Place], dict[str, str]]:
    """A user of whom the broker knows, without a right on a topic, a group or a transactional id."""

    def prepare(place: Place) -> dict[str, str]:
        place.deny(kind, name.format(topic=place.topic, group=place.group))
        return login(place)

    return prepare


def damage(place: Place) -> None:
    for path in (place.path / folder_of(place.topic, 0)).iterdir():
        path.write_bytes(path.read_bytes()[:-100])


def commit_outputs(place: Place, metadata: str) -> None:
    commit(place.broker, f"{place.group}-t", {(place.topic, 0): 5}, metadata)


def other_store(place: Place) -> None:
    other = StoreIdentity("ab" * 16, "s3://bucket/other", "worker-7")
    commit(place.broker, place.group, {(place.topic, 0): 5}, metadata_of_store(other))


def file_in_place_of_folder(place: Place) -> dict[str, str]:
    (place.path / "file").write_text("")
    return {"store": str(place.path / "file" / "store")}


def no_topic(place: Place) -> dict[str, str]:
    absent = f"{place.topic}-absent"
    models_in(place.path, absent).save(numbered(7))
    return {"topic": absent}


def more_partitions(place: Place) -> None:
    place.broker.add_partitions(place.topic, 2)


Prepare = Callable[[Place], dict[str, str] | None]

BOTH: dict[str, tuple[str, Prepare]] = {
    "wrong password": ("broker", lambda place: login(place, sasl_password=USER)),
    "authority is no file of certificates": (
        "broker", lambda place: {"security_protocol": "SSL", "ssl_cafile": str(place.path / "store.json")}
    ),
    "no topic": ("topic", no_topic),
    "no right on the topic": ("topic", without_rights(ResourceType.TOPIC, "{topic}")),
    "no dead-letter topic": ("dead-letter topic", lambda place: {"dead_letter_topic": f"{place.topic}-absent"}),
    "no right on the dead-letter topic": ("dead-letter topic", without_rights(ResourceType.TOPIC, "{topic}-dead")),
}  # fmt: skip
OF_WORKER: dict[str, tuple[str, Prepare]] = {
    "no broker": ("broker", lambda place: {"bootstrap_servers": "127.0.0.1:1"}),  # takes six seconds
    "no right on the group": ("consumer group", without_rights(ResourceType.GROUP, "{group}")),
    "store cannot be written": ("store", file_in_place_of_folder),
    "store of another group": ("checkpoints", other_store),
    "other settings": ("checkpoints", lambda place: {"components": "3"}),
    "other format": ("checkpoints", lambda place: {"format": "float64"}),
    "topic was recreated": ("checkpoints", lambda place: place.save("former")),
    "damaged checkpoints": ("checkpoints", damage),
}
OF_TRANSFORM: dict[str, tuple[str, Prepare]] = {
    "no store": ("model", lambda place: {"store": str(place.path / "absent")}),
    "no such version": ("model", lambda place: {"model_version": "6"}),
    "no past scores": ("model", lambda place: {"model_version": "7", "only_p_below": "0.1"}),
    "no past scores yet": ("model", lambda place: {"only_p_below": "0.1"}),
    "no output topic": ("output topic", lambda place: {"output_topic": f"{place.topic}-absent"}),
    "no right on the output topic": ("output topic", without_rights(ResourceType.TOPIC, "{topic}-out")),
    "no right on transactional ids": (
        "transactions", without_rights(ResourceType.TRANSACTIONAL_ID, "{group}-t-"),
    ),
    "too few partitions": ("output topic", more_partitions),
    "no registry": (
        "output schema", lambda place: {"output_format": "avro", "schema_registry_url": "http://127.0.0.1:1"}
    ),
    "outputs of another shape": ("transform group", lambda place: commit_outputs(place, "k=3 d=5")),
    "outputs of another topic": ("transform group", lambda place: commit_outputs(place, "k=2 d=5 topic=former")),
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
    mistake = mistake_of(create(**changed))
    assert mistake.name == step, mistake
    said = {line.name: line for line in lines_of_doctor(create(**changed))}[step]
    assert said.mark != PASSED
    texts = [re.sub(r"\d+ms", "", text) for text in (said.text.removeprefix("a start waits: "), mistake.text)]
    assert texts[0] == texts[1]  # librdkafka says how long it took


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_doctor_changes_nothing_and_fences_no_member(place: Callable[[str], Place], client: str) -> None:
    at = place(client)
    output, asked = f"{at.topic}-out", list[str]()

    def answer(request: Any, body: bytes) -> tuple[int, object]:
        asked.append(request.path.partition("?")[0])
        return 200, {"is_compatible": True, "id": 1}

    with HttpServer(answer) as registry:
        avro = {"output_format": "avro", "schema_registry_url": registry.root}
        member = at.transform(**avro)
        with closing(create_transactions(member.settings, None, [output])) as transactions:
            transactions.recover()
            transactions.send([(output, 0, b"output", None, [], -1)])
            before = state_of(at)
            lines = [*lines_of_doctor(at.worker()), *lines_of_doctor(at.transform(**avro))]
            assert {line for line in lines if line.mark != PASSED} == set()
            assert state_of(at) == before
            transactions.commit({})  # raises if another producer has taken the id
        assert asked == [f"/compatibility/subjects/{output}-value/versions/latest"]
        for step in member.steps():
            step.attempt()
        member.opened.close()
        assert asked[-1] == f"/subjects/{output}-value/versions"
    assert [record.value for record in at.broker.read_all(output)] == [b"output"]


def state_of(place: Place) -> object:
    """The files of the store, the offsets of both groups, and the ends of all topics."""
    groups = (place.group, f"{place.group}-t")
    topics = (place.topic, f"{place.topic}-dead")
    return (
        files_of(place.path),
        [place.broker.committed(group, place.topic) for group in groups],
        [place.broker.end_offsets(name) for name in topics],
    )
