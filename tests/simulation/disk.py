"""A disk for `DirectoryStore`: what is not flushed may be torn, reordered or lost when the power fails.

A volume is the disk or the file server, a mount is how one machine sees it: its calls may fail, and its listings may be
as old as those of network file systems.
"""

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.scheduler import Process

STALE_S = 8.0  # longest time for which a mount shows a folder as it was; a minute in reality


@dataclass(eq=False)
class File:
    """`flushed` is what survives a power failure for certain."""

    data: bytes = b""
    flushed: bytes | None = None
    is_whole: bool = False  # everything was written
    is_damaged: bool = False  # by a fault, not by a writer

    @property
    def is_readable(self) -> bool:
        """Whether its reader gets what was written."""
        return self.is_whole and not self.is_damaged

    def flip(self) -> None:
        """Damage it: flip the bits of one byte."""
        data = bytearray(self.data)
        data[len(data) // 2] ^= 0xFF
        self.data = self.flushed = bytes(data)
        self.is_damaged = True


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
        file = self.durable.get(path)
        return file is not None and file.flushed == file.data and _has_parents(self.durable, path)

    def names(self, folder: str) -> list[str]:
        start = len(folder) + 1
        below = (path[start:] for path in self.entries if path.startswith(folder) and path[start - 1 : start] == "/")
        return [name for name in below if "/" not in name]

    def files(self, folder: str) -> list[str]:
        """The paths of the visible files below a folder, sorted."""
        found = (path for path, file in self.entries.items() if path.startswith(folder) and file is not FOLDER)
        return sorted(path for path in found if "~" not in path)


class Mount:
    """How the machine of one process sees the volume that is mounted now."""

    def __init__(
        self, mounted: Callable[[], Volume], changed: Callable[[str], object], report: Callable[[str], object]
    ):
        self._mounted, self.changed, self.report = mounted, changed, report
        self.process: Process | None = None
        self.failing: set[str] = set()  # read, write: calls that fail now
        self.stale_until = 0.0
        self.back_until = 0.0  # until then, listings are those before the last ones
        self._listings: dict[str, tuple[float, Volume, set[str]]] = {}
        self._former: dict[str, set[str]] = {}

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
            if names != (found := set(self.volume.names(folder))):
                self._former[folder] = names
            self._listings[folder] = self.now, self.volume, (names := found)
        return self._former.get(folder, names) if self.now < self.back_until else names

    def seen(self, folder: str) -> set[str]:
        """The names that were last listed in a folder of the volume that is mounted now."""
        _, volume, names = self._listings.get(folder, (0.0, self.volume, set[str]()))
        return names if volume is self.volume else set()

    def may_list_empty(self, folder: str) -> bool:
        """Whether this machine has listed a folder before its first file was written, and may list it so again."""
        at, volume, names = self._listings.get(folder, (-STALE_S, self.volume, set()))
        is_recent = self.now - at < STALE_S and volume is self.volume
        return is_recent and all("~" in name for name in names)

    def change(self, folder: str, changes: Changes) -> None:
        """Change entries; this machine's own changes are in its listings at once."""
        self.volume.change(folder, changes)
        if folder in self._listings:
            for path, file in changes.items():
                names = self._listings[folder][2]
                (names.discard if file is None else names.add)(posixpath.basename(path))
        for path in changes:
            self.changed(path)


def _apply(entries: dict[str, File], changes: Changes) -> None:
    for path, file in changes.items():
        if file is None:
            entries.pop(path, None)
        else:
            entries[path] = file


def _has_parents(entries: dict[str, File], path: str) -> bool:
    return path == "/" or (entries.get(parent := posixpath.dirname(path)) is FOLDER and _has_parents(entries, parent))
