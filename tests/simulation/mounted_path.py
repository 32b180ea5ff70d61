"""Paths on a mount, in place of `pathlib.Path` and `os` in `DirectoryStore`."""

import errno
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

from streampca.stores import directory
from tests.simulation.disk import FOLDER, File, Mount, Volume


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

    def absolute(self) -> "MountedPath":
        return self

    def mkdir(self, mode: int = 0o777, exist_ok: bool = False) -> None:
        self.mount.call("mkdir", "write", self.path)
        _need_folder(self.mount.volume, self.parent.path)
        if not self.is_dir():
            self.mount.change(self.parent.path, {self.path: FOLDER})

    def replace(self, target: "MountedPath") -> None:
        self.mount.call("rename", "write", self.path)
        file = _existing(self.mount.volume, self.path)
        _need_folder(self.mount.volume, target.parent.path)
        self.mount.change(target.parent.path, {self.path: None, target.path: file})
        self.mount.call("renamed", "", self.path)

    def hardlink_to(self, target: "MountedPath") -> None:
        self.mount.call("rename", "write", self.path)
        if self.path in self.mount.volume.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path)
        file = _existing(self.mount.volume, target.path)
        _need_folder(self.mount.volume, self.parent.path)
        self.mount.change(self.parent.path, {self.path: file})
        self.mount.call("renamed", "", self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        self.mount.call("unlink", "write", self.path)
        if self.path in self.mount.volume.entries or not missing_ok:
            _existing(self.mount.volume, self.path)
            self.mount.change(self.parent.path, {self.path: None})

    def read_bytes(self) -> bytes:
        self.mount.call("read", "read", self.path)
        file = _existing(self.mount.volume, self.path)
        if not (file.is_whole or file.is_damaged):
            self.mount.report(f"{self.path} was read before it was whole")
        return file.data

    def iterdir(self) -> Iterator["MountedPath"]:
        self.mount.call("list", "read", self.path)
        _need_folder(self.mount.volume, self.path)
        return iter([self / name for name in sorted(self.mount.names(self.path))])

    def stat(self) -> Any:
        file = self.mount.volume.entries.get(self.path, File())
        return SimpleNamespace(st_mtime=self.mount.now, st_size=len(file.data))


class _OpenFile:
    """A file that is being written."""

    def __init__(self, path: MountedPath) -> None:
        self._path, self._file = path, File()
        path.mount.call("open", "write", path.path)
        _need_folder(path.mount.volume, path.parent.path)
        path.mount.change(path.parent.path, {path.path: self._file})

    def write(self, data: bytes) -> None:
        self._file.data = data[: len(data) // 2]
        self._path.mount.call("write", "write", self._path.path)
        self._file.data, self._file.is_whole = data, True

    def flush(self) -> None:
        """Nothing is buffered."""

    def fileno(self) -> "_OpenFile":
        return self

    def fsync(self) -> None:
        self._path.mount.call("fsync", "write", self._path.path)
        self._file.flushed = self._file.data


class _OpenFolder:
    """A folder of the volume that was mounted when it was opened."""

    def __init__(self, path: MountedPath) -> None:
        self._path, self._volume = path, path.mount.volume
        _need_folder(self._volume, path.path)

    def fsync(self) -> None:
        self._path.mount.call("fsync folder", "write", self._path.path)
        self._volume.flush_folder(self._path.path)


@contextmanager
def installed() -> Iterator[None]:
    """Let `DirectoryStore` use a `MountedPath` as its folder."""
    fake_os = SimpleNamespace(
        O_RDONLY=os.O_RDONLY,
        O_DIRECTORY=os.O_DIRECTORY,
        open=lambda path, flags: _OpenFolder(path),
        close=lambda handle: None,
        fsync=lambda handle: handle.fsync(),
        path=SimpleNamespace(isdir=lambda path: path.is_dir()),
        walk=lambda root: [],  # `check` looks for what was left an hour ago
    )
    fakes = {"os": fake_os, "Path": lambda path: path, "open": lambda path, mode, opener: nullcontext(_OpenFile(path))}
    with mock.patch.multiple(directory, create=True, **fakes):
        yield


def _existing(volume: Volume, path: str) -> File:
    file = volume.entries.get(path)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return file


def _need_folder(volume: Volume, path: str) -> None:
    if volume.entries.get(path) is not FOLDER:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
