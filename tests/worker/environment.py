"""An environment that outlives its workers, in memory."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.record import last_of
from streampca.pca.arrays import Array
from streampca.sources.memory import MemoryTopic
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.fold.streams import fold_config, learn, vectors

TOPIC = "readings"
POISON = b"poison"
N = 300  # records of the `filled` environment


class Environment:
    """A topic, a store, acknowledged dead letters, and a journal of all calls."""

    def __init__(self, partitions: int = 1, fold_config: FoldConfig = fold_config()) -> None:  # noqa: B008
        self.topic = MemoryTopic(partitions, TOPIC)
        self.fold_config = replace(fold_config, format="float64")
        self.store = MemoryStore()
        identity.ensure(self.store)
        self.checkpoints = Checkpoints(self.store, TOPIC)
        self.models = Models(self.store, TOPIC)
        self.dead_letters: list[tuple[int, int, str]] = []  # acknowledged: partition, offset, reason
        self.sends_dead_letters = False  # whether bad records become dead letters
        self.journal: list[tuple[Any, ...]] = []
        self.violations: list[str] = []

    def send(self, partition: int, messages: Array | Iterable[bytes | None], timestamp: int = -1) -> None:
        """Append vectors (n, d), or values, to a partition."""
        values = [row.tobytes() for row in messages] if isinstance(messages, np.ndarray) else messages
        self.topic.append(partition, *values, timestamp=timestamp)

    def expected(self, partition: int) -> Checkpoint:
        """The checkpoint at the log's end, learned in one batch without a worker; bad records counted."""
        log = self.topic.logs[partition]
        good = [record for record in log.records if record.value is not None and record.value != POISON]
        config = self.fold_config
        V = np.array([np.frombuffer(record.value or b"") for record in good]).reshape(-1, config.learning.dimensions)
        fold, _ = learn(Fold.empty(config.learning), V, [record.timestamp for record in good], log.end, config)
        bad = ["no_value" if r.value is None else "wrong_length" for r in log.records if r not in good]
        fold = fold.reject(bad).after(last_of(log.records))
        return Checkpoint(TOPIC, self.topic.id, partition, fold, config.as_dict())

    def assert_complete(self) -> None:
        """Assert that every partition's newest checkpoint has the bytes of one that learned its whole log."""
        assert self.violations == []
        for partition in range(len(self.topic.logs)):
            assert encode(self.newest(partition)) == encode(self.expected(partition))

    def newest(self, partition: int = 0) -> Checkpoint:
        """The newest checkpoint of a partition that has one."""
        newest = self.checkpoints.newest(partition)
        assert newest is not None
        return newest

    def position(self, partition: int = 0) -> int | None:
        offsets = self.checkpoints.offsets(partition)
        return offsets[-1] if offsets else None

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.journal if entry[0] in names]


def filled_with(*counts: int) -> Environment:
    """An environment whose partitions have so many messages."""
    env = Environment(len(counts))
    for partition, count in enumerate(counts):
        env.send(partition, vectors(count, seed=partition))
    return env
