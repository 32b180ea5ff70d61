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
# A temporary file that was not written to for this long is removed. If its writer still runs, its rename fails, and it
# saves again.
_ABANDONED_AFTER_S = 300.0
_PROBE_CONTENT = b"streampca"
_FOLDER_FLUSH_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # on some network file systems
# The errors of a file system that has no hard links, or allows no further one.
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
    """`Store` in one folder, which is created by the first write.

    Each process flushes the name of a folder once, even if the folder exists: its creator may have been killed before
    the flush.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()  # since the relative path "." has no parent
        self.location = str(self.root)
        self._listed_folders: set[Path] = set()  # folders that this process has listed
        self._made_folders: set[Path] = set()  # folders that `mkdir` of this process has created, or has found
        self._flushed_folders: set[Path] = set()  # folders whose names are on disk, since this process has flushed them

    def write(self, name: str, data: bytes) -> None:
        """Temporary file → write → fsync → rename → fsync of the folder."""
        self._write(name, data, give_name=_rename)

    def create(self, name: str, data: bytes) -> bool:
        """Temporary file → write → fsync → link, which fails if the name exists → fsync of the folder."""
        return self._write(name, data, give_name=_link)

    def _write(self, name: str, data: bytes, give_name: Callable[[Path, Path], bool]) -> bool:
        """Write a temporary file, then call `give_name(temporary, path)`, and return its result.

        `give_name` renames the temporary file to `path`. If a file at `path` has to be kept, it removes the temporary
        file and returns False.
        """
        path = self._path(name)
        temporary = path.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        with _convert_errors("write", path):
            self._make_folder(path.parent)
            try:
                _write_durably(temporary, data)
                has_name = give_name(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
            _flush_folder(path.parent)
        return has_name

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with _convert_errors("read", path):
            return path.read_bytes()

    def names(self, folder: str) -> list[str]:
        """List the files and folders directly in a folder; [] if it does not exist."""
        path = self._path(folder)
        try:
            with _convert_errors("list", path):
                # Temporary files are left out: their names begin with a character that no valid part of a name has.
                names = sorted(f"{folder}/{entry.name}" for entry in path.iterdir() if is_part(entry.name))
        except FileNotFoundError:
            return []
        self._listed_folders.add(path)  # so that `_make_folder` notices if the store disappears
        return names

    def size(self, name: str) -> int:
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError), _convert_errors("read", path):
            return path.stat().st_size
        return 0

    def delete(self, name: str) -> None:
        """Remove the file. The folder is not flushed: a file that reappears after a power failure does no harm."""
        path = self._path(name)
        with _convert_errors("delete", path):
            path.unlink(missing_ok=True)

    def missing(self) -> str | None:
        return None if os.path.isdir(self.root) else self.location  # noqa: PTH112 - raises nothing

    def check(self) -> None:
        """Write, read back and remove a file. Remove the temporary files that killed processes have left."""
        probe = self.root / f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with _convert_errors("write", self.root):
            self._make_folder(self.root)
            try:
                _write_durably(probe, _PROBE_CONTENT)
                if probe.read_bytes() != _PROBE_CONTENT:
                    raise StoreError(f"cannot use {self.root}: a file read back differs from what was written")
                now = probe.stat().st_mtime  # by the file server's clock
                _remove_abandoned(self.root, before=now - _ABANDONED_AFTER_S)
            finally:
                _remove(probe)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents if they are missing, and flush their names to disk.

        Raises `StoreError` if the store has disappeared.
        """
        # This line stands before `is_dir`: in the other order, a folder that another thread creates between the two
        # lines would seem to have disappeared.
        has_existed = folder in self._listed_folders or folder in self._made_folders
        exists = folder.is_dir()
        if exists and not self._must_flush_name(folder):
            return
        if has_existed and not exists:
            self._raise_if_store_is_gone(folder)
        self._make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        self._made_folders.add(folder)
        with contextlib.suppress(PermissionError):  # the folder above the store may not be readable
            _flush_folder(folder.parent)
        self._flushed_folders.add(folder)

    def _must_flush_name(self, folder: Path) -> bool:
        """Return whether this process must flush the name of an existing folder to disk.

        Each process flushes a folder in the store once: its creator may have been killed before the flush. A folder
        above the store is flushed only by the process that has created it.
        """
        if folder in self._flushed_folders:
            return False
        is_in_store = folder.is_relative_to(self.root)
        return is_in_store or folder in self._made_folders

    def _raise_if_store_is_gone(self, folder: Path) -> None:
        """Raise `StoreError` if the whole store is gone, not only `folder`: its volume is probably not mounted."""
        if not self.root.is_dir() or not any(self.root.iterdir()):
            raise StoreError(
                f"cannot write to {folder}, which is gone, as is all else in {self.root}: mount its volume again, or "
                "restart this process if it was deleted"
            )

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.root / name


def _write_durably(path: Path, data: bytes) -> None:
    """Write a new file, and flush it to disk."""
    # The opener sets the permissions of the new file.
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, _FILE_MODE)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(temporary: Path, path: Path) -> bool:
    """Give the temporary file its real name, even if another file has it; return True."""
    temporary.replace(path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Give the temporary file its real name unless another file has it. Return whether it has got this name."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        return _rename_unless_taken(temporary, path)
    finally:
        _remove(temporary)  # only this name of the file; its real name remains
    return True


def _remove(path: Path) -> None:
    """Remove a file if possible."""
    with contextlib.suppress(OSError):
        path.unlink()


def _rename_unless_taken(temporary: Path, path: Path) -> bool:
    """Give the temporary file its real name unless another file has it. Return whether it has got this name.

    A lock file lets only one process rename at a time.
    """
    lock_file = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}")
    try:
        lock_file.touch(exist_ok=False)
    except FileExistsError:
        return False
    try:
        if path.exists():
            return False
        return _rename(temporary, path)
    finally:
        _remove(lock_file)


def _flush_folder(folder: Path) -> None:
    """Flush the names of the files and folders in a folder to disk, if the file system can do so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _remove_abandoned(root: Path, before: float) -> None:
    """Remove the temporary files that were last written before this time (seconds since 1970), where possible."""
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            with contextlib.suppress(OSError):
                if file.startswith(_TEMPORARY_PREFIX) and path.stat().st_mtime < before:
                    path.unlink()


@contextlib.contextmanager
def _convert_errors(verb: str, path: Path) -> Iterator[None]:
    """Convert errors of the file system that the block raises to `StoreError` with a remedy.

    When reading or listing, `FileNotFoundError` is raised as it is.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and verb in ("read", "list"):
            raise
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno == errno.ENOSPC and _has_no_free_inode(path):
            remedy = "there is space, but no free inode: remove some files, or make a file system with more inodes"
        explanation = f"cannot {verb} {path}: {error.strerror or error}"
        if remedy:
            explanation += f" ({remedy})"
        raise StoreError(explanation) from None


def _has_no_free_inode(path: Path) -> bool:
    """Return whether the file system limits the number of files, and has reached the limit."""
    if not hasattr(os, "statvfs"):  # Windows
        return False
    existing_path = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = os.statvfs(existing_path)
    are_inodes_limited = usage.f_files > 0
    free_inodes = usage.f_favail  # for users other than root
    return are_inodes_limited and free_inodes == 0
