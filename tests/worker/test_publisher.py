"""A publication from its start to its p-values, in the order of its steps.

Who publishes and when; what is read of the store; what is merged, and as which version; which messages are scored by
which version; and the p-values that follow.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from weakref import WeakSet

import numpy as np
import obstore
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from streampca.backfill import BackfillPlan, fold_batches, merge
from streampca.consumer_group.events import CheckpointPostponed, ModelPublished, PartitionsAssigned, PublishFailed
from streampca.errors import SettingsError, StoreError
from streampca.estimator.estimator import StreamingPCA
from streampca.files.columns import FileOptions
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.model_file import PublishedModel, encode
from streampca.formats.arrow import column_of
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import make_model
from streampca.pca.learning_config import SHORT_BLOCK
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.stores import parallel_requests
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stores.object_store import ObjectStore
from streampca.stores.pins import Pins
from streampca.worker import publisher as publisher_module
from streampca.worker.publisher import Publisher, PublishSchedule
from streampca.worker.writer import CheckpointWriter, SaveResult
from tests.errors import refusal
from tests.example_models import numbered, save
from tests.fold.streams import CONFIG, WARM_UP, D, fold_config, learn, make_checkpoint, make_fold, vectors
from tests.in_memory import MemorySource, Step
from tests.in_memory.store import FaultyStore
from tests.pca.streams import batch_pca, covariance
from tests.worker.environment import Environment
from tests.worker.harness import SynchronousExecutor, make_worker, make_worker_config

EXACT = fold_config(components=D)


class PublisherFixture:
    """A publisher and its stores, without a worker."""

    def __init__(self, fold_config: FoldConfig = CONFIG) -> None:
        self.fold_config, self.store = fold_config, FaultyStore()
        self.checkpoints, self.models = Checkpoints(self.store, "readings"), Models(self.store, "readings")
        self.now = 1234.5
        self.publisher = Publisher(self.models, fold_config, lambda: self.now)
        self.p_values: F64 | None = None  # of the last version

    def save(self, partition: int, fold: Fold) -> None:
        self.checkpoints.save(make_checkpoint(fold, self.fold_config, partition))

    def publish(self) -> PublishedModel:
        model, self.p_values, _ = self.publisher.publish(self.checkpoints)
        assert encode(self.models.newest()) == encode(model)
        return model


@pytest.fixture
def fixture() -> PublisherFixture:
    return PublisherFixture()


# --- Who publishes, and when -----------------------------------------------------------------------------------------


@pytest.fixture
def env() -> Iterator[Environment]:
    env = Environment(partitions=2, fold_config=EXACT)
    for partition in (0, 1):
        env.send(partition, vectors(150, seed=partition) + partition)
    yield env
    assert env.violations == []


def test_a_worker_publishes_the_model_of_all_partitions(env: Environment) -> None:
    worker = make_worker(env, script=[50, 50]).run()
    published = [event.model.version for event in worker.recorder.of_type(ModelPublished)]
    assert published == env.models.versions() == [100, 200, 300]
    model = env.models.newest().model
    whole = model.components.T * model.explained_variance @ model.components  # it has all components
    np.testing.assert_allclose(whole, covariance(np.vstack([vectors(150, seed=p) + p for p in (0, 1)])), atol=1e-9)


@pytest.mark.parametrize("lowest", [True, False])
def test_only_the_owner_of_the_lowest_partition_publishes(env: Environment, lowest: bool) -> None:
    """The member that joined first owns partition 0."""
    members: list[MemorySource] = []

    def join_group() -> None:
        members.append(MemorySource(env.topic))
        members[0].poll(0)

    rebalance: list[Step] = [lambda: members[0].poll(0), None]
    if not lowest:
        join_group()
    worker = make_worker(
        env, make_worker_config(EXACT), [join_group, *rebalance * 4] if lowest else rebalance * 4
    ).run()
    assigned = worker.recorder.of_type(PartitionsAssigned)[-1].positions
    assert list(assigned) == [0 if lowest else 1]
    assert env.position(next(iter(assigned))) == 150
    assert bool(env.calls("publish")) is lowest


@pytest.mark.parametrize(
    ("took_s", "since_s", "is_due"),
    [
        ([], 0.0, True),
        ([0.5, 0.5], 5.0, True),
        ([0.51, 0.52], 5.0, False),
        ([60.0, 0.5], 5.0, True),
        ([0.1, 5.7, 5.8], 5.0, False),
        ([5.7, 5.8], 60.0, True),
        ([60.0, 60.0], math.inf, True),
    ],
)
def test_publishing_takes_a_tenth_of_the_time_at_most(took_s: list[float], since_s: float, is_due: bool) -> None:
    """Counted from the start of a publication to the start of the next; one that was slow alone does not count."""
    schedule = PublishSchedule()
    assert schedule.begin_if_due([0, 1], [0, 1], 100.0)
    for seconds in took_s:
        schedule.end(seconds)
    assert schedule.begin_if_due([0, 1], [0, 1], 100.0 + since_s) is is_due


@pytest.mark.parametrize(("owned", "of_topic"), [([], []), ([], [0, 1]), ([1], [0, 1]), ([2, 1], [0, 1, 2])])
def test_nobody_else_begins_a_publication(owned: list[int], of_topic: list[int]) -> None:
    assert not PublishSchedule().begin_if_due(owned, of_topic, math.inf)


def test_a_worker_publishes_less_often_where_it_takes_long(env: Environment) -> None:
    """Checkpoints are saved as before, and the last model is that of all messages."""
    slow = itertools.count(step=10)
    make_worker(env, script=[30] * 9, save_clock=lambda: float(next(slow))).run()
    assert env.models.versions() == [60, 120, 300]
    assert len(env.calls("save")) == 10


# --- What is read of the store: each request costs money -------------------------------------------------------------


PARTITIONS = 7


class CountingBucket(ObjectStore):
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


class BucketMember:
    """The writer of a worker that owns some of the partitions."""

    def __init__(self, bucket: CountingBucket, owned: Collection[int]) -> None:
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
            self.saved[partition] = make_fold(vectors(rows, seed=partition) + partition, CONFIG)
        changed = [self._checkpoint(p) for p in moved]
        result = self.writer.start(changed, publish=self.publishes, saved_before=before).result()
        assert not any(isinstance(event, CheckpointPostponed) for event in result.events)
        return result

    def _checkpoint(self, partition: int) -> Checkpoint:
        return make_checkpoint(self.saved[partition], CONFIG, partition)


Pair = tuple[BucketMember, BucketMember]


def published(result: SaveResult) -> PublishedModel:
    (model,) = models_of(result)
    return model


def models_of(result: SaveResult) -> list[PublishedModel]:
    return [event.model for event in result.events if isinstance(event, ModelPublished)]


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


@pytest.fixture
def two(bucket: CountingBucket) -> Pair:
    """The publisher and another worker, which have saved all partitions; a version is published."""
    publisher, other = BucketMember(bucket, [0, 1, 2]), BucketMember(bucket, [3, 4, 5, 6])
    other.interval(other.owned)
    published(publisher.interval(publisher.owned))
    return publisher, other


def test_a_publisher_reads_only_the_partitions_of_others_that_moved(bucket: CountingBucket, two: Pair) -> None:
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


def test_cached_checkpoints_change_no_bit(bucket: CountingBucket, two: Pair) -> None:
    publisher, other = two
    other.interval([4])
    alike = CountingBucket()
    for name, data in bucket.files().items():
        alike.write(name, data)
    late = Publisher(Models(alike, "readings"), CONFIG, lambda: 2e9).publish(Checkpoints(alike, "readings"))
    assert encode(published(publisher.interval())) == encode(late.model)


@given(st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, PARTITIONS - 1))), max_size=12))
@settings(max_examples=25, deadline=None)
def test_no_worker_reads_a_file_twice_or_one_of_its_own(steps: list[tuple[int, set[int]]]) -> None:
    bucket = CountingBucket()
    members = [BucketMember(bucket, range(start, PARTITIONS, 3)) for start in range(3)]
    seen: list[set[str]] = [set() for _ in members]
    for turn, moved in steps:
        member, files = members[turn], set(bucket.files())
        result = member.interval(moved & set(member.owned))
        assert bucket.requests["list"] <= 1 + member.publishes
        assert not seen[turn] & set(bucket.read_names)
        written = bucket.files().keys() - files
        seen[turn] |= written | set(bucket.read_names)
        assert bucket.requests["write"] == len(written) == len(result.events)


def test_checkpoints_that_do_not_fit_into_the_cache_are_read_again(
    bucket: CountingBucket, two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, _ = two
    cached = publisher.writer._publisher._checkpoint_reader._cache[3]
    monkeypatch.setattr(publisher_module, "CACHED_BYTES", 2 * cached.fold.nbytes)
    publisher.writer._publisher._checkpoint_reader._cache.clear()
    published_before = publisher.models.versions()
    assert models_of(publisher.interval([0]))
    assert models_of(publisher.interval([0]))
    assert bucket.requests == {"list": 2, "write": 2, "read": 2}
    assert len(publisher.models.versions()) == len(published_before) + 2


def test_another_publisher_may_write_the_next_version(bucket: CountingBucket, two: Pair) -> None:
    """Whoever creates the file of a version has published it."""
    publisher, other = two
    twin = BucketMember(bucket, publisher.owned)
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


def test_a_pin_that_is_newer_than_the_publishers_listing_counts(bucket: CountingBucket) -> None:
    models = Models(bucket, "readings", keep=2)
    save(models, 1, 2)
    listed = models.snapshot()
    Pins(bucket, "readings").set("index", 1)
    bucket.requests.clear()
    assert listed.save(numbered(3))
    assert models.versions() == [1, 2, 3]
    assert bucket.requests == {"write": 1, "list": 3, "read": 1}
    assert models.save(numbered(4))
    assert models.versions() == [1, 3, 4]


def test_a_version_that_failed_is_published_next(bucket: CountingBucket, two: Pair) -> None:
    publisher, other = two
    other.interval([4])
    bucket.failures.append(StoreError("the answer was lost"))
    assert publisher.interval().events == [PublishFailed("the answer was lost")]
    assert published(publisher.interval()).positions[4] == 40


# --- What is merged, and as which version ----------------------------------------------------------------------------


def test_no_model_before_two_messages(fixture: PublisherFixture) -> None:
    assert fixture.publisher.publish(fixture.checkpoints) is None
    fixture.save(0, make_fold(vectors(1), CONFIG))
    fixture.save(1, Fold.empty(CONFIG.learning).skip(7))
    assert fixture.publisher.publish(fixture.checkpoints) is None
    assert fixture.models.versions() == []
    fixture.save(2, make_fold(vectors(1, seed=1), CONFIG))
    assert fixture.publish().version == 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_checkpoints_in_memory_give_the_same_bytes_as_those_on_disk(dtype: str) -> None:
    config = fold_config(dtype=dtype)
    on_disk, in_memory = PublisherFixture(config), PublisherFixture(config)
    checkpoints = [make_checkpoint(make_fold(vectors(300 + n, seed=n), config), config, n) for n in range(5)]
    for fixture in (on_disk, in_memory):
        for checkpoint in checkpoints:
            fixture.checkpoints.save(checkpoint)
    in_memory.checkpoints.newest = lambda _: pytest.fail("read from disk")  # type: ignore[method-assign]
    published = in_memory.publisher.publish(in_memory.checkpoints, checkpoints)
    assert published.model.subspace_error is not None
    assert encode(published.model) == encode(on_disk.publish())


def test_a_checkpoint_in_memory_does_not_hide_a_newer_one(fixture: PublisherFixture) -> None:
    older, newer = (make_checkpoint(make_fold(vectors(n), CONFIG), CONFIG, 0) for n in (100, 200))
    for checkpoint in (older, newer):
        fixture.checkpoints.save(checkpoint)
    assert fixture.publisher.publish(fixture.checkpoints, [older]).model.positions == {0: 200}


def test_large_checkpoints_are_read_one_ahead(fixture: PublisherFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the one that is merged, the one that was merged before, and the next one."""
    monkeypatch.setattr(parallel_requests, "BYTES_AT_ONCE", 1)
    for partition in range(6):
        fixture.save(partition, make_fold(vectors(100 + partition), CONFIG))
    newest, held = fixture.checkpoints.newest, WeakSet[Fold]()

    def counted(partition: int) -> Checkpoint | None:
        checkpoint = newest(partition)
        held.add(checkpoint.fold)
        assert len(held) <= 3
        return checkpoint

    monkeypatch.setattr(fixture.checkpoints, "newest", counted)
    assert fixture.publish().positions == {p: 100 + p for p in range(6)}


