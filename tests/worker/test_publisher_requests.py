"""Where each request to a store costs money, workers make two listings an interval, and read what changed."""

from collections import Counter
from collections.abc import Collection

import obstore
import pytest
from hypothesis import given, settings, strategies as st

from streampca.consumer_group.events import CheckpointPostponed, ModelPublished, PublishFailed
from streampca.errors import StoreError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.model_file import PublishedModel, encode
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stores.object_store import ObjectStore
from streampca.stores.pins import Pins
from streampca.worker import publisher as publisher_module
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter, SaveResult
from tests.example_models import numbered
from tests.fold.streams import CONFIG, checkpoint_of, fold_of, vectors
from tests.worker.harness import SynchronousExecutor

PARTITIONS = 7


class Bucket(ObjectStore):
    """A bucket in memory, which counts the requests."""

    def __init__(self) -> None:
        super().__init__("s3://bucket", observe=self._count)
        self._bucket = obstore.store.MemoryStore()
        self.requests: Counter[str] = Counter()
        self.read_names: list[str] = []
        self.failures: list[StoreError] = []  # of the next creations

    def _count(self, operation: str, outcome: str, seconds: float, requests: int) -> None:
        self.requests[operation] += requests

    def create(self, name: str, data: bytes) -> bool:
        if self.failures:
            raise self.failures.pop()
        return super().create(name, data)

    def read(self, name: str) -> bytes:
        self.read_names.append(name)
        return super().read(name)

    def files(self) -> dict[str, bytes]:
        names = [entry["path"] for entry in obstore.list(self._bucket).collect()]
        return {name: bytes(obstore.get(self._bucket, name).bytes()) for name in names}


class Member:
    """The writer of a worker that owns some of the partitions."""

    def __init__(self, bucket: Bucket, owned: Collection[int]) -> None:
        self.bucket, self.owned = bucket, sorted(owned)
        self.models = Models(bucket, "readings")
        publisher = Publisher(self.models, CONFIG, lambda: 2e9)
        self.writer = CheckpointWriter(Checkpoints(bucket, "readings"), publisher, SynchronousExecutor())
        self.saved = {p: Fold.empty(CONFIG.learning) for p in self.owned}
        self.publishes = 0 in self.owned

    def interval(self, moved: Collection[int] = ()) -> SaveResult:
        """Learn more of the partitions that `moved`, and save; then the requests since are counted in the bucket."""
        self.bucket.requests.clear()
        self.bucket.read_names.clear()
        before = [self._checkpoint(p) for p in self.owned if p not in moved]
        for partition in moved:
            rows = self.saved[partition].stats.learned + 20
            self.saved[partition] = fold_of(vectors(rows, seed=partition) + partition, CONFIG)
        changed = [self._checkpoint(p) for p in moved]
        result = self.writer.start(changed, publish=self.publishes, saved_before=before).result()
        assert not any(isinstance(event, CheckpointPostponed) for event in result.events)
        return result

    def _checkpoint(self, partition: int) -> Checkpoint:
        return checkpoint_of(self.saved[partition], CONFIG, partition)


def published(result: SaveResult) -> PublishedModel:
    (model,) = models_of(result)
    return model


def models_of(result: SaveResult) -> list[PublishedModel]:
    return [event.model for event in result.events if isinstance(event, ModelPublished)]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def two(bucket: Bucket) -> tuple[Member, Member]:
    """The publisher and another worker, which have saved all partitions; a version is published."""
    publisher, other = Member(bucket, [0, 1, 2]), Member(bucket, [3, 4, 5, 6])
    other.interval(other.owned)
    published(publisher.interval(publisher.owned))
    return publisher, other


