"""Files that are listed but gone, unreadable, or in another file's place: never taken for "no checkpoint"."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from streampca.errors import DamagedFileError, StaleListingError, StoreError
from streampca.fold.checkpoint import encode
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.fold.streams import checkpoint_of, fold_of, vectors
from tests.fold.test_model_file import a_published
from tests.stores.test_checkpoints import CONFIG, checkpoint, name_of, newest_position


class Stale(MemoryStore):
    """Lists folders as they were, like a network file system that caches them; and some files cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[str, list[str]] = {}
        self.unreadable: set[str] = set()

    def freeze(self, folder: str) -> None:
        self.listed[folder] = super().names(folder)

    def names(self, folder: str) -> list[str]:
        return self.listed.get(folder) or super().names(folder)

    def read(self, name: str) -> bytes:
        if name in self.unreadable:
            raise StoreError(f"cannot read {name}: Input/output error (the disk is failing)")
        return super().read(name)


@pytest.fixture
def store() -> Stale:
    return Stale()


@pytest.fixture
def checkpoints(store: Stale) -> Checkpoints:
    for position in (10, 20, 30):
        Checkpoints(store, "readings").save(checkpoint(position))
    return Checkpoints(store, "readings")


def prune_behind_the_listing(store: Stale) -> None:
    store.freeze("checkpoints/readings/0")
    for position in (10, 20, 30):
        store.delete(name_of(position))
        store.write(name_of(100 + position), encode(checkpoint(100 + position)))


def test_a_listing_whose_files_are_all_gone_is_an_error(checkpoints: Checkpoints, store: Stale) -> None:
    prune_behind_the_listing(store)
    with pytest.raises(StaleListingError, match="every checkpoint of partition 0 that the store lists is gone"):
        checkpoints.newest(0)
    store.listed.clear()
    assert newest_position(checkpoints) == 130


def test_a_damaged_file_in_a_stale_listing_does_not_count_as_all_damaged(
    checkpoints: Checkpoints, store: Stale
) -> None:
    store.damage(name_of(20))
    store.freeze("checkpoints/readings/0")
    store.delete(name_of(10))
    store.delete(name_of(30))
    with pytest.raises(StaleListingError):
        checkpoints.newest(0)


def test_a_listing_of_models_that_are_all_gone_is_an_error(store: Stale) -> None:
    models = Models(store, "readings")
    models.save(a_published(1))
    store.freeze("models/readings")
    store.delete(f"models/readings/{1:020d}.npz")
    with pytest.raises(StaleListingError, match="models/readings"):
        models.newest()


def test_an_unreadable_newest_falls_back_to_the_one_before(checkpoints: Checkpoints, store: Stale) -> None:
    store.unreadable.add(name_of(30))
    with capture_logs() as logs:
        assert newest_position(checkpoints) == 20
    [line] = logs
    assert (line["log_level"], line["file"]) == ("error", name_of(30))
    assert "Input/output error" in line["error"]
    store.unreadable.clear()  # it was one failed read
    checkpoints.save(checkpoint(25))
    assert checkpoints.offsets(0) == [10, 20, 25, 30]


def test_when_none_can_be_read_a_retry_may_help(checkpoints: Checkpoints, store: Stale) -> None:
    store.unreadable |= {name_of(position) for position in (10, 20, 30)}
    with capture_logs() as logs, pytest.raises(StoreError, match="Input/output error"):
        checkpoints.newest(0)
    assert logs == []
    store.unreadable.discard(name_of(10))
    store.damage(name_of(10))
    with pytest.raises(StoreError, match="Input/output error"):
        checkpoints.newest(0)


OTHERS = {
    "offset": encode(checkpoint(29)),
    "partition": encode(checkpoint(30, partition=1)),
    "topic": encode(replace(checkpoint_of(replace(fold_of(vectors(30), CONFIG), position=30), CONFIG), topic="other")),
}


@pytest.mark.parametrize("differs", OTHERS)
def test_a_checkpoint_in_anothers_place_is_skipped(checkpoints: Checkpoints, store: Stale, differs: str) -> None:
    store.write(name_of(30), OTHERS[differs])
    with capture_logs() as logs:
        assert newest_position(checkpoints) == 20
    [line] = logs
    assert "it holds the checkpoint of topic" in line["error"]


def test_a_checkpoint_in_anothers_place_is_no_start(store: Stale) -> None:
    store.write(name_of(30), OTHERS["partition"])
    with pytest.raises(DamagedFileError, match="every checkpoint of partition 0 is damaged"):
        Checkpoints(store, "readings").newest(0)