def test_the_version_never_decreases(fixture: PublisherFixture) -> None:
    """Not even when the newest checkpoint is damaged and the previous one has learned less."""
    for n in (100, 200):
        fixture.save(0, make_fold(vectors(n), CONFIG))
    assert fixture.publish().version == 200
    fixture.store.damage(f"checkpoints/readings/0/{200:020d}.npz")
    assert fixture.publisher.publish(fixture.checkpoints) is None
    assert fixture.models.versions() == [200]
    fixture.save(0, make_fold(vectors(250), CONFIG))
    assert fixture.publish().version == 250


def test_the_signs_of_the_axes_follow_the_previous_version(fixture: PublisherFixture) -> None:
    """Each for itself."""
    V = np.random.default_rng(4).standard_normal((160, D)) * [9, 4, 2, 1, 0.5]  # components keep their order
    fixture.save(0, make_fold(V[:100], CONFIG))
    first = fixture.publish()
    assert (first.version, first.published_at, first.positions) == (100, 1234.5, {0: 100})
    flipped = replace(first.model, components=first.model.components * [[1], [-1]])
    fixture.models.save(replace(first, version=101, model=flipped))
    fixture.save(0, make_fold(V, CONFIG))
    assert (np.sum(fixture.publish().model.components * flipped.components, axis=1) > 0.5).all()


