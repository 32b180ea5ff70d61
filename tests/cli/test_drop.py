"""`streampca reset --drop` and `streampca backfill --remove` delete a partition or backfill, and the models with it."""

from pathlib import Path

import pytest

from streampca.cli.drop import drop
from streampca.errors import SettingsError, StreampcaError
from streampca.fold.partitions import backfill_partition, parse_partition, partition_name
from streampca.settings.process import StoreSettings
from streampca.stores.checkpoints import Checkpoints, name_folder
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.worker.publisher import Publisher
from tests.errors import refusal
from tests.example_models import file_of, of_format
from tests.fold.streams import CONFIG, make_checkpoint, make_fold, vectors

BACKFILL = backfill_partition(0)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """With a pinned model of partition 1, and one of partitions 0 and 1 and a backfill."""
    store = DirectoryStore(tmp_path)
    checkpoints = Checkpoints(store, "readings")
    for partitions in ([1], [0, BACKFILL]):
        for partition in partitions:
            checkpoints.save(make_checkpoint(make_fold(vectors(30), CONFIG), CONFIG, partition))
        Publisher(Models(store, "readings"), CONFIG, lambda: 0.0).publish(checkpoints)
    for version in (30, 90):
        Pins(store, "readings").set(f"pin-{version}", version)
    return store


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize(("partition", "name"), [(0, "partition 0"), (BACKFILL, "backfill-0")])
def test_what_is_left_of_it_is_deleted_with_the_models_that_contain_it(
    store: DirectoryStore, partition: int, name: str, is_gone: bool
) -> None:
    """Also if its checkpoints are gone: by a rule, or by a drop that was killed."""
    settings = StoreSettings(topic="readings", store=store.location)
    if is_gone:
        for path in store.names(name_folder("readings", partition)):
            store.delete(path)
    before = store.names("models/readings")
    refusal(StreampcaError, drop, settings, partition, lambda question: False)
    assert store.names("models/readings") == before
    asked: list[str] = []
    deleted: list[bool] = []

    def agree(question: str) -> bool:
        asked.append(question)
        return True

    drop(settings, partition, agree, lambda: deleted.append(True))
    what = f"{name} of readings, and the 1 models that contain it, among them what is pinned as pin-90 (90)"
    assert asked == [f"Delete {what}? Stop the workers first"]
    assert deleted == [True]
    assert Checkpoints(store, "readings").offsets(partition) == []
    assert Models(store, "readings").versions() == [30]
    assert Pins(store, "readings").all() == {"pin-30": 30}
    assert f"has no {name} of readings" in refusal(SettingsError, drop, settings, partition, None)


def test_a_model_of_a_release_that_is_too_old_stays_and_does_not_end_the_drop(store: DirectoryStore) -> None:
    old_model = file_of(30)
    store.write(old_model, of_format(1, store.read(old_model), "model"))
    drop(StoreSettings(topic="readings", store=store.location), 0, None)
    assert Checkpoints(store, "readings").offsets(0) == []
    assert Models(store, "readings").versions() == [30]


@pytest.mark.parametrize("partition", [0, 7, 2**31 - 1, BACKFILL, BACKFILL + 12])
def test_a_name_of_a_partition_is_read_as_it_is_shown(partition: int) -> None:
    assert parse_partition(partition_name(partition)) == partition


@pytest.mark.parametrize("name", ["", "backfill-", "-1", "1.5", "backfill-x", "backfill", "x", "\u00b2"])
def test_other_names_are_no_partition(name: str) -> None:
    assert parse_partition(name) is None
