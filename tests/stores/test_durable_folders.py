"""Folders made by a write that failed, and old files that cannot be deleted."""

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streampca.errors import StoreError
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from tests.stores.test_checkpoints import checkpoint


def test_a_folder_made_by_a_write_that_failed_is_flushed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, fsync = DirectoryStore(tmp_path), os.fsync
    flushed: list[int] = []
    broken = [True]

    def flush(descriptor: int) -> None:
        if broken[0]:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)
        flushed.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", flush)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.write("a/b/c", b"data")
    broken[0] = False
    store.write("a/b/c", b"data")
    folders = [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    assert [folder.name for folder in folders if folder.stat().st_ino not in flushed] == []
    flushed.clear()
    store.write("a/b/c", b"data")
    assert len(flushed) == 2  # the file and its folder


def test_folders_of_a_process_that_was_killed_before_it_could_flush_them_are_flushed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    DirectoryStore(tmp_path).write("a/b/c", b"data")
    folders = [tmp_path.parent, tmp_path, tmp_path / "a"]
    assert [folder for folder in folders if folder.stat().st_ino not in flushed] == []


class Undeletable(MemoryStore):
    def delete(self, name: str) -> None:
        raise StoreError(f"cannot delete {name}: Operation not permitted")


def test_a_checkpoint_counts_as_saved_although_old_ones_cannot_be_deleted() -> None:
    checkpoints = Checkpoints(Undeletable(), "readings", keep=2)
    with capture_logs() as logs:
        for position in (1, 2, 3, 4):
            checkpoints.save(checkpoint(position))
    assert checkpoints.offsets(0) == [1, 2, 3, 4]
    assert [line["event"] for line in logs] == ["old files not deleted"] * 2