def test_no_time_is_later_than_the_clock() -> None:
    config = fold_config(components=D, half_life_seconds=10.0)
    fixture = PublisherFixture(config)
    fixture.now = 1e9
    for partition, seconds in enumerate((0, 3600, -20)):  # ahead of the clock, and two half-lives behind it
        fixture.save(partition, make_fold(vectors(200, seed=partition), config, [10**12 + 1000 * seconds] * 200))
    assert fixture.publish().model.weight == pytest.approx(450)


def test_a_publication_has_the_latest_event_time_of_its_partitions() -> None:
    config = fold_config(half_life_seconds=1800.0)
    fixture = PublisherFixture(config)
    for partition, time_ms, latest_ms in ((0, 10**12, 10**12), (1, 10**12 + 7, 10**12 + 7), (2, -1, 10**12 + 7)):
        fixture.save(partition, make_fold(vectors(100, seed=partition), config, [time_ms] * 100))
        assert fixture.publisher.publish(fixture.checkpoints).event_time_ms == latest_ms


def test_a_checkpoint_with_other_settings_is_not_merged(fixture: PublisherFixture) -> None:
    fixture.save(0, make_fold(vectors(100), CONFIG))
    other = fold_config(components=1)
    fixture.checkpoints.save(make_checkpoint(make_fold(vectors(100), other), other, partition=1))
    assert "partition 1" in refusal(SettingsError, fixture.publisher.publish, fixture.checkpoints)


