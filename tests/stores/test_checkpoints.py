"""Checkpoints in a store: the newest intact one, pruning, concurrent readers, and listings that are stale."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from structlog.typing import EventDict

from streampca.errors import DamagedFileError, NewerFormatError, StaleListingError, StoreError
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.stores.checkpoints import Checkpoints
from tests.errors import refusal
from tests.example_models import newer
from tests.fold.streams import fold_config, make_checkpoint, make_fold, vectors
from tests.in_memory.store import Crash, FaultyStore

CONFIG = fold_config()
Logs = list[EventDict]


def checkpoint(position: int, partition: int = 0) -> Checkpoint:
    return make_checkpoint(replace(make_fold(vectors(30), CONFIG), position=position), CONFIG, partition)


def name_file(position: int, partition: int = 0) -> str:
    return f"checkpoints/readings/{partition}/{position:020d}.npz"


class StaleStore(FaultyStore):
    """Lists frozen folders as they were, like a network file system that caches them. Some files cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen: dict[str, list[str]] = {}  # folder → the names in it when it was frozen
        self.unreadable: set[str] = set()
        # Positions that another worker saves, one after each listing. It then deletes the listed files.
        self.saved_after_listing: list[int] = []

    def freeze(self, folder: str) -> None:
        self.frozen[folder] = super().names(folder)

    def names(self, folder: str) -> list[str]:
        names = self.frozen.get(folder) or super().names(folder)
        if self.saved_after_listing:
            position = self.saved_after_listing.pop(0)
            self.write(name_file(position), encode(checkpoint(position)))
            for name in names:
                self.delete(name)
        return names

    def read(self, name: str) -> bytes:
        if name in self.unreadable:
            raise StoreError(f"cannot read {name}: Input/output error (the disk is failing)")
        return super().read(name)


@pytest.fixture
def store() -> StaleStore:
    return StaleStore()


@pytest.fixture
def checkpoints(store: StaleStore) -> Checkpoints:
    return Checkpoints(store, "readings", keep=3)


@pytest.fixture
def three_saved(checkpoints: Checkpoints) -> Checkpoints:
    """Checkpoints of partition 0 at the offsets 10, 20 and 30."""
    save(checkpoints, 10, 20, 30)
    return checkpoints


def save(checkpoints: Checkpoints, *positions: int) -> None:
    for position in positions:
        checkpoints.save(checkpoint(position))


def newest_position(checkpoints: Checkpoints, partition: int = 0) -> int | None:
    newest = checkpoints.newest(partition)
    return None if newest is None else newest.fold.position


def assert_falls_back(three_saved: Checkpoints, logs: Logs, cause: str = "") -> None:
    """Assert that the checkpoint at 20 is loaded, since the one at 30 is damaged, and that this is logged."""
    assert newest_position(three_saved) == 20
    [line] = logs
    assert (line["log_level"], line["file"]) == ("error", name_file(30))
    assert line["event"] == "checkpoint damaged, falling back"
    assert cause in line["error"]


def test_topics_and_partitions_are_separate_and_listed_in_order(store: StaleStore, checkpoints: Checkpoints) -> None:
    for partition in (10, 2, 0):
        checkpoints.save(checkpoint(7 + partition, partition))
    assert checkpoints.partitions() == [0, 2, 10]
    assert newest_position(checkpoints, 10) == 17
    assert newest_position(checkpoints, 1) is None
    assert Checkpoints(store, "reading").newest(0) is None
    assert Checkpoints(store, "readings2").partitions() == []


