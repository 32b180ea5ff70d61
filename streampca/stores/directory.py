"""A store in a folder, which may be on a file system shared by several machines.

A write creates a temporary file in the same folder, flushes it to disk and renames it to the real name; then the
folder itself is flushed, so that the new name survives a power failure. Temporary files begin with `~`, which names
must not contain: what a killed process has left is never listed or read, and `check` removes it.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from streampca.errors import StoreError
from streampca.stores.base import Store, check_name, is_part

_TEMPORARY = "~"
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750  # checkpoints hold vectors of the topic
# Nobody can see whether a writer is dead: it may run on another machine or in another container, where a process
# id means nothing here, and not every shared file system has locks. But a live one that has written nothing for five
# minutes loses little: its rename fails, and the save is retried.
_ABANDONED_AFTER_S = 300.0
_FOLDER_FLUSH_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # on some network file systems
_LINKS_UNSUPPORTED = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file exceeds a limit of the file system or the process",
    errno.EACCES: "this user needs permission to read and write there",
    errno.EPERM: "this user needs permission to read and write there",
    errno.EROFS: "mount it writable or choose another folder",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "a file is in the place of a folder",
    errno.EISDIR: "a folder is in the place of a file",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "the disk is failing",
}


class DirectoryStore(Store):
    """`Store` in one folder, which is created by the first write."""

    def __init__(self, root: Path | str) -> None:
        self.root, self.location = Path(root), str(Path(root).absolute())
        self._seen: dict[Path, bool] = {}  # folder that exists or existed → whether it survives a power failure

    def write(self, name: str, data: bytes) -> None:
        """Temporary file → write → fsync → rename → fsync of the folder."""
        self._put(name, data, _rename)

    def create(self, name: str, data: bytes) -> bool:
        """Temporary file → write → fsync → link, which fails if the name exists → fsync of the folder."""
        return self._put(name, data, _link)

    def _put(self, name: str, data: bytes, link: Callable[[Path, Path], bool]) -> bool:
        """Write a temporary file, and `link` it; returns True if it is now the file of this name."""
        path = self._path(name)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        with _errors("write", path):
            self._make_folder(path.parent)
            try:
                _write_durably(temporary, data)
                is_ours = link(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
            _flush_folder(path.parent)
        return is_ours

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with _errors("read", path):
            return path.read_bytes()

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with contextlib.suppress(FileNotFoundError), _errors("list", path):
            names = sorted(f"{folder}/{entry.name}" for entry in path.iterdir() if is_part(entry.name))
            self._seen.setdefault(path, False)
            return names
        return []

    def delete(self, name: str) -> None:
        """Remove the file. Not flushed: a file that reappears after a power failure does no harm."""
        path = self._path(name)
        with _errors("delete", path):
            path.unlink(missing_ok=True)

    def missing(self) -> str | None:
        return None if os.path.isdir(self.root) else self.location  # noqa: PTH112 - raises nothing

    def check(self) -> None:
        """Write, read back and remove a file; then remove what killed processes have left."""
        probe = self.root / f"{_TEMPORARY}{secrets.token_hex(8)}"
        with _errors("write", self.root):
            self._make_folder(self.root)
            try:
                _write_durably(probe, b"streampca")
                if probe.read_bytes() != b"streampca":
                    raise StoreError(f"cannot use {self.root}: a file read back differs from what was written")
                # Compared with the probe file's time: a file server's clock may differ from this machine's.
                _remove_abandoned(self.root, before=probe.stat().st_mtime - _ABANDONED_AFTER_S)
            finally:
                _remove(probe)

    def _make_folder(self, folder: Path) -> None:
        """Create the folder and its parents, each durably, but not one that this process has seen before.

        Existing ones within the store are flushed once: the process that created them may have been killed before
        it could.
        """
        was_there = folder in self._seen  # before another thread creates it
        if folder.is_dir():
            if self._seen.get(folder, not folder.is_relative_to(self.root)):
                return
        elif was_there:  # created again, it would be on the disk beneath the volume
            raise StoreError(
                f"cannot write to {folder}, which is gone: mount its volume again, or restart this process if it was "
                "deleted"
            )
        self._make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        self._seen[folder] = False
        with contextlib.suppress(PermissionError):  # the store's parent may be unreadable; then we did not create it
            _flush_folder(folder.parent)
        self._seen[folder] = True

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.root / name


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, _FILE_MODE)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(temporary: Path, path: Path) -> bool:
    temporary.replace(path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Give the file its name unless that exists."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        return _rename_if_missing(temporary, path)
    finally:
        _remove(temporary)
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _rename_if_missing(temporary: Path, path: Path) -> bool:
    """For file systems without hard links: whoever creates the claim may rename, if the file is still missing."""
    claim = path.with_name(f"{_TEMPORARY}{path.name}")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    try:
        return not path.exists() and _rename(temporary, path)
    finally:
        _remove(claim)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _remove_abandoned(root: Path, before: float) -> None:
    """Remove temporary files written before that time, where possible."""
    every = (Path(folder, file) for folder, _, files in os.walk(root) for file in files)
    for path in every:
        with contextlib.suppress(OSError):
            if path.name.startswith(_TEMPORARY) and path.stat().st_mtime < before:
                path.unlink()


@contextlib.contextmanager
def _errors(verb: str, path: Path) -> Iterator[None]:
    """Raise the errors of a file system as `StoreError`; `FileNotFoundError` remains when reading and listing."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and verb in ("read", "list"):
            raise
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno == errno.ENOSPC and _has_no_inodes(path):
            remedy = "there is space, but no free inode: remove some files, or make a file system with more inodes"
        explanation = f"cannot {verb} {path}: {error.strerror or error}" + (f" ({remedy})" if remedy else "")
        raise StoreError(explanation) from None


def _has_no_inodes(path: Path) -> bool:
    """Return whether the file system has a limit of files, and has reached it."""
    if not hasattr(os, "statvfs"):  # Windows
        return False
    usage = os.statvfs(next(folder for folder in (path, *path.parents) if folder.exists()))
    return usage.f_files > 0 == usage.f_favail