# --- Which messages are scored by which version ----------------------------------------------------------------------


MESSAGES = vectors(3000)
LEARNED = WARM_UP + SHORT_BLOCK  # messages of which none is pending


class Stream(PublisherFixture):
    """Two partitions that grow; publishes after each step."""

    def __init__(self, fold_config: FoldConfig) -> None:
        super().__init__(fold_config)
        self.streams = dict(enumerate(np.array_split(MESSAGES, 2)))
        self.at = dict.fromkeys(self.streams, 0)

    def grow(self, partition: int, n: int) -> Array:
        """Learn n more messages of a partition; returns those that are pending then."""
        self.at[partition] += n
        fold = make_fold(self.streams[partition][: self.at[partition]], self.fold_config)
        self.save(partition, fold)
        return fold.pending


def scored(by: PublishedModel | Model, V: Array, into: PastScores | None = None, kept: float = 1.0) -> PastScores:
    return (into or PastScores.empty()).with_scores(by.project(V).relative_scores, kept)


@pytest.fixture
def stream() -> Stream:
    return Stream(fold_config())


def same(published: PublishedModel, expected: PastScores) -> bool:
    return np.allclose(published.past_scores.weights, expected.weights, rtol=1e-9)


@pytest.mark.parametrize("restarted", [False, True])
def test_pending_messages_are_scored_by_the_version_before(stream: Stream, restarted: bool) -> None:
    """Also by another publisher; those of a partition that did not move are not scored again."""
    stream.grow(0, LEARNED)
    first = stream.publish()
    assert first.past_scores is None
    pending = [stream.grow(0, 400), stream.grow(1, 330)]
    second = stream.publish()
    assert all(map(len, pending))
    assert same(second, scored(first, np.concatenate(pending)))
    assert stream.p_values is None
    if restarted:
        stream.publisher = Publisher(stream.models, stream.fold_config, lambda: 0.0)
    third_pending = stream.grow(1, 300)
    third = stream.publish()
    assert same(
        third, scored(second, third_pending, scored(first, np.concatenate(pending)), np.exp(-300 / third.version))
    )
    np.testing.assert_array_equal(stream.p_values, second.project(third_pending).p)


