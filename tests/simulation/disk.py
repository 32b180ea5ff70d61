"""A disk for `DirectoryStore`: what is not flushed may be torn, reordered or lost when the power fails.

A volume is the disk or the file server, a mount is how one machine sees it: its calls may fail, and its listings may be
as old as those of network file systems. `installed` lets `DirectoryStore` use mounts as folders.
"""

import errno
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from streampca.stores import directory
from tests.simulation.scheduler import Process

STALE_S = 8.0  # longest time for which a mount shows a folder as it was; a minute in reality


@dataclass(eq=False)
class File:
    """`flushed` is what survives a power failure for certain."""

    data: bytes = b""
    flushed: bytes | None = None
    is_whole: bool = False  # everything was written
    is_damaged: bool = False  # by a fault, not by a writer


FOLDER = File()
Changes = dict[str, File | None]


class Volume:
    """The files and folders of one disk, and what of them is certain to survive."""

    def __init__(self) -> None:
        self.entries: dict[str, File] = {"/": FOLDER}  # what all mounts see
        self.durable: dict[str, File] = {"/": FOLDER}
        self._unflushed: list[tuple[str, Changes]] = []  # folder, and its entries that changed in one step

    def change(self, folder: str, changes: Changes) -> None:
        """Change entries of a folder in one step: None removes one."""
        _apply(self.entries, changes)
        self._unflushed.append((folder, changes))

    def flush_folder(self, folder: str) -> None:
        """Make all changes of a folder's entries durable."""
        for changed, changes in self._unflushed:
            if changed == folder:
                _apply(self.durable, changes)
        self._unflushed = [entry for entry in self._unflushed if entry[0] != folder]

    def lose_power(self, random: Random) -> None:
        """Lose some of what is not flushed, in any combination."""
        for _, changes in self._unflushed:
            if random.random() < 0.5:
                _apply(self.durable, changes)
        self._unflushed = []
        self.durable = {path: file for path, file in self.durable.items() if _has_parents(self.durable, path)}
        for file in self.durable.values():
            if file is not FOLDER and file.flushed != file.data:
                file.data, file.is_whole = file.data[: random.randrange(len(file.data) + 1)], False
        self.entries = dict(self.durable)

    def is_durable(self, path: str) -> bool:
        """Whether the file is certain to survive."""
        file = self.durable.get(path)
        return file is not None and file.flushed == file.data and _has_parents(self.durable, path)

    def names(self, folder: str) -> list[str]:
        """The entries of a folder."""
        start = len(folder) + 1
        below = (path[start:] for path in self.entries if path.startswith(folder) and path[start - 1 : start] == "/")
        return [name for name in below if "/" not in name]

    def files(self, folder: str) -> list[str]:
        """The paths of the visible files below a folder, sorted."""
        found = (path for path, file in self.entries.items() if path.startswith(folder) and file is not FOLDER)
        return sorted(path for path in found if "~" not in path)


class Mount:
    """How the machine of one process sees the volume that is mounted now."""

    def __init__(self, mounted: Callable[[], Volume], changed: Callable[[str], object], report: Callable[[str], object]):
        self._mounted, self.changed, self.report = mounted, changed, report
        self.process: Process | None = None
        self.failing: set[str] = set()  # read, write: calls that fail now
        self.stale_until = 0.0
        self._listings: dict[str, tuple[float, Volume, set[str]]] = {}

    @property
    def volume(self) -> Volume:
        return self._mounted()

    @property
    def now(self) -> float:
        return self.process.scheduler.now if self.process else 0.0

    def call(self, name: str, kind: str, path: str) -> None:
        """Take the time of a system call, and fail if the disk does."""
        if self.process is None:
            return
        self.process.call(name)
        if kind in self.failing:
            number = errno.EIO if kind == "read" else errno.ENOSPC
            raise OSError(number, os.strerror(number), path)

    def names(self, folder: str) -> set[str]:
        """The names in a folder, perhaps of some time ago."""
        at, volume, names = self._listings.get(folder, (-STALE_S, self.volume, set()))
        if self.now >= self.stale_until or self.now - at >= STALE_S or volume is not self.volume:
            names = set(self.volume.names(folder))
            self._listings[folder] = self.now, self.volume, names
        return names

    def change(self, folder: str, changes: Changes) -> None:
        """Change entries; this machine's own changes are in its listings at once."""
        self.volume.change(folder, changes)
        if folder in self._listings:
            for path, file in changes.items():
                names = self._listings[folder][2]
                (names.discard if file is None else names.add)(posixpath.basename(path))
        for path in changes:
            self.changed(path)


