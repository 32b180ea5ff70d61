"""Commands that change something: their changes have an order, and a command that was interrupted can be run again.

A command is interrupted at each of its calls of the store or of the cluster: before the call happens, or after, so that
only its answer is lost.
"""

import fnmatch
import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaTimeoutError, NoError, TopicAuthorizationFailedError
from kafka.structs import OffsetAndMetadata

from streampca.backfill import engines
from streampca.cli import backfill, create_topics, drop as drop_command, pin, produce, reset, unpin
from streampca.errors import SettingsError, StoreError, StreampcaError
from streampca.files.columns import FileOptions
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.partitions import backfill_partition
from streampca.formats.record import LastRecord
from streampca.settings.commands import CreateTopicsSettings, ProduceSettings, ResetSettings, WorkerSettings
from streampca.settings.process import StoreSettings
from streampca.sources import clients
from streampca.sources.base import TopicDescription
from streampca.sources.broker_errors import TopicError
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.backfill.rows import fold_here, make_rows, write_files
from tests.errors import refusal
from tests.example_models import TOPIC, numbered
from tests.in_memory.store import Crash

D = 5
NUMBER = 0  # of the backfill
STORE_SETTINGS = StoreSettings(topic=TOPIC, store="store")
BACKFILL_FOLDER = f"checkpoints/{TOPIC}/backfill-{NUMBER}"
ENDS = {0: 100, 1: 90}  # partition → end of its log
START_S = int(datetime.fromisoformat("2026-07-01T12:00:00+02:00").timestamp())


class Cluster:
    """A topic with two partitions and its group, as the admin clients and the producer of a command see them."""

    failure = KafkaTimeoutError  # raised by a call that is interrupted
    translate_errors = staticmethod(nullcontext)

    def __init__(self) -> None:
        self.topics = {TOPIC: 2}  # name → number of partitions
        self.committed = {0: 5, 1: 7}
        self.sent: list[bytes] = []
        self.unsent: list[bytes] = []
        self.refusal: Any = NoError  # the error in answers to requests that change something
        self.topic = TOPIC  # of the admin client
        self.client = self

    def choose_topic(self, topic: str) -> "Cluster":
        self.topic = topic
        return self

    def close(self) -> None:
        """Do nothing: other clients of the command use the same cluster."""

    def require_topic(self, timeout_s: float = 0, wait_for_topic_s: float = 0) -> TopicDescription:
        if self.topic not in self.topics:
            raise TopicError("there is none")
        return TopicDescription("id", dict.fromkeys(range(self.topics[self.topic]), 1))

    def partitions(self) -> frozenset[int]:
        return frozenset(ENDS)

    def log_bounds(self) -> dict[int, tuple[int, int]]:
        return {partition: (10, end) for partition, end in ENDS.items()}

    def list_partition_offsets(self, times: Mapping[Any, int]) -> dict[Any, Any]:
        """Return the offset of the first record at each time; there is one a second, from offset 20 at START_S."""
        found = {}
        for tp, time_ms in times.items():
            offset = 20 + round(time_ms / 1000 - START_S)
            found[tp] = SimpleNamespace(offset=offset if offset < ENDS[tp.partition] else -1)
        return found

    def list_group_offsets(self, groups: Mapping[str, None]) -> dict[str, Any]:
        offsets = {reset.TopicPartition(TOPIC, p): offset for p, offset in self.committed.items()}
        offsets[reset.TopicPartition("other", 0)] = 3
        return {group: {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()} for group in groups}

    def describe_groups(self, groups: list[str]) -> dict[str, dict[str, str]]:
        return {group: {"group_state": "Empty"} for group in groups}

    def delete_group_offsets(self, group: str, tps: list[Any]) -> dict[Any, Any]:
        for tp in tps if self.refusal is NoError else ():
            del self.committed[tp.partition]
        return dict.fromkeys(tps, self.refusal)

    def topic_configs(self) -> dict[str, str]:
        return {"max.message.bytes": "1000", "cleanup.policy": "delete"}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        self.topics[self.topic] = partitions

    def produce(self, value: bytes, partition: int) -> None:
        self.unsent.append(value)

    def raise_refused(self) -> None:
        if len(self.unsent) == 7:
            self.flush(0)

    def flush(self, timeout_s: float) -> None:
        if self.refusal is not NoError:
            raise self.refusal("not acknowledged")
        self.sent += self.unsent
        self.unsent.clear()


