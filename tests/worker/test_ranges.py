"""Many partitions are merged by ranges: workers write subtotals, and the publisher merges these."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from streampca.consumer_group.listener import PartitionsAssigned
from streampca.errors import SettingsError, StoreError
from streampca.sources.memory import Do, MemorySource, Pause, Step
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stream import subtotal as files
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.model_file import PublishedModel, encode
from streampca.worker import ranges
from streampca.worker.publisher import Publisher
from tests.stream.streams import D, checkpoint_of, covariance, fold_config, fold_of, vectors
from tests.worker.harness import Environment, make_worker, worker_config

EXACT = fold_config(components=D)
FADING = fold_config(components=D, half_life_seconds=10.0)
PARTITIONS = 7  # ranges of two: 0 and 1, 2 and 3, 4 and 5, 6 alone


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "size", lambda partitions: 2)
    monkeypatch.setattr(ranges, "FEWEST", 4)


class Group:
    """A store with checkpoints of all partitions, and publishers that share it."""

    def __init__(self, config: FoldConfig = EXACT) -> None:
        self.config, self.store = config, MemoryStore()
        self.checkpoints, self.models = Checkpoints(self.store, "readings"), Models(self.store, "readings")
        for partition in range(PARTITIONS):
            self.save(partition, 100 + partition)

    def save(self, partition: int, n: int) -> Checkpoint:
        stamps = [10**12 + 3000 * partition] * n
        fold = fold_of(vectors(n, seed=partition) + partition, self.config, stamps)
        checkpoint = checkpoint_of(fold, self.config, partition)
        self.checkpoints.save(checkpoint)
        return checkpoint

    def worker(self, now: float = 2e9) -> Publisher:
        """The publisher of one worker."""
        return Publisher(self.checkpoints, self.models, self.config, lambda: now)

    def written(self, number: int) -> list[int]:
        return self.checkpoints.subtotals.progress(number)


@pytest.fixture(params=[EXACT, FADING, fold_config(), fold_config(dtype="float32")], ids=["all", "fade", "k", "f32"])
def group(request: pytest.FixtureRequest) -> Group:
    return Group(request.param)


def published(worker: Publisher, *, complete: bool = False) -> PublishedModel:
    publication = worker.publish(complete=complete)
    assert publication is not None
    return publication.model


def test_ranges_are_neighbouring_partitions() -> None:
    assert ranges.split({5: 50, 0: 0, 1: 10, 7: 70}) == {0: {0: 0, 1: 10}, 2: {5: 50}, 3: {7: 70}}
    assert ranges.split({0: 0, 1: 10, 2: 20}) == {}


def test_the_owner_of_the_lowest_partition_owns_a_range() -> None:
    assert ranges.owned([1, 2, 3, 4], range(5)) == (1, 2)
    assert ranges.owned([0, 2], range(3)) == ()


def test_a_range_is_about_as_large_as_there_are_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [ranges.size(n) for n in (64, 255, 256, 1000, 1024)] == [8, 8, 16, 16, 32]
    for n in (64, 100, 256, 1000):
        by_range = ranges.split(dict.fromkeys(range(n), 1))
        assert sorted(by_range) == list(ranges.owned(range(n), range(n)))
        assert {p for of_range in by_range.values() for p in of_range} == set(range(n))
    assert ranges.split(dict.fromkeys(range(63), 1)) == {}


def test_a_subtotal_of_other_partitions_is_not_used(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic had fewer partitions, and smaller ranges, when it was written."""
    with monkeypatch.context() as patched:
        patched.setattr(ranges, "size", lambda partitions: 1)
        group.worker().merge_ranges([1])
    wrong = group.store.read(f"checkpoints/readings/subtotals/1/{101:020d}.npz")
    group.store.write(f"checkpoints/readings/subtotals/1/{204:020d}.npz", wrong)
    group.worker().merge_ranges([0])
    assert encode(published(group.worker())) == encode(published(Group(group.config).worker()))


