"""Commands that change something, refused or interrupted at each step: the changes have an order, a repetition ends.

A step is a call of the store or of the cluster: it fails before it happens, or after, so that its answer is lost.
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
from streampca.cli import backfill, create_topics, pin, produce, reset, unpin
from streampca.errors import SettingsError, StoreError, StreampcaError
from streampca.files.columns import FileOptions
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.formats.record import LastRecord
from streampca.settings.commands import CreateTopicsSettings, ProduceSettings, ResetSettings, WorkerSettings
from streampca.settings.process import StoreSettings
from streampca.sources.base import TopicDescription
from streampca.sources.client_connection import TopicError
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.backfill.rows import here, rows, write
from tests.errors import refusal
from tests.example_models import TOPIC, numbered
from tests.in_memory.store import Crash

D, NUMBER = 5, 0
OF_STORE, OF_BACKFILL = StoreSettings(topic=TOPIC, store="store"), f"checkpoints/{TOPIC}/backfill-{NUMBER}"
ENDS = {0: 100, 1: 90}
START_S = int(datetime.fromisoformat("2026-07-01T12:00:00+02:00").timestamp())


class Cluster:
    """A topic with two partitions and its group, as the admin clients and the producer of a command see them."""

    failure = KafkaTimeoutError
    explained_errors = staticmethod(nullcontext)

    def __init__(self) -> None:
        self.topics, self.committed, self.sent = {TOPIC: 2}, {0: 5, 1: 7}, list[bytes]()
        self.unsent: list[bytes] = []
        self.refusal: Any = NoError  # the answer to what is to be changed
        self.topic, self.client = TOPIC, self

    def of(self, topic: str) -> "Cluster":
        self.topic = topic
        return self

    def close(self) -> None:
        """Ends nothing: other clients have the same connection."""

    def require_topic(self, timeout_s: float = 0, missing_s: float = 0) -> TopicDescription:
        if self.topic not in self.topics:
            raise TopicError("there is none")
        return TopicDescription("id", dict.fromkeys(range(self.topics[self.topic]), 1))

    def partitions(self) -> frozenset[int]:
        return frozenset(ENDS)

    def log_ends(self) -> dict[int, tuple[int, int]]:
        return {partition: (10, end) for partition, end in ENDS.items()}

    def list_partition_offsets(self, times: Mapping[Any, int]) -> dict[Any, Any]:
        """A record a second; after the last there is none."""
        found = {tp: 20 + round(time / 1000 - START_S) for tp, time in times.items()}
        return {tp: SimpleNamespace(offset=at if at < ENDS[tp.partition] else -1) for tp, at in found.items()}

    def list_group_offsets(self, groups: Mapping[str, None]) -> dict[str, Any]:
        offsets = {reset.TopicPartition(TOPIC, p): offset for p, offset in self.committed.items()}
        offsets[reset.TopicPartition("other", 0)] = 3
        return {group: {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()} for group in groups}

    def delete_group_offsets(self, group: str, tps: list[Any]) -> dict[Any, Any]:
        for tp in tps if self.refusal is NoError else ():
            del self.committed[tp.partition]
        return dict.fromkeys(tps, self.refusal)

    def topic_configs(self) -> dict[str, str]:
        return {"max.message.bytes": "1000"}

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
class Steps:
    """Calls are counted; the one of the number `fails` raises `error`, before it happens or `late`."""

    fails: int = -1
    error: type[BaseException] | None = None
    late: bool = False
    count: int = 0


class Stepwise:
    """A store or a cluster whose calls are steps."""

    def __init__(self, double: Any, steps: Steps) -> None:
        self._double, self._steps = double, steps

    def __getattr__(self, name: str) -> Any:
        double, steps, found = self._double, self._steps, getattr(self._double, name)

        def call(*arguments: Any, **options: Any) -> Any:
            fails, steps.count = steps.count == steps.fails, steps.count + 1
            answer = None if fails and not steps.late else found(*arguments, **options)
            if fails:
                raise (steps.error or double.failure)("interrupted")
            return self if answer is double else answer

        return call if callable(found) else self if found is double else found


class World:
    """The store with these files and the cluster, as a command sees them."""

    def __init__(self, patch: pytest.MonkeyPatch, files: Mapping[str, memoryview], steps: Steps, lake: Path) -> None:
        self.store, self.cluster, self.steps, self.lake = Store(), Cluster(), steps, lake
        self.store._files.update(files)
        self.agrees, self.before = True, self.state()
        for module in (backfill, pin, unpin, reset):
            patch.setattr(module, "open_store", lambda location: Stepwise(self.store, steps))
        for module, name in ((create_topics, "create_admin"), (reset, "KafkaPythonAdmin")):
            patch.setattr(module, name, lambda settings, topic: Stepwise(self.cluster.of(topic), steps))
        patch.setattr(produce, "create_producer", lambda settings: Stepwise(self.cluster, steps))
        patch.setattr(engines, "on_processes", lambda: here)
        patch.setattr(backfill, "time", SimpleNamespace(time=lambda: 0.0))

    def run(self, name: str) -> None:
        self.before = self.state()
        COMMANDS[name][0](self)

    def ask(self, question: str) -> bool:
        assert self.state() == self.before
        Stepwise(self.cluster, self.steps).partitions()  # as by Ctrl-C
        return self.agrees

    def state(self) -> dict[str, Any]:
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
    backfill.run(settings, [str(world.lake)], files, None, None, number=NUMBER, scheduler=None, rejects=None)


def _create_topics(world: World, partitions: int = 3) -> None:
    settings = CreateTopicsSettings(topic="new", dead_letter_topic="new-dead", output_topic="new-output")
    create_topics.run(settings, partitions, None)


def _produce(world: World) -> None:
    settings, file = ProduceSettings(topic=TOPIC), world.lake / "1.parquet"
    produce.run(settings, file, None, FileOptions("embedding"), repeat=False, synthetic=False)


# What they change, in this order: patterns of `World.state`.
COMMANDS: dict[str, tuple[Callable[[World], None], tuple[str, ...]]] = {
    "reset": (_reset, ("committed/*", "checkpoints/*")),
    "backfill": (
        _backfill,
        (f"{OF_BACKFILL}/sources", f"{OF_BACKFILL}/rejects.parquet", f"{OF_BACKFILL}/0*.npz", "models/*"),
    ),
    "backfill --remove": (
        lambda world: backfill.remove(OF_STORE, NUMBER, world.ask),
        (f"{OF_BACKFILL}/0*.npz", "models/*.pin", "models/*.npz", f"{OF_BACKFILL}/[rs]*", f"{OF_BACKFILL}/parts/*"),
    ),
    "pin": (lambda world: pin.run(OF_STORE, "index", 8), ("models/*",)),
    "unpin": (lambda world: unpin.run(OF_STORE, "index"), ("models/*",)),
    "create-topics": (_create_topics, ("topics/new", "topics/new-dead", "topics/new-output")),
    "produce": (_produce, tuple(f"sent/{place}" for place in range(20))),
}


NewWorld = Callable[..., World]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    Y = rows(40, d=D)
    Y[7] = np.inf
    return write(tmp_path_factory.mktemp("interrupted") / "lake", Y, files=2)


@pytest.fixture
def new_world(lake: Path, monkeypatch: pytest.MonkeyPatch) -> NewWorld:
    """Makes the world before a command, whose calls are these steps."""

    @cache
    def files_before(name: str) -> dict[str, memoryview]:
        """A partition, models and a pin; and the backfill that is to be removed."""
        files = World(monkeypatch, {}, Steps(), lake)
        store = files.store
        if name == "backfill --remove":
            _backfill(files)
            store.write(f"{OF_BACKFILL}/parts/left.npz", b"of an interrupted one")
        if name != "backfill":
            empty = replace(Fold.empty(reset._NOTHING_LEARNED.learning).at(15), last=LastRecord(14, 0))
            Checkpoints(store, TOPIC).save(Checkpoint(TOPIC, "id", 0, empty, reset._NOTHING_LEARNED.as_dict()))
            Models(store, TOPIC).save(replace(numbered(7, 0.0), positions={backfill.backfill_partition(NUMBER): 7}))
            Models(store, TOPIC).save(numbered(8, 0.0))
            Pins(store, TOPIC).set("index", 7)
        return store._files

    return lambda name, steps=None: World(monkeypatch, files_before(name), steps or Steps(), lake)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("error", [None, Crash])
def test_what_is_interrupted_at_any_step_is_ended_by_a_repetition(
    name: str, error: type[BaseException] | None, new_world: NewWorld
) -> None:
    calm = new_world(name)
    calm.run(name)
    before, after = calm.before, calm.state()
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    kinds = [fnmatch.filter(changed, pattern) for pattern in COMMANDS[name][1]]
    assert all(kinds)
    for step, late in itertools.product(range(calm.steps.count), (False, True)):
        world = new_world(name, Steps(step, error, late))
        try:
            world.run(name)
        except (StreampcaError, KafkaTimeoutError, Crash):
            now = world.state()
            assert all(now.get(name) in (before.get(name), after.get(name)) for name in changed)
            begun = [any(now.get(name) != before.get(name) for name in kind) for kind in kinds]
            ended = [all(now.get(name) == after.get(name) for name in kind) for kind in kinds]
            assert all(begins <= ends for ends, begins in zip(ended, begun[1:], strict=False)), (step, late)
        else:
            assert world.state() == after
        if name != "produce" and world.state() != after:
            world.run(name)
            assert world.state() == after, (step, late)


@pytest.mark.parametrize("name", ["reset", "backfill --remove"])
def test_what_is_refused_changes_nothing(name: str, new_world: NewWorld) -> None:
    world = new_world(name)
    world.agrees = False
    assert refusal(StreampcaError, world.run, name) == "nothing was changed"
    assert world.state() == world.before
    world.cluster.committed.clear()
    _reset(world, "")  # there is nothing to ask


def test_what_the_brokers_refuse_is_said(new_world: NewWorld) -> None:
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
        ("95", None, "--to 95: partition 1 ends at 90; move one alone by --partition"),
        ("101", 0, "--to 101: partition 0 ends at 100"), ("1", 2, "readings has no partition 2; the last is 1"),
        ("", 0, "without it, the offsets of all partitions are deleted"),
        ("12.5", None, "must be earliest, latest, an offset, or a time, ISO 8601"),
    ],
)  # fmt: skip
def test_a_reset_moves_to_no_place_that_is_not_there(
    to: str, partition: int | None, expected: list[int] | str, new_world: NewWorld
) -> None:
    """A checkpoint beyond the end could not be undone."""
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