class DyingStore(StaleStore):
    """Dies at a change of the store, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_until_death = -1  # never

    def write(self, name: str, data: bytes) -> None:
        self._count()
        super().write(name, data)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)

    def _count(self) -> None:
        if self.changes_until_death == 0:
            raise Crash
        self.changes_until_death -= 1


@pytest.mark.parametrize("position", [5, 20, 25, 30, 40])
@pytest.mark.parametrize("changes", [-1, 0, 1, 2, 3])
def test_a_replacement_leaves_one_checkpoint_and_can_be_repeated_after_a_crash(position: int, changes: int) -> None:
    """The new checkpoint may be behind all others, at the place of one of them, or ahead of them."""
    store = DyingStore()
    checkpoints = Checkpoints(store, "readings", keep=3)
    save(checkpoints, 10, 20, 30)
    before = checkpoint(30)
    after = replace(checkpoint(position), topic_id="id-2")
    store.changes_until_death = changes
    with suppress(Crash):
        checkpoints.replace(before, after)
    store.changes_until_death = -1
    newest = Checkpoints(store, "readings").newest(0)
    assert encode(newest) in (encode(before), encode(after))
    checkpoints.replace(newest, after)
    assert checkpoints.offsets(0) == [position]
    assert encode(checkpoints.newest(0)) == encode(after)


def test_a_checkpoint_that_could_not_be_read_replaces_none(three_saved: Checkpoints, store: StaleStore) -> None:
    wrong = checkpoint(40)
    wrong.fold.state.mean[0] = np.nan
    refusal(DamagedFileError, three_saved.replace, checkpoint(30), wrong)
    assert three_saved.offsets(0) == [10, 20, 30]


def test_a_checkpoint_behind_the_newest_is_refused(three_saved: Checkpoints) -> None:
    """A worker that the group has removed tries this while it does not know it, and one whose volume was swapped."""
    for position in (15, 5):
        assert "partition 0 at offset 30, which is ahead of" in refusal(StoreError, save, three_saved, position)
        assert newest_position(three_saved) == 30
        assert three_saved.offsets(0) == [10, 20, 30]


def test_no_checkpoint_ahead_of_the_one_just_written_is_deleted(three_saved: Checkpoints, store: StaleStore) -> None:
    for position in (20, 30):
        store.damage(name_file(position))
    save(three_saved, 11, 12, 13, 14)
    assert three_saved.offsets(0) == [12, 13, 14, 20, 30]
    assert newest_position(three_saved) == 14
    save(three_saved, 40)
    assert three_saved.offsets(0) == [20, 30, 40]


def test_old_checkpoints_are_pruned_and_other_files_are_ignored(checkpoints: Checkpoints, store: StaleStore) -> None:
    others = ["notes.txt", "0000.npz", f"{7:020d}.npz.bak", f"{7:021d}.npz", f"{'x' * 20}.npz", f"{7:020d}.tmp1"]
    for other in others:
        store.write(f"checkpoints/readings/0/{other}", b"?")
    store.write("checkpoints/readings/README", b"?")
    save(checkpoints, 1, 2, 3, 10, 200)
    assert checkpoints.offsets(0) == [3, 10, 200]
    assert checkpoints.partitions() == [0]
    assert all(store.read(f"checkpoints/readings/0/{other}") == b"?" for other in others)


NO_CHECKPOINTS: dict[str, tuple[Callable[[StaleStore], None], str]] = {
    "flip": (lambda store: store.damage(name_file(30), 400), ""),
    "cut": (lambda store: store.cut(name_file(30), 1000), ""),
    "empty": (lambda store: store.cut(name_file(30), 0), ""),
    **{
        differs: (
            lambda store, other=other: store.write(name_file(30), encode(other)),
            "it holds the checkpoint of topic",
        )
        for differs, other in {
            "offset": checkpoint(29),
            "partition": checkpoint(30, partition=1),
            "topic": replace(checkpoint(30), topic="other"),
        }.items()
    },
}


@pytest.mark.parametrize(("put", "cause"), NO_CHECKPOINTS.values(), ids=NO_CHECKPOINTS)
def test_if_the_newest_file_is_damaged_or_anothers_the_one_before_is_used_and_the_file_is_replaced_later(
    three_saved: Checkpoints, store: StaleStore, put: Callable[[StaleStore], None], cause: str, logs: Logs
) -> None:
    put(store)
    assert_falls_back(three_saved, logs, cause)
    save(three_saved, 30)
    assert newest_position(three_saved) == 30


def test_if_the_newest_checkpoint_cannot_be_read_it_is_an_error_and_no_fallback_is_used(
    three_saved: Checkpoints, store: StaleStore, logs: Logs
) -> None:
    store.unreadable.add(name_file(30))
    assert "Input/output error" in refusal(StoreError, three_saved.newest, 0)
    assert logs == []
    store.unreadable.clear()  # it was one failed read
    assert newest_position(three_saved) == 30


def test_a_checkpoint_of_a_newer_release_is_an_error_and_no_fallback_is_used(
    three_saved: Checkpoints, store: StaleStore, logs: Logs
) -> None:
    """A worker retries a `StoreError`, so an old one waits in a rolling upgrade, and never learns again from 20."""
    store.write(name_file(30), newer(store.read(name_file(30)), "checkpoint"))
    assert "nothing is damaged" in refusal(NewerFormatError, three_saved.newest, 0)
    assert logs == []


def test_if_every_checkpoint_is_damaged_it_is_an_error(three_saved: Checkpoints, store: StaleStore, logs: Logs) -> None:
    for position in (10, 20, 30):
        store.damage(name_file(position))
    text = refusal(DamagedFileError, lambda: three_saved.newest(0))
    assert len(logs) == 3
    assert text.startswith("every checkpoint of partition 0 is damaged")
    assert all(name_file(position) in text for position in (10, 20, 30))


def test_if_no_checkpoint_can_be_read_the_error_is_the_stores(
    three_saved: Checkpoints, store: StaleStore, logs: Logs
) -> None:
    store.unreadable |= {name_file(position) for position in (10, 20, 30)}
    assert "Input/output error" in refusal(StoreError, three_saved.newest, 0)
    assert logs == []
    store.unreadable.discard(name_file(30))
    store.damage(name_file(30))
    assert "Input/output error" in refusal(StoreError, three_saved.newest, 0)


def test_a_checkpoint_that_could_not_be_loaded_is_not_written(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    good = checkpoint(20).fold
    fold = replace(good, state=replace(good.state, mean=good.state.mean * np.nan))
    with pytest.raises(DamagedFileError, match=r"partition 0 cannot be saved.*not finite"):
        checkpoints.save(make_checkpoint(fold, CONFIG))
    assert checkpoints.offsets(0) == [10]


@pytest.mark.parametrize("error", [StoreError("disk full"), Crash()])
def test_a_failed_write_changes_nothing(three_saved: Checkpoints, store: StaleStore, error: BaseException) -> None:
    store.fail_writes(1, error)
    with pytest.raises(type(error)):
        save(three_saved, 40)
    assert three_saved.offsets(0) == [10, 20, 30]
    assert newest_position(three_saved) == 30


def test_a_reader_whose_files_are_pruned_finds_newer_ones(checkpoints: Checkpoints, store: StaleStore) -> None:
    save(checkpoints, 10)
    store.saved_after_listing = [20, 30, 40]
    assert newest_position(checkpoints) == 40


def test_a_listing_whose_files_are_all_gone_is_an_error(three_saved: Checkpoints, store: StaleStore) -> None:
    store.freeze("checkpoints/readings/0")
    for position in (10, 20, 30):
        store.delete(name_file(position))
        store.write(name_file(100 + position), encode(checkpoint(100 + position)))
    assert "every checkpoint of partition 0 that the store lists is gone" in refusal(
        StaleListingError, three_saved.newest, 0
    )
    store.frozen.clear()
    assert newest_position(three_saved) == 130


def test_a_damaged_file_in_a_stale_listing_does_not_count_as_all_damaged(
    three_saved: Checkpoints, store: StaleStore
) -> None:
    store.damage(name_file(20))
    store.freeze("checkpoints/readings/0")
    store.delete(name_file(10))
    store.delete(name_file(30))
    refusal(StaleListingError, three_saved.newest, 0)