class Store(MemoryStore):
    failure = StoreError


@dataclass
class Interruption:
    """Counts the calls of a command, and says which call is interrupted."""

    at_call: int = -1  # -1: none
    error: type[BaseException] | None = None  # None: the usual error of a store or of a cluster
    after_call: bool = False  # the call has happened, and its answer is lost
    count: int = 0


class Interruptible:
    """A store or a cluster of which a call may be interrupted."""

    def __init__(self, double: Any, interruption: Interruption) -> None:
        self._double = double
        self._interruption = interruption

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._double, name)
        if attribute is self._double:  # the client of the cluster
            return self
        if not callable(attribute):
            return attribute
        interruption = self._interruption

        def call(*arguments: Any, **options: Any) -> Any:
            is_interrupted = interruption.count == interruption.at_call
            interruption.count += 1
            answer = None
            if not is_interrupted or interruption.after_call:
                answer = attribute(*arguments, **options)
            if is_interrupted:
                raise (interruption.error or self._double.failure)("interrupted")
            return answer

        return call


class World:
    """The store with these files and the cluster, as a command sees them."""

    def __init__(
        self, patch: pytest.MonkeyPatch, files: Mapping[str, memoryview], interruption: Interruption, lake: Path
    ) -> None:
        self.store = Store()
        self.store._files.update(files)
        self.cluster = Cluster()
        self.interruption = interruption
        self.lake = lake
        self.agrees = True  # what the user answers
        self.before = self.state()

        def open_store(location: str) -> Interruptible:
            return Interruptible(self.store, interruption)

        def create_admin(settings: Any, topic: str) -> Interruptible:
            return Interruptible(self.cluster.choose_topic(topic), interruption)

        for module in (backfill, pin, unpin, reset, drop_command):
            patch.setattr(module, "open_store", open_store)
        for module in (create_topics, clients):  # `refuse_compacted_topic` of `clients` creates an admin client
            patch.setattr(module, "create_admin", create_admin)
        patch.setattr(reset, "KafkaPythonAdmin", create_admin)
        patch.setattr(produce, "create_producer", lambda settings: Interruptible(self.cluster, interruption))
        patch.setattr(engines, "on_processes", lambda: fold_here)
        patch.setattr(backfill, "time", SimpleNamespace(time=lambda: 0.0))

    def run(self, name: str) -> None:
        self.before = self.state()
        COMMANDS[name][0](self)

    def ask(self, question: str) -> bool:
        """Answer a question of the command, before which nothing may be changed."""
        assert self.state() == self.before
        Interruptible(self.cluster, self.interruption).partitions()  # any call, so that Ctrl-C is tried here, too
        return self.agrees

    def state(self) -> dict[str, Any]:
        """Return all that a command may change: files, committed offsets, topics and sent messages, by name."""
        committed = {f"committed/{p}": offset for p, offset in self.cluster.committed.items()}
        topics = {f"topics/{name}": count for name, count in self.cluster.topics.items()}
        sent = {f"sent/{place}": value for place, value in enumerate(self.cluster.sent)}
        contents = {name: bytes(data) for name, data in self.store._files.items()}
        return {**contents, **committed, **topics, **sent}


def _reset(world: World, to: str = "2026-07-01T12:00+02:00", partition: int | None = None) -> None:
    reset.run(ResetSettings(topic=TOPIC, group_id="group", store="store"), world.ask, to, partition)


