"""The publisher: the merged model, its version, the signs of its components, and which worker publishes."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from weakref import WeakSet

import numpy as np
import pytest

from streampca.consumer_group.events import ModelPublished, PartitionsAssigned
from streampca.errors import SettingsError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel, encode
from streampca.pca.arrays import F64, Array
from streampca.pca.learning import LEARN_BLOCK
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.writer import Publisher, PublishSchedule
from tests.errors import refusal
from tests.example_models import numbered
from tests.fold.streams import CONFIG, WARM_UP, D, checkpoint_of, fold_config, fold_of, vectors
from tests.in_memory import MemorySource, Step
from tests.in_memory.store import FaultyStore
from tests.pca.streams import batch_pca, covariance
from tests.worker.environment import Environment
from tests.worker.harness import make_worker, worker_config

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
        self.checkpoints.save(checkpoint_of(fold, self.fold_config, partition))

    def publish(self) -> PublishedModel:
        model, self.p_values = self.publisher.publish(self.checkpoints)
        assert encode(self.models.newest()) == encode(model)
        return model


@pytest.fixture
def fixture() -> PublisherFixture:
    return PublisherFixture()


def test_no_model_before_two_messages(fixture: PublisherFixture) -> None:
    assert fixture.publisher.publish(fixture.checkpoints) is None
    fixture.save(0, fold_of(vectors(1), CONFIG))
    fixture.save(1, Fold.empty(CONFIG.learning).skip(7))
    assert fixture.publisher.publish(fixture.checkpoints) is None
    assert fixture.models.versions() == []
    fixture.save(2, fold_of(vectors(1, seed=1), CONFIG))
    assert fixture.publish().version == 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_checkpoints_in_memory_give_the_same_bytes_as_those_on_disk(dtype: str) -> None:
    config = fold_config(dtype=dtype)
    on_disk, in_memory = PublisherFixture(config), PublisherFixture(config)
    checkpoints = [checkpoint_of(fold_of(vectors(300 + n, seed=n), config), config, n) for n in range(5)]
    for fixture in (on_disk, in_memory):
        for checkpoint in checkpoints:
            fixture.checkpoints.save(checkpoint)
    in_memory.checkpoints.newest = lambda _: pytest.fail("read from disk")  # type: ignore[method-assign]
    published = in_memory.publisher.publish(in_memory.checkpoints, checkpoints)
    assert published.model.subspace_error is not None
    assert encode(published.model) == encode(on_disk.publish())


def test_a_checkpoint_in_memory_does_not_hide_a_newer_one(fixture: PublisherFixture) -> None:
    older, newer = (checkpoint_of(fold_of(vectors(n), CONFIG), CONFIG, 0) for n in (100, 200))
    for checkpoint in (older, newer):
        fixture.checkpoints.save(checkpoint)
    assert fixture.publisher.publish(fixture.checkpoints, [older]).model.positions == {0: 200}


def test_checkpoints_are_read_one_at_a_time(fixture: PublisherFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(6):
        fixture.save(partition, fold_of(vectors(100 + partition), CONFIG))
    newest, held = fixture.checkpoints.newest, WeakSet[Fold]()

    def counted(partition: int) -> Checkpoint | None:
        checkpoint = newest(partition)
        held.add(checkpoint.fold)
        assert len(held) <= 2
        return checkpoint

    monkeypatch.setattr(fixture.checkpoints, "newest", counted)
    assert fixture.publish().positions == {p: 100 + p for p in range(6)}


def test_the_version_never_decreases(fixture: PublisherFixture) -> None:
    """Not even when the newest checkpoint is damaged and the previous one has learned less."""
    for n in (100, 200):
        fixture.save(0, fold_of(vectors(n), CONFIG))
    assert fixture.publish().version == 200
    fixture.store.damage(f"checkpoints/readings/0/{200:020d}.npz")
    assert fixture.publisher.publish(fixture.checkpoints) is None
    assert fixture.models.versions() == [200]
    fixture.save(0, fold_of(vectors(250), CONFIG))
    assert fixture.publish().version == 250


def test_the_signs_of_the_axes_follow_the_previous_version(fixture: PublisherFixture) -> None:
    """Each for itself."""
    V = np.random.default_rng(4).standard_normal((160, D)) * [9, 4, 2, 1, 0.5]  # components keep their order
    fixture.save(0, fold_of(V[:100], CONFIG))
    first = fixture.publish()
    assert (first.version, first.published_at, first.positions) == (100, 1234.5, {0: 100})
    flipped = replace(first.model, components=first.model.components * [[1], [-1]])
    fixture.models.save(replace(first, version=101, model=flipped))
    fixture.save(0, fold_of(V, CONFIG))
    assert (np.sum(fixture.publish().model.components * flipped.components, axis=1) > 0.5).all()


def test_no_time_is_later_than_the_clock() -> None:
    config = fold_config(components=D, half_life_seconds=10.0)
    fixture = PublisherFixture(config)
    fixture.now = 1e9
    for partition, seconds in enumerate((0, 3600, -20)):  # ahead of the clock, and two half-lives behind it
        fixture.save(partition, fold_of(vectors(200, seed=partition), config, [10**12 + 1000 * seconds] * 200))
    assert fixture.publish().model.weight == pytest.approx(450)


def test_a_checkpoint_with_other_settings_is_not_merged(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(100), CONFIG))
    other = fold_config(components=1)
    fixture.checkpoints.save(checkpoint_of(fold_of(vectors(100), other), other, partition=1))
    assert "partition 1" in refusal(SettingsError, fixture.publisher.publish, fixture.checkpoints)


# Which worker publishes.


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
    worker = make_worker(env, worker_config(EXACT), [join_group, *rebalance * 4] if lowest else rebalance * 4).run()
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
        schedule.notify(ModelPublished(numbered(7), seconds))
    assert schedule.begin_if_due([0, 1], [0, 1], 100.0 + since_s) is is_due


@pytest.mark.parametrize(("owned", "of_topic"), [([], []), ([], [0, 1]), ([1], [0, 1]), ([2, 1], [0, 1, 2])])
def test_only_the_owner_of_the_lowest_partition_begins(owned: list[int], of_topic: list[int]) -> None:
    assert not PublishSchedule().begin_if_due(owned, of_topic, math.inf)


def test_a_worker_publishes_less_often_where_it_takes_long(env: Environment) -> None:
    """Checkpoints are saved as before, and the last model is that of all messages."""
    slow = itertools.count(step=10)
    make_worker(env, script=[30] * 9, save_clock=lambda: float(next(slow))).run()
    assert env.models.versions() == [60, 120, 300]
    assert len(env.calls("save")) == 10


# The past scores of messages, for p-values.


MESSAGES = vectors(3000)
LEARNED = WARM_UP + LEARN_BLOCK  # messages of which none is pending


class Stream(PublisherFixture):
    """Two partitions that grow; publishes after each step."""

    def __init__(self, fold_config: FoldConfig) -> None:
        super().__init__(fold_config)
        self.streams = dict(enumerate(np.array_split(MESSAGES, 2)))
        self.at = dict.fromkeys(self.streams, 0)

    def grow(self, partition: int, n: int) -> Array:
        """Learn n more messages of a partition; returns those that are pending then."""
        self.at[partition] += n
        fold = fold_of(self.streams[partition][: self.at[partition]], self.fold_config)
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


def test_those_of_the_first_version_are_scored_by_the_merged_folds_without_them(stream: Stream) -> None:
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