@pytest.mark.parametrize("merged", [(), (0,), (1, 3), (0, 1, 2, 3)])
def test_the_bits_of_a_model_do_not_depend_on_who_merged_the_ranges(group: Group, merged: tuple[int, ...]) -> None:
    alone, others = Group(group.config), [group.worker() for _ in merged]
    for worker, number in zip(others, merged, strict=True):
        worker.merge_ranges([number])
    assert encode(published(group.worker())) == encode(published(alone.worker()))


@pytest.mark.parametrize("config", [EXACT, FADING])
def test_the_model_is_that_of_all_messages(config: FoldConfig) -> None:
    group = Group(config)
    parts = [vectors(100 + p, seed=p) + p for p in range(PARTITIONS)]
    ages = [3000 * (PARTITIONS - 1 - p) for p in range(PARTITIONS)]
    weights = np.repeat([config.decay(age) for age in ages], [len(part) for part in parts])
    model = published(group.worker())
    found = model.model.components.T * model.model.explained_variance @ model.model.components
    np.testing.assert_allclose(found, covariance(np.vstack(parts), weights), atol=1e-9)
    assert model.model.weight == pytest.approx(weights.sum())
    assert model.positions == {p: 100 + p for p in range(PARTITIONS)}
    assert model.version == sum(len(part) for part in parts)
    assert model.subspace_error is not None


