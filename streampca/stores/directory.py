"""A store in a folder, which may be on a file system shared by several machines.

A write creates a temporary file in the same folder, flushes it to disk and renames it to the real name. Then it flushes
the folder, so that the new name survives a power failure. The names of temporary files begin with `~`, which a name in
the store must not contain. So a temporary file that a killed process has left is never listed or read; `check` removes
it.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from streampca.errors import StoreError
from streampca.stores.base import Store, check_name, is_part

_TEMPORARY_PREFIX = "~"
_FILE_MODE = 0o640  # not readable by all users: checkpoints hold vectors of the topic
_FOLDER_MODE = 0o750
# A temporary file that was not written to for this long is removed. Nobody can see whether its writer is dead: it may
# run on another machine or in another container, whose process ids mean nothing here, and not every shared file system
# has locks. If the writer lives, it loses little: its rename fails, and the save is retried.
_ABANDONED_AFTER_S = 300.0
_PROBE_CONTENT = b"streampca"
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
        self.root = Path(root)
        self.location = str(self.root.absolute())
        self._is_durable: dict[Path, bool] = {}  # by each folder that this process has seen: whether it was flushed

    def write(self, name: str, data: bytes) -> None:
        """Temporary file → write → fsync → rename → fsync of the folder."""
        self._write(name, data, give_name=_rename)

    def create(self, name: str, data: bytes) -> bool:
        """Temporary file → write → fsync → link, which fails if the name exists → fsync of the folder."""
        return self._write(name, data, give_name=_link)

    def _write(self, name: str, data: bytes, give_name: Callable[[Path, Path], bool]) -> bool:
        """Write a temporary file, and give it its name. Return whether `give_name` has done so."""
        path = self._path(name)
        temporary = path.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        with _store_errors("write", path):
            self._make_folder(path.parent)
            try:
                _write_durably(temporary, data)
                is_ours = give_name(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
            _flush_folder(path.parent)
        return is_ours

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with _store_errors("read", path):
            return path.read_bytes()

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with contextlib.suppress(FileNotFoundError), _store_errors("list", path):
            names = sorted(f"{folder}/{entry.name}" for entry in path.iterdir() if is_part(entry.name))
            self._is_durable.setdefault(path, False)  # seen, but not flushed by this process
            return names
        return []

    def delete(self, name: str) -> None:
        """Remove the file. The folder is not flushed: a file that reappears after a power failure does no harm."""
        path = self._path(name)
        with _store_errors("delete", path):
            path.unlink(missing_ok=True)

    def missing(self) -> str | None:
        return None if os.path.isdir(self.root) else self.location  # noqa: PTH112 - raises nothing

    def check(self) -> None:
        """Write, read back and remove a file; then remove the temporary files that killed processes have left."""
        probe = self.root / f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with _store_errors("write", self.root):
            self._make_folder(self.root)
            try:
                _write_durably(probe, _PROBE_CONTENT)
                if probe.read_bytes() != _PROBE_CONTENT:
                    raise StoreError(f"cannot use {self.root}: a file read back differs from what was written")
                # Compared with the probe file's time: a file server's clock may differ from this machine's.
                _remove_abandoned(self.root, before=probe.stat().st_mtime - _ABANDONED_AFTER_S)
            finally:
                _remove(probe)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents where they are missing, and flush them, so that they survive a power failure.

        A folder of the store that exists is flushed, too, once: the process that created it may have been killed before
        it did so. If this process has seen the folder before, and it is gone, raises `StoreError`.
        """
        was_seen = folder in self._is_durable  # asked before `is_dir`: another thread may create the folder meanwhile
        if folder.is_dir():
            is_around_store = not folder.is_relative_to(self.root)  # then others have created it
            if self._is_durable.get(folder, is_around_store):
                return
        elif was_seen:  # perhaps its volume was unmounted: a new folder would lie on the disk beneath the volume
            raise StoreError(
                f"cannot write to {folder}, which is gone: mount its volume again, or restart this process if it was "
                "deleted"
            )
        self._make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        self._is_durable[folder] = False
        with contextlib.suppress(PermissionError):  # the store's parent may be unreadable; then we did not create it
            _flush_folder(folder.parent)  # which holds the folder's name
        self._is_durable[folder] = True

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.root / name


def _write_durably(path: Path, data: bytes) -> None:
    """Write a new file, and flush it to disk."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, _FILE_MODE)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(temporary: Path, path: Path) -> bool:
    """Give the file its name, in place of another file; return True."""
    temporary.replace(path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    """If no file has this name, give it to the temporary file; return whether it has got it."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        return _rename_if_missing(temporary, path)
    finally:
        _remove(temporary)  # the file itself remains, under its name
    return True


def _remove(path: Path) -> None:
    """Remove a file if possible."""
    with contextlib.suppress(OSError):
        path.unlink()


def _rename_if_missing(temporary: Path, path: Path) -> bool:
    """If no file has this name, give it to the temporary file, without a hard link; return whether it has got it.

    Several processes may try at once. Only the one that creates a claim, a file that it removes afterwards, may rename.
    """
    claim = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    try:
        if path.exists():
            return False
        return _rename(temporary, path)
    finally:
        _remove(claim)


def _flush_folder(folder: Path) -> None:
    """Flush the names of a folder's files to disk, if the file system can do so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _remove_abandoned(root: Path, before: float) -> None:
    """Where possible, remove temporary files that were written last before this time (seconds since 1970)."""
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            with contextlib.suppress(OSError):
                if file.startswith(_TEMPORARY_PREFIX) and path.stat().st_mtime < before:
                    path.unlink()


@contextlib.contextmanager
def _store_errors(verb: str, path: Path) -> Iterator[None]:
    """Raise errors of the file system as `StoreError`. When reading or listing, `FileNotFoundError` remains."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and verb in ("read", "list"):
            raise
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno == errno.ENOSPC and _has_no_inodes(path):
            remedy = "there is space, but no free inode: remove some files, or make a file system with more inodes"
        explanation = f"cannot {verb} {path}: {error.strerror or error}"
        if remedy:
            explanation += f" ({remedy})"
        raise StoreError(explanation) from None


def _has_no_inodes(path: Path) -> bool:
    """Return whether the file system limits the number of files, and has reached the limit."""
    if not hasattr(os, "statvfs"):  # Windows
        return False
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    usage = os.statvfs(existing)
    is_limited = usage.f_files > 0
    return is_limited and usage.f_favail == 0
