"""Checkpoints in a store: the newest intact one, pruning, and concurrent readers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from streampca.errors import DamagedFileError, NewerFormatError, StoreError
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import Crash, MemoryStore
from tests.fold.streams import checkpoint_of, fold_config, fold_of, vectors
from tests.stores.newer import newer

CONFIG = fold_config()


def checkpoint(position: int, partition: int = 0) -> Checkpoint:
    return checkpoint_of(replace(fold_of(vectors(30), CONFIG), position=position), CONFIG, partition)


def name_of(position: int, partition: int = 0) -> str:
    return f"checkpoints/readings/{partition}/{position:020d}.npz"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def checkpoints(store: MemoryStore) -> Checkpoints:
    return Checkpoints(store, "readings", keep=3)


def newest_position(checkpoints: Checkpoints, partition: int = 0) -> int | None:
    newest = checkpoints.newest(partition)
    return None if newest is None else newest.fold.position


def test_the_last_saved_is_the_newest(checkpoints: Checkpoints, store: MemoryStore) -> None:
    for position in (5, 20, 100):
        checkpoints.save(checkpoint(position))
        assert newest_position(checkpoints) == position
    assert store.read(name_of(100)) == encode(checkpoint(100))


def test_partitions_are_separate_and_listed_in_order(checkpoints: Checkpoints) -> None:
    for partition in (10, 2, 0):
        checkpoints.save(checkpoint(7 + partition, partition))
    assert checkpoints.partitions() == [0, 2, 10]
    assert newest_position(checkpoints, 10) == 17
    assert newest_position(checkpoints, 1) is None


def test_topics_are_separate(store: MemoryStore, checkpoints: Checkpoints) -> None:
    checkpoints.save(checkpoint(5))
    assert Checkpoints(store, "reading").newest(0) is None
    assert Checkpoints(store, "readings2").partitions() == []


def test_a_checkpoint_behind_the_newest_is_refused(checkpoints: Checkpoints) -> None:
    """A worker that the group has removed tries this while it does not know it, and one whose volume was swapped."""
    for position in (10, 20, 30):
        checkpoints.save(checkpoint(position))
    for position in (15, 5):
        with pytest.raises(StoreError, match=r"partition 0 at offset 30, which is ahead of"):
            checkpoints.save(checkpoint(position))
        assert newest_position(checkpoints) == 30
        assert checkpoints.offsets(0) == [10, 20, 30]


def test_no_checkpoint_ahead_of_the_one_just_written_is_deleted(checkpoints: Checkpoints, store: MemoryStore) -> None:
    for position in (10, 20, 30):
        checkpoints.save(checkpoint(position))
    for position in (20, 30):
        store.damage(name_of(position))
    for position in (11, 12, 13, 14):
        checkpoints.save(checkpoint(position))
    assert checkpoints.offsets(0) == [12, 13, 14, 20, 30]
    assert newest_position(checkpoints) == 14
    checkpoints.save(checkpoint(40))
    assert checkpoints.offsets(0) == [20, 30, 40]


def test_old_checkpoints_are_pruned_and_other_files_are_ignored(checkpoints: Checkpoints, store: MemoryStore) -> None:
    others = ["notes.txt", "0000.npz", f"{7:020d}.npz.bak", f"{7:021d}.npz", f"{'x' * 20}.npz", f"{7:020d}.tmp1"]
    for other in others:
        store.write(f"checkpoints/readings/0/{other}", b"?")
    store.write("checkpoints/readings/README", b"?")
    for position in (1, 2, 3, 10, 200):
        checkpoints.save(checkpoint(position))
    assert checkpoints.offsets(0) == [3, 10, 200]
    assert checkpoints.partitions() == [0]
    assert all(store.read(f"checkpoints/readings/0/{other}") == b"?" for other in others)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_newest_checkpoint_falls_back_and_is_logged(
    checkpoints: Checkpoints, store: MemoryStore, damage: str
) -> None:
    for position in (10, 20, 30):
        checkpoints.save(checkpoint(position))
    if damage == "flip":
        store.damage(name_of(30), 400)
    else:
        store.cut(name_of(30), 1000 if damage == "cut" else 0)
    with capture_logs() as logs:
        assert newest_position(checkpoints) == 20
    [line] = logs
    assert (line["log_level"], line["file"]) == ("error", name_of(30))
    assert "fall" in line["event"]


def test_a_damaged_checkpoint_is_replaced_when_its_offset_is_reached_again(
    checkpoints: Checkpoints, store: MemoryStore
) -> None:
    for position in (10, 20):
        checkpoints.save(checkpoint(position))
    store.damage(name_of(20))
    assert newest_position(checkpoints) == 10
    checkpoints.save(checkpoint(20))
    assert newest_position(checkpoints) == 20


def test_a_newer_release_s_checkpoint_is_waited_for(checkpoints: Checkpoints, store: MemoryStore) -> None:
    """A worker retries a `StoreError`, so an old one waits in a rolling upgrade, and never learns again from 10."""
    for position in (10, 20):
        checkpoints.save(checkpoint(position))
    store.write(name_of(20), newer(store.read(name_of(20)), "checkpoint"))
    with capture_logs() as logs, pytest.raises(NewerFormatError, match="nothing is damaged"):
        checkpoints.newest(0)
    assert logs == []


def test_it_is_an_error_when_every_checkpoint_is_damaged(checkpoints: Checkpoints, store: MemoryStore) -> None:
    for position in (10, 20, 30):
        checkpoints.save(checkpoint(position))
        store.damage(name_of(position))
    with capture_logs() as logs, pytest.raises(DamagedFileError) as error:
        checkpoints.newest(0)
    assert len(logs) == 3
    text = str(error.value)
    assert "\n" not in text
    assert all(name_of(position) in text for position in (10, 20, 30))


def test_a_checkpoint_that_could_not_be_loaded_is_not_written(checkpoints: Checkpoints, store: MemoryStore) -> None:
    checkpoints.save(checkpoint(10))
    good = checkpoint(20).fold
    fold = replace(good, state=replace(good.state, mean=good.state.mean * np.nan))
    with pytest.raises(DamagedFileError, match=r"partition 0 cannot be saved.*not finite"):
        checkpoints.save(checkpoint_of(fold, CONFIG))
    assert checkpoints.offsets(0) == [10]


def test_a_failed_write_changes_nothing(checkpoints: Checkpoints, store: MemoryStore) -> None:
    for position in (10, 20, 30):
        checkpoints.save(checkpoint(position))
    store.fail_writes(1)
    with pytest.raises(StoreError):
        checkpoints.save(checkpoint(40))
    store.fail_writes(1, Crash())
    with pytest.raises(Crash):
        checkpoints.save(checkpoint(40))
    assert checkpoints.offsets(0) == [10, 20, 30]
    assert newest_position(checkpoints) == 30


def test_nothing_is_written_into_the_folder_that_a_volume_was_mounted_on(tmp_path: Path) -> None:
    mount, away = tmp_path / "volume", tmp_path / "away"
    checkpoints = Checkpoints(DirectoryStore(mount), "readings")
    checkpoints.save(checkpoint(10))
    mount.rename(away)
    mount.mkdir()
    with pytest.raises(StoreError, match="no longer holds the checkpoint of partition 0 at offset 10"):
        checkpoints.save(checkpoint(20))
    assert list(mount.iterdir()) == []
    mount.rmdir()
    away.rename(mount)
    checkpoints.save(checkpoint(30))
    assert checkpoints.offsets(0) == [10, 30]


class ConcurrentlyPrunedStore(MemoryStore):
    """A store in which another worker saves and prunes right after each listing."""

    def __init__(self) -> None:
        super().__init__()
        self.after_listing: list[int] = []

    def names(self, folder: str) -> list[str]:
        names = super().names(folder)
        if names and self.after_listing:
            position, self.after_listing = self.after_listing[0], self.after_listing[1:]
            self.write(name_of(position), encode(checkpoint(position)))
            for name in names:
                self.delete(name)
        return names


def test_a_reader_whose_files_are_pruned_finds_newer_ones() -> None:
    store = ConcurrentlyPrunedStore()
    checkpoints = Checkpoints(store, "readings")
    checkpoints.save(checkpoint(10))
    store.after_listing = [20, 30, 40]
    assert newest_position(checkpoints) == 40
