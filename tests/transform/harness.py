"""Members of `streampca transform` with a topic, a group, transactions and a store in memory."""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from streampca.consumer_group.events import LoopTicked, MemberEvent, Notify
from streampca.consumer_group.in_flight import InFlight
from streampca.fold.model_file import PublishedModel
from streampca.formats import writer_of
from streampca.formats.base import Fields
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.arrays import Array
from streampca.sources.base import Outgoing
from streampca.sources.events import decode_records
from streampca.sources.topic_reader import TopicReader
from streampca.stores.memory import MemoryStore
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.transform.loop import TransformConfig, Transformer
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import Outputs, TransformedBatch
from streampca.transform.record_packer import ORIGIN, Packer, RecordPacker
from streampca.transform.starts import StartFinder
from tests.example_models import TOPIC, D, K, numbered, with_past_scores
from tests.in_memory import MemorySource, MemoryTopic, Step
from tests.in_memory.output_topic import open_outputs
from tests.in_memory.transactions import MemoryTransactions
from tests.worker.environment import EventRecorder
from tests.worker.harness import SynchronousExecutor

JSON = RecordPacker(writer_of("json"), always_lists=False)
OUTPUT, DEAD = "projected", "dead"
ARROW = b"\xff\xff\xff\xff"  # the first bytes of a stream
_MOST_TURNS = 300


class Origin(NamedTuple):
    """The model and the record that an output was made from, by its header."""

    model_version: int
    partition: int
    offset: int
    topic_id: str = ""


def read_output_origin(headers: Iterable[tuple[str, bytes | None]]) -> Origin:
    (value,) = (value for name, value in headers if name == ORIGIN)
    return Origin(**orjson.loads(value or b""))


def project_single(
    fields: OutputFields, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64]
) -> Fields:
    """Return the fields of vectors (n, d) of n records at these offsets, each with one vector."""
    counts = np.ones(len(offsets), np.int64)
    return fields.project(published, vectors, offsets, counts, counts > 1)


def project_batches(
    fields: OutputFields, published: PublishedModel, vectors: Array, counts: NDArray[np.int64]
) -> Fields:
    """Return the fields of the vectors of records whose values are batches, with these `counts` of vectors."""
    return fields.project(published, vectors, np.zeros_like(counts), counts, counts > 0)


class World:
    """A topic, its outputs and a store with a model. They stay when a member ends."""

    def __init__(self, *counts: int) -> None:
        """The topic has a partition for each of the `counts`, with this number of vectors."""
        self.topic = MemoryTopic(len(counts) or 1, TOPIC)
        self.written = self.topic.coordinator.written
        self.models = Models(MemoryStore(), TOPIC)
        self.models.save(numbered(7))
        for partition, count in enumerate(counts):
            self.append(partition, count, seed=partition)

    def append(self, partition: int, count: int, seed: int = 0, timestamp: int = -1) -> Array:
        vectors = np.random.default_rng(seed).normal(size=(count, D))
        self.topic.append(partition, *(row.tobytes() for row in vectors), timestamp=timestamp)
        return vectors

    @property
    def is_done(self) -> bool:
        ends = {p: log.end for p, log in enumerate(self.topic.logs) if log.end}
        return {p: offset for p, offset in self.topic.committed.items() if offset} == ends

    def origins(self, topic: str = OUTPUT) -> dict[int, list[int]]:
        """Return, by partition, the offsets of the records that outputs were made from, by their headers or rows."""
        by_partition: dict[int, list[int]] = {}
        for record in self.written[topic]:
            origin = read_output_origin(record.headers)
            assert record.partition == origin.partition
            offsets = [origin.offset]
            if (record.value or b"").startswith(ARROW):
                offsets = pa.ipc.open_stream(record.value).read_all()["offset"].to_pylist()
            by_partition.setdefault(origin.partition, []).extend(offsets)
        return by_partition

    def outputs(self) -> Sequence[Outgoing]:
        return self.written[OUTPUT]

    def assert_each_once(self) -> None:
        """Assert that every record has one output, in the order of the records."""
        logs = {p: [record.offset for record in log.records] for p, log in enumerate(self.topic.logs) if log.records}
        assert self.origins() == logs


class Member:
    """One member of transform; `run` returns when everything is committed."""

    def __init__(
        self,
        world: World,
        script: Iterable[Step] = (),
        batch: int = 1000,
        also_notify: Notify = lambda event: None,
        only_p_below: float | None = None,
        packer: Packer | None = None,
        version: int | None = None,
        start: str | int | None = None,
        kind: str = "<f8",  # a format whose first records are learned without waiting for more
        field: str = "",  # if it is set, entries of vectors may be missing
        **config: Any,
    ) -> None:
        self.world, self.events = world, EventRecorder()
        self.cache = ModelCache(world.models)
        self.cache.poll()
        fields = OutputFields(("coordinates", "residual"), with_p=only_p_below is not None)
        self.model = CurrentModel(self.cache, version, OUTPUT, needs_past_scores=fields.needs_past_scores)
        assert self.model.refresh() == ""
        codec = Codec(kind, Judge.of_projected(D, impute=bool(field)), field)
        outputs = Outputs(OUTPUT, codec, self.model, fields, packer or JSON, TOPIC, DEAD, only_p_below)
        self.source = MemorySource(world.topic, script, batch)
        in_flight = InFlight[TransformedBatch](SynchronousExecutor(), partial(decode_records, codec), limit_bytes=10**6)
        self.transactions = MemoryTransactions(world.topic, self.source)
        self.finder = StartFinder(self.source, TOPIC, OUTPUT, self._open_outputs, self.model.check_metadata, start)
        self.transformer = Transformer(
            TransformConfig(TOPIC, **config),
            self.source,
            in_flight,
            self.transactions,
            outputs,
            self.finder,
            self._notify,
        )
        self._also_notify = also_notify
        self.turns = 0

    def _open_outputs(self) -> TopicReader:
        return open_outputs(self.world.topic, OUTPUT, len(self.world.topic.logs))

    def publish(self, version: int, components: int = K) -> None:
        """Publish a model that the member knows at once."""
        self.world.models.save(numbered(version, k=components))
        self.cache.poll()

    def run(self) -> Self:
        now = iter(range(10**9))
        self.transformer.run(lambda: float(next(now)))
        assert self.turns < _MOST_TURNS, "it did not end"
        return self

    def _notify(self, event: MemberEvent) -> None:
        """Record an event, and stop when everything is committed."""
        self.events.notify(event)
        if isinstance(event, LoopTicked):
            self.turns += 1
            if self.world.is_done or self.turns >= _MOST_TURNS:
                self.transformer.stop("done")
        self._also_notify(event)


@cache
def make_model_with_past_scores(version: int, d: int = D, k: int = K) -> PublishedModel:
    """Return a model that computes p-values."""
    return with_past_scores(numbered(version, d=d, k=k), np.random.default_rng(1).normal(size=(500, d)))