class MountedPath:
    """The part of `pathlib.Path` that `DirectoryStore` uses."""

    def __init__(self, mount: Mount, path: str = "/") -> None:
        self.mount, self.path = mount, path

    def __truediv__(self, name: str) -> "MountedPath":
        return MountedPath(self.mount, posixpath.join(self.path, name))

    def __str__(self) -> str:
        return self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MountedPath) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "MountedPath":
        return MountedPath(self.mount, posixpath.dirname(self.path))

    def with_name(self, name: str) -> "MountedPath":
        return self.parent / name

    def is_relative_to(self, other: "MountedPath") -> bool:
        return self.path == other.path or self.path.startswith(other.path + "/")

    def is_dir(self) -> bool:
        return self.mount.volume.entries.get(self.path) is FOLDER

    def mkdir(self, mode: int = 0o777, exist_ok: bool = False) -> None:
        self.mount.call("mkdir", "write", self.path)
        _need_folder(self.mount.volume, self.parent.path)
        if not self.is_dir():
            self.mount.change(self.parent.path, {self.path: FOLDER})

    def replace(self, target: "MountedPath") -> None:
        self.mount.call("rename", "write", self.path)
        file = self.mount.volume.entries.get(self.path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        _need_folder(self.mount.volume, target.parent.path)
        self.mount.change(target.parent.path, {self.path: None, target.path: file})
        self.mount.call("renamed", "", self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        self.mount.call("unlink", "write", self.path)
        if self.path in self.mount.volume.entries:
            self.mount.change(self.parent.path, {self.path: None})
        elif not missing_ok:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def read_bytes(self) -> bytes:
        self.mount.call("read", "read", self.path)
        file = self.mount.volume.entries.get(self.path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        if not (file.is_whole or file.is_damaged):
            self.mount.report(f"{self.path} was read before it was whole")
        return file.data

    def iterdir(self) -> Iterator["MountedPath"]:
        self.mount.call("list", "read", self.path)
        _need_folder(self.mount.volume, self.path)
        return iter([self / name for name in sorted(self.mount.names(self.path))])

    def stat(self) -> Any:
        return SimpleNamespace(st_mtime=self.mount.now)


class _OpenFile:
    """A file that is being written."""

    def __init__(self, path: MountedPath) -> None:
        self._path, self._file = path, File()
        path.mount.call("open", "write", path.path)
        _need_folder(path.mount.volume, path.parent.path)
        path.mount.change(path.parent.path, {path.path: self._file})

    def __enter__(self) -> "_OpenFile":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        self._file.data = data[: len(data) // 2]
        self._path.mount.call("write", "write", self._path.path)
        self._file.data, self._file.is_whole = data, True

    def flush(self) -> None:
        pass

    def fileno(self) -> "_OpenFile":
        return self

    def fsync(self) -> None:
        self._path.mount.call("fsync", "write", self._path.path)
        self._file.flushed = self._file.data


class _OpenFolder:
    def __init__(self, path: MountedPath) -> None:
        self._path = path
        _need_folder(path.mount.volume, path.path)

    def fsync(self) -> None:
        self._path.mount.call("fsync folder", "write", self._path.path)
        self._path.mount.volume.flush_folder(self._path.path)


@contextmanager
def installed() -> Iterator[None]:
    """Let `DirectoryStore` use a `MountedPath` as its folder."""
    fake_os = SimpleNamespace(
        O_RDONLY=os.O_RDONLY,
        O_DIRECTORY=os.O_DIRECTORY,
        open=lambda path, flags: _OpenFolder(path),
        close=lambda handle: None,
        fsync=lambda handle: handle.fsync(),
        walk=lambda root: [],  # `check` looks for what was left an hour ago
    )
    fakes = {"os": fake_os, "Path": lambda path: path, "open": lambda path, mode, opener: _OpenFile(path)}
    with mock.patch.multiple(directory, create=True, **fakes):
        yield


def _apply(entries: dict[str, File], changes: Changes) -> None:
    for path, file in changes.items():
        if file is None:
            entries.pop(path, None)
        else:
            entries[path] = file


def _has_parents(entries: dict[str, File], path: str) -> bool:
    return path == "/" or entries.get(parent := posixpath.dirname(path)) is FOLDER and _has_parents(entries, parent)


def _need_folder(volume: Volume, path: str) -> None:
    if volume.entries.get(path) is not FOLDER:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
