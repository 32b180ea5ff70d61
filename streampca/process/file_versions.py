"""Notices that a file was replaced while the process runs: certificates, tokens, settings."""

from collections.abc import Iterable
from pathlib import Path


def read_file_version(path: Path) -> tuple[int, int] | None:
    """Return modification time and inode of a file, which change when the file is replaced; None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def read_file_versions(files: Iterable[Path]) -> list[tuple[int, int] | None]:
    """Return modification time and inode of each file; None for each file that does not exist."""
    return [read_file_version(path) for path in files]