def test_a_merged_range_is_not_read_partition_by_partition(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.worker().merge_ranges([0, 1, 2, 3])
    monkeypatch.setattr(group.checkpoints, "newest", lambda *_, **__: pytest.fail("read a checkpoint"))
    assert published(group.worker()).version == sum(100 + p for p in range(PARTITIONS))


def test_a_range_is_merged_again_only_after_it_moved(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = group.worker()
    worker.merge_ranges([0, 1])
    assert (group.written(0), group.written(1), group.written(2)) == ([201], [205], [])
    saved = [group.save(0, 150)]
    with monkeypatch.context() as patched:
        patched.setattr(group.checkpoints, "save", lambda *_: pytest.fail("saved"))
        worker.merge_ranges([0, 1], worker.parts(saved))
    assert (group.written(0), group.written(1)) == ([201, 251], [205])
    before = dict(group.store._files)
    worker.merge_ranges([0, 1])
    assert group.store._files == before
    group.save(1, 170)
    worker.merge_ranges([0])
    assert group.written(0) == [251, 320]


def test_few_partitions_have_no_subtotals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "FEWEST", PARTITIONS + 1)
    group = Group()
    group.worker().merge_ranges([0, 1])
    assert published(group.worker()).positions == {p: 100 + p for p in range(PARTITIONS)}
    assert group.written(0) == []


def test_a_model_may_be_behind_by_one_publication(group: Group) -> None:
    publisher, other = group.worker(), group.worker()
    other.merge_ranges([0, 1, 2, 3])
    group.save(2, 200)
    assert published(publisher).positions[2] == 102
    assert published(publisher).positions[2] == 200  # its owner is slow, or dead: the publisher merges the range
    group.save(3, 250)
    other.merge_ranges([1])
    group.save(2, 300)
    assert published(publisher).positions[3] == 250
    assert published(publisher).positions[2] == 300
    assert publisher.publish(complete=False) is None


def test_a_complete_model_is_that_of_the_newest_checkpoints(group: Group) -> None:
    group.worker().merge_ranges([0, 1, 2, 3])
    group.save(2, 200)
    assert published(group.worker(), complete=True).positions == {p: 100 + p for p in range(PARTITIONS)} | {2: 200}


def test_a_new_partition_counts_with_its_range(group: Group) -> None:
    group.worker().merge_ranges([3])
    published(group.worker())
    group.save(7, 70)
    assert published(group.worker()).positions[7] == 70


def test_a_damaged_subtotal_is_merged_again(group: Group) -> None:
    group.worker().merge_ranges([0, 1, 2, 3])
    group.store.damage(f"checkpoints/readings/subtotals/1/{205:020d}.npz")
    assert encode(published(group.worker())) == encode(published(Group(group.config).worker()))


def test_a_subtotal_of_other_settings_is_not_used(group: Group) -> None:
    other = Group(replace(group.config, half_life_messages=7.0))
    other.worker().merge_ranges([1])
    name = f"checkpoints/readings/subtotals/1/{205:020d}.npz"
    group.store.write(name, other.store.read(name))
    assert encode(published(group.worker())) == encode(published(Group(group.config).worker()))
    group.store.write(
        f"checkpoints/readings/2/{300:020d}.npz", other.store.read(f"checkpoints/readings/2/{102:020d}.npz")
    )


def test_checkpoints_of_other_settings_are_refused_by_whoever_merges_them(group: Group) -> None:
    other = replace(group.config, half_life_messages=7.0)
    group.checkpoints.save(checkpoint_of(fold_of(vectors(300), other), other, partition=3))
    with pytest.raises(SettingsError, match="partition 3"):
        group.worker().merge_ranges([1])
    with pytest.raises(SettingsError, match="partition 3"):
        group.worker().publish()


def test_ranges_without_messages_do_no_harm() -> None:
    group = Group()
    for partition in (8, 9):
        group.checkpoints.save(checkpoint_of(Fold.empty(EXACT.learning).skip(7), EXACT, partition))
    group.worker().merge_ranges([4])
    assert group.written(4) == [14]
    assert published(group.worker()).version == sum(100 + p for p in range(PARTITIONS))


def test_subtotals_are_functions_of_the_positions() -> None:
    one, two = Group(), Group()
    one.worker(now=2e9).merge_ranges([1])
    two.store.delete(f"checkpoints/readings/5/{105:020d}.npz")
    two.worker(now=3e9).merge_ranges([1])
    name = f"checkpoints/readings/subtotals/1/{205:020d}.npz"
    assert one.store.read(name) == two.store.read(name)
    assert files.decode(one.store.read(name)).positions == {2: 102, 3: 103}


# In a worker.


@pytest.fixture
def env() -> Iterator[Environment]:
    env = Environment(partitions=6, fold_config=EXACT)
    for partition in range(6):
        env.send(partition, vectors(150, seed=partition) + partition)
    yield env
    assert env.violations == []


def test_a_worker_merges_its_ranges_after_saving_and_before_publishing(env: Environment) -> None:
    make_worker(env, script=[1000] * 6).run()
    names = [entry[0] for entry in env.calls("save", "merge", "publish", "commit")]
    assert names.index("save") < names.index("merge") < names.index("publish") < names.index("commit")
    newest = env.models.newest()
    assert newest is not None
    assert newest.positions == dict.fromkeys(range(6), 150)


def test_a_worker_that_does_not_publish_merges_its_ranges(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "size", lambda partitions: 3)
    monkeypatch.setattr(ranges, "FEWEST", 3)  # the other member saves nothing
    members: list[MemorySource] = []
    join = Do(lambda: members.append(MemorySource(env.topic)))
    rebalance: list[Step] = [Do(lambda: members[0].poll(0)), Pause()]
    join.act()
    members[0].poll(0)  # joins, and owns the lowest partition
    worker = make_worker(env, worker_config(EXACT), rebalance * 6)
    worker.run()
    assert list(worker.recorder.of_type(PartitionsAssigned)[-1].positions) == [1, 3, 5]
    assert env.calls("publish") == []
    assert {entry[1] for entry in env.calls("merge")} == {1}
    assert env.checkpoints.subtotals.progress(1)[-1] == 300


def test_a_failed_merge_is_retried(env: Environment) -> None:
    group = Group()
    group.store.fail_writes(1)
    with pytest.raises(StoreError):
        group.worker().merge_ranges([0])
    group.worker().merge_ranges([0])
    assert group.written(0) == [201]