def _backfill(world: World) -> None:
    settings = WorkerSettings(topic=TOPIC, store="store", dimensions=D, components=2)
    files = FileOptions("embedding")
    backfill.run(settings, [str(world.lake)], files, None, None, backfill_number=NUMBER, scheduler=None, rejects=None)


def _create_topics(world: World, partitions: int = 3) -> None:
    settings = CreateTopicsSettings(topic="new", dead_letter_topic="new-dead", output_topic="new-output")
    create_topics.run(settings, partitions, None)


def _produce(world: World) -> None:
    settings = ProduceSettings(topic=TOPIC)
    file = world.lake / "1.parquet"
    produce.run(settings, file, None, FileOptions("embedding"), repeat=False, synthetic=False)


# Each command, and patterns of the names in `World.state` that it changes, in this order.
COMMANDS: dict[str, tuple[Callable[[World], None], tuple[str, ...]]] = {
    "reset": (_reset, ("committed/*", "checkpoints/*")),
    "backfill": (
        _backfill,
        (f"{BACKFILL_FOLDER}/sources", f"{BACKFILL_FOLDER}/rejects.parquet", f"{BACKFILL_FOLDER}/0*.npz", "models/*"),
    ),
    "backfill --remove": (
        lambda world: drop_command.drop(STORE_SETTINGS, backfill_partition(NUMBER), world.ask),
        (
            f"{BACKFILL_FOLDER}/0*.npz",
            "models/*.pin",
            "models/*.npz",
            f"{BACKFILL_FOLDER}/[rs]*",
            f"{BACKFILL_FOLDER}/parts/*",
        ),
    ),
    "pin": (lambda world: pin.run(STORE_SETTINGS, "index", 8), ("models/*",)),
    "unpin": (lambda world: unpin.run(STORE_SETTINGS, "index"), ("models/*",)),
    "create-topics": (_create_topics, ("topics/new", "topics/new-dead", "topics/new-output")),
    "produce": (_produce, tuple(f"sent/{place}" for place in range(20))),
}


NewWorld = Callable[..., World]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    Y = make_rows(40, d=D)
    Y[7] = np.inf
    return write_files(tmp_path_factory.mktemp("interrupted") / "lake", Y, files=2)


@pytest.fixture
def new_world(lake: Path, monkeypatch: pytest.MonkeyPatch) -> NewWorld:
    """Return a function that creates the world before a command."""

    @cache
    def create_files(name: str) -> dict[str, memoryview]:
        """Create a partition, models and a pin; before `backfill --remove`, also the backfill."""
        world = World(monkeypatch, {}, Interruption(), lake)
        store = world.store
        if name == "backfill --remove":
            _backfill(world)
            store.write(f"{BACKFILL_FOLDER}/parts/left.npz", b"of an interrupted one")
        if name != "backfill":
            empty = replace(Fold.empty(reset._NOTHING_LEARNED.learning).at(15), last=LastRecord(14, 0))
            Checkpoints(store, TOPIC).save(Checkpoint(TOPIC, "id", 0, empty, reset._NOTHING_LEARNED.as_dict()))
            Models(store, TOPIC).save(replace(numbered(7, 0.0), positions={backfill_partition(NUMBER): 7}))
            Models(store, TOPIC).save(numbered(8, 0.0))
            Pins(store, TOPIC).set("index", 7)
        return store._files

    def create_world(name: str, interruption: Interruption | None = None) -> World:
        return World(monkeypatch, create_files(name), interruption or Interruption(), lake)

    return create_world


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("error", [None, Crash])
def test_a_command_that_was_interrupted_at_any_call_is_completed_when_it_is_run_again(
    name: str, error: type[BaseException] | None, new_world: NewWorld
) -> None:
    uninterrupted = new_world(name)
    uninterrupted.run(name)
    before = uninterrupted.before
    after = uninterrupted.state()
    changed = [entry for entry in before | after if before.get(entry) != after.get(entry)]
    _, patterns = COMMANDS[name]
    stages = [fnmatch.filter(changed, pattern) for pattern in patterns]
    assert all(stages)
    for call, after_call in itertools.product(range(uninterrupted.interruption.count), (False, True)):
        world = new_world(name, Interruption(call, error, after_call))
        try:
            world.run(name)
        except (StreampcaError, KafkaTimeoutError, Crash):
            now = world.state()
            assert all(now.get(entry) in (before.get(entry), after.get(entry)) for entry in changed)
            for stage, next_stage in itertools.pairwise(stages):
                is_complete = all(now.get(entry) == after.get(entry) for entry in stage)
                next_has_begun = any(now.get(entry) != before.get(entry) for entry in next_stage)
                assert is_complete or not next_has_begun, (call, after_call)
        else:
            # A backfill ends without a model if a partition cannot be read just then; the next run publishes one.
            left = [entry for entry in changed if world.state().get(entry) != after.get(entry)]
            assert all(name == "backfill" and entry.startswith("models/") for entry in left), (call, after_call)
        if name != "produce" and world.state() != after:
            world.run(name)
            assert world.state() == after, (call, after_call)


