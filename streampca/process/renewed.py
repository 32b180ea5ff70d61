"""Notices that a file was replaced while the process runs: certificates, tokens, settings."""

from collections.abc import Iterable
from pathlib import Path


def file_version(path: Path) -> tuple[int, int] | None:
    """Return modification time and inode of a file, which change when it is replaced; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def file_versions(files: Iterable[Path]) -> list[tuple[int, int] | None]:
    """Return the `file_version` of each file."""
    return [file_version(path) for path in files]