def test_a_publisher_reads_only_the_partitions_of_others_that_moved(bucket: Bucket, two: tuple[Member, Member]) -> None:
    publisher, other = two
    other.interval([4])
    assert bucket.requests == {"list": 1, "write": 1}
    assert published(publisher.interval([1])).positions == dict.fromkeys(range(7), 20) | {1: 40, 4: 40}
    assert bucket.requests == {"list": 2, "write": 2, "read": 1}
    assert not models_of(publisher.interval())
    assert bucket.requests == {"list": 1}
    other.interval([3, 6])
    published(publisher.interval())
    assert bucket.requests == {"list": 2, "write": 1, "read": 2}


def test_parts_that_were_not_read_again_change_no_bit(bucket: Bucket, two: tuple[Member, Member]) -> None:
    publisher, other = two
    other.interval([4])
    alike = Bucket()
    for name, data in bucket.files().items():
        alike.write(name, data)
    late = Publisher(Models(alike, "readings"), CONFIG, lambda: 2e9).publish(Checkpoints(alike, "readings"))
    assert encode(published(publisher.interval())) == encode(late.model)


@given(st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, PARTITIONS - 1))), max_size=12))
@settings(max_examples=25, deadline=None)
def test_no_worker_reads_a_file_twice_or_one_of_its_own(steps: list[tuple[int, set[int]]]) -> None:
    bucket = Bucket()
    members = [Member(bucket, range(start, PARTITIONS, 3)) for start in range(3)]
    seen: list[set[str]] = [set() for _ in members]
    for turn, moved in steps:
        member, files = members[turn], set(bucket.files())
        result = member.interval(moved & set(member.owned))
        assert bucket.requests["list"] <= 1 + member.publishes
        assert not seen[turn] & set(bucket.read_names)
        written = bucket.files().keys() - files
        seen[turn] |= written | set(bucket.read_names)
        assert bucket.requests["write"] == len(written) == len(result.events)


def test_what_does_not_fit_is_read_again(
    bucket: Bucket, two: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, _ = two
    cached = publisher.writer._publisher._inputs._cache[3]
    monkeypatch.setattr(publisher_module, "CACHED_BYTES", 2 * publisher_module._nbytes(cached))
    publisher.writer._publisher._inputs._cache.clear()
    published_before = publisher.models.versions()
    assert models_of(publisher.interval([0]))
    assert models_of(publisher.interval([0]))
    assert bucket.requests == {"list": 2, "write": 2, "read": 2}
    assert len(publisher.models.versions()) == len(published_before) + 2


def test_another_publisher_may_write_the_next_version(bucket: Bucket, two: tuple[Member, Member]) -> None:
    """Whoever creates the file of a version has published it."""
    publisher, other = two
    twin = Member(bucket, publisher.owned)
    assert not models_of(twin.interval(publisher.owned))
    other.interval([4])
    first = published(publisher.interval())
    assert not models_of(twin.interval())
    assert encode(publisher.models.load(first.version)) == encode(first)
    assert not models_of(twin.interval())
    assert bucket.requests == {"list": 1}  # the model is that of all checkpoints
    other.interval([4])
    assert published(twin.interval()).version == first.version + 20
    assert bucket.requests == {"list": 2, "write": 1, "read": 4}


def test_a_pin_counts_that_is_newer_than_the_publishers_listing(bucket: Bucket) -> None:
    models = Models(bucket, "readings", keep=2)
    for version in (1, 2):
        models.save(numbered(version))
    listed = models.snapshot()
    Pins(bucket, "readings").set("index", 1)
    bucket.requests.clear()
    assert listed.save(numbered(3))
    assert models.versions() == [1, 2, 3]
    assert bucket.requests == {"write": 1, "list": 3, "read": 1}
    assert models.save(numbered(4))
    assert models.versions() == [1, 3, 4]


def test_a_version_that_failed_is_published_next(bucket: Bucket, two: tuple[Member, Member]) -> None:
    publisher, other = two
    other.interval([4])
    bucket.failures.append(StoreError("the answer was lost"))
    assert publisher.interval().events == [PublishFailed("the answer was lost")]
    assert published(publisher.interval()).positions[4] == 40