@pytest.mark.parametrize("name", ["reset", "backfill --remove"])
def test_a_command_that_the_user_refuses_changes_nothing(name: str, new_world: NewWorld) -> None:
    world = new_world(name)
    world.agrees = False
    assert refusal(StreampcaError, world.run, name) == "nothing was changed"
    assert world.state() == world.before
    world.cluster.committed.clear()
    _reset(world, "")  # there is nothing to delete, so the user is not asked


def test_a_refusal_of_the_brokers_is_raised_and_nothing_is_changed(new_world: NewWorld) -> None:
    for name in ("reset", "produce"):
        world = new_world(name)
        world.cluster.refusal = TopicAuthorizationFailedError
        refusal(TopicAuthorizationFailedError, world.run, name)
        assert world.state() == world.before


@pytest.mark.parametrize(
    ("to", "partition", "expected"),
    [
        ("latest", None, [100, 90]), ("40", None, [40, 40]), ("100", 0, [100]), ("15", None, [15, 15]),
        ("2026-07-01T12:00+02:00", None, [20, 20]), ("2026-07-01T10:00:09Z", 0, [29]),
        ("2026-07-01T10:01:15Z", None, [95, 90]),
        ("earliest", None, "to offset 15: from 10 on, records would be learned twice; use another store"),
        ("95", None, "--to 95: partition 1 ends at 90; name its offset, as in 0:1200,1:1177"),
        ("101", 0, "--to 101: partition 0 ends at 100; name its offset, as in 0:1200,1:1177"),
        ("1", 2, "readings has no partition 2; the last is 1"),
        ("", 0, "without it, the offsets of all partitions are deleted"),
        ("12.5", None, "nor offsets (0:1200,1:1177), and '12.5' is not a time such as 2026-01-31T12:00+02:00"),
        ("0:40,1:50,0:60", None, "the offsets 0:40,1:50,0:60 name partition 0 twice"),
        ("2026-07-01T12:00", None, "has no zone: write 2026-07-01T12:00:00Z if it is in UTC"),
    ],
)  # fmt: skip
def test_a_reset_moves_to_an_offset_of_the_log_or_is_refused(
    to: str, partition: int | None, expected: list[int] | str, new_world: NewWorld
) -> None:
    """A checkpoint beyond the end of the log could not be undone."""
    world = new_world("reset")
    if isinstance(expected, str):
        assert refusal(SettingsError, _reset, world, to, partition).endswith(expected)
        assert world.state() == world.before
        return
    _reset(world, to, partition)
    checkpoints = Checkpoints(world.store, TOPIC)
    newest = [checkpoints.newest(p).fold for p in range(len(expected))]
    assert [fold.position for fold in newest] == expected
    assert newest[0].stats.gap == expected[0] - 15
    assert newest[0].last == (None if newest[0].stats.gap else LastRecord(14, 0))
    assert world.cluster.committed == {}
