"""Groups of real workers on the real broker, and the folds that they must arrive at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import Record
from streampca.pca.learning import LearningConfig
from streampca.sources.base import MAX_POLL_RECORDS
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from tests.broker_client import BrokerClient
from tests.command_line import variables
from tests.forked import COMMAND_LINE
from tests.guarantees.worker_process import WorkerProcess
from tests.waiting import wait_until

D, K = 12, 3
BOTH_CLIENTS = ("kafka-python", "confluent")


def vectors(count: int, seed: int) -> NDArray[np.float64]:
    """Noisy low-rank vectors with a nonzero mean, rounded so that JSON represents them exactly."""
    rng = np.random.default_rng(seed)
    plane = rng.standard_normal((K, D)) * np.array([[5.0], [3.0], [2.0]])
    return np.round(rng.standard_normal((count, K)) @ plane + rng.standard_normal((count, D)) + 7.0, 4)


def as_json(rows: NDArray[np.float64]) -> list[bytes]:
    return [orjson.dumps(row.tolist()) for row in rows]


CONFIG = FoldConfig(LearningConfig(D, K))
CODEC = Codec("json", Judge.of(CONFIG.learning))


def expected_folds(broker: BrokerClient, topic: str) -> dict[int, Fold]:
    """The folds of a topic's partitions, computed in this process from all records.

    Invalid records are rejected and counted, as in a worker.
    """
    ends = broker.end_offsets(topic)
    by_partition: dict[int, list[Any]] = {p: [] for p in ends}
    for record in broker.read_all(topic):
        by_partition[record.partition].append(record)
    return {partition: fold_of(records, ends[partition]) for partition, records in by_partition.items()}


def fold_of(records: Sequence[Any], position: int) -> Fold:
    """The fold of these records, learned in one batch."""
    with threadpool_limits(1):  # as the worker does: the number of threads changes the rounding
        return (
            Fold.empty(CONFIG.learning)
            .take(CODEC.decode_batch(records, records[-1].offset + 1), CONFIG)[0]
            .at(position)
        )


@dataclass
class Group:
    """Workers of one consumer group, with one topic and one store; their Kafka clients alternate over `clients`."""

    broker: BrokerClient
    topic: str
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    clients: Sequence[str] = ("kafka-python",)
    forked: bool = True
    program: str = COMMAND_LINE
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def place(self) -> str:
        """The store's folder or URL."""
        return str(self.settings.get("store", self.store))

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(open_store(self.place), self.topic)

    def start(self, program: str | None = None, **settings: Any) -> WorkerProcess:
        """Start another worker; a forked one runs `program`."""
        number = len(self.workers)
        client = {"kafka_client": self.clients[number % len(self.clients)]}
        log = self.folder / f"worker-{number}.log"
        worker = WorkerProcess(self._environment(client | settings), log, self.forked, program or self.program)
        self.workers.append(worker)
        return worker

    def learn(self, timeout_s: float = 60, **settings: Any) -> WorkerProcess:
        """Start another worker; return when everything is learned."""
        worker = self.start(**settings)
        self.wait_until_learned(timeout_s)
        return worker

    def _environment(self, settings: Mapping[str, Any]) -> dict[str, str]:
        return variables({
            "bootstrap_servers": self.broker.bootstrap, "topic": self.topic, "group_id": self.topic,
            "store": self.store, "dimensions": D, "components": K, "checkpoint_interval_s": 0.2,
            "session_timeout_s": 2, "metrics_port": 0, "log_level": "debug",
            **self.settings, **settings,
        })  # fmt: skip

    def newest(self) -> dict[int, Checkpoint]:
        """The newest checkpoint of each partition that has one."""
        checkpoints = self.checkpoints
        return {p: found for p in checkpoints.partitions() if (found := checkpoints.newest(p))}

    def positions(self) -> dict[int, int]:
        """The positions of the newest checkpoints, from their names; partitions at offset 0 are left out."""
        checkpoints = self.checkpoints
        newest = {p: offsets[-1] for p in checkpoints.partitions() if (offsets := checkpoints.offsets(p))}
        return {p: offset for p, offset in newest.items() if offset}

    def files(self) -> dict[int, bytes]:
        store = open_store(self.place)
        return {
            p: store.read(f"checkpoints/{self.topic}/{p}/{offset:020d}.npz") for p, offset in self.positions().items()
        }

    def wait_until_learned(self, timeout_s: float = 60) -> None:
        """Wait until the newest checkpoint of every partition is at the log's end."""
        ends = self.ends()
        self.wait(lambda: self.positions() == ends, f"checkpoints at {ends}", timeout_s)

    def learn_with_kills(self, kills: int) -> None:
        """Learn everything with one worker after the other: each but the last is killed after some saves."""
        for saves in range(1, kills + 1):
            worker = self.start()
            self.wait_for_progress(worker, saves)
            worker.kill()
        self.learn()

    def wait_for_progress(self, worker: WorkerProcess, saves: int) -> None:
        """Wait until the worker has saved this many checkpoints, or everything is saved."""
        ends = self.ends()
        self.wait(lambda: worker.count("checkpoint saved") >= saves or self.positions() == ends, "progress")

    def ends(self) -> dict[int, int]:
        """The end offsets of the partitions that have records."""
        return {p: end for p, end in self.broker.end_offsets(self.topic).items() if end}

    def wait(self, condition: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = 60) -> None:
        """Wait until the condition holds; a worker that ends unexpectedly fails the test with its log."""

        def holds() -> bool:
            for worker in self.workers:
                worker.assert_alive_or_end_expected()
            return bool(condition())

        def awaited() -> str:
            tails = [f"--- {w.log.name}\n{w.text()[-2000:]}" for w in self.workers]
            return "\n".join([*tails, what() if callable(what) else what])

        wait_until(holds, timeout_s, awaited)

    def assert_commits_not_ahead(self) -> None:
        """No committed offset exceeds its checkpoint. Committed offsets are read first: checkpoints only advance."""
        committed = self.broker.committed(self.topic, self.topic)
        positions = self.positions()
        ahead = {p: (o, positions.get(p)) for p, o in committed.items() if o > positions.get(p, 0)}
        assert not ahead, f"offsets committed ahead of the checkpoints (committed, saved): {ahead}"

    def assert_same_bits(self) -> None:
        """The newest checkpoints have the bytes of the folds that this process computes of all records."""
        newest, folds = self.newest(), expected_folds(self.broker, self.topic)
        assert self.files() == {p: encode(replace(newest[p], fold=fold)) for p, fold in folds.items() if fold.position}

    def rejected_beside(self, rows: NDArray[np.float64]) -> dict[str, int]:
        """The rejected records of partition 0; its fold must have the bits of one that learned just these rows."""
        found = self.newest()[0].fold
        expected = fold_of([Record(i, value) for i, value in enumerate(as_json(rows))], len(rows))
        assert found.state.C.tobytes() == expected.state.C.tobytes()
        assert found.state.mean.tobytes() == expected.state.mean.tobytes()
        assert found.pending.tobytes() == expected.pending.tobytes()
        assert found.stats.learned == len(rows)
        return dict(found.stats.rejected)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()


def with_polls_of(records: int) -> str:
    """A program whose polls return at most so many records: it can be interrupted before it has read all."""
    return f"from streampca.sources import base; base.MAX_POLL_RECORDS = {records}; {COMMAND_LINE}"


@contextmanager
def group(
    broker: BrokerClient,
    topic: str,
    folder: Path,
    clients: Sequence[str] = ("kafka-python",),
    forked: bool = True,
    **settings: Any,
) -> Iterator[Group]:
    """A group whose workers are killed at the end. What is measured (memory, time) must not be `forked`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = with_polls_of(settings.pop("poll_records", MAX_POLL_RECORDS))
    with closing(Group(broker, topic, folder, settings, clients, forked, program)) as members:
        yield members