def test_pending_messages_of_the_first_version_are_scored_by_the_folds_without_them(stream: Stream) -> None:
    """So a topic that is loaded once has p-values."""
    pending = [stream.grow(0, 300), stream.grow(1, 400)]
    learned = np.concatenate([part[:LEARNED] for part in stream.streams.values()])
    model = batch_pca(learned, 2)  # d = 5: learned exactly
    expected = scored(model, np.concatenate(pending))
    assert expected.weight == 24 + 124
    past_scores = stream.publish().past_scores
    assert np.abs(past_scores.weights.cumsum(axis=1) - expected.weights.cumsum(axis=1)).max() <= 1  # at edges of bins
    assert stream.p_values is None


def test_a_message_is_scored_once(stream: Stream) -> None:
    """Messages stay pending over several versions while few arrive."""
    stream.grow(0, LEARNED)
    stream.publish()
    weights = []
    for n in (10, 5, 1):
        stream.grow(0, n)
        weights.append(stream.publish().past_scores.weight)
    assert weights == pytest.approx([10, 15, 16], rel=0.02)


def test_scores_are_forgotten_as_messages_are() -> None:
    stream = Stream(fold_config(half_life_messages=100))
    stream.grow(0, LEARNED)
    stream.publish()
    before = len(stream.grow(0, 300))
    assert stream.publish().past_scores.weight == before
    new = len(stream.grow(0, 300))
    assert stream.publish().past_scores.weight == pytest.approx(new + before / 8, rel=0.05)


def test_scores_by_another_number_of_components_are_dropped(stream: Stream) -> None:
    """After `reset --adopt-settings`: the next pending messages are scored as those of a first version are."""
    stream.grow(0, LEARNED)
    stream.publish()
    stream.grow(0, 100)
    assert stream.publish().past_scores.weight == pytest.approx(100, rel=0.02)
    wider = fold_config(components=3)
    before = stream.checkpoints.newest(0)
    stream.checkpoints.replace(before, before.adopt_settings(wider))
    stream.fold_config, stream.publisher = wider, Publisher(stream.models, wider, lambda: 0.0)
    adopted = stream.checkpoints.newest(0).fold
    grown = learn(adopted, MESSAGES[1500 : 1500 + 50], [-1] * 50, adopted.position + 50, wider)[0]
    stream.save(0, grown)
    published = stream.publish()
    assert published.model.n_components == 3
    assert stream.p_values is None
    merger = FoldMerger(wider)
    merger.add(grown.without_pending())
    model = make_model(merger.state(3), 3)
    assert same(published, scored(model, grown.pending[-50:]))


def test_messages_of_a_moved_topic_are_published_at_the_offsets_of_the_newest_model(fixture: PublisherFixture) -> None:
    """The topic continues 100 offsets before the position of the newest model, and then arrives there."""
    fixture.save(0, make_fold(vectors(200), CONFIG))
    assert fixture.publish().positions == {0: 200}
    before = fixture.checkpoints.newest(0)
    moved = replace(before, topic_id="id-2", fold=replace(before.fold, position=100))
    fixture.checkpoints.replace(before, moved)
    grown = replace(moved, fold=learn(moved.fold, vectors(100, seed=1), [-1] * 100, 200, CONFIG)[0])
    fixture.checkpoints.save(grown)
    published = fixture.publisher.publish(fixture.checkpoints, [grown]).model
    assert (published.version, published.positions, published.topic_id) == (300, {0: 200}, "id-2")


# --- p-values: uniform on ordinary messages, whatever the spectrum, the size, and who publishes when -----------------


K, TESTED = 8, 2000
LARGEST, ALARMS = 0.08, 0.025  # Kolmogorov–Smirnov distance from uniform; share of p ≤ 0.01
SPECTRA: dict[str, Callable[[F64], F64]] = {
    "flat": np.ones_like,
    "power 0.5": lambda j: j**-0.25,
    "power 1": lambda j: j**-0.5,
    "power 2": lambda j: j**-1.0,
    "low rank": lambda j: np.where(j <= 5, 1 / j, 0.0),
}


