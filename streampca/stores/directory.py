"""A store in a folder, which may lie on a disk shared by several machines.

A write goes to a temporary file in the same folder, is flushed to the disk, and is then renamed over the real name;
last the folder itself is flushed, so that the new name outlives a power cut. Temporary files begin with `~`, which
no name may contain: what a killed process leaves behind can be neither listed nor read, and `check` sweeps it away.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from streampca.errors import StoreError
from streampca.stores.base import check_name, is_part

_TEMPORARY = "~"
_ABANDONED_AFTER_S = 3600.0  # no write takes that long
_FOLDER_CANNOT_BE_FLUSHED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # as some network file systems answer

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file is larger than the file system or the process may have",
    errno.EACCES: "the user that runs this needs the right to read and write there",
    errno.EPERM: "the user that runs this needs the right to read and write there",
    errno.EROFS: "mount it writable or choose another folder",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "the disk fails",
}


class DirectoryStore:
    """`Store` in one folder, which is made when it is first written to."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def write(self, name: str, data: bytes) -> None:
        """Temporary file → write → fsync → rename → fsync of the folder."""
        path = self._path(name)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        try:
            _make_folder(path.parent)
            try:
                _write_durably(temporary, data)
                temporary.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _flush_folder(path.parent)
        except OSError as error:
            raise _refusal("write", path, error) from None

    def read(self, name: str) -> bytes:
        """The whole file."""
        path = self._path(name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refusal("read", path, error) from None

    def names(self, folder: str) -> list[str]:
        """What lies directly in the folder, without temporary files and anything else that is not ours."""
        path = self._path(folder)
        try:
            return sorted(f"{folder}/{entry.name}" for entry in path.iterdir() if is_part(entry.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refusal("list", path, error) from None

    def delete(self, name: str) -> None:
        """Remove the file. Not flushed: a file that comes back after a power cut does no harm."""
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _refusal("delete", path, error) from None

    def check(self) -> None:
        """Write, read back and remove a file; then sweep away what killed processes have left behind."""
        probe = self.root / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            _make_folder(self.root)
            try:
                _write_durably(probe, b"streampca")
                if probe.read_bytes() != b"streampca":
                    raise StoreError(f"cannot use {self.root}: a file read back is not what was written")
                # The probe's own time, because a file server's clock need not be ours.
                _sweep(self.root, before=probe.stat().st_mtime - _ABANDONED_AFTER_S)
            finally:
                with contextlib.suppress(OSError):
                    probe.unlink()
        except OSError as error:
            raise _refusal("write", self.root, error) from None

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.root / name


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make the folder and those above it, each durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _FOLDER_CANNOT_BE_FLUSHED:
            raise
    finally:
        os.close(descriptor)


def _sweep(root: Path, before: float) -> None:
    """Remove temporary files last written before that time; whatever cannot be removed stays."""
    for folder, _, files in os.walk(root):
        for file in files:
            if file.startswith(_TEMPORARY):
                path = Path(folder, file)
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()


def _refusal(verb: str, path: Path, error: OSError) -> StoreError:
    remedy = _REMEDIES.get(error.errno or 0)
    return StoreError(f"cannot {verb} {path}: {error.strerror or error}" + (f" ({remedy})" if remedy else ""))
