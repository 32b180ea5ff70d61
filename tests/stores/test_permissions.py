"""A store's files hold raw vectors: others on the machine cannot read them."""

import os
from pathlib import Path

from streampca.stores.directory import DirectoryStore


def test_files_and_folders_are_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = DirectoryStore(tmp_path / "store")
        store.check()
        store.write("a/b/file.npz", b"data")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [store.root, *store.root.rglob("*")]}
    assert modes == {"store": 0o750, "a": 0o750, "b": 0o750, "file.npz": 0o640}