class GaussianMessages:
    """Gaussian messages with this spectrum of variances, and their gross outliers."""

    def __init__(self, spectrum: str, d: int, seed: int = 1) -> None:
        self._random, self.d = np.random.default_rng(seed), d
        self._deviations = SPECTRA[spectrum](np.arange(1, d + 1.0))

    def __call__(self, n: int) -> Array:
        return self._random.standard_normal((n, self.d)) * self._deviations + 1.0

    def outliers(self) -> Array:
        """Far out within the subspace of the components, and far off it."""
        return 1.0 + 50 * np.linalg.norm(self._deviations) * np.eye(self.d)[[0, -1]]


def distance(p: F64) -> float:
    """The Kolmogorov–Smirnov distance from uniform."""
    p, steps = np.sort(p), np.arange(len(p) + 1) / len(p)
    return float(max(np.max(steps[1:] - p), np.max(p - steps[:-1])))


def check(p_values: Callable[[Array], Sequence[F64]], messages: GaussianMessages) -> None:
    """The p-values of T², SPE and score, or of the score alone, are uniform; those of an SPE of rounding are all 1."""
    for p in p_values(messages(TESTED)):
        assert distance(p) <= LARGEST or (p == 1).all()
        assert np.mean(p <= 0.01) <= ALARMS
    assert p_values(messages.outliers())[-1].max() <= 1e-3


def of(published: PublishedModel) -> Callable[[Array], Sequence[F64]]:
    return lambda V: published.project(V).p_values


def of_estimator(pca: StreamingPCA) -> Callable[[Array], Sequence[F64]]:
    return lambda V: [pca.p_values(V)]


every_stream = pytest.mark.parametrize(
    ("d", "spectrum"), [*itertools.product((64, 257), SPECTRA), (768, "power 1"), (768, "low rank"), (784, "flat")]
)


@every_stream
def test_p_values_of_the_estimator_are_uniform(d: int, spectrum: str) -> None:
    messages, pca = GaussianMessages(spectrum, d), StreamingPCA(K)
    check(of_estimator(pca.fit(messages(2300))), messages)
    check(of_estimator(pca.partial_fit(messages(8000))), messages)


class Partitions(PublisherFixture):
    """Partitions that grow together."""

    def __init__(self, messages: GaussianMessages, number: int, config: FoldConfig) -> None:
        super().__init__(config)
        self._messages, self._folds = messages, dict.fromkeys(range(number), Fold.empty(config.learning))

    def grow(self, n: int) -> None:
        for partition, fold in self._folds.items():
            position = max(fold.position, 0) + n
            self._folds[partition], _ = learn(fold, self._messages(n), [-1] * n, position, self.fold_config)
            self.save(partition, self._folds[partition])


def config_of(d: int) -> FoldConfig:
    return fold_config(dimensions=d, components=K, oversampling=None, warm_up=None)


@every_stream
def test_p_values_of_the_first_version_and_the_tenth_are_uniform(d: int, spectrum: str) -> None:
    messages = GaussianMessages(spectrum, d)
    partitions = Partitions(messages, 5, config_of(d))
    partitions.grow(1190)  # 222 are pending, more than 1,000 of all
    check(of(partitions.publish()), messages)
    for _ in range(9):
        partitions.grow(300)
        tenth = partitions.publish()
    check(of(tenth), messages)


@every_stream
def test_p_values_after_a_backfill_are_uniform(d: int, spectrum: str) -> None:
    """Which has scored nothing: the topic's messages are scored by the model that knows it."""
    messages, config = GaussianMessages(spectrum, d), config_of(d)
    backfill = BackfillPlan("readings", config, FileOptions("v"))
    batches = [pa.record_batch([column_of(messages(5000))], ["v"])]
    checkpoint = merge([fold_batches(batches, backfill)], backfill)
    partitions = Partitions(messages, 8, config)
    partitions.checkpoints.save(checkpoint)
    partitions.grow(1190)
    check(of(partitions.publish()), messages)


@every_stream
def test_p_values_after_a_change_of_regime_are_uniform(d: int, spectrum: str) -> None:
    """Variances that were nine times as large are forgotten after fifteen half-lives."""
    messages, pca = GaussianMessages(spectrum, d), StreamingPCA(K, half_life=1000)
    pca.fit(3 * messages(5000)[:, ::-1])
    pca.partial_fit(messages(15_000))
    check(of_estimator(pca), messages)
