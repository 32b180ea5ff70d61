"""Folds to models: what is published, its version, its signs, and who publishes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.errors import SettingsError, StoreError, TopicReplacedError
from streampca.pca.axes import model_of
from streampca.pca.learning import BLOCK
from streampca.pca.merge import merge
from streampca.pca.model import Model
from streampca.sources.memory import Do, MemorySource, Pause, Step
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.model_file import PublishedModel, encode
from streampca.worker.listener import ModelPublished, PartitionsAssigned
from streampca.worker.publisher import Publisher
from tests.stream.streams import D, checkpoint_of, covariance, fold_config, fold_of, vectors
from tests.worker.harness import Cast, Stage, cast, many, worker_config

OWN = fold_config()
EXACT = fold_config(components=D)


class Desk:
    """A publisher with its stores, without a worker."""

    def __init__(self, fold_config: FoldConfig = OWN) -> None:
        self.fold_config, self.store = fold_config, MemoryStore()
        self.checkpoints, self.models = Checkpoints(self.store, "readings"), Models(self.store, "readings")
        self.publisher = Publisher(self.checkpoints, self.models, fold_config, lambda: 1234.5)

    def save(self, partition: int, fold: Fold) -> None:
        self.checkpoints.save(checkpoint_of(fold, self.fold_config, partition))

    def publish(self) -> PublishedModel:
        model = self.publisher.publish()
        assert model is not None
        newest = self.models.newest()
        assert newest is not None
        assert encode(newest) == encode(model)
        return model


@pytest.fixture
def desk() -> Desk:
    return Desk()


def pooled(model: Model) -> Any:
    """The covariance that a model of all components stands for."""
    return model.components.T * model.explained_variance @ model.components


def test_without_two_messages_there_is_no_model(desk: Desk) -> None:
    assert desk.publisher.publish() is None
    desk.save(0, fold_of(vectors(1), OWN))
    desk.save(1, Fold.empty(OWN.learning).skip(7))
    assert desk.publisher.publish() is None
    assert desk.models.versions() == []
    desk.save(2, fold_of(vectors(1, seed=1), OWN))
    assert desk.publish().version == 2


def test_the_version_is_the_number_of_messages_learned_of_all_partitions(desk: Desk) -> None:
    folds = [fold_of(vectors(n, seed=n), OWN).reject(["no_value"] * n) for n in (300, 7, 90)]
    for partition, fold in enumerate(folds):
        desk.save(partition, fold)
    model = desk.publish()
    assert (model.version, model.rejected) == (397, 397)
    assert model.positions == {0: 300, 1: 7, 2: 90}
    assert (model.topic, model.topic_id, model.published_at) == ("readings", "id-1", 1234.5)
    assert model.settings == OWN.as_dict()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_checkpoints_at_hand_give_the_same_bytes_as_those_that_are_read(dtype: str) -> None:
    own = fold_config(dtype=dtype)
    read, at_hand = Desk(own), Desk(own)
    checkpoints = [checkpoint_of(fold_of(vectors(300 + n, seed=n), own), own, n) for n in range(3)]
    for desk in (read, at_hand):
        for checkpoint in checkpoints:
            desk.checkpoints.save(checkpoint)
    at_hand.checkpoints.newest = lambda _: pytest.fail("read all the same")  # type: ignore[method-assign]
    made = at_hand.publisher.publish(checkpoints)
    assert made is not None
    assert encode(made) == encode(read.publish())


def test_a_checkpoint_at_hand_does_not_hide_a_newer_one(desk: Desk) -> None:
    older, newer = (checkpoint_of(fold_of(vectors(n), OWN), OWN, 0) for n in (100, 200))
    for checkpoint in (older, newer):
        desk.checkpoints.save(checkpoint)
    model = desk.publisher.publish([older])
    assert model is not None
    assert model.positions == {0: 200}


def test_the_model_is_the_merge_of_the_folds(desk: Desk) -> None:
    folds = [fold_of(vectors(n, seed=n), OWN) for n in (300, 7, 90)]
    for partition, fold in enumerate(folds):
        desk.save(partition, fold)
    state = merge([fold.provisional(OWN.learning) for fold in folds], OWN.learning.columns)
    expected, found = model_of(state, OWN.learning.components), desk.publish().model
    np.testing.assert_array_equal(found.components, expected.components)
    np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert (found.weight, found.total_variance) == (expected.weight, expected.total_variance)


@pytest.mark.parametrize("counts", [(2,), (1, 1), (19, 3), (300, 7, 90), (84, 148)])
def test_with_all_components_it_is_the_covariance_of_all_messages_of_all_partitions(counts: tuple[int, ...]) -> None:
    desk, parts = Desk(EXACT), [vectors(n, seed=n + 10) + i for i, n in enumerate(counts)]
    for partition, V in enumerate(parts):
        desk.save(partition, fold_of(V, EXACT))
    model, everything = desk.publish().model, np.vstack(parts)
    np.testing.assert_allclose(pooled(model), covariance(everything), atol=1e-9)
    np.testing.assert_allclose(model.mean, everything.mean(axis=0), atol=1e-12)
    assert model.total_variance == pytest.approx(np.trace(covariance(everything)), abs=1e-12)
    assert model.weight == pytest.approx(sum(counts))


def test_folds_are_brought_to_one_common_time_before_they_are_merged() -> None:
    """A partition that has been silent for two half-lives weighs a quarter."""
    own = fold_config(components=D, half_life_seconds=10.0)
    desk, parts = Desk(own), [vectors(200, seed=1), vectors(200, seed=2) + 1]
    for partition, (V, stamp) in enumerate(zip(parts, (10**12, 10**12 + 20_000), strict=True)):
        desk.save(partition, fold_of(V, own, [stamp] * 200))
    model = desk.publish().model
    weights = np.repeat([0.25, 1.0], 200)
    np.testing.assert_allclose(pooled(model), covariance(np.vstack(parts), weights), atol=1e-9)
    assert model.weight == pytest.approx(250)


def test_a_partition_without_any_time_is_not_forgotten() -> None:
    own = fold_config(components=D, half_life_seconds=10.0)
    desk, parts = Desk(own), [vectors(200, seed=1), vectors(200, seed=2)]
    desk.save(0, fold_of(parts[0], own))
    desk.save(1, fold_of(parts[1], own, [10**12] * 200))
    np.testing.assert_allclose(pooled(desk.publish().model), covariance(np.vstack(parts)), atol=1e-9)


def test_losses_are_those_of_all_messages_scored(desk: Desk) -> None:
    folds = [fold_of(vectors(n, seed=n), OWN) for n in (600, 7, 300)]
    for partition, fold in enumerate(folds):
        desk.save(partition, fold)
    all_stats, model = [fold.stats for fold in folds], desk.publish()
    scored = sum(t.scored for t in all_stats)
    assert scored == 2 * BLOCK + BLOCK
    loss, norm = (sum(t.scored * getattr(t, name) for t in all_stats) / scored for name in ("loss", "norm"))
    assert model.loss == pytest.approx(loss)
    assert model.loss_ratio == pytest.approx(loss / norm)
    ewma = [sum(t.scored * getattr(t, name) for t in all_stats) for name in ("loss_ewma", "norm_ewma")]
    assert model.loss_ewma == pytest.approx(ewma[0] / ewma[1])


def test_before_any_message_was_scored_there_is_no_loss(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(15), OWN))
    model = desk.publish()
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (None, None, None)


def test_messages_that_are_all_the_same_have_a_model_and_no_loss(desk: Desk) -> None:
    desk.save(0, fold_of(np.ones((300, D)), OWN))
    model = desk.publish()
    assert model.model.explained_variance.tolist() == [0, 0]
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (0, 0, 0)


def test_first_and_last_timestamp_are_those_of_all_partitions(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(3), OWN, [500, 100, 300]))
    desk.save(1, fold_of(vectors(3, seed=1), OWN))
    desk.save(2, fold_of(vectors(2, seed=2), OWN, [900, -1]))
    model = desk.publish()
    assert (model.first_timestamp_ms, model.last_timestamp_ms) == (100, 900)


def test_timestamps_that_nobody_knows_stay_unknown(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(3), OWN))
    model = desk.publish()
    assert (model.first_timestamp_ms, model.last_timestamp_ms) == (-1, -1)


def test_nothing_new_is_not_published_again(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(100), OWN))
    assert desk.publish().version == 100
    assert desk.publisher.publish() is None
    assert desk.models.versions() == [100]


def test_the_version_never_goes_down(desk: Desk) -> None:
    """Not even when a checkpoint turns out damaged, and the one before it has learned less."""
    for n in (100, 200):
        desk.save(0, fold_of(vectors(n), OWN))
    assert desk.publish().version == 200
    desk.store.damage(f"checkpoints/readings/0/{200:020d}.npz")
    assert desk.publisher.publish() is None
    assert desk.models.versions() == [200]
    desk.save(0, fold_of(vectors(250), OWN))
    assert desk.publish().version == 250


def test_two_publishers_at_work_are_harmless(desk: Desk) -> None:
    other = Publisher(desk.checkpoints, desk.models, OWN, lambda: 99.0)
    for n in (100, 200, 300):
        desk.save(0, fold_of(vectors(n), OWN))
        one, two = desk.publisher.publish(), other.publish()
        assert one is not None
        assert two is None
    assert desk.models.versions() == [100, 200, 300]


def test_one_that_is_late_publishes_the_same_model_of_the_same_positions(desk: Desk) -> None:
    """Both have read the checkpoints before either has written: the second one finds the version there."""
    desk.save(0, fold_of(vectors(100), OWN))
    folds = [checkpoint for p in desk.checkpoints.partitions() if (checkpoint := desk.checkpoints.newest(p))]
    first = desk.publish()
    late = desk.publisher._merged(folds, None)
    np.testing.assert_array_equal(late.model.components, first.model.components)
    assert desk.models.save(late) is False
    assert desk.models.load(100).published_at == first.published_at


def clear(n: int) -> Any:
    """Messages (n, D) whose axes stand apart, so that they keep their order."""
    return np.random.default_rng(4).standard_normal((n, D)) * [9, 4, 2, 1, 0.5]


def test_coordinates_keep_their_signs_from_version_to_version(desk: Desk) -> None:
    desk.save(0, fold_of(clear(30), OWN))
    before = desk.publish().model.components
    for n in range(60, 330, 30):
        desk.save(0, fold_of(clear(n), OWN))
        components = desk.publish().model.components
        assert (np.sum(components * before, axis=1) > 0.5).all()
        before = components


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_signs_follow_the_version_before_and_not_a_rule_of_their_own(desk: Desk, signs: tuple[int, int]) -> None:
    desk.save(0, fold_of(clear(100), OWN))
    first = desk.publish()
    turned = replace(first.model, components=first.model.components * np.array(signs)[:, None])
    desk.models.save(replace(first, version=101, model=turned))
    desk.save(0, fold_of(clear(160), OWN))
    assert (np.sum(desk.publish().model.components * turned.components, axis=1) > 0.5).all()


def test_a_checkpoint_of_other_settings_is_not_merged(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(100), OWN))
    other = fold_config(components=1)
    desk.checkpoints.save(checkpoint_of(fold_of(vectors(100), other), other, partition=1))
    with pytest.raises(SettingsError, match="partition 1"):
        desk.publisher.publish()


def test_checkpoints_of_two_topics_of_one_name_are_not_merged(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(100), OWN))
    desk.checkpoints.save(Checkpoint("readings", "id-2", 1, fold_of(vectors(100), OWN), OWN.as_dict()))
    with pytest.raises(TopicReplacedError):
        desk.publisher.publish()


def test_a_store_that_fails_leaves_the_version_to_the_next_time(desk: Desk) -> None:
    desk.save(0, fold_of(vectors(100), OWN))
    desk.store.fail_writes(1)
    with pytest.raises(StoreError):
        desk.publisher.publish()
    assert desk.publish().version == 100


# Who publishes.


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(partitions=2, fold_config=EXACT)
    for partition in (0, 1):
        stage.send(partition, many(150, seed=partition) + partition)
    yield stage
    assert stage.violations == []


def test_a_worker_publishes_what_all_partitions_hold(stage: Stage) -> None:
    worker = cast(stage, script=[50, 50])
    worker.run()
    published = [event.model.version for event in worker.heard.of(ModelPublished)]
    assert published == stage.models.versions() == [100, 200, 300]
    newest = stage.models.newest()
    assert newest is not None
    everything = np.vstack([many(150, seed=p) + p for p in (0, 1)])
    np.testing.assert_allclose(pooled(newest.model), covariance(everything), atol=1e-9)


def test_publishing_and_committing_come_after_saving(stage: Stage) -> None:
    cast(stage, script=[50]).run()
    names = [entry[0] for entry in stage.calls("save", "commit", "publish")]
    assert names[:4] == ["save", "save", "publish", "commit"]


@pytest.mark.parametrize("lowest", [True, False])
def test_only_the_owner_of_the_lowest_partition_publishes(stage: Stage, lowest: bool) -> None:
    """Of two members, the one that joined first owns partition 0."""
    members: list[MemorySource] = []
    join = Do(lambda: members.append(MemorySource(stage.topic)))
    meet: list[Step] = [Do(lambda: members[0].poll(0)), Pause()]
    if not lowest:
        join.act()
    worker = cast(stage, worker_config(EXACT), [join, *meet * 4] if lowest else meet * 4)
    worker.run()
    mine = worker.heard.of(PartitionsAssigned)[-1].positions
    assert list(mine) == [0 if lowest else 1]
    assert stage.position(next(iter(mine))) == 150
    assert bool(stage.calls("publish")) is lowest


def test_the_last_act_of_a_worker_is_to_publish_what_it_saved(stage: Stage) -> None:
    worker: Cast = cast(
        stage, worker_config(EXACT, checkpoint_interval_s=1e9), [50, Do(lambda: worker.worker.stop("SIGTERM")), Pause()]
    )
    worker.run()
    assert stage.models.versions() == [100]
    assert stage.journal[-1] == ("publish", 100)
